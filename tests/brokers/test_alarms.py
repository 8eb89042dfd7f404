"""Alarms for rows of a store: hints that prove nothing, count nothing, and lie beside messages."""

import pytest

from django_delayq.brokers.base import BATCH, Alarm, ClaimRequest, Claims
from tests.brokers.conftest import TIMERS, name
from tests.brokers.rig import LEASE_MS, Rig, ids

HOUR = 3_600_000

pytestmark = pytest.mark.parametrize("rig", TIMERS, ids=name, indirect=True)


def _claim(rig: Rig, count: int = 100, key: str = "k") -> Claims:
    return rig.timer.take_due([ClaimRequest("q", key, count)], lease_ms=LEASE_MS, worker="w")


def _pks(rig: Rig, count: int = 100, key: str = "k") -> list[str]:
    return [alarm.pk for alarm in _claim(rig, count, key).alarms]


def _put(rig: Rig, *pks: str, wait_ms: int = 0, key: str = "k") -> list[Alarm]:
    alarms = [Alarm("q", key, pk, wait_ms) for pk in pks]
    rig.timer.schedule(alarms)
    rig.advance(1)  # no wait at all is rounded up, too
    return alarms


def test_an_alarm_goes_off_when_its_wait_is_over(rig: Rig) -> None:
    _put(rig, "later", wait_ms=HOUR)
    _put(rig, "1")
    claims = _claim(rig)
    assert claims.messages == []
    assert [(alarm.queue, alarm.key, alarm.pk) for alarm in claims.alarms] == [("q", "k", "1")]
    assert _pks(rig) == []
    rig.advance(HOUR)
    assert _pks(rig) == ["later"]


@pytest.mark.needs("alarm_index")
def test_of_two_for_one_row_the_earlier_counts(rig: Rig) -> None:
    _put(rig, "1", "1", wait_ms=HOUR)
    _put(rig, "1", wait_ms=2 * HOUR)
    assert sum(found.pending + found.ready for found in rig.timer.counts().waiting) == 1
    rig.advance(HOUR)
    assert _pks(rig) == ["1"]
    _put(rig, "2", wait_ms=2 * HOUR)
    _put(rig, "2", wait_ms=HOUR)
    rig.advance(HOUR)
    assert _pks(rig) == ["2"]


def test_a_dropped_alarm_is_forgotten(rig: Rig) -> None:
    _put(rig, "1", "2")
    claimed = _claim(rig).alarms
    rig.timer.drop(claimed[:1])
    rig.timer.drop(claimed[:1])
    rig.lapse()
    assert _pks(rig) == [claimed[1].pk]


def test_alarms_go_back_in_the_step_that_drops_them(rig: Rig) -> None:
    _put(rig, "1", "2", "3")
    claimed = _claim(rig).alarms
    rig.timer.drop(claimed[:2], [Alarm("q", "k", claimed[0].pk, HOUR), Alarm("q", "other", claimed[1].pk)])
    rig.advance(1)
    assert _pks(rig) == []
    assert _pks(rig, key="other") == [claimed[1].pk]
    if rig.carries_messages:
        found = [rig.timer.find_alarms("q", "k", [one.pk])[0].lease_end_ms for one in (claimed[0], claimed[2])]
        assert [end is None for end in found] == [True, False]
    rig.advance(HOUR)
    assert _pks(rig) == [claimed[0].pk]


def test_a_lapsed_alarm_is_ready_again_and_counts_nothing(rig: Rig) -> None:
    _put(rig, "1")
    for _ in range(5):
        assert _pks(rig) == ["1"]
        rig.lapse()
    assert _pks(rig) == ["1"]
    if rig.carries_messages:
        assert rig.timer.counts().error == 0
        assert [rig.total(name) for name in ("sent", "reclaimed", "buried")] == [0, 0, 0]


def test_put_again_while_it_runs_goes_off_again(rig: Rig) -> None:
    _put(rig, "1")
    claimed = _claim(rig).alarms
    _put(rig, "1", wait_ms=HOUR)
    rig.timer.drop(claimed)
    assert _pks(rig) == []
    rig.advance(HOUR)
    assert _pks(rig) == ["1"]


