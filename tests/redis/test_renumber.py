"""From one number of shards to another while messages wait: nothing is lost or doubled, whoever knows what."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from django_delayq.brokers.base import (
    Alarm,
    Header,
    OnConflict,
    Placed,
    Put,
    SettleAction,
    Want,
    WorkerInfo,
)
from django_delayq.brokers.redis import RedisBroker
from django_delayq.brokers.redis.scripts import load
from django_delayq.brokers.redis.shards import Shards
from django_delayq.conf import Alias
from django_delayq.errors import BrokerRefused
from django_delayq.message import State
from tests.brokers.rig import LEASE_MS, OPTIONS, end_of
from tests.servers import Server

MANY = [f"{n:03}" for n in range(60)]
HOUR_MS = 3_600_000
WANT = [Want("q", "k", 500)]
NUMBERS = pytest.mark.parametrize(("old", "new"), [(4, 16), (16, 4), (4, 6), (1, 3), (3, 1)])

Process = Callable[..., RedisBroker]


@pytest.fixture
def process(redis_server: Server) -> Iterator[Process]:
    """A process on one Redis, with the numbers of shards that its settings have."""
    with ExitStack() as stack:

        def start(shards: int, old_shards: int | None = None) -> RedisBroker:
            options = replace(OPTIONS, shards=shards, old_shards=old_shards, error_max=1_000)
            broker = RedisBroker(Alias("default", location=redis_server.url, options=options))
            stack.callback(broker.close)
            return broker

        yield start


def send(broker: RedisBroker, *ids: str, on_conflict: OnConflict = "keep", delay_ms: int = 0) -> Sequence[Placed]:
    placed = broker.put([Put(id, Header("q", "k"), b"1", delay_ms) for id in ids], on_conflict)
    while not delay_ms and broker.counts().now_ms < max(one.due_ms for one in placed):
        pass  # due times are rounded up, so this takes up to 1 ms
    return placed


def created(placed: Sequence[Placed]) -> list[bool | None]:
    return [one.created for one in placed]


def claim(broker: RedisBroker) -> dict[str, int]:
    """The tokens of all that is due, by id: no id is given twice."""
    tokens: dict[str, int] = {}
    while claimed := broker.claim(WANT, lease_ms=LEASE_MS, worker="w").messages:
        assert not tokens.keys() & {one.id for one in claimed}
        tokens |= {one.id: one.token for one in claimed}
    return tokens


def end(broker: RedisBroker, tokens: dict[str, int], verb: SettleAction = SettleAction.FINISH) -> list[bool | None]:
    answers = broker.settle([end_of(id, token, verb, "q", "k") for id, token in tokens.items()])
    return list(dict.fromkeys(answers))


def moved(old: int, new: int) -> list[str]:
    """Those of MANY whose home is another by the new number."""
    shards = Shards("delayq", new, old)
    return [id for id in MANY if len(shards.homes(id)) > 1]


def check(broker: RedisBroker) -> None:
    assert broker.audit().differences == []


@NUMBERS
def test_each_message_runs_once_whoever_sends_and_claims_amid_the_change(process: Process, old: int, new: int) -> None:
    before, both = process(old), process(new, old)
    send(before, *MANY[:20])
    running = claim(before)
    assert len(running) == 20
    send(both, *MANY[10:40])
    assert created(send(before, *MANY[:40])) == [False] * 40
    both.switch_shards()
    assert created(send(both, *MANY)) == [False] * 40 + [True] * 20
    assert end(before, running) == [True]  # what a worker runs that knows the old number only
    claimed = claim(both)
    assert sorted(claimed) == MANY[20:]
    assert set(both.renew(list(claimed.items()), LEASE_MS)) == {True}
    assert end(both, claimed) == [True]
    assert end(both, claimed) == [False]
    check(both)
    assert both.end_change_of_shards().has_ended
    after = process(new)
    assert created(send(after, *MANY[:5])) == [True] * 5
    assert sorted(claim(after)) == MANY[:5]


@NUMBERS
def test_a_message_is_seen_and_moved_by_its_id_wherever_it_lies(process: Process, old: int, new: int) -> None:
    both = process(new, old)
    olds, news = moved(old, new)[:6], moved(old, new)[6:12]
    send(both, *olds, delay_ms=60_000)
    both.switch_shards()
    send(both, *news, delay_ms=60_000)
    found = [both.get(id) for id in (*olds, *news)]
    assert [info and info.state for info in found] == [State.PENDING] * 12
    assert both.get("none") is None
    (kept,) = send(both, olds[0], delay_ms=1)
    (changed,) = send(both, olds[0], on_conflict="earliest", delay_ms=30_000)
    assert (kept.created, changed.created, changed.due_ms < kept.due_ms) == (False, False, True)
    assert created(send(both, olds[0], on_conflict="replace", delay_ms=60_000)) == [False]
    assert both.reschedule([olds[0], news[0], "none"], delay_ms=90_000) == [True, True, False]
    assert both.cancel([olds[1], news[1], "none"]) == [True, True, False]
    assert both.purge([olds[2], news[2], "none"]) == [True, True, False]
    left = sorted([olds[0], *olds[3:], news[0], *news[3:]])
    assert sorted(info.id for info in both.peek("q", 100)) == left
    assert both.counts().totals["sent"] == 12
    check(both)


def test_what_runs_when_it_is_switched_goes_back_and_ends_where_it_is(process: Process) -> None:
    both = process(16, 4)
    send(both, *MANY)
    tokens = claim(both)
    both.switch_shards()
    assert {placed.running for placed in send(both, *MANY)} == {True}
    assert end(both, tokens, SettleAction.RELEASE) == [True]
    assert end(both, tokens, SettleAction.RELEASE) == [False]
    assert both.change_of_shards().messages == len(moved(4, 16))
    assert end(both, claim(both)) == [True]
    assert both.change_of_shards().has_drained
    check(both)


@NUMBERS
def test_a_process_that_knows_the_old_number_only_is_refused_once_it_is_switched(
    process: Process, old: int, new: int
) -> None:
    before, both = process(old), process(new, old)
    send(before, "running", "buried")
    tokens = claim(before)
    end(before, {"buried": tokens.pop("buried")}, SettleAction.BURY)
    send(before, "waiting")
    both.switch_shards()
    new_put = [Put("new", Header("q", "k"), b"1")]
    refused: list[Callable[[], object]] = [
        lambda: before.put(new_put),
        lambda: before.begin_put_once(new_put, "job", HOUR_MS)(),
        lambda: before.claim(WANT, lease_ms=LEASE_MS, worker="w"),
        lambda: before.claim_suspect(WANT, lease_ms=LEASE_MS, worker="w"),
        lambda: before.cancel(["new"]),
        lambda: before.reschedule(["new"]),
        lambda: before.purge(["new"]),
        lambda: before.rescue(["buried"]),
        lambda: before.get("new"),
        lambda: before.announce(WorkerInfo("w", ["q"], ["k"], 0, 0)),
        lambda: process(old).open(),
    ]
    for move in refused:
        with pytest.raises(BrokerRefused, match="shards"):
            move()
    assert before.renew(list(tokens.items()), LEASE_MS) == [True]
    assert end(before, tokens) == [True]  # what it runs it may end
    assert both.counts().totals["sent"] == 3
    check(both)


def test_an_id_that_is_sent_by_many_while_it_is_switched_is_one_message(process: Process) -> None:
    before, both = [process(4) for _ in range(2)], [process(16, 4) for _ in range(4)]
    taken: list[str] = []
    goes_on = threading.Barrier(len(before) + len(both) + 1)

    def send_each(broker: RedisBroker) -> None:
        goes_on.wait()
        with suppress(BrokerRefused):
            for id in MANY:
                (placed,) = broker.put([Put(id, Header("q", "k"), b"1")])
                taken.extend([id] if placed.created else [])

    threads = [threading.Thread(target=send_each, args=(broker,)) for broker in (*before, *both)]
    for thread in threads:
        thread.start()
    goes_on.wait()
    both[0].switch_shards()
    for thread in threads:
        thread.join()
    assert sorted(taken) == MANY
    send(both[0], "last")
    assert sorted(claim(both[0])) == [*MANY, "last"]
    check(both[0])


@pytest.mark.parametrize("steps", [0, 1, 10, 16, 17, 19, 31])
def test_a_switch_that_is_half_made_doubles_nothing_and_is_made_again(
    process: Process, redis_server: Server, steps: int
) -> None:
    before, both = process(4), process(16, 4)
    send(before, *MANY[:20])
    with redis_server.client() as client:
        client.hset("{delayq:meta}", mapping={"shards": 16, "old_shards": 4})
        told = [(keys.count, step) for step in ("4>16", "16") for keys in Shards("delayq", 16, 4).all]
        for key, step in told[:steps]:
            client.eval(load("tell").source, 1, key, step, 16)
    send(both, *MANY)
    if steps >= 16:
        with pytest.raises(BrokerRefused):
            claim(before)
    assert not both.change_of_shards().is_switched
    both.switch_shards()
    assert created(send(both, *MANY)) == [False] * len(MANY)
    assert both.change_of_shards().is_switched
    assert sorted(claim(both)) == MANY
    check(both)


def test_a_switch_that_comes_again_does_not_go_back(process: Process, redis_server: Server) -> None:
    both = process(16, 4)
    both.switch_shards()
    send(both, *MANY)
    with redis_server.client() as client:  # the first round of another
        for keys in Shards("delayq", 16, 4).all:
            client.eval(load("tell").source, 1, keys.count, "4>16", 16)
    assert created(send(both, *MANY)) == [False] * len(MANY)
    assert both.change_of_shards().has_drained


@pytest.mark.parametrize(("shards", "old_shards"), [(16, None), (4, None), (4, 16), (64, 16), (16, 8)])
def test_who_comes_with_other_numbers_is_refused_until_it_has_drained(
    process: Process, shards: int, old_shards: int | None
) -> None:
    both = process(16, 4)
    send(both, *MANY)
    both.switch_shards()
    with pytest.raises(BrokerRefused, match=r'give all processes {"shards": 16, "old_shards": 4}'):
        process(shards, old_shards).open()
    with pytest.raises(BrokerRefused):
        process(shards, old_shards).switch_shards()
    assert not both.change_of_shards().has_drained


@pytest.mark.parametrize(("shards", "old_shards"), [(16, None), (16, 8)])
def test_who_comes_with_other_numbers_is_refused_before_it_is_switched(
    process: Process, shards: int, old_shards: int | None
) -> None:
    send(process(4), "a")
    process(16, 4).open()
    with pytest.raises(BrokerRefused, match="this Redis is used with 4"):
        process(shards, old_shards).open()


def test_changes_may_follow_one_another(process: Process) -> None:
    old = 4
    for new in (16, 8, 16, 32, 2, 4):
        both = process(new, old)
        send(both, *MANY)
        both.switch_shards()
        assert created(send(both, *MANY)) == [False] * len(MANY)
        tokens = claim(both)
        assert sorted(tokens) == MANY
        assert end(both, tokens) == [True]
        assert both.end_change_of_shards().has_ended
        process(new).open()
        check(both)
        old = new


def test_what_is_buried_by_the_old_number_is_left_until_it_is_rescued_or_purged(process: Process) -> None:
    both = process(16, 4)
    first, second, third, *_ = moved(4, 16)
    send(both, first, second, third)
    end(both, claim(both), SettleAction.BURY)
    both.switch_shards()
    assert both.change_of_shards().buried == 3
    send(both, third)
    assert both.rescue([first, third, "none"]) == [True, False, False]
    assert both.rescue([first]) == [False]
    assert both.purge_errors([second]) == [True]
    send(both, "last")
    assert sorted(claim(both)) == sorted([first, third, "last"])
    assert [info.id for info in both.errors(10)] == [third]
    assert both.change_of_shards().buried == 1
    check(both)


def test_a_job_that_goes_on_after_the_change_sends_nothing_twice(process: Process) -> None:
    both = process(16, 4)
    puts = [Put(id, Header("q", "k"), b"1") for id in MANY]
    assert both.begin_put_once(puts[:30], "job", HOUR_MS)() == 30
    send(both, "sent before")
    end(both, claim(both))
    both.switch_shards()
    assert both.begin_put_once(puts, "job", HOUR_MS)() == 30
    assert both.begin_put_once(puts, "job", HOUR_MS)() == 0
    check(both)


@NUMBERS
def test_alarms_are_found_and_dropped_wherever_they_lie(process: Process, old: int, new: int) -> None:
    both = process(new, old)
    pks = moved(old, new)
    both.put_alarms([Alarm("q", "k", pk, 0) for pk in pks])
    both.switch_shards()
    assert [alarm.pk for alarm in both.find_alarms("q", "k", pks)] == pks
    send(both, "last")
    claimed = both.claim(WANT, lease_ms=LEASE_MS, worker="w").alarms
    assert sorted(alarm.pk for alarm in claimed) == pks
    both.drop_alarms(claimed, [Alarm("q", "k", pk, 60_000) for pk in pks[:3]])
    assert [alarm.pk for alarm in both.find_alarms("q", "k", pks)] == pks[:3]
    assert both.change_of_shards().has_drained


def test_alarms_that_wait_are_put_where_the_new_number_has_them(process: Process) -> None:
    before, both = process(4), process(16, 4)
    both.put_alarms([Alarm("q", "k", pk, 60_000) for pk in MANY])
    both.put_alarms([Alarm("nobody", "asks", "1", 0)])
    due = [alarm.due_ms or 0 for alarm in before.find_alarms("q", "k", MANY)]
    both.switch_shards()
    assert both.change_of_shards().alarms == 0
    assert both.end_change_of_shards().has_ended
    after = process(16)
    found = after.find_alarms("q", "k", MANY)
    assert [alarm.pk for alarm in found] == MANY
    assert all((one.due_ms or 0) >= at for one, at in zip(found, due, strict=True))
    assert [alarm.pk for alarm in after.find_alarms("nobody", "asks", ["1"])] == ["1"]


def test_alarms_that_are_claimed_at_the_switch_are_left_until_they_are_let_go(
    process: Process, redis_server: Server
) -> None:
    both = process(16, 4)
    astray = moved(4, 16)
    both.put_alarms([Alarm("q", "k", pk, 0) for pk in astray])
    send(both, "last")
    claimed = both.claim(WANT, lease_ms=LEASE_MS, worker="w").alarms
    both.switch_shards()
    first, *others = claimed
    both.drop_alarms(others)
    assert (both.change_of_shards().alarms, both.end_change_of_shards().has_ended) == (1, False)
    with redis_server.client() as client:  # its lease runs out
        client.zadd(Shards("delayq", 4).of(first.pk).running, {f"\x1fq\x1fk\x1f{first.pk}": 1}, xx=True)
    both.upkeep(lease_ms=LEASE_MS)
    assert (both.change_of_shards().alarms, both.end_change_of_shards().has_ended) == (1, True)
    assert [alarm.pk for alarm in process(16).find_alarms("q", "k", astray)] == [first.pk]


def test_a_look_at_a_change_moves_nothing_and_ends_nothing(process: Process, redis_server: Server) -> None:
    both = process(16, 4)
    both.put_alarms([Alarm("q", "k", pk, 60_000) for pk in MANY])
    both.switch_shards()
    with redis_server.client() as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        assert both.change_of_shards().has_drained
        assert {key: client.dump(key) for key in client.scan_iter()} == before
    with pytest.raises(BrokerRefused, match="until `delayq shards --end` is done"):
        process(16).open()
