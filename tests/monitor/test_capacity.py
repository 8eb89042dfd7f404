"""How long the live workers take: as long as whatever holds them up most."""

import pytest

from django_delayq.brokers.base import ExecutorInfo, WorkerInfo
from django_delayq.core.limits import Limits
from django_delayq.core.requests import Pair
from django_delayq.monitor.forecast import LEAST_MS, Capacity, Drain, teams_of

HALF_A_MINUTE = 30_000.0


def worker(name: str, *executors: ExecutorInfo, queues: tuple[str, ...] = ("default",)) -> WorkerInfo:
    return WorkerInfo(
        name, list(queues), [key for one in executors for key in one.keys], 0, 0, executors=list(executors)
    )


def drain(load: dict[str, int], ran_ms: dict[str, float], *workers: WorkerInfo, queue: str = "default") -> Drain:
    return drained(Capacity(teams_of(workers), ran_ms), {(queue, key): number for key, number in load.items()})


def drained(capacity: Capacity, load: dict[Pair, int]) -> Drain:
    return capacity.drain(load, capacity.times_ms(load))


FOUR = ExecutorInfo(32, {"k": 4, "l": 4})


def test_a_few_slow_messages_take_as_long_as_their_key_does() -> None:
    assert drain({"k": 3}, {"k": HALF_A_MINUTE}, worker("w", ExecutorInfo(1, {"k": 1}))) == Drain(90_000)


def test_a_key_has_the_slots_of_its_concurrency_in_each_live_worker() -> None:
    assert drain({"k": 80}, {"k": HALF_A_MINUTE}, worker("a", FOUR), worker("b", FOUR)) == Drain(300_000)


def test_keys_run_beside_one_another_as_far_as_there_are_slots() -> None:
    many, load = {"k": 1_000.0, "l": 1_000.0}, {"k": 40, "l": 40}
    assert drain(load, many, worker("w", FOUR)) == Drain(10_000)
    assert drain(load, many, worker("w", ExecutorInfo(5, {"k": 4, "l": 4}))) == Drain(16_000)
    assert drain(load, many, worker("w", ExecutorInfo(4, {"k": 4}), ExecutorInfo(4, {"l": 4}))) == Drain(10_000)


def test_workers_of_another_queue_are_no_help() -> None:
    one_slot = ExecutorInfo(1, {"k": 1})
    others = [worker(f"other {i}", one_slot, queues=("bulk",)) for i in range(9)]
    assert drain({"k": 10}, {"k": 1_000}, worker("w", one_slot), *others) == Drain(10_000)


def test_a_queue_takes_as_long_as_the_workers_that_serve_it() -> None:
    ran_ms, one_slot = {"k": 1_000.0, "l": 1_000.0}, ExecutorInfo(1, {"k": 1, "l": 1})
    workers = worker("w", one_slot, queues=("bulk",)), worker("other", one_slot)
    assert drain({"k": 10, "l": 10}, ran_ms, *workers, queue="bulk") == Drain(20_000)
    load = {("bulk", "k"): 10, ("bulk", "l"): 10, ("default", "k"): 1}
    assert drained(Capacity(teams_of(workers), ran_ms), load) == Drain(20_000)


def test_a_key_of_one_queue_has_the_slots_of_the_workers_that_serve_that_queue() -> None:
    executor, ran_ms = ExecutorInfo(5, {"k": 1, "l": 4}), {"k": 1_000.0, "l": 1_000.0}
    others = [worker(f"other {i}", executor, queues=("bulk",)) for i in range(9)]
    load = {("default", "k"): 100, ("default", "l"): 1, ("bulk", "k"): 1}
    assert drained(Capacity(teams_of([worker("w", executor), *others]), ran_ms), load) == Drain(100_000)


def test_keys_of_several_queues_share_the_slots_of_a_worker() -> None:
    both = worker("w", ExecutorInfo(1, {"k": 1, "l": 1}), queues=("bulk", "default"))
    load = {("bulk", "k"): 10, ("default", "l"): 10}
    assert drained(Capacity(teams_of([both]), {"k": 1_000, "l": 1_000}), load) == Drain(20_000)


def test_each_message_costs_its_worker_the_least_time_however_quick_its_handler_is() -> None:
    assert drain({"k": 10_000}, {"k": 0.0}, worker("w", FOUR)) == Drain(round(10_000 * LEAST_MS))
    assert drain({"k": 10_000}, {"k": 0.0}, worker("a", FOUR), worker("b", FOUR)) == Drain(round(5_000 * LEAST_MS))


def test_a_key_of_which_nothing_has_ended_is_left_out_and_said_to_be() -> None:
    assert drain({"k": 4, "new": 4}, {"k": 1_000}, worker("w", ExecutorInfo(8, {"k": 4, "new": 4}))) == Drain(
        1_000, True
    )
    assert drain({"new": 4}, {}, worker("w", ExecutorInfo(8, {"new": 4}))) == Drain(None)


def test_what_no_live_worker_asks_for_is_left_out_and_said_to_be() -> None:
    assert drain({"k": 4, "parked": 4}, {"k": 1_000, "parked": 1_000}, worker("w", FOUR)) == Drain(1_000, True)
    assert drain({"parked": 4}, {"parked": 1_000}, worker("w", FOUR)) == Drain(None, unserved=True)
    assert drain({"k": 4}, {"k": 1_000}) == Drain(None, unserved=True)


def test_nothing_takes_no_time() -> None:
    assert drain({}, {}) == Drain(0)


@pytest.mark.parametrize("number", [1, 2])
def test_a_worker_that_tells_of_no_slots_has_one(number: int) -> None:
    workers = [WorkerInfo(str(i), ["default"], ["k"], 0, 0) for i in range(number)]
    assert drain({"k": 4}, {"k": 1_000}, *workers) == Drain(4_000 // number)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(max_concurrency=1), Drain(40_000)),
        (Limits(max_concurrency=9), Drain(10_000)),
        (Limits(interval_us=2_000_000), Drain(80_000)),
        (Limits(max_concurrency=1, concurrency_key="{account}"), Drain(10_000, at_least=True)),
    ],
)
def test_limits_over_all_workers_hold_a_key_up(limits: Limits, expected: Drain) -> None:
    capacity = Capacity(teams_of([worker("w", FOUR)]), {"k": 1_000}, {"k": limits})
    assert drained(capacity, {("default", "k"): 40}) == expected


def test_a_limit_of_one_key_holds_up_no_other() -> None:
    capacity = Capacity(teams_of([worker("w", FOUR)]), {"k": 1_000, "l": 1_000}, {"k": Limits(max_concurrency=1)})
    load = {("default", "k"): 4, ("default", "l"): 4}
    assert capacity.times_ms(load)["default", "l"] == 1_000
    assert drained(capacity, load) == Drain(4_000)
