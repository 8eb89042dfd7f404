"""The end of a handler that was stopped, or told to stop, because its lease is not held any more."""

from django_delayq.core import transitions
from django_delayq.core.retry import is_at_most_once
from django_delayq.core.transitions import Span, Transition
from django_delayq.support.logging import logger
from django_delayq.worker import attempt
from django_delayq.worker.prefetch import Lease


def cut_short(lease: Lease, what: str) -> Transition | None:
    """Return how its lease ends: if nobody took it meanwhile, the message runs again soon, and nothing is counted.

    None where another worker took it, and where it must not start twice: then it lapses, and upkeep buries it.
    """
    claimed, handler = lease.claimed, lease.buffer.handler
    logger.warning(
        "Message %r (%s): %s, and %s.",
        claimed.id, handler.key, _why(lease), what,
        extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
    )  # fmt: skip
    if lease.lost or is_at_most_once(claimed.header, handler):
        return None
    policy = attempt.policy_of(claimed, handler)
    return transitions.interrupt(claimed, policy, Span(lease.ms_of(lease.started_at)))


def _why(lease: Lease) -> str:
    if lease.interrupted:
        return "its worker stops"
    return "its lease was lost" if lease.lost else "its lease could not be renewed in time"
