"""Wrong input to a send: an error that names the value and the fix, and nothing is sent."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_delayq import (
    Handler,
    Message,
    SendError,
    Unsupported,
    delay_execute,
    send_delay_message,
    send_delay_messages,
)
from django_delayq.brokers.memory import MemoryBroker
from django_delayq.core.message import OnConflict
from tests.api.support import waiting

pytestmark = pytest.mark.django_db

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"delay": -1}, ValueError, r"delay=-1 is too short; give 0 or more"),
        ({"delay": float("nan")}, ValueError, r"delay=nan is not finite"),
        ({"delay": float("inf")}, ValueError, r"delay=inf is not finite"),
        ({"delay": "101y"}, ValueError, r"delay='101y' is no length of time; write it like"),
        ({"delay": "36601d"}, ValueError, r"delay='36601d' is over 100 years; give less"),
        ({"delay": object}, TypeError, r"delay=<class 'object'> is no length of time"),
        ({"delay": 1, "at": AT}, TypeError, r"delay=1 and at=.* are both given; give one of them"),
        ({"at": datetime(2026, 1, 1)}, ValueError, r"at=.* is naive; give django\.utils\.timezone\.make_aware\(at\)"),
        ({"at": date(2026, 1, 1)}, TypeError, r"at=.* is date; give an aware datetime"),
        ({"at": 5}, TypeError, r"at=5 is int; give an aware datetime"),
        ({"at": AT.replace(year=2200)}, ValueError, r"at=.*2200.* is over 100 years from now"),
        ({"id": ""}, ValueError, r"id='' is empty"),
        ({"id": "x" * 201}, ValueError, r"id='x.*' has 201 characters; give at most 200"),
        ({"id": "a\x1fb"}, ValueError, r"id='a\\x1fb' contains '\\x1f'; leave out control characters"),
        ({"id": "a\u202eb"}, ValueError, r"id=.* contains U\+202E, which hides or reorders text; leave it out"),
        ({"key": "delayq.move"}, ValueError, r"key='delayq.move' is for messages of django-delayq itself"),
        ({"id": "delayq.move:x"}, ValueError, r"id='delayq.move:x' is for messages of django-delayq itself"),
        ({"tag": "delayq.x"}, ValueError, r"tag='delayq.x' is for messages of .* itself; choose one without 'delayq.'"),
        ({"id": 5}, TypeError, r"id=5 is int; give one str"),
        ({"on_conflict": "replac"}, ValueError, r"on_conflict='replac' is unknown: did you mean 'replace'\?"),
        ({"id": "a", "id_scope": "al"}, ValueError, r"id_scope='al' is unknown: did you mean 'all'\?"),
        ({"id": "a", "id_scope": ["all"]}, ValueError, r"id_scope=\['all'\] is unknown"),
        ({"id_scope": "all"}, ValueError, r"id_scope='all' needs an id"),
        ({"id": "a", "id_scope": "all"}, Unsupported, r"needs a store, .*: set up STORE in DELAYQ\['default'\]"),
        ({"queue": "a:b"}, ValueError, r"queue='a:b' contains a colon"),
        ({"queue": "a^5"}, ValueError, r"queue='a\^5' is how .* priority are named; give queue='a', priority=5"),
        ({"priority": 101}, ValueError, r"priority=101 is too large; give 100 or less"),
        ({"priority": -101}, ValueError, r"priority=-101 is too small; give -100 or more"),
        ({"priority": "5"}, TypeError, r"priority='5' is str; give a whole number"),
        ({"queue": "x" * 198, "priority": 10}, ValueError, r"has 201 characters; give at most 200"),
        ({"max_attempts": 0}, ValueError, r"max_attempts=0 is too small"),
        ({"max_attempts": 2**31}, ValueError, r"max_attempts=2147483648 is too large; give 2147483647 or less"),
        ({"max_attempts": "4"}, TypeError, r"max_attempts='4' is str; give a whole number"),
        ({"expires": 0}, ValueError, r"expires=0 is too short; give 1ms or more"),
        ({"timeout": "soon"}, ValueError, r"timeout='soon' is no length of time"),
        ({"at_most_once": 1}, TypeError, r"at_most_once=1 is int; give True or False"),
        ({"on_commit": "no"}, TypeError, r"on_commit='no' is str; give True or False"),
        ({"tag": ""}, ValueError, r"tag='' is empty"),
        ({"tag": ["a", ""]}, ValueError, r"tag='' is empty"),
        ({"tag": ["a", "delayq.x"]}, ValueError, r"tag='delayq.x' is for messages of .* itself"),
        ({"tag": ["a", 5]}, TypeError, r"tag=5 is int; give one str"),
        ({"tag": {"a", "b"}}, TypeError, r"tag=\{.*\} is set; give one str, or a list or tuple of them"),
        ({"tag": [str(n) for n in range(11)]}, ValueError, r"tag=\[.*\] has 11 tags; give at most 10"),
        (
            {"tag": ("a", "b")},
            Unsupported,
            r"several tags, which need a store: give one tag, or set up STORE in DELAYQ",
        ),
        ({"trace_id": "a\n"}, ValueError, r"trace_id='a\\n' contains '\\n'"),
        ({"key": 5}, TypeError, r"key=5 is int; give one str"),
        ({"key": ["any"]}, TypeError, r"key=\['any'\] is list; give one str"),
        ({"data": (1,)}, TypeError, r"data is of type tuple: the handler would receive a list"),
        ({"using": "other"}, ImproperlyConfigured, r"DELAYQ has no alias 'other'"),
    ],
)
def test_it_is_refused_and_nothing_is_sent(
    options: dict[str, Any], error: type[Exception], message: str, any_data: Handler[Any, None], broker: MemoryBroker
) -> None:
    with pytest.raises(error, match=message):
        send_delay_message(**{"key": "any", "on_commit": False, **options})
    assert waiting(broker) == []


def test_data_over_the_limit_is_refused(settings: Settings, any_data: Handler[Any, None]) -> None:
    memory = "django_delayq.brokers.memory.MemoryBroker"
    settings.DELAYQ = {"default": {"BROKER": memory, "STORE": None, "OPTIONS": {"max_data": "1KiB"}}}
    any_data.send("x" * 1_022, on_commit=False)
    with pytest.raises(ValueError, match=r"data takes 1025 bytes as JSON, over the 1024 of OPTIONS\['max_data'\]"):
        any_data.send("x" * 1_023, on_commit=False)


def test_data_is_checked_against_the_type_of_the_handler(close_order: Handler[int, None]) -> None:
    with pytest.raises(TypeError, match=r"data doesn't fit int"):
        close_order.send("5")  # type: ignore[arg-type]  # and a type checker knows


@pytest.fixture
def push_invoice(registry: None) -> Handler[Any, None]:
    """A handler with a limit for each account."""

    @delay_execute(key="invoice.push", max_concurrency=1, concurrency_key="account:{account_id}")
    def push_invoice(message: Message[Any]) -> None: ...

    return push_invoice


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"acount_id": 3}, r"concurrency_key='account:{account_id}' names 'account_id', which this data doesn't have"),
        (3, r"names 'account_id', which this data doesn't have"),
        ({"account_id": None}, r"the field 'account_id' is of type NoneType; give text or a whole number"),
    ],
)
def test_data_without_the_field_of_a_concurrency_key_is_refused(
    data: Any, message: str, push_invoice: Handler[Any, None], broker: MemoryBroker
) -> None:
    with pytest.raises(ValueError, match=message):
        push_invoice.send(data, on_commit=False)
    with pytest.raises(SendError, match=message):
        send_delay_messages([push_invoice.prepare(data)], on_commit=False)
    assert waiting(broker) == []


@pytest.mark.usefixtures("registry")
def test_data_without_the_field_of_a_rate_key_is_refused(broker: MemoryBroker) -> None:
    @delay_execute(key="host.ping", rate_limit="100/m", rate_key="host:{host}", burst=20)
    def ping(message: Message[Any]) -> None: ...

    with pytest.raises(ValueError, match=r"rate_key='host:{host}' names 'host', which this data doesn't have"):
        ping.send({"hots": "a"}, on_commit=False)
    assert waiting(broker) == []


def test_an_object_with_a_primary_key_is_refused_with_what_to_send(close_order: Handler[Any, None]) -> None:
    with pytest.raises(TypeError, match=r"can't be carried as int: .* User is unsupported; send its pk and load it"):
        close_order.send(User(pk=5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"countdown": 5}, r"there is no option 'countdown': write delay=\.\.\.\."),
        ({"eta": AT}, r"there is no option 'eta': write at=\.\.\.\."),
        ({"dealy": 5}, r"there is no option 'dealy': did you mean 'delay'\?"),
        ({"using": "orders"}, r"an option of @delay_execute: <Handler 'order.close': .*> has 'default'; leave it out"),
    ],
)
def test_an_option_of_another_library_is_refused_with_ours(
    options: dict[str, Any], message: str, close_order: Handler[int, None]
) -> None:
    for send in (close_order.send, close_order.prepare, async_to_sync(close_order.asend)):
        with pytest.raises(TypeError, match=message):
            send(5, **options)


def test_several_values_are_refused_with_what_to_write(close_order: Handler[Any, None]) -> None:
    sends: list[Any] = [close_order.send, close_order.prepare, async_to_sync(close_order.asend)]
    for send in sends:
        with pytest.raises(TypeError, match=r"one value as data, not 2; send a list or a dict: \[1, 2\]"):
            send(1, 2)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("delay", r"<Handler 'order.close': .*> has no attribute 'delay'; write send\(data\)\."),
        ("apply_async", r"has no attribute 'apply_async'; write send\(data, delay=\"30m\"\)\."),
        ("cancel", r"has no attribute 'cancel'; write cancel_delay_messages\(id\)\."),
        ("sned", r"'Handler' object has no attribute 'sned'$"),
    ],
)
def test_a_method_of_another_library_is_refused_with_ours(
    method: str, message: str, close_order: Handler[int, None]
) -> None:
    with pytest.raises(AttributeError, match=message):
        getattr(close_order, method)


def test_without_a_store_a_handler_that_refuses_ids_that_have_ended_takes_no_id(
    registry: None, broker: MemoryBroker
) -> None:
    @delay_execute("k", id_scope="all")
    def handle(message: Message[int]) -> None: ...

    with pytest.raises(Unsupported, match="id_scope='all' needs a store"):
        handle.send(1, id="a", on_commit=False)
    assert waiting(broker) == []
    handle.send(1, on_commit=False)
    handle.send(2, id="a", id_scope="waiting", on_commit=False)
    assert len(waiting(broker)) == 2


@pytest.mark.parametrize("on_conflict", ["replace", "earliest", "latest", "raise"])
def test_a_conflict_without_an_id_is_refused(on_conflict: OnConflict, close_order: Handler[int, None]) -> None:
    with pytest.raises(ValueError, match=f"on_conflict='{on_conflict}' needs an id"):
        close_order.send(5, on_conflict=on_conflict)
