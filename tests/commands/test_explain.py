"""`delayq explain` says where a message is and what happens to it next."""

import pytest
from django.core.management.base import CommandError

from django_delayq import Message, delay_execute
from django_delayq.brokers.base import Backend, SettleAction
from tests.brokers.rig import settlement
from tests.commands.support import LEASE_MS, Clock, bury, claim, delayq, delayq_json, send, serve


def lapse(broker: Backend, clock: Clock, times: int) -> None:
    """Let the lease on the next message run out, so many times."""
    for _ in range(times):
        claim(broker)
        clock.now_ms += LEASE_MS
        broker.queue.maintain(lease_ms=LEASE_MS)


def test_a_pending_message_says_when_it_is_due_and_that_a_worker_runs_it_then(clocked_broker: Backend) -> None:
    serve(clocked_broker, "order.close")
    send(clocked_broker, "a", delay_ms=5_400_000)
    shown = delayq("explain", "a")
    assert "a: pending\n" in shown
    assert "due: 2027-01-15T09:30:00.000Z (in 1h30m)" in shown
    assert "first due" not in shown
    assert "next: When it is due the first worker with a free slot runs it." in shown


def test_a_message_that_a_limit_has_put_off_says_when_it_was_first_due(clocked_broker: Backend, clock: Clock) -> None:
    send(clocked_broker, "a")
    for _ in range(2):
        (claimed,) = claim(clocked_broker)
        assert clocked_broker.queue.apply([settlement(claimed, SettleAction.RELEASE, delay_ms=60_000)]) == [True]
        clock.now_ms += 60_000
    assert "first due: 2027-01-15T08:00:00.000Z (2m ago)" in delayq("explain", "a")


def test_a_message_that_nobody_asks_for_is_parked(broker: Backend) -> None:
    serve(broker, "order.remind")
    send(broker, "ready")
    send(broker, "pending", delay_ms=60_000)
    assert "ready: ready, parked" in delayq("explain", "ready")
    assert "asks for key 'order.close' in queue 'default'" in delayq("explain", "ready")
    assert "When it is due it stays parked" in delayq("explain", "pending")
    assert "no live worker does. Handlers are found in the `delayed` module" in delayq("explain", "pending")
    serve(broker, "order.close")
    seen = delayq_json("explain", "ready")
    assert (seen["parked"], seen["happens_next"]) == (False, "The first worker with a free slot runs it.")


def test_a_running_message_says_who_holds_it_until_when(clocked_broker: Backend) -> None:
    send(clocked_broker, "a")
    claim(clocked_broker)
    shown = delayq("explain", "a")
    assert "held by: host:1, lease ends 2027-01-15T08:00:15.000Z (in 15s)" in shown
    assert "If its worker dies, at the end of its lease it is ready again." in shown


def test_a_lease_that_ran_out_is_told(clocked_broker: Backend, clock: Clock) -> None:
    send(clocked_broker, "a")
    claim(clocked_broker)
    clock.now_ms += LEASE_MS
    assert delayq_json("explain", "a")["happens_next"].startswith("Its lease has run out, so at the next maintenance")


def test_failures_and_the_last_error_are_told(broker: Backend) -> None:
    send(broker, "a", max_attempts=3)
    (claimed,) = claim(broker)
    broker.queue.apply([settlement(claimed, SettleAction.RETRY, delay_ms=60_000, error="KeyError: 'x'")])
    shown = delayq("explain", "a")
    assert "failures: 1 of at most 3 attempts" in shown
    assert "last error: KeyError: 'x'" in shown


@pytest.mark.usefixtures("registry")
def test_the_most_attempts_are_the_handlers_where_the_message_does_not_say(broker: Backend) -> None:
    @delay_execute(key="order.close", max_attempts=7)
    def close_order(message: Message[str]) -> None: ...

    send(broker, "a")
    send(broker, "b", max_attempts=2)
    send(broker, "c", max_attempts=2, at_most_once=True)
    assert [delayq_json("explain", id)["max_attempts"] for id in "abc"] == [7, 2, 1]
    assert "failures: 0 of at most 1 attempt," in delayq("explain", "c")


def test_a_suspect_is_told_and_what_one_more_death_does(clocked_broker: Backend, clock: Clock) -> None:
    serve(clocked_broker, "order.close")
    send(clocked_broker, "a")
    lapse(clocked_broker, clock, times=2)
    serve(clocked_broker, "order.close")
    seen = delayq_json("explain", "a")
    assert (seen["suspect"], seen["crashes"]) == (True, 2)
    assert "fails at one more death" in seen["happens_next"]


