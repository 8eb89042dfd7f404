"""Register functions as handlers with `@delay_execute`, check them, and find handlers by key."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Generic, Never, TypeVar, Unpack, cast, overload

from django.core.exceptions import ImproperlyConfigured

from django_delayq.api import registry
from django_delayq.api.registry import name_of
from django_delayq.api.send import asend_delay_message, check_id_scope, header_of, send_delay_message
from django_delayq.api.unknown import NoMethod, one_value, refuse_unknown
from django_delayq.conf import DEFAULT_ALIAS, DEFAULT_QUEUE
from django_delayq.core.codec import decode_data, decoder_for, encode_data
from django_delayq.core.errors import DataMismatch
from django_delayq.core.human_time import Windows, check_windows
from django_delayq.core.lanes import new_lane, queue_of
from django_delayq.core.limits import Limits, check_limits
from django_delayq.core.message import IdScope, Message, Send, Sent, When, WhenToSend
from django_delayq.core.occurrences import check_schedule_name
from django_delayq.core.recurrence import CatchUp, Overlap, Rule, check_bounds, check_every
from django_delayq.core.requests import BATCH
from django_delayq.core.retry import Backoff, Exponential, check_backoff
from django_delayq.core.shares import Shares, Weights, check_shares
from django_delayq.core.transitions import Policy, max_attempts
from django_delayq.support.timestamps import wall_clock_ms
from django_delayq.support.translatable import text as _
from django_delayq.support.units import Duration, to_ms, to_text
from django_delayq.support.validation import (
    OWN,
    check_count,
    check_flag,
    check_max_attempts,
    check_name,
    check_new_name,
    did_you_mean,
    short_repr,
)

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
Upgrade = Callable[[Any], Any]
"""A function that takes the data of one version as JSON values, and returns those of the next."""
U = TypeVar("U", bound=Upgrade)

DEFAULT_TIMEOUT = "1h"
MOST_WAIT_MS = 600_000
"""The longest that a message may wait for others of its batch: it waits in a worker, which renews its lease."""
_MOST_VERSION = 1_000_000


def later_version(version: int, own: int) -> str:
    """Return the text on data of a later version than this code knows, as after a roll-back."""
    return _(
        "its data is of version %(version)s, and this code knows no later one than %(own)s", version=version, own=own
    )


@dataclass(eq=False, repr=False)
class Handler(Generic[T, R]):
    """A function registered under an execute key. Calling the handler calls the plain function."""

    func: Callable[[Message[T]], R] | Callable[[list[Message[T]]], R]
    key: str
    former_keys: tuple[str, ...]
    queue: str
    using: str
    max_attempts: int
    backoff: Backoff
    timeout_ms: int
    concurrency: int | None
    expires_ms: int | None
    atomic: bool
    at_most_once: bool
    limits: Limits | None = None
    shares: Shares | None = None
    priority: int = 0
    id_scope: IdScope = "waiting"
    window: Windows | None = None
    every: Rule | None = None
    start: datetime | None = None
    until: datetime | None = None
    count: int | None = None
    catch_up: CatchUp = "last"
    overlap: Overlap = "skip"
    spread: Duration | None = None
    """Of `every`: over which time its occurrences are spread."""
    batch: int | None = None
    """How many messages one call takes at most, as a list; None for a handler of single messages."""
    wait_ms: int = 0
    """How long a batch that is not full waits for more messages."""
    version: int = 1
    upgrades: dict[int, Upgrade] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.func, updated=())
        self.is_async = inspect.iscoroutinefunction(self.func)

    def __call__(self, message: Message[T] | list[Message[T]]) -> R:
        return self.func(message)  # type: ignore[arg-type]  # the caller knows which of the two it takes

    def __repr__(self) -> str:
        return f"<Handler {self.key!r}: {name_of(self.func)}>"

    @functools.cached_property
    def data_type(self) -> Any:
        """Return the T of the function's `Message[T]`; `Any` if it has none. Raises `TypeError`, naming the handler."""
        try:
            return _data_type_of(self.func, of_many=self.batch is not None)
        except TypeError as error:
            raise TypeError(f"Handler {name_of(self.func)} (key {self.key!r}): {error}") from error

    @functools.cached_property
    def policy(self) -> Policy:
        """Return how often a message of this handler may start if its sender does not say."""
        return Policy(self.at_most_once, max_attempts(None, self))

    def upgrade(self, *, from_version: int) -> Callable[[U], U]:
        """Register a function that turns the data of `from_version` into those of the next version.

        It takes and returns JSON values, runs before the data is decoded as T, and may run more than once for a
        message. The version of what is sent from now on is one more than the highest that has an upgrade: 1 if none
        has. Raises `ImproperlyConfigured`, naming the handler, the value and the fix.
        """

        def register(func: U) -> U:
            try:
                check_count(from_version, "from_version", most=_MOST_VERSION)
                if from_version in self.upgrades:
                    raise ValueError(f"from_version={from_version} has {name_of(self.upgrades[from_version])} already.")
                _check_takes_one(func, "(data)")
                if inspect.iscoroutinefunction(func):
                    raise TypeError(f"{name_of(func)} is async; an upgrade is a plain function of the data.")
            except (TypeError, ValueError) as error:
                raise ImproperlyConfigured(
                    f"Upgrade of handler {name_of(self.func)} (key {self.key!r}): {error}"
                ) from error
            self.upgrades[from_version] = func
            self.version = max(self.version, from_version + 1)
            header_of.cache_clear()  # a header that was made before says another version
            return func

        return register

    def upgraded(self, body: bytes, version: int | None) -> bytes:
        """Return JSON data of a version (None is 1) as JSON of this handler's version. Raises `DataMismatch`.

        An error names no value, because it is kept for people who may not see the data.
        """
        first = version or 1
        if first == self.version:
            return body
        if first > self.version:
            raise DataMismatch(later_version(first, self.version))
        data = decode_data(body)
        for each in range(first, self.version):
            data = self._upgraded_once(data, each)
        try:
            return encode_data(data)
        except TypeError as error:
            raise DataMismatch(_("The upgraded data: %(reason)s", reason=error)) from None

    def _upgraded_once(self, data: Any, version: int) -> Any:
        func = self.upgrades.get(version)
        if func is None:
            raise DataMismatch(_("The handler has no upgrade from version %(version)s of its data.", version=version))
        try:
            new = func(data)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the site's code
            raised = type(error).__name__
            why = _("The upgrade %(name)s (from version %(version)s) raised %(error)s.",
                    name=name_of(func), version=version, error=raised)  # fmt: skip
            raise DataMismatch(why) from None
        if new is None:
            why = _("The upgrade %(name)s (from version %(version)s) returned None, not the new data.",
                    name=name_of(func), version=version)  # fmt: skip
            raise DataMismatch(why)
        return new

    def data_of(self, body: bytes, version: int | None) -> Any:
        """Return the data of a message as the function receives it, upgraded first. Raises `DataMismatch`."""
        return decode_data(self.upgraded(body, version), self.data_type)

    def accepted(self, body: bytes, version: int | None) -> Any:
        """Return the data like `data_of`.

        Raises `DataMismatch` also if the data lacks what `concurrency_key` or `rate_key` names. A share was found when
        the message was sent.
        """
        body = self.upgraded(body, version)
        data = decode_data(body, self.data_type)
        if self.limits is not None and self.limits.has_keys:
            self.limits.values_of(data if self.data_type is Any else decode_data(body))
        return data

    def from_version(self, version: int, data: Any) -> T:
        """Return JSON values of an older version as the function would receive them now, for a unit test.

        Raises `DataMismatch` if they can't be upgraded, or don't fit the type afterwards, and `TypeError` or
        `ValueError` for a version that is no whole number from 1.
        """
        check_count(version, "version", most=_MOST_VERSION)
        return cast("T", self.data_of(encode_data(data), version))

    # Only a handler whose T may be None takes no data: type checkers refuse it for the others, and so does sending.

    @overload
    def run(self: "Handler[S | None, R]", **message_fields: Any) -> R: ...
    @overload
    def run(self, data: T, *more: T, **message_fields: Any) -> R: ...

    def run(self, data: Any = None, *more: Any, **message_fields: Any) -> R:
        """Call the function in a unit test, with `data` as it would arrive, and return its result.

        If the function is `async def`, the result is a coroutine, which the test awaits. `message_fields` are fields of
        `Message`, such as `attempt=2`. A handler with a `batch` gets a list of one message for each value: `run(1, -1)`
        has the ids "run" and "run-2".
        """
        if self.batch is None:
            if more:
                raise one_value((data, *more))
            return self(self._message(data, message_fields))
        first: Message[T] = self._message(data, message_fields)
        rest = [
            self._message(each, message_fields | {"id": f"{first.id}-{number}"}) for number, each in enumerate(more, 2)
        ]
        return self([first, *rest])

    def _message(self, data: Any, message_fields: dict[str, Any]) -> Message[T]:
        """Return a message for a unit test, with its data as they would arrive."""
        now_ms = wall_clock_ms()
        fields: dict[str, Any] = {
            "id": "run",
            "due_ms": now_ms,
            "sent_ms": now_ms,
            "started_ms": now_ms,
            "queue": self.queue,
        }
        try:
            arrived = decode_data(encode_data(data, self.data_type), self.data_type)
        except TypeError as error:
            if self.batch is None or not isinstance(data, list):
                raise
            raise TypeError(
                f"{error}. Each value is the data of one message: write run(*{short_repr(data)})."
            ) from None
        return Message(**(fields | message_fields), key=self.key, data=arrived)

    if not typing.TYPE_CHECKING:  # else a type checker would take them for attributes
        delay = NoMethod("send(data)")
        delay_on_commit = NoMethod("send(data): it is a part of the transaction")
        apply_async = NoMethod('send(data, delay="30m")')
        send_with_options = NoMethod('send(data, delay="30m")')
        schedule = NoMethod('send(data, delay="30m")')
        enqueue = NoMethod("send(data)")
        aenqueue = NoMethod("asend(data)")
        defer = NoMethod("send(data)")
        cancel = NoMethod("cancel_delay_messages(id)")
        reschedule = NoMethod('reschedule_delay_messages(id, delay="30m")')

    @overload
    def prepare(self: "Handler[S | None, R]", **when: Unpack[When]) -> Send: ...
    @overload
    def prepare(self, data: T, *more: Never, **when: Unpack[When]) -> Send: ...

    def prepare(self, data: Any = None, *more: Never, **when: Unpack[When]) -> Send:
        """Return a message to send later with `send_delay_messages`."""
        self._check_call((data, *more), when)
        try:
            return Send(self.key, data, using=self.using, **when)
        except TypeError:
            refuse_unknown(when)
            raise

    @overload
    def send(self: "Handler[S | None, R]", **when: Unpack[WhenToSend]) -> Sent: ...
    @overload
    def send(self, data: T, *more: Never, **when: Unpack[WhenToSend]) -> Sent: ...

    def send(self, data: Any = None, *more: Never, **when: Unpack[WhenToSend]) -> Sent:
        """Send a message to this handler: `send_delay_message` with its key and alias."""
        self._check_call((data, *more), when)
        return send_delay_message(self.key, data, using=self.using, **when)

    @overload
    async def asend(self: "Handler[S | None, R]", **when: Unpack[WhenToSend]) -> Sent: ...
    @overload
    async def asend(self, data: T, *more: Never, **when: Unpack[WhenToSend]) -> Sent: ...

    async def asend(self, data: Any = None, *more: Never, **when: Unpack[WhenToSend]) -> Sent:
        """Send a message to this handler like `send`, from async code."""
        self._check_call((data, *more), when)
        return await asend_delay_message(self.key, data, using=self.using, **when)

    def _check_call(self, values: tuple[object, ...], when: When) -> None:
        """Raise `TypeError` for several values, and for an alias beside the handler's own."""
        if len(values) > 1:
            raise one_value(values)
        if "using" in when:
            raise TypeError(f"using is an option of @delay_execute: {self!r} has {self.using!r}; leave it out here.")


