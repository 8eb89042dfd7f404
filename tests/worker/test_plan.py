"""The plan of a claim, as tables: values in, values out."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from django_delayq.brokers.base import BATCH, Pair, Pause, covering
from django_delayq.core.limits import Limits
from django_delayq.worker.plan import BufferState, ExecutorState, Plan, accept, plan
from django_delayq.worker.prefetch import PrefetchBuffer
from tests.worker.rig import make_handler

FAST = 64


def buffer(
    key: str,
    slots: int = 4,
    *,
    keys: Sequence[str] = (),
    max_slots: int | None = None,
    available: int = 32,
    active: int = 0,
    waiting: int = 0,
    per_slot: int = 1,
    is_draining: bool = False,
    is_idle_only: bool = False,
    added_at: float = 0.0,
) -> BufferState:
    return BufferState(
        key,
        keys or [key],
        slots,
        slots if max_slots is None else max_slots,
        available,
        active,
        waiting,
        per_slot,
        is_draining,
        is_idle_only,
        added_at,
    )


def executor(*buffers: BufferState, slots: int = 32, idle: int | None = None) -> ExecutorState:
    return ExecutorState(slots, slots if idle is None else idle, buffers)


def asked(planned: Plan) -> list[tuple[str, str, int]]:
    return [(request.queue, request.key, request.count) for request in planned.requests]


# What is asked


def test_everything_idle_is_asked_for_in_one_claim() -> None:
    planned = plan([executor(buffer("a"), buffer("b", 2))], ["x", "y"])
    assert asked(planned) == [("x", "b", 2), ("y", "b", 2), ("x", "a", 4), ("y", "a", 4)]
    assert planned.is_complete
    assert not planned.skipped


def test_earlier_queues_are_asked_first_and_each_for_no_more_than_starts_at_once() -> None:
    fast, busy = buffer("fast", per_slot=FAST), buffer("busy", 1, active=1, is_draining=True, per_slot=FAST)
    planned = plan([executor(fast, busy)], ["critical", "bulk"], in_order=True)
    assert asked(planned) == [
        ("critical", "busy", 1),
        ("critical", "fast", 4),
        ("bulk", "busy", 1),
        ("bulk", "fast", 4),
    ]


def test_former_keys_are_asked_along() -> None:
    assert asked(plan([executor(buffer("new", keys=["new", "old"]))], ["q"])) == [("q", "new", 4), ("q", "old", 4)]


def test_those_that_were_given_nothing_for_longest_come_first_then_those_that_want_little() -> None:
    buffers = [buffer("last", 1, added_at=2.0), buffer("much", 9), buffer("little", 1), buffer("some", 5)]
    planned = plan([executor(*buffers)], ["q"])
    assert [request.key for request in planned.requests] == ["little", "some", "much", "last"]


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        ([("bulk", "a")], [("bulk", "a", 4)]),
        ([("bulk", "a"), ("critical", "a")], [("critical", "a", 4)]),
        ([("bulk", "a"), ("critical", "b")], [("critical", "b", 4), ("bulk", "a", 4)]),
        ([("default", "b"), ("bulk", "a"), ("bulk", "b")], [("default", "b", 4), ("bulk", "a", 4)]),
    ],
    ids=["only what is due", "the first queue of a handler", "first queues first", "each handler its first queue"],
)
def test_where_it_is_known_what_is_due_each_handler_asks_its_first_queue(
    due: Collection[Pair], expected: list[tuple[str, str, int]]
) -> None:
    planned = plan(
        [executor(buffer("a"), buffer("b"), buffer("c"))], ["critical", "default", "bulk"], in_order=True, due=due
    )
    assert asked(planned) == expected
    assert not planned.is_complete


@pytest.mark.parametrize(
    ("concurrency", "limits", "for_slots"),
    [
        (1, None, 2),
        (2, None, 1),
        (3, None, 0),
        (9, None, 0),
        (9, Limits(max_concurrency=2), 1),
        (9, Limits(max_concurrency=2, concurrency_key="{}"), 0),
        (9, Limits(interval_us=1), 0),
    ],
)
def test_what_an_earlier_queue_has_for_a_handler_keeps_all_the_slots_that_the_handler_may_have(
    concurrency: int, limits: Limits | None, for_slots: int
) -> None:
    handler = make_handler(lambda message: None, "early", limits=limits)
    early = PrefetchBuffer(handler, [("default", "early")], concurrency, active=1).state(0)
    fast = buffer("fast", 2, active=2, is_draining=True, per_slot=FAST, available=0)
    executors = [executor(early, fast, slots=3, idle=0)]
    due = [("critical", "early"), ("default", "fast")]
    planned = plan(executors, ["critical", "default"], in_order=True, due=due)
    assert planned.sizes == ({"fast": for_slots * FAST} if for_slots else {})
    planned = plan(executors, ["default", "critical"], in_order=True, due=due)
    assert planned.sizes == {"fast": 2 * FAST}


@pytest.mark.parametrize(("wanted", "left"), [(0, 2), (1, 1), (2, 0)])
def test_slots_that_an_earlier_queue_leaves_idle_are_for_later_ones(wanted: int, left: int) -> None:
    early, later = buffer("early", 2, available=wanted), buffer("later", 2)
    due = [("critical", "early"), ("bulk", "later")]
    planned = plan([executor(early, later, slots=2)], ["critical", "bulk"], in_order=True, due=due)
    assert planned.sizes.get("later", 0) == left


def test_a_queue_with_a_backlog_keeps_its_slots_also_while_it_is_not_asked() -> None:
    full = buffer("full", 4, active=4, waiting=200, per_slot=FAST, is_draining=True, available=0)
    other = buffer("other", 4, active=1, is_draining=True, per_slot=FAST, available=0)
    executors = [executor(full, other, slots=5, idle=0)]
    planned = plan(executors, ["critical", "bulk"], in_order=True, due=[("critical", "full"), ("bulk", "other")])
    assert asked(planned) == [("bulk", "other", FAST)]
    planned = plan(
        [executor(full, other, slots=4, idle=0)],
        ["critical", "bulk"],
        in_order=True,
        due=[("critical", "full"), ("bulk", "other")],
    )
    assert asked(planned) == []
    assert planned.is_busy_with_due
    assert planned.skipped


@pytest.mark.parametrize(
    ("quota", "free_permits", "sizes"),
    [(BATCH, {}, {"a": 4, "b": 4}), (3, {}, {"a": 3, "b": 3}), (BATCH, {"a": 1}, {"a": 1, "b": 4}), (0, {}, {})],
)
def test_no_more_is_asked_than_there_is_room_for(
    quota: int, free_permits: dict[str, int], sizes: dict[str, int]
) -> None:
    assert plan([executor(buffer("a"), buffer("b"))], ["q"], quota=quota, free_permits=free_permits).sizes == sizes


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        (Pause("x", None, "why"), [("y", "a", 4)]),
        (Pause(None, "a", "why"), []),
        (Pause("y", "a", "why"), [("x", "a", 4)]),
        (Pause("y", "other", "why"), [("x", "a", 4), ("y", "a", 4)]),
    ],
)
@pytest.mark.parametrize("in_order", [False, True])
def test_what_is_paused_is_not_asked(pause: Pause, expected: list[tuple[str, str, int]], in_order: bool) -> None:
    assert asked(plan([executor(buffer("a"))], ["x", "y"], in_order=in_order, pauses=[pause])) == expected


def test_what_is_due_and_paused_keeps_no_slot_from_another() -> None:
    buffers = executor(buffer("held", 4, per_slot=FAST), buffer("other"), slots=4)
    due = [("critical", "held"), ("bulk", "other")]
    pauses = [Pause("critical", None, "why")]
    planned = plan([buffers], ["critical", "bulk"], in_order=True, due=due, pauses=pauses)
    assert asked(planned) == [("bulk", "other", 4)]


# What is kept


@pytest.mark.parametrize(
    ("gave", "kept"),
    [
        ({(0, "a"): 3, (1, "a"): 4}, {(0, "a"): 3, (1, "a"): 0}),  # one slot is left: not worth it beside three
        ({(0, "a"): 2, (1, "a"): 4}, {(0, "a"): 2, (1, "a"): 2}),
        ({(0, "a"): 4, (1, "a"): 4}, {(0, "a"): 4, (1, "a"): 0}),  # the first queue may have more
        ({(0, "a"): 4, (1, "b"): 4}, {(0, "a"): 4, (1, "b"): 2}),  # and keeps its slots
        ({(0, "a"): 1, (1, "b"): 4}, {(0, "a"): 1, (1, "b"): 4}),
        ({(1, "b"): 4}, {(1, "b"): 4}),
    ],
)
def test_of_a_later_queue_only_what_earlier_ones_leave_is_kept(
    gave: dict[tuple[int, str], int], kept: dict[tuple[int, str], int]
) -> None:
    executors = [executor(buffer("a"), buffer("b"), slots=6)]
    assert accept(executors, {"a": 4, "b": 4}, gave) == kept


# Of any workers


class Scene(NamedTuple):
    executors: list[ExecutorState]
    due: list[Pair]
    pauses: list[Pause]
    free_permits: dict[str, int]
    quota: int


QUEUES = ["q1", "q2", "q3"]
few = st.integers(0, 5)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    executors = []
    names = iter("abcdef")
    for _ in range(draw(st.integers(1, 2))):
        slots = draw(st.integers(1, 8))
        buffers = []
        for name in [next(names) for _ in range(draw(st.integers(1, 3)))]:
            concurrency = draw(st.integers(1, 6))
            buffers.append(
                buffer(
                    name,
                    concurrency,
                    keys=[name, f"former {name}"][: draw(st.integers(1, 2))],
                    max_slots=draw(st.integers(1, concurrency)),
                    available=draw(st.integers(0, slots)),
                    active=draw(st.integers(0, concurrency)),
                    waiting=draw(st.integers(0, 80)),
                    per_slot=draw(st.sampled_from([1, 3, FAST])),
                    is_draining=draw(st.booleans()),
                    is_idle_only=draw(st.booleans()),
                    added_at=draw(few),
                )
            )
        executors.append(executor(*buffers, slots=slots, idle=draw(st.integers(0, slots))))
    pairs = [(queue, key) for queue in QUEUES for each in executors for state in each.buffers for key in state.keys]
    queues, keys = st.sampled_from([None, *QUEUES]), st.sampled_from([None, *(key for _, key in pairs)])
    paused = draw(st.lists(st.tuples(queues, keys).filter(any), max_size=2))
    return Scene(
        executors,
        draw(st.lists(st.sampled_from(pairs), unique=True)),
        [Pause(queue, key, "why") for queue, key in paused],
        draw(st.dictionaries(st.sampled_from([state.key for each in executors for state in each.buffers]), few)),
        draw(st.one_of(st.just(BATCH), few)),
    )


def plan_of(scene: Scene, *, knows_due: bool = True, in_order: bool = True) -> Plan:
    executors, due, pauses, free_permits, quota = scene
    due = due if knows_due else []
    return plan(executors, QUEUES, in_order=in_order, due=due, pauses=pauses, free_permits=free_permits, quota=quota)


def states(scene: Scene) -> dict[str, tuple[BufferState, ExecutorState]]:
    return {state.key: (state, each) for each in scene.executors for state in each.buffers}


def owner(scene: Scene, key: str) -> str:
    return next(name for name, (state, _) in states(scene).items() if key in state.keys)


@given(scenes(), st.booleans(), st.booleans())
def test_never_more_than_there_is_room_for(scene: Scene, knows_due: bool, in_order: bool) -> None:
    for request in plan_of(scene, knows_due=knows_due, in_order=in_order).requests:
        state, executor = states(scene)[owner(scene, request.key)]
        assert 0 < request.count <= min(scene.quota, scene.free_permits.get(state.key, BATCH))
        assert request.count + state.waiting <= max(executor.slots, state.slots) * state.per_slot
        assert request.idle_slots == state.idle_slots(executor.idle)
        if state.is_idle_only:
            assert request.count <= max(state.slots - state.active - state.waiting, 0)


@given(scenes(), st.booleans(), st.booleans())
def test_never_what_is_paused(scene: Scene, knows_due: bool, in_order: bool) -> None:
    requests = plan_of(scene, knows_due=knows_due, in_order=in_order).requests
    assert not any(covering(scene.pauses, request.queue, request.key) for request in requests)


@given(scenes(), st.booleans())
def test_each_pair_is_asked_once_and_earlier_queues_first(scene: Scene, knows_due: bool) -> None:
    pairs = [(request.queue, request.key) for request in plan_of(scene, knows_due=knows_due).requests]
    assert len(set(pairs)) == len(pairs)
    assert [queue for queue, _ in pairs] == sorted(queue for queue, _ in pairs)


@given(scenes())
def test_no_handler_is_asked_for_beside_its_earlier_queue(scene: Scene) -> None:
    planned = plan_of(scene)
    due = [pair for pair in scene.due if not covering(scene.pauses, *pair)]
    firsts = {name: min((q for q, key in due if owner(scene, key) == name), default=None) for name in states(scene)}
    for request in planned.requests:
        name = owner(scene, request.key)
        assert firsts[name] == (None if planned.is_complete else request.queue)


@given(scenes())
def test_the_slots_of_an_earlier_queue_are_not_filled_from_a_later_one(scene: Scene) -> None:
    planned = plan_of(scene)
    due = [pair for pair in scene.due if not covering(scene.pauses, *pair)]
    for request in planned.requests:
        state, executor = states(scene)[owner(scene, request.key)]
        earlier = {owner(scene, key) for queue, key in due if queue < request.queue or planned.is_complete}
        reserved = sum(other.max_slots for other in executor.buffers if other.key in earlier - {state.key})
        slots = max(executor.slots - reserved, executor.idle)
        assert request.count <= state.fetch_size(slots)


@given(scenes())
def test_all_that_have_slots_are_asked_for_where_nothing_is_known_to_be_due(scene: Scene) -> None:
    planned = plan_of(scene, knows_due=False)
    for key, (state, executor) in states(scene).items():
        wants_any = scene.quota and scene.free_permits.get(key, BATCH) and state.fetch_size(executor.slots)
        assert (key in planned.sizes) == bool(wants_any)
    assert planned.is_complete


@given(scenes(), st.dictionaries(st.tuples(st.integers(0, 2), st.sampled_from("abcdef")), few))
def test_no_more_is_kept_than_was_given_and_nothing_behind_a_queue_that_may_have_more(
    scene: Scene, gave: dict[tuple[int, str], int]
) -> None:
    gave = {place_key: count for place_key, count in gave.items() if place_key[1] in states(scene)}
    sizes = dict.fromkeys(states(scene), 3)
    kept = accept(scene.executors, sizes, gave)
    for (place, key), count in gave.items():
        assert 0 <= kept.get((place, key), 0) <= count
        if any(gave.get((earlier, key), 0) >= 3 for earlier in range(place)):
            assert kept.get((place, key), 0) == 0
