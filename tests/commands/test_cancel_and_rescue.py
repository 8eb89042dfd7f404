"""`delayq cancel` and `delayq rescue` move what was named, and say what they could not move and why."""

from collections.abc import Callable

import pytest
from django.core.management.base import CommandError

from django_delayq.brokers.base import BATCH, Backend
from django_delayq.core.message import State
from django_delayq.support.audit import operator_of_process
from tests.commands.support import bury, claim, delayq, send

Answer = Callable[[str], None]


def state_of(broker: Backend, id: str) -> State | None:
    info = broker.queue.get(id)
    return None if info is None else info.state


def test_cancel_stops_waiting_messages(broker: Backend) -> None:
    send(broker, "a", "b")
    assert delayq("cancel", "a", "b", "a") == "cancelled 2 of 2\n"
    assert claim(broker, 2) == []


def test_cancel_names_what_it_could_not_stop_and_where_that_is(broker: Backend) -> None:
    send(broker, "held", "waiting")
    claim(broker)
    bury(broker, "dead", key="order.remind")
    with pytest.raises(CommandError) as raised:
        delayq("cancel", "held", "waiting", "dead", "nobody")
    assert str(raised.value) == (
        "Not cancelled: 'held' (it is running), 'dead' (it is failed), 'nobody' (no such message)."
    )
    assert state_of(broker, "waiting") is (None if broker.store is None else State.CANCELLED)


def test_cancel_of_what_runs_asks_in_the_name_of_the_system_user(broker: Backend) -> None:
    send(broker, "held", "waiting")
    claim(broker)
    assert delayq("cancel", "held", "waiting", "--running") == "cancelled or asked to end 2 of 2\n"
    info = broker.queue.get("held")
    assert info is not None
    assert info.cancel_request is not None
    assert info.cancel_request.by == operator_of_process().who
    with pytest.raises(CommandError, match="Not cancelled or asked to end: 'nobody'"):
        delayq("cancel", "nobody", "--running")


def test_more_ids_than_one_call_takes_are_all_moved(broker: Backend) -> None:
    ids = [f"m{number}" for number in range(BATCH + 1)]
    send(broker, *ids)
    assert delayq("cancel", *ids) == f"cancelled {BATCH + 1} of {BATCH + 1}\n"


def test_rescue_makes_the_named_messages_ready(broker: Backend) -> None:
    bury(broker, "a", "b")
    assert delayq("rescue", "a") == "rescued 1 of 1\n"
    assert (state_of(broker, "a"), state_of(broker, "b")) == (State.READY, State.FAILED)


def test_rescue_refuses_an_id_that_waits_again(broker: Backend) -> None:
    bury(broker, "a")
    send(broker, "a", delay_ms=60_000)
    with pytest.raises(CommandError, match=r"Not rescued: 'a' \(it is pending\)"):
        delayq("rescue", "a")


def test_rescue_all_asks_with_the_count_and_leaves_what_waits_again(
    broker: Backend, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(broker, "a", "b", "c")
    send(broker, "c", delay_ms=60_000)
    answer("yes\n")
    assert delayq("rescue", "--all").splitlines()[0] == "rescued 2 of 3"
    assert "Rescue 3 failed messages?" in capsys.readouterr().out
    assert [state_of(broker, id) for id in "abc"] == [State.READY, State.READY, State.PENDING]


def test_rescue_by_key_leaves_other_keys_buried(broker: Backend) -> None:
    bury(broker, "a")
    bury(broker, "b", key="order.remind")
    assert delayq("rescue", "--key", "order.remind", "--no-input") == "rescued 1 of 1\n"
    assert (state_of(broker, "a"), state_of(broker, "b")) == (State.FAILED, State.READY)


def test_rescue_all_of_nothing_asks_nothing(broker: Backend, answer: Answer) -> None:
    answer("")
    assert delayq("rescue", "--all") == "rescued 0 of 0\n"


@pytest.mark.parametrize(("typed", "said"), [("no\n", "Nothing was done"), ("\n", "Nothing"), ("", "--no-input")])
def test_without_a_yes_nothing_is_rescued(broker: Backend, answer: Answer, typed: str, said: str) -> None:
    bury(broker, "a")
    answer(typed)
    with pytest.raises(CommandError, match=said):
        delayq("rescue", "--all")
    assert state_of(broker, "a") is State.FAILED


@pytest.mark.parametrize("args", [[], ["a", "--all"], ["--all", "--key", "k"]])
def test_rescue_takes_exactly_one_choice(args: list[str]) -> None:
    with pytest.raises(CommandError, match="Say what to rescue") as raised:
        delayq("rescue", *args)
    assert raised.value.returncode == 2