def delay_execute(
    key: str = "",
    *positional: Never,
    former_keys: Iterable[str] = (),
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    using: str = DEFAULT_ALIAS,
    max_attempts: int = 4,
    backoff: Backoff = Exponential(),  # noqa: B008  frozen
    timeout: Duration = DEFAULT_TIMEOUT,
    concurrency: int | None = None,
    max_concurrency: int | None = None,
    concurrency_key: str | None = None,
    rate_limit: str | None = None,
    rate_key: str | None = None,
    burst: int = 1,
    share_key: str | None = None,
    share_weight: Weights | None = None,
    expires: Duration | None = None,
    atomic: bool = False,
    at_most_once: bool = False,
    id_scope: IdScope = "waiting",
    window: Windows | None = None,
    every: Rule | None = None,
    start: datetime | None = None,
    until: datetime | None = None,
    count: int | None = None,
    catch_up: CatchUp = "last",
    overlap: Overlap = "skip",
    spread: Duration | None = None,
    batch: int | None = None,
    wait: Duration = 0,
    **unknown: Never,
) -> Callable[[Callable[[Message[T]], R] | Callable[[list[Message[T]]], R]], Handler[T, R]]:
    """Register a function, sync or `async def`, as the handler of the messages sent with `key`.

    - `former_keys`: older keys that the handler still serves.
    - `priority`: between messages of a queue that are due, one with a higher priority, from -100 to 100, starts first.
    - `max_attempts`, `backoff`: a message whose attempt failed is tried again after `backoff`, until `max_attempts`
      attempts have failed.
    - `timeout`: how long one run may take.
    - `concurrency`: how many messages of the handler may run at once in one worker; None leaves it to the worker.
    - `max_concurrency`: how many may run at once over all workers. With a `concurrency_key` such as
      "account:{account_id}", which is filled in from the data, each of its values has a limit of its own.
    - `rate_limit`: how many may start in a second, minute, hour or day ("100/m") over all workers. They start evenly
      spread, after the first `burst` of them, which may start at once. With a `rate_key`, which is like
      `concurrency_key`, each of its values has a rate of its own. A message that has to wait for a limit uses no
      attempt, and does not hold up messages that need not wait.
    - `share_key`: a text like `concurrency_key`, such as "shop:{shop_id}". Among the messages of the handler that are
      due, those of its values, the shares, take turns, so that a shop with a million of them does not hold up the
      others. A share starts `share_weight` times as many as one of weight 1: a dict of share and weight, or a function
      of the share that is quick and returns a weight from 1 to 100. It needs a store.
    - `expires`: a message that has not started within this time after it was due is buried.
    - `atomic`: run the handler in a transaction of the alias's database. With a store, the same transaction ends the
      message, so that what the handler writes takes effect exactly once.
    - `at_most_once`: never start a message a second time.
    - `id_scope`: "all" refuses an id under which a message has ended, for as long as its row is kept. It needs a store.
    - `window`: a message that would be due, be tried again or run on after a snooze while it is closed is due when it
      opens. A message may have another one.
    - `batch`: the function takes a list of up to so many messages (2 to 1,000), and runs once `batch` of them are due,
      or the first of them has waited for `wait` in a worker. If it returns None, all are finished; what it raises holds
      for all. To give some an end of their own, it returns a dict: the id of the message, and the exception that it
      would have raised for that message alone. `timeout` is for the run, `concurrency` counts runs.
    - `every`: a rule by which the handler runs again and again, without data: `Every(...)`, `Cron(...)` or `RRule(...)`
      of django_delayq. `start`, `until`, `count`, `catch_up`, `overlap` and `spread` are those of
      `schedule_delay_message`. The schedule has the handler's key for its name, and is written when a worker starts. It
      needs a store.

    Raises `ImproperlyConfigured`, naming the function, the value and the fix.
    """

    def register(func: Callable[[Message[T]], R] | Callable[[list[Message[T]]], R]) -> Handler[T, R]:
        if key == "":
            raise _without_key(func)
        try:
            _check_signature(func, "message" if batch is None else "messages")
            if atomic and inspect.iscoroutinefunction(func):
                raise TypeError("atomic=True needs a sync handler: Django's transactions don't cross an await.")
            if positional:
                raise TypeError(
                    f"{short_repr(positional[0])} has no name; give options by name, as in queue=... or "
                    "former_keys=[...]."
                )
            if unknown:
                wrong = next(iter(unknown))
                raise TypeError(f"there is no option {wrong!r}: {did_you_mean(wrong, _OPTIONS)}")
            check_backoff(backoff)
            if window is not None:
                check_windows(window)
            check_every(every, catch_up, overlap)
            check_bounds(every, start, until, count)
            if every is not None:
                check_schedule_name(key, "key")
            handler = Handler(
                func=func,
                key=check_new_name(key, "key"),
                former_keys=_checked_former_keys(former_keys, key),
                queue=queue_of(new_lane(queue, priority)),
                priority=priority,
                using=check_new_name(using, "using"),
                max_attempts=check_max_attempts(max_attempts),
                backoff=backoff,
                timeout_ms=to_ms(timeout, "timeout", least_ms=1),
                concurrency=None if concurrency is None else check_count(concurrency, "concurrency"),
                expires_ms=None if expires is None else to_ms(expires, "expires", least_ms=1),
                atomic=check_flag(atomic, "atomic"),
                at_most_once=check_flag(at_most_once, "at_most_once"),
                limits=check_limits(max_concurrency, concurrency_key, rate_limit, rate_key, burst),
                shares=check_shares(share_key, share_weight),
                id_scope=check_id_scope(id_scope),
                window=window,
                every=every,
                start=start,
                until=until,
                count=count,
                catch_up=catch_up,
                overlap=overlap,
                spread=_checked_spread(spread, every),
                batch=None if batch is None else check_count(batch, "batch", 2, BATCH),
                wait_ms=_checked_wait_ms(wait, batch),
            )
            _check_own(handler)
            _check_batch(handler)
            _check_takes_many(handler)
            registry.register(handler)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"Handler {name_of(func)} (key {short_repr(key)}): {error}") from error
        return handler

    if callable(key):
        raise _without_key(key)
    return register


