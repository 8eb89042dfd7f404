"""What an audit sees of the alarms: each row's, and all there are, a page at a time."""

from collections.abc import Iterator

import pytest

from django_delayq.brokers.base import BATCH, Alarm, AlarmInfo, ClaimRequest
from tests.brokers.conftest import WITHOUT_STORE, name
from tests.brokers.rig import LEASE_MS, Rig

HOUR = 3_600_000

pytestmark = [
    pytest.mark.parametrize("rig", WITHOUT_STORE, ids=name, indirect=True),
    pytest.mark.needs("alarm_index"),
]


def put(rig: Rig, *pks: str, wait_ms: int = HOUR, key: str = "k") -> None:
    rig.timer.schedule([Alarm("q", key, pk, wait_ms) for pk in pks])
    rig.advance(1)


def claim(rig: Rig, count: int = BATCH, key: str = "k") -> list[str]:
    claims = rig.timer.take_due([ClaimRequest("q", key, count)], lease_ms=LEASE_MS, worker="w")
    return [alarm.pk for alarm in claims.alarms]


def find(rig: Rig, *pks: str, key: str = "k") -> dict[str, AlarmInfo]:
    return {alarm.pk: alarm for alarm in rig.timer.find_alarms("q", key, pks)}


def walk(rig: Rig, key: str = "k", count: int = BATCH) -> Iterator[list[AlarmInfo]]:
    """All pages."""
    after = ""
    while True:
        page, after = rig.timer.alarms("q", key, after=after, count=count)
        yield page
        if not after:
            return


def now_ms(rig: Rig) -> float:
    return rig.now_us() / 1000


def test_of_the_rows_asked_for_those_with_an_alarm_are_told(rig: Rig) -> None:
    put(rig, "1", "2", "3")
    assert find(rig, "3", "gone", "1").keys() == {"1", "3"}
    assert find(rig, "1", key="other") == find(rig) == {}


def test_an_alarm_that_waits_has_a_due_time(rig: Rig) -> None:
    put(rig, "1")
    alarm = find(rig, "1")["1"]
    assert alarm.due_ms == pytest.approx(now_ms(rig) + HOUR, abs=HOUR / 2)
    assert alarm.lease_end_ms is None


def test_an_alarm_is_told_with_the_time_by_which_it_is_due(rig: Rig) -> None:
    put(rig, "1")
    alarm = find(rig, "1")["1"]
    assert alarm.due_ms is not None
    assert alarm.now_ms is not None
    assert HOUR - LEASE_MS < alarm.due_ms - alarm.now_ms <= HOUR


def test_an_alarm_that_runs_has_the_end_of_its_lease(rig: Rig) -> None:
    put(rig, "1", wait_ms=0)
    assert claim(rig) == ["1"]
    alarm = find(rig, "1")["1"]
    assert alarm.due_ms is None
    assert alarm.lease_end_ms == pytest.approx(now_ms(rig) + LEASE_MS, abs=LEASE_MS / 2)


def test_an_alarm_put_again_while_it_runs_has_both(rig: Rig) -> None:
    put(rig, "1", wait_ms=0)
    claim(rig)
    put(rig, "1")
    alarm = find(rig, "1")["1"]
    assert None not in (alarm.due_ms, alarm.lease_end_ms)


def test_a_dropped_alarm_is_seen_nowhere(rig: Rig) -> None:
    put(rig, "1", wait_ms=0)
    claim(rig)
    rig.timer.drop([Alarm("q", "k", "1")])
    assert find(rig, "1") == {}
    assert [page for page in walk(rig) if page] == []


def test_the_pages_give_all_that_wait_and_run_of_one_set(rig: Rig) -> None:
    running, waiting = [f"r{n:04}" for n in range(300)], [f"w{n:04}" for n in range(2_500)]
    put(rig, *running, wait_ms=0)
    put(rig, "elsewhere", key="k2", wait_ms=0)
    claimed = claim(rig, key="k2")
    while more := claim(rig):
        claimed += more
    assert sorted(claimed) == ["elsewhere", *running]
    for start in range(0, len(waiting), BATCH):
        put(rig, *waiting[start : start + BATCH])
    put(rig, "elsewhere too", key="k2")
    rig.send("no alarm")
    rig.claim_one()
    rig.send("nor this", delay_ms=HOUR)
    pages = list(walk(rig, count=200))
    assert max(len(page) for page in pages) < 200 * 1.5
    found = [alarm for page in pages for alarm in page]
    assert {alarm.pk for alarm in found if alarm.lease_end_ms is not None} == set(running)
    assert {alarm.pk for alarm in found if alarm.due_ms is not None} == set(waiting)


def test_what_is_there_all_the_while_is_given_while_others_come_and_go(rig: Rig) -> None:
    stays = {f"stays {n:04}" for n in range(500)}
    put(rig, *stays)
    seen: set[str] = set()
    for n, page in enumerate(walk(rig, count=50)):
        seen.update(alarm.pk for alarm in page)
        put(rig, *(f"comes {n} {m}" for m in range(100)), wait_ms=0)
        assert len(claim(rig)) == 100
        if n > 100:
            break
    assert stays <= seen


@pytest.mark.parametrize("key", ["a:b", "a*[b]?", "ключ|{x}"])
def test_any_text_names_a_set_and_a_row(rig: Rig, key: str) -> None:
    put(rig, "0198-ü", key=key, wait_ms=0)
    assert find(rig, "0198-ü", key=key).keys() == {"0198-ü"}
    assert [alarm.pk for page in walk(rig, key=key) for alarm in page] == ["0198-ü"]
    claim(rig, key=key)
    assert find(rig, "0198-ü", key=key).keys() == {"0198-ü"}
    assert [alarm.pk for page in walk(rig, key=key) for alarm in page] == ["0198-ü"]


def test_full_batches_are_looked_for(rig: Rig) -> None:
    pks = [f"{n:04}" for n in range(BATCH)]
    put(rig, *pks)
    assert list(find(rig, *pks)) == pks
    with pytest.raises(ValueError, match="1001 in one call"):
        find(rig, *pks, "one more")


def test_the_counts_have_alarms_among_what_waits_and_runs(rig: Rig) -> None:
    put(rig, "later")
    put(rig, "1", "2", wait_ms=0)
    assert len(claim(rig, 1)) == 1
    counts = rig.timer.counts()
    (found,) = counts.waiting
    assert (found.pending, found.ready, counts.running) == (1, 1, 1)
    assert sum(counts.totals.values()) == 0
