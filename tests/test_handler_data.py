"""The type of a handler's data, from its annotation, and `run` for unit tests."""

import asyncio
import dataclasses
import functools
from typing import Any, Generic, TypeVar

import pytest
from django.contrib.auth.models import User

from django_delayq import Message, delay_execute

pytestmark = pytest.mark.usefixtures("registry")

T = TypeVar("T")


class Box(Generic[T]):
    """Generic, but no message."""


@dataclasses.dataclass
class Parcel:
    order: int


def typed(message: Message[Parcel]) -> int:
    return message.data.order


def forward(message: "Message[Later]") -> None: ...
def without(message): ...  # type: ignore[no-untyped-def]
def bare(message: Message) -> None: ...  # type: ignore[type-arg]
def any_data(message: Message[Any]) -> None: ...
def objects(message: Message[object]) -> None: ...
def hidden_result(message: Message[int]) -> "Hidden": ...  # type: ignore[name-defined]  # noqa: F821
def hidden(message: "Message[Hidden]") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_message(message: int) -> None: ...
def other_generic(message: Box[int]) -> None: ...
def model(message: Message[User]) -> None: ...


@dataclasses.dataclass
class Later:
    """Defined below the handler that names it."""

    order: int


@pytest.mark.parametrize(
    ("func", "data_type"),
    [
        (typed, Parcel),
        (forward, Later),
        (without, Any),
        (bare, Any),
        (any_data, Any),
        (objects, Any),
        (hidden_result, int),
    ],
)
def test_the_annotation_gives_the_type(func: Any, data_type: Any) -> None:
    assert delay_execute("k")(func).data_type is data_type


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (hidden, r"its annotation can't be resolved: name 'Hidden' is not defined"),
        (no_message, r"its argument is annotated <class 'int'>; a handler takes a Message\[\.\.\.\]"),
        (other_generic, r"its argument is annotated .*Box\[int\]"),
        (model, r"User is no type that msgspec converts"),
    ],
)
def test_an_annotation_that_says_nothing_names_the_handler(func: Any, message: str) -> None:
    handler = delay_execute("k")(func)
    with pytest.raises(TypeError, match=rf"^Handler tests\.test_handler_data\.{func.__name__} \(key 'k'\): {message}"):
        handler.data_type  # noqa: B018


def test_a_decorated_function_keeps_its_type() -> None:
    @functools.wraps(typed)
    def wrapper(*args: Any) -> int:
        return typed(*args)

    assert delay_execute("k")(wrapper).data_type is Parcel


def test_run_gives_the_data_as_it_would_arrive() -> None:
    sent = {"order": 5}
    seen: list[Message[Any]] = []

    @delay_execute("k", queue="mail")
    def note(message: Message[dict[str, int]]) -> None:
        seen.append(message)

    note.run(sent, attempt=2, tag="t")
    (message,) = seen
    assert message.data == sent
    assert message.data is not sent
    assert (message.key, message.queue, message.attempt, message.tag) == ("k", "mail", 2, "t")


def test_run_returns_what_the_function_returns() -> None:
    assert delay_execute("k")(typed).run(Parcel(5)) == 5


def test_run_gives_a_handler_of_many_a_message_for_each_value() -> None:
    @delay_execute("k", batch=5)
    def index(messages: list[Message[int]]) -> list[tuple[str, int, int]]:
        return [(message.id, message.data, message.attempt) for message in messages]

    assert index.run(7) == [("run", 7, 1)]
    assert index.run(1, -1, 2, attempt=2) == [("run", 1, 2), ("run-2", -1, 2), ("run-3", 2, 2)]
    assert index.run(1, 2, id="x") == [("x", 1, 1), ("x-2", 2, 1)]
    with pytest.raises(TypeError, match=r"data doesn't fit int: .*got `array`\. .* write run\(\*\[1, -1, 2\]\)"):
        index.run([1, -1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"data doesn't fit int: Expected `int`, got `str`$"):
        index.run(1, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a message has one value as data, not 2; send a list or a dict"):
        delay_execute("one")(typed).run(Parcel(5), Parcel(6))


def test_run_of_an_async_handler_is_awaited() -> None:
    @delay_execute("k")
    async def double(message: Message[int]) -> int:
        return message.data * 2

    assert asyncio.run(double.run(5)) == 10


def test_data_may_be_left_out_just_where_it_may_be_none() -> None:
    """Type checkers know it too: mypy finds an ignore that it does not need."""

    @delay_execute("none")
    def none(message: Message[None]) -> None: ...

    @delay_execute("optional")
    def optional(message: Message[int | str | None]) -> None: ...

    @delay_execute("any")
    def anything(message: Message[Any]) -> None: ...

    @delay_execute("number")
    def number(message: Message[int]) -> None: ...

    for handler in (none, optional, anything):
        assert handler.prepare().data is None
    none.run()
    none.prepare(None, delay=1)
    optional.run()
    optional.prepare(5)
    anything.run(attempt=2)
    with pytest.raises(TypeError, match=r"data doesn't fit int"):
        number.run()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"data doesn't fit int"):
        number.send()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"data doesn't fit int"):
        number.send(delay=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"data doesn't fit int"):
        asyncio.run(number.asend())  # type: ignore[call-arg]
    number.prepare()  # type: ignore[call-arg]


def test_run_refuses_data_that_send_would_refuse() -> None:
    with pytest.raises(TypeError, match=r"data doesn't fit Parcel"):
        delay_execute("k")(typed).run("x")  # type: ignore[arg-type]  # T flows from the annotation to run


def test_run_refuses_a_field_that_a_message_lacks() -> None:
    with pytest.raises(TypeError, match="attempts"):
        delay_execute("k")(typed).run(Parcel(5), attempts=2)