def get_handler(using: str, key: str) -> Handler[Any, Any] | None:
    """Return the handler of an alias that serves `key`, also as a former key; None if there is none."""
    return _by_alias().get(using, {}).get(key)


def handlers_by_key(using: str) -> Mapping[str, Handler[Any, Any]]:
    """Return the handlers of an alias by key, former keys too."""
    return dict(_by_alias().get(using, {}))


def registered_handlers() -> list[Handler[Any, Any]]:
    """Return each handler of every alias once: alias by alias, and within an alias in the order of registration."""
    return list(dict.fromkeys(handler for by_key in _by_alias().values() for handler in by_key.values()))


def _by_alias() -> Mapping[str, Mapping[str, Handler[Any, Any]]]:
    # The registry is in a lower layer and knows only `Registered`, but nothing except a `Handler` is registered.
    return cast("Mapping[str, Mapping[str, Handler[Any, Any]]]", registry.by_alias)


def _without_key(func: object) -> ImproperlyConfigured:
    return ImproperlyConfigured(f'{name_of(func)}: @delay_execute needs a key; write @delay_execute(key="...").')


def _checked_former_keys(keys: Iterable[str], key: str) -> tuple[str, ...]:
    if isinstance(keys, str):
        raise TypeError(f"former_keys={short_repr(keys)} is one str; give a list: [{short_repr(keys)}].")
    checked = tuple(check_name(each, "former_keys") for each in keys)
    if key in checked:
        raise ValueError(f"former_keys={short_repr(list(checked))} has the key itself; leave it out.")
    return checked


