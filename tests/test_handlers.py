"""`@delay_execute`: what it registers, and what it refuses, naming the handler."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_delayq import Exponential, Message, delay_execute
from django_delayq.api.handlers import get_handler, handlers_by_key, registered_handlers
from django_delayq.api.registry import unknown_key

pytestmark = pytest.mark.usefixtures("registry")


def close_order(message: Message[int]) -> str:
    """Close an order."""
    return f"closed {message.data}"


async def remind(message: Message[int]) -> str:
    return f"reminded {message.data}"


def test_a_handler_looks_like_its_function() -> None:
    handler = delay_execute("order.close")(close_order)
    names = [getattr(handler, name) for name in ("__name__", "__doc__", "__module__", "__wrapped__")]
    assert names == ["close_order", "Close an order.", __name__, close_order]
    assert repr(handler) == "<Handler 'order.close': tests.test_handlers.close_order>"


def test_calling_a_handler_calls_the_function() -> None:
    message = Message("a", "order.close", 5, 0, 0, 0)
    assert delay_execute("order.close")(close_order)(message) == "closed 5"


def test_the_defaults_are_those_of_the_docs() -> None:
    handler = delay_execute("k")(close_order)
    assert (handler.queue, handler.using, handler.max_attempts, handler.timeout_ms) == (
        "default",
        "default",
        4,
        3_600_000,
    )
    assert (handler.concurrency, handler.expires_ms, handler.former_keys) == (None, None, ())
    assert handler.backoff == Exponential()
    assert (handler.atomic, handler.at_most_once, handler.is_async) == (False, False, False)
    assert handler.id_scope == "waiting"


def test_options_are_kept_lengths_in_milliseconds() -> None:
    handler = delay_execute(
        "k",
        former_keys=["old", "older"],
        queue="mail",
        using="reports",
        max_attempts=1,
        backoff=["1s", "1m"],
        timeout="90s",
        concurrency=2,
        expires="1h",
        atomic=True,
        at_most_once=True,
    )(close_order)
    assert (handler.former_keys, handler.queue, handler.using) == (("old", "older"), "mail", "reports")
    assert (handler.max_attempts, handler.backoff, handler.timeout_ms) == (1, ["1s", "1m"], 90_000)
    assert (handler.concurrency, handler.expires_ms, handler.atomic, handler.at_most_once) == (2, 3_600_000, True, True)


def test_an_async_function_is_known_as_one() -> None:
    assert delay_execute("k")(remind).is_async


def test_a_handler_is_found_by_its_keys_in_its_alias_only() -> None:
    handler = delay_execute("new", former_keys=["old"], using="reports")(close_order)
    assert get_handler("reports", "new") is get_handler("reports", "old") is handler
    assert get_handler("default", "new") is None
    assert set(handlers_by_key("reports")) == {"new", "old"}
    assert registered_handlers() == [handler]


def test_one_key_may_serve_in_two_aliases() -> None:
    handlers = [delay_execute("k", using=using)(close_order) for using in ("default", "reports")]
    assert registered_handlers() == handlers


@pytest.mark.parametrize(
    "second", [{"key": "a"}, {"key": "b"}, {"key": "c", "former_keys": ["a"]}, {"key": "c", "former_keys": ["b"]}]
)
def test_a_second_handler_of_a_key_is_refused_and_both_are_named(second: dict[str, Any]) -> None:
    first = delay_execute("a", former_keys=["b"])(close_order)
    with pytest.raises(
        ImproperlyConfigured, match=r"test_handlers\.remind .*belongs to tests\.test_handlers\.close_order already"
    ):
        delay_execute(**second)(remind)
    assert registered_handlers() == [first]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "x" * 201}, r"has 201 characters; give at most 200"),
        ({"key": "a\x00"}, r"leave out control characters"),
        ({"key": 5}, r"key=5 is int; give one str"),
        ({"key": "a\u202eb"}, r"contains U\+202E, which hides or reorders text; leave it out"),
        ({"queue": "a\u202eb"}, r"queue=.* contains U\+202E, which hides or reorders text; leave it out"),
        ({"key": "delayq.move"}, r"'delayq.move' begins with 'delayq.', as the keys of django-delayq itself do"),
        ({"former_keys": ["delayq.move"]}, r"'delayq.move' begins with 'delayq.'"),
        ({"max_attempt": 5}, r"there is no option 'max_attempt': did you mean 'max_attempts'\?"),
        ({"former_keys": "old"}, r"former_keys='old' is one str; give a list: \['old'\]"),
        ({"former_keys": ["old", "a"], "key": "a"}, r"former_keys=\['old', 'a'\] has the key itself; leave it out"),
        ({"former_keys": [""]}, r"former_keys='' is empty"),
        ({"queue": "a:b"}, r"queue='a:b' contains a colon"),
        ({"using": None}, r"using=None is NoneType"),
        ({"max_attempts": 0}, r"max_attempts=0 is too small; give 1 or more"),
        ({"max_attempts": 2**31}, r"max_attempts=2147483648 is too large; give 2147483647 or less"),
        ({"backoff": lambda attempt: 1}, r"takes \(attempt\); it must take two positional arguments: \(attempt, exc"),
        ({"backoff": "soon"}, r"backoff='soon' is no length of time"),
        ({"timeout": 0}, r"timeout=0 is too short; give 1ms or more"),
        ({"timeout": "1y"}, r"timeout='1y' is no length of time"),
        ({"concurrency": 0}, r"concurrency=0 is too small"),
        ({"expires": -1}, r"expires=-1 is too short; give 1ms or more"),
        ({"atomic": "yes"}, r"atomic='yes' is str; give True or False"),
        ({"at_most_once": 1}, r"at_most_once=1 is int; give True or False"),
        ({"id_scope": "ever"}, r"id_scope='ever' is unknown: "),
    ],
)
def test_a_wrong_option_names_handler_value_and_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(
        ImproperlyConfigured, match=rf"^Handler tests\.test_handlers\.close_order \(key .*\): .*{message}"
    ):
        delay_execute(**{"key": "order.close", **options})(close_order)
    assert registered_handlers() == []


def test_options_have_names() -> None:
    with pytest.raises(
        ImproperlyConfigured, match=r"^Handler .*close_order \(key 'a'\): 'b' has no name; give options by"
    ):
        delay_execute("a", "b")(close_order)  # type: ignore[arg-type]


def no_argument() -> None: ...
def two_arguments(message: Message[int], extra: int) -> None: ...
def any_arguments(*messages: Message[int]) -> None: ...
def by_name_only(*, message: Message[int]) -> None: ...


def generator(message: Message[int]) -> Iterator[None]:
    yield


async def async_generator(message: Message[int]) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (no_argument, r"no_argument .*it takes \(\) -> None; it must take one positional argument: \(message\)"),
        (two_arguments, r"two_arguments .*must take one positional argument"),
        (any_arguments, r"any_arguments .*must take one positional argument"),
        (by_name_only, r"by_name_only .*must take one positional argument"),
        (generator, r"generator .*a generator does nothing when called"),
        (async_generator, r"async_generator .*a generator does nothing when called"),
        (Message, r"Message .*a handler is a function, not type"),
        (5, r"a handler is a function, not int"),
    ],
)
def test_what_cannot_handle_a_message_is_refused(func: Callable[..., Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message):
        delay_execute("k")(func)


def test_a_handler_is_not_made_a_handler_again() -> None:
    handler = delay_execute("k")(close_order)
    with pytest.raises(ImproperlyConfigured, match="a handler is a function, not Handler"):
        delay_execute("other")(handler)


@pytest.mark.parametrize(
    "decorate",
    [delay_execute, lambda func: delay_execute()(func), lambda func: delay_execute(key="")(func)],
    ids=["no call", "no argument", "an empty key"],
)
def test_the_decorator_without_a_key_says_so(decorate: Callable[[object], object]) -> None:
    with pytest.raises(
        ImproperlyConfigured, match=r'close_order: @delay_execute needs a key; write @delay_execute\(key="'
    ):
        decorate(close_order)


def test_an_unknown_key_offers_the_nearest_or_the_right_alias() -> None:
    delay_execute("order.close", using="reports")(close_order)
    assert "did you mean 'order.close'?" in str(unknown_key("reports", "order.clsoe"))
    assert "pass using='reports'" in str(unknown_key("default", "order.close"))


def index(messages: list[Message[int]]) -> None:
    """Index orders."""


def index_one(message: Message[int]) -> None:
    """Index an order."""


def test_a_handler_of_many_decodes_the_data_of_each() -> None:
    handler = delay_execute("k", batch=500, wait="2s")(index)
    assert (handler.batch, handler.wait_ms, handler.data_type) == (500, 2_000, int)


def test_a_batch_and_a_function_of_one_message_are_refused_where_they_are_written() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"index_one \(key 'k'\): .*with batch= it takes a list\[Message"):
        delay_execute("k", batch=5)(index_one)
    with pytest.raises(ImproperlyConfigured, match=r"index \(key 'k'\): .*to take many messages, give batch= too"):
        delay_execute("k")(index)
    assert registered_handlers() == []


def test_an_annotation_that_is_defined_later_is_left_to_the_checks() -> None:
    def later(messages: "list[Message[Later]]") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert delay_execute("k", batch=5)(later).batch == 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch": 1}, "batch=1 is too small; give 2 or more"),
        ({"batch": 1_001}, "batch=1001 is too large; give 1000 or less"),
        ({"batch": True}, "batch=True is bool; give a whole number"),
        ({"wait": "2s"}, "wait='2s' is how long a batch waits for more messages; give batch= too"),
        ({"batch": 2, "wait": "11m"}, "wait='11m' is too long; give 10m or less"),
        ({"batch": 2, "max_concurrency": 3}, "batch= and a limit .* don't go together"),
        ({"batch": 2, "rate_limit": "100/m"}, "batch= and a limit .* don't go together"),
        ({"batch": 2, "wait": "1s", "at_most_once": True}, "wait= and at_most_once=True don't go together"),
        ({"batch": 2, "wait": "1m", "expires": "1m"}, "a batch waits for 1m, and its messages expire after 1m"),
    ],
)
def test_options_of_a_batch_that_can_not_hold_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=error):
        delay_execute("k", **options)(index)
    assert registered_handlers() == []


def test_a_spread_without_a_rule_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"spread='2s' is .* give every= too"):
        delay_execute("k", spread="2s")(index_one)