def test_a_message_that_may_start_only_once_is_buried_when_its_worker_dies(
    clocked_broker: Backend, clock: Clock
) -> None:
    send(clocked_broker, "a", at_most_once=True)
    claim(clocked_broker)
    assert "dies, at the end of its lease it fails, because it may start only once.\n" in delayq("explain", "a")
    clock.now_ms += LEASE_MS
    assert "at the next maintenance it fails, because it may start only once.\n" in delayq("explain", "a")


def test_an_expired_message_says_that_it_is_buried_next(clocked_broker: Backend, clock: Clock) -> None:
    serve(clocked_broker, "order.close")
    send(clocked_broker, "a", expires_ms=1_000)
    assert "runs it" in delayq_json("explain", "a")["happens_next"]
    clock.now_ms += 1_000
    assert "It has expired" in delayq_json("explain", "a")["happens_next"]


def test_a_buried_message_shows_its_traceback_line_by_line(carrying: Backend) -> None:
    bury(carrying, "a", error="ValueError: no", detail="Traceback:\n  line 1\nValueError: \x1b[2J")
    lines = delayq("explain", "a").splitlines()
    assert lines[0] == "a: failed"
    assert any(line.startswith("failed: 20") for line in lines)
    assert lines[-3:] == ["    Traceback:", "      line 1", r"    ValueError: \x1b[2J"]
    assert "next: Nothing until it is rescued or purged; it is dropped when error_retention ends." in lines


def test_the_tag_and_the_trace_id_are_told_where_there_are_any(broker: Backend) -> None:
    send(broker, "a", tag="order:7", trace_id="4bf9")
    send(broker, "b")
    lines = delayq("explain", "a").splitlines()
    assert lines[2:4] == ["tag: 'order:7'", "trace id: '4bf9'"]
    assert not any(line.startswith(("tag:", "trace id:")) for line in delayq("explain", "b").splitlines())


def test_a_last_error_can_not_forge_a_line(broker: Backend) -> None:
    bury(broker, "a", error="x\nnext: all is well")
    assert "next: all is well" not in delayq("explain", "a").splitlines()


@pytest.mark.parametrize("wrong", ["", "x" * 201, "a\nb"])
def test_what_is_no_id_is_refused_with_words(carrying: Backend, wrong: str) -> None:
    with pytest.raises(CommandError, match=r"argument ID: id='.*(give|write|leave out)"):
        delayq("explain", wrong)


def test_an_id_that_is_nowhere_is_named(carrying: Backend) -> None:
    with pytest.raises(CommandError, match="No message waits, runs or has failed under 'nobody'") as raised:
        delayq("explain", "nobody")
    assert raised.value.returncode == 1


@pytest.mark.usefixtures("registry")
def test_a_leased_message_of_a_handler_of_many_may_wait_for_others(broker: Backend) -> None:
    @delay_execute(key="order.close", batch=500, wait="2s")
    def index(messages: list[Message[None]]) -> None:
        """Index orders."""

    send(broker, "a")
    claim(broker)
    shown = delayq("explain", "a")
    assert (
        "It runs together with others, 500 at most. Until there are so many, it may wait in its worker for 2s." in shown
    )


@pytest.mark.usefixtures("registry")
def test_a_message_that_waits_for_a_handler_of_many_says_that_it_runs_with_others(
    clocked_broker: Backend, clock: Clock
) -> None:
    @delay_execute(key="order.close", batch=500, wait="2s")
    def index(messages: list[Message[None]]) -> None: ...

    @delay_execute(key="order.remind", batch=20)
    def remind(messages: list[Message[None]]) -> None: ...

    serve(clocked_broker, "order.close", "order.remind")
    send(clocked_broker, "a")
    send(clocked_broker, "b", key="order.remind", delay_ms=60_000)
    assert (
        "next: The first worker with a free slot runs it. It runs together with others, 500 at most. Until there are so"
        " many, it may wait in its worker for 2s.\n"
    ) in delayq("explain", "a")
    assert "runs it. It runs together with others that are due, 20 at most.\n" in delayq("explain", "b")
    lapse(clocked_broker, clock, times=2)
    serve(clocked_broker, "order.close", "order.remind")
    assert "together" not in delayq("explain", "a")


@pytest.mark.usefixtures("registry")
def test_a_message_that_waits_says_which_limits_it_may_wait_for(broker: Backend) -> None:
    @delay_execute("order.close", max_concurrency=2, rate_limit="100/m", rate_key="account:{account}", burst=20)
    def handle(message: Message[object]) -> None: ...

    serve(broker, "order.close")
    send(broker, "a")
    assert (
        "it is due later: 2 running at once; 20 starts, and then one every 600ms for each 'account:{account}'."
        in delayq("explain", "a")
    )