def _checked_spread(spread: Duration | None, every: Rule | None) -> Duration | None:
    if spread is not None:
        to_ms(spread, "spread")
        if every is None:
            raise ValueError(
                f"spread={short_repr(spread)} is over which time the occurrences of every=... are spread; give every= "
                "too, or spread= to each send."
            )
    return spread


def _checked_wait_ms(wait: Duration, batch: int | None) -> int:
    wait_ms = to_ms(wait, "wait")
    if wait_ms and batch is None:
        raise ValueError(f"wait={short_repr(wait)} is how long a batch waits for more messages; give batch= too.")
    if wait_ms > MOST_WAIT_MS:
        raise ValueError(
            f"wait={short_repr(wait)} is too long; give {to_text(MOST_WAIT_MS)} or less, because messages wait leased "
            "in a worker. To collect them for longer, send them with a delay."
        )
    return wait_ms


def _check_batch(handler: Handler[Any, Any]) -> None:
    """Raise `ValueError` if options of a handler don't go together with its `batch`."""
    if handler.batch is None:
        return
    if handler.limits is not None:
        raise ValueError(
            "batch= and a limit (max_concurrency, rate_limit) don't go together: a limit lets single messages start. "
            "Leave one of them out; concurrency= says how many batches one worker runs at once."
        )
    if handler.wait_ms and handler.at_most_once:
        raise ValueError(
            "wait= and at_most_once=True don't go together: such a message must start as soon as it is leased. "
            "Leave out wait=."
        )
    if handler.wait_ms and handler.expires_ms is not None and handler.wait_ms >= handler.expires_ms:
        raise ValueError(
            f"a batch waits for {to_text(handler.wait_ms)}, and its messages expire after "
            f"{to_text(handler.expires_ms)}: give a shorter wait= or longer expires=."
        )


