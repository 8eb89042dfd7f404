"""The end of a handler that was stopped, or told to stop, since its lease could not be renewed in time."""

from django_delayq.brokers.base import Settlement
from django_delayq.safe_logs import logger
from django_delayq.worker import attempt
from django_delayq.worker.lanes import Lease


def cut_short(lease: Lease, what: str) -> Settlement | None:
    """How its lease ends: if nobody took it meanwhile, the message runs again soon, and nothing is counted.

    None where another took it, and where it must not start twice: then it lapses, and upkeep buries it.
    """
    claimed, handler = lease.claimed, lease.lane.handler
    logger.warning(
        "Message %r (%s): its lease ended, and %s.",
        claimed.id, handler.key, what, extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
    )  # fmt: skip
    if lease.lost or attempt.at_most_once(claimed, handler):
        return None
    return attempt.interrupt(claimed, handler, lease.ms_of(lease.started_at))
