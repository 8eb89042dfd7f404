"""Define the errors that django-delayq raises, and the exceptions with which handlers steer messages. Pure values."""

from django_delayq.support.units import Duration, to_ms


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
    """A send with `on_conflict="raise"` whose id belongs to a message that waits or runs already."""


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


class Unsupported(DelayqError):
    """The alias can't do what was asked. For example, finding messages by their tag needs a store."""


class LeaseLost(DelayqError):
    """The right to work on this message was lost: another worker may have it."""


class HandlerTimeout(DelayqError):
    """A handler ran for longer than its time-out. It counts as a failure like any other."""


class Steer(Exception):
    """The base of the exceptions that a handler raises to decide what becomes of its message."""


class Retry(Steer):
    """A handler's wish to fail this attempt. If attempts are left, the message runs again after `delay`.

    If `delay` is None, it runs again after the handler's backoff.
    """

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or "Retry")
        self.delay_ms = None if delay is None else to_ms(delay, "Retry delay")


class Snooze(Steer):
    """Run again after `delay`, without counting a failure."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or "Snooze")
        self.delay_ms = to_ms(delay, "Snooze delay")


class Bury(Steer):
    """Give up at once: the message fails for good with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