def _check_takes_many(handler: Handler[Any, Any]) -> None:
    """Raise `TypeError` if the function takes one message and has a `batch`, or takes a list and has none.

    An annotation that can't be resolved yet, because its module is not complete, is left to the checks.
    """
    try:
        annotation = _resolved(handler.func)
    except TypeError:
        return
    _of_one(annotation, of_many=handler.batch is not None)


def _check_own(handler: Handler[Any, Any]) -> None:
    """Raise `ValueError` if a function of the site has a key that is reserved for django-delayq itself."""
    if handler.func.__module__.startswith("django_delayq."):
        return
    for key in (handler.key, *handler.former_keys):
        if key.startswith(OWN):
            raise ValueError(f"{key!r} begins with {OWN!r}, as the keys of django-delayq itself do; choose another.")


def _check_signature(func: object, argument: str) -> None:
    """Raise `TypeError` unless `func` is a function, sync or async, that takes `argument` and nothing else."""
    if not inspect.isroutine(func):
        raise TypeError(f"a handler is a function, not {type(func).__name__}; write @delay_execute above a def.")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError("a generator does nothing when called; leave out `yield`, or send a message per step.")
    _check_takes_one(func, f"({argument})")


def _check_takes_one(func: Callable[..., object], wanted: str) -> None:
    """Raise `TypeError` unless `func` takes one positional argument and no other. `wanted` shows it in the error."""
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError(f"it takes {inspect.signature(func)}; it must take one positional argument: {wanted}.")


