"""Define the errors that django-delayq raises, and the exceptions with which handlers steer messages. Pure values."""

from datetime import datetime
from typing import Literal

from django_delayq.core.human_time import Windows, check_windows
from django_delayq.support.timestamps import check_aware, due_time_ms
from django_delayq.support.units import Duration, to_ms
from django_delayq.support.validation import short_repr


class DelayqError(Exception):
    """The base of every error of django-delayq."""


class SendError(DelayqError):
    """A send that failed, or whose outcome is not known.

    The first `accepted` messages were taken. `unknown` has the ids of the batch in flight, which may have been taken;
    it is safe to send them again while they wait. No later message was tried. After a single send, `unknown` has the
    id of its message, unless no server could be connected to: then nothing was sent.
    """

    def __init__(self, reason: str, accepted: int = 0, unknown: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.accepted = accepted
        self.unknown = unknown


class DuplicateMessage(DelayqError):
    """A send with `on_conflict="raise"` whose id belongs to a message that waits or runs already.

    With `id_scope="all"` also one whose id belongs to a message that has ended.
    """


class UnknownKey(DelayqError, LookupError):
    """No handler is registered for an execute key."""


class DataMismatch(DelayqError):
    """The data of a message is no JSON, or doesn't fit its handler. Trying again can't help."""


class BrokerUnavailable(DelayqError):
    """The broker can't be reached, or can't write now. It is right to try again later."""


class PartlyUnavailable(BrokerUnavailable):
    """A part of the broker is away, or has no memory left, while the rest goes on. It is right to try again later."""


class StoreUnavailable(BrokerUnavailable):
    """The store's database can't be reached, or is too busy. It is right to try again later."""


class BrokerRefused(DelayqError):
    """The broker answers, but somebody must mend something first.

    Examples: a wrong password, an unfit memory policy, data of another program under a key of delayq.
    """


class ForeignMark(BrokerRefused):
    """The broker has another's data where ours belong: a store's mark, another layout, or a key of another type."""


class Unsupported(DelayqError):
    """The alias can't do what was asked. For example, finding messages by their tag needs a store."""


class LeaseLost(DelayqError):
    """The right to work on this message was lost: another worker may have it."""


class Cancelled(DelayqError):
    """Somebody has asked to cancel the message that this handler runs; see `Message.ensure_not_cancelled`."""


class Stopped(DelayqError):
    """The sequence of a message was stopped right before its handler was called. Nothing has run."""


class HandlerTimeout(DelayqError):
    """A handler ran for longer than its time-out. It counts as a failure like any other."""


class Steer(Exception):
    """The base of the exceptions that a handler raises to decide what becomes of its message."""


class RunAgain(Steer):
    """The base of the exceptions that may say when a message runs again: after `delay`, or at the instant `at`.

    If the `window` is closed then, it runs again when that opens. "own" is the window of the message, or else that of
    its handler; None is none.

    Raises `TypeError` or `ValueError`, naming the value and the fix, for both of them, and for an `at` that is naive.
    """

    def __init__(
        self, delay: Duration | None, reason: str, at: datetime | None, window: Windows | Literal["own"] | None
    ) -> None:
        name = type(self).__name__
        super().__init__(reason or name)
        if delay is not None and at is not None:
            raise TypeError(f"{name} has delay={short_repr(delay)} and at={short_repr(at)}; give one of them.")
        self.delay_ms = None if delay is None else to_ms(delay, f"{name} delay")
        self.at_ms = None if at is None else due_time_ms(check_aware(at, f"{name} at"))
        if window is not None and window != "own":
            check_windows(window)
        self.window = window

    def delay_from(self, now_ms: int) -> int | None:
        """Return the milliseconds from `now_ms` until the message runs again; None if nothing says when."""
        return self.delay_ms if self.at_ms is None else max(self.at_ms - now_ms, 0)


class Retry(RunAgain):
    """A handler's wish to fail this attempt. If attempts are left, the message runs again after `delay` or at `at`.

    If both are None, it runs again after the handler's backoff. `window` is as in `RunAgain`.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        reason: str = "",
        *,
        at: datetime | None = None,
        window: Windows | Literal["own"] | None = "own",
    ) -> None:
        super().__init__(delay, reason, at, window)


class Snooze(RunAgain):
    """A handler's wish to run again after `delay` or at `at`, without counting a failure.

    `window` is as in `RunAgain`.
    """

    def __init__(
        self,
        delay: Duration | None = None,
        reason: str = "",
        *,
        at: datetime | None = None,
        window: Windows | Literal["own"] | None = "own",
    ) -> None:
        if delay is None and at is None:
            raise TypeError('Snooze needs a time: give it a delay, such as "5m", or at=.')
        super().__init__(delay, reason, at, window)


class Bury(Steer):
    """Give up at once: the message fails for good with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
