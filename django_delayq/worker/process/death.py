"""Decide what becomes of a message whose process ended before its handler did."""

from django_delayq.core import transitions
from django_delayq.core.errors import HandlerTimeout
from django_delayq.core.transitions import Span, Transition
from django_delayq.support.logging import logger
from django_delayq.support.units import to_text
from django_delayq.worker import attempt
from django_delayq.worker.attempt import interrupted_settlement
from django_delayq.worker.events import AttemptEvents
from django_delayq.worker.leases import Lease
from django_delayq.worker.transactions import was_committed


class ProcessDied(Exception):
    """A process ended by itself while it ran the message."""


class SandboxDied(ProcessDied):
    """A sandbox, which ran this message and no other, ended by itself."""


class ProcessGaveUp(Exception):
    """A process ended itself, or was killed, because the lease of a message that it ran was no longer held.

    Or somebody has asked to cancel that message.
    """


class ProcessEnded(Exception):
    """A process was killed for a reason other than this message."""


def timeout_of(lease: Lease) -> HandlerTimeout:
    """Return the failure of a message whose process was killed because it ran for too long."""
    text = to_text(lease.timeout_s * 1000)
    return HandlerTimeout(f"It ran for longer than {text}; its process was killed.")


def after_death(lease: Lease, ending: Exception, events: AttemptEvents) -> Transition | None:
    """Return what becomes of a started message whose process ended, and report it; None leaves its lease to lapse.

    If an atomic handler has committed, its message is finished, whatever ended its process.
    """
    claimed, handler = lease.claimed, lease.handler
    started_ms, now_ms = lease.ms_of(lease.started_at), lease.now_ms()
    policy = attempt.policy_of(claimed, handler)
    exception: Exception | None = ending.with_traceback(None)  # this process's traceback says nothing about the handler
    if was_committed(claimed, handler):
        logger.warning(
            "Message %r (%s) is finished: its transaction was committed before its process died.",
            claimed.id, handler.key, extra={"id": claimed.id, "key": handler.key, "token": claimed.token},
        )  # fmt: skip
        exception = None
        transition = attempt.after(claimed, handler, None, started_ms, now_ms)
    elif isinstance(ending, HandlerTimeout):
        transition = attempt.after(claimed, handler, exception, started_ms, now_ms)
    elif isinstance(ending, ProcessEnded):
        transition = transitions.interrupt(claimed, policy, Span(started_ms))
    elif isinstance(ending, ProcessGaveUp) and lease.cancel_request is not None and lease.is_held():
        exception = None
        transition = transitions.cancel(claimed, lease.cancel_request, Span(started_ms, now_ms))
    elif isinstance(ending, ProcessDied) and lease.is_held():
        crash = transitions.crash_alone if isinstance(ending, SandboxDied) else transitions.crash
        transition = crash(claimed, str(ending), policy, Span(started_ms, now_ms))
    else:
        return interrupted_settlement(lease, "the process that ran it ended")
    transition = attempt.unless_cancelled(lease, transition)
    if transition.action is not transitions.SettleAction.INTERRUPT:
        events.ended(lease, transition, None, exception)
    return transition
