"""Cancel, reschedule and look, by id. Sync and async alike."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from django_delayq import (
    Handler,
    Message,
    MessageInfo,
    Unsupported,
    acancel_delay_messages,
    aget_delay_message,
    areschedule_delay_messages,
    cancel_delay_messages,
    delay_execute,
    get_delay_message,
    reschedule_delay_messages,
    send_delay_messages,
)
from django_delayq.brokers.base import ClaimRequest, Header, NewMessage, SettleAction
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.core.message import State
from django_delayq.support.timestamps import from_ms
from tests.api.support import NOW, waiting, waiting_ids
from tests.brokers.rig import settlement

pytestmark = pytest.mark.django_db(transaction=True)

Function = Callable[..., Any]


def run(function: Function) -> Function:
    """An async function as a sync one."""
    return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))


cancels = pytest.mark.parametrize("cancel", [cancel_delay_messages, run(acancel_delay_messages)])
reschedules = pytest.mark.parametrize("reschedule", [reschedule_delay_messages, run(areschedule_delay_messages)])
gets = pytest.mark.parametrize("get", [get_delay_message, run(aget_delay_message)])
either = pytest.mark.parametrize(
    "move",
    [
        cancel_delay_messages,
        run(acancel_delay_messages),
        partial(reschedule_delay_messages, delay=0),
        partial(run(areschedule_delay_messages), delay=0),
    ],
)


def claim(broker: MemoryBroker) -> Any:
    (claimed,) = broker.queue.claim([ClaimRequest("default", "order.close", 1)], lease_ms=1_000, worker="w").messages
    return claimed


@cancels
def test_cancel_counts_what_it_stopped(cancel: Function, close_order: Handler[int, None], broker: MemoryBroker) -> None:
    for id in ("running", "a", "b", "kept"):
        close_order.send(5, id=id)
    claim(broker)
    assert cancel("a", "b", "b", "running", "unknown") == 2
    assert waiting_ids(broker) == ["kept"]


@cancels
def test_more_ids_than_a_broker_takes_at_once(
    cancel: Function, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    send_delay_messages(close_order.prepare(number, id=f"{number}") for number in range(2_500))
    assert cancel(*(f"{number}" for number in range(2_500))) == 2_500


@reschedules
@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        ({"delay": "1h"}, NOW + 3_600_000),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, 1_767_225_600_000),
        ({"delay": 0}, NOW),
    ],
)
def test_reschedule_gives_a_new_due_time(
    reschedule: Function, when: Any, due_ms: int, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    close_order.send(5, id="a", delay="1d")
    assert reschedule("a", "unknown", **when) == 1
    assert [info.due_ms for info in waiting(broker)] == [due_ms]


@reschedules
def test_reschedule_checks_its_times(reschedule: Function, broker: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="delay=-1 is too short"):
        reschedule("a", delay=-1)


@reschedules
def test_a_reschedule_without_a_time_is_refused(
    reschedule: Function, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    close_order.send(5, id="a", delay="1d")
    with pytest.raises(TypeError, match="there is no new time; give delay="):
        reschedule("a")
    assert [info.due_ms for info in waiting(broker)] == [NOW + 86_400_000]


@either
def test_neither_ids_nor_a_tag_are_refused(move: Function, broker: MemoryBroker) -> None:
    with pytest.raises(TypeError, match="there is no id and no tag; give"):
        move()


@either
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ((["a", "b"],), TypeError, r"id=\['a', 'b'\] is list; give each id as a str of its own: \(\*ids\)"),
        ((5,), TypeError, r"id=5 is int"),
        (("",), ValueError, r"id='' is empty"),
        (("a\x00",), ValueError, r"leave out control characters"),
    ],
)
def test_wrong_ids_are_refused(move: Function, ids: Any, error: Any, message: str, broker: MemoryBroker) -> None:
    with pytest.raises(error, match=message):
        move(*ids)


@either
def test_a_tag_needs_a_store(move: Function, broker: MemoryBroker) -> None:
    with pytest.raises(Unsupported, match="Finding messages by tag needs a store"):
        move(tag="t")


@gets
def test_get_shows_a_waiting_message(get: Function, close_order: Handler[int, None]) -> None:
    close_order.send(5, id="a", delay="1m", expires="1h", tag="t", trace_id="trace")
    assert get("a") == MessageInfo(
        id="a",
        key="order.close",
        queue="default",
        state=State.PENDING,
        data=5,
        due_at=from_ms(NOW + 60_000),
        sent_at=from_ms(NOW),
        failures=0,
        expires_at=from_ms(NOW + 3_660_000),
        tag="t",
        trace_id="trace",
        error="",
        holder="",
        lease_until=None,
    )


@gets
def test_get_shows_who_holds_a_running_message(
    get: Function, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    close_order.send(5, id="a")
    claim(broker)
    info = get("a")
    assert (info.state, info.holder, info.lease_until) == (State.RUNNING, "w", from_ms(NOW + 1_000))


@gets
def test_get_shows_why_a_message_was_buried(
    get: Function, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    close_order.send(5, id="a")
    broker.queue.apply([settlement(claim(broker), SettleAction.BURY, error="why", failed=True)])
    info = get("a")
    assert (info.state, info.error, info.failures) == (State.FAILED, "why", 1)


@gets
def test_get_of_an_unknown_id_is_none(get: Function, broker: MemoryBroker) -> None:
    assert get("unknown") is None
    with pytest.raises(ValueError, match="id='' is empty"):
        get("")


def test_what_waits_for_a_commit_is_not_there_yet(close_order: Handler[int, None]) -> None:
    with transaction.atomic():
        close_order.send(5, id="a")
        assert get_delay_message("a") is None


@pytest.mark.parametrize(("body", "data"), [(b'"old"', "old"), (b"\xff{", "\ufffd{")])
def test_data_that_fits_no_more_is_shown_as_it_is(
    body: bytes, data: str, close_order: Handler[int, None], broker: MemoryBroker
) -> None:
    broker.queue.enqueue([NewMessage("a", Header("default", "order.close"), body)])
    info = get_delay_message("a")
    assert info is not None
    assert info.data == data


def test_data_of_a_handler_whose_annotation_can_not_be_resolved_is_shown_as_json(
    registry: None, broker: MemoryBroker
) -> None:
    @delay_execute("order.unresolved")
    def unresolved(message: "Message[Missing]") -> None:  # type: ignore[name-defined] # noqa: F821
        ...

    broker.queue.enqueue([NewMessage("a", Header("default", "order.unresolved"), b'{"number":7}')])
    info = get_delay_message("a")
    assert info is not None
    assert info.data == {"number": 7}