@pytest.mark.needs("queue")
def test_alarms_and_messages_share_a_set(rig: Rig) -> None:
    rig.send("message", delay_ms=HOUR)
    _put(rig, "alarm", wait_ms=HOUR // 2)
    claims = _claim(rig)
    assert claims.next_due_ms is not None
    assert claims.next_due_ms < rig.get("message").due_ms
    rig.advance(2 * HOUR)
    first = _claim(rig, 1)
    assert ([alarm.pk for alarm in first.alarms], first.messages, first.more_available) == (["alarm"], [], True)
    second = _claim(rig, 1)
    assert (second.alarms, ids(second.messages), second.more_available) == ([], ["message"], False)


@pytest.mark.needs("queue")
def test_a_row_and_a_message_of_one_name_are_two(rig: Rig) -> None:
    rig.send("7")
    _put(rig, "7")
    claims = _claim(rig)
    assert ([alarm.pk for alarm in claims.alarms], ids(claims.messages)) == (["7"], ["7"])
    rig.timer.drop(claims.alarms)
    assert rig.get("7").holder == "w"


def test_one_row_under_two_keys_is_two_alarms(rig: Rig) -> None:
    _put(rig, "1", key="old")
    _put(rig, "1", key="new")
    assert _pks(rig, key="old") == ["1"]
    assert _pks(rig, key="new") == ["1"]


def test_any_text_names_a_row_and_its_key(rig: Rig) -> None:
    for key in ("a:b", "ключ|{x}"):
        _put(rig, "0198-ü", key=key)
        assert [(alarm.key, alarm.pk) for alarm in _claim(rig, key=key).alarms] == [(key, "0198-ü")]
        rig.lapse()
        assert _pks(rig, key=key) == ["0198-ü"]


@pytest.mark.needs("queue")
def test_an_alarm_is_no_message(rig: Rig) -> None:
    _put(rig, "1")
    assert rig.look("1") is None
    assert rig.broker.queue.peek("q", 10) == []
    assert (
        rig.broker.queue.cancel(["1"]) == rig.broker.queue.reschedule(["1"]) == rig.broker.queue.purge(["1"]) == [False]
    )
    assert _pks(rig) == ["1"]


@pytest.mark.needs("queue")
def test_the_audit_does_not_count_alarms(rig: Rig) -> None:
    rig.send("message")
    _put(rig, "waits", wait_ms=HOUR)
    _put(rig, "runs", key="other")
    assert _pks(rig, key="other") == ["runs"]
    audit = rig.broker.queue.audit()
    assert audit.differences == []
    assert audit.places == {"pending": 0, "ready": 1, "running": 0, "error": 0}


def test_full_batches_of_alarms(rig: Rig) -> None:
    _put(rig, *(f"{n:04}" for n in range(BATCH)))
    if rig.carries_messages:
        rig.send("message")
    else:
        rig.timer.schedule([Alarm("q", "k", "one more")])
    claims = _claim(rig, 5 * BATCH)
    assert len(claims.alarms) + len(claims.messages) <= BATCH
    assert claims.more_available
    while claims.alarms:
        rig.timer.drop(claims.alarms)
        claims = _claim(rig, 5 * BATCH)
    rig.lapse()
    assert _claim(rig, 5 * BATCH).alarms == []


def test_a_full_pair_does_not_starve_another(rig: Rig) -> None:
    _put(rig, *(f"{n}" for n in range(200)), key="flood")
    _put(rig, "other", key="other")
    wants = [ClaimRequest("q", "flood", 10), ClaimRequest("q", "other", 10)]
    alarms = rig.timer.take_due(wants, lease_ms=LEASE_MS, worker="w").alarms
    assert len(alarms) == 11
    assert "other" in {alarm.pk for alarm in alarms}


def test_what_is_due_first_is_given_first(rig: Rig) -> None:
    for minutes in (30, 10, 40, 20):
        rig.timer.schedule([Alarm("q", "k", f"{minutes}", minutes * 60_000)])
    rig.advance(HOUR)
    assert [*_pks(rig, 2), *_pks(rig, 2)] == ["10", "20", "30", "40"]


def test_a_leased_alarm_is_not_given_again(rig: Rig) -> None:
    _put(rig, "1", "2")
    first = _pks(rig, 1)
    assert sorted([*first, *_pks(rig)]) == ["1", "2"]
    assert _pks(rig) == []
    assert rig.timer.maintain(lease_ms=LEASE_MS).next_lease_end_ms is not None


def test_a_pair_wanted_twice_gives_each_alarm_once(rig: Rig) -> None:
    _put(rig, "1", "2", "3")
    claims = rig.timer.take_due([ClaimRequest("q", "k", 1), ClaimRequest("q", "k", 1)], lease_ms=LEASE_MS, worker="w")
    assert len(claims.alarms) == 2
    assert sorted([*(alarm.pk for alarm in claims.alarms), *_pks(rig)]) == ["1", "2", "3"]


def test_a_claim_says_whether_more_is_due_and_when(rig: Rig) -> None:
    _put(rig, "1", "2")
    assert _claim(rig, 1).more_available
    assert not _claim(rig, 9).more_available
    assert _claim(rig, 9).next_due_ms is None
    assert _claim(rig, 0).alarms == []