def _data_type_of(func: Callable[..., Any], *, of_many: bool) -> Any:
    """Return the T of the annotation `Message[T]` of the function's argument, or `list[Message[T]]` if it is `of_many`.

    Return `Any` for `Message` or `Any` alone, and if there is no annotation. Raises `TypeError` for an annotation that
    can't be resolved or is no `Message`, and for a T that msgspec can't convert.
    """
    annotation = _of_one(_resolved(func), of_many=of_many)
    if annotation in (Any, Message):
        return Any
    if typing.get_origin(annotation) is not Message:
        raise TypeError(f"its argument is annotated {annotation!r}; a handler takes a Message[...].")
    (data_type,) = typing.get_args(annotation)
    if data_type in (Any, object):
        return Any
    decoder_for(data_type)
    return data_type


def _of_one(annotation: Any, *, of_many: bool) -> Any:
    """Return the annotation of one message, from that of the argument of a function that is `of_many` or not."""
    if not of_many:
        if typing.get_origin(annotation) in (list, Sequence):
            raise TypeError(f"its argument is annotated {annotation!r}; to take many messages, give batch= too.")
        return annotation
    if annotation in (Any, list, Sequence):
        return Any
    if typing.get_origin(annotation) not in (list, Sequence):
        raise TypeError(f"its argument is annotated {annotation!r}; with batch= it takes a list[Message[...]].")
    (of_one,) = typing.get_args(annotation)
    return of_one


def _resolved(func: Callable[..., Any]) -> Any:
    # Only the argument's annotation is resolved: the result's may name something that exists for type checkers alone.
    name = next(iter(inspect.signature(func).parameters))
    names = getattr(inspect.unwrap(func), "__globals__", {})
    try:
        annotation = func.__annotations__.get(name, Any)
        return typing.get_type_hints(SimpleNamespace(__annotations__={name: annotation}), names)[name]
    except Exception as error:
        raise TypeError(f"its annotation can't be resolved: {error}; import what it names at run time.") from error


_OPTIONS = frozenset(inspect.signature(delay_execute).parameters) - {"unknown", "positional"}
