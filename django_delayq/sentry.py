"""Report failed attempts to Sentry, and follow sends and attempts for its queue insights. It needs the extra `sentry`.

The names are those of Sentry's queues module, whose destination is the queue here.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from django_delayq import tracing
from django_delayq.core.errors import Cancelled, Retry, Snooze
from django_delayq.core.lanes import queue_of
from django_delayq.core.message import Message
from django_delayq.core.requests import NewMessage
from django_delayq.support.sanitize import has_scrubs
from django_delayq.worker import failure

try:
    import sentry_sdk
    from sentry_sdk.scope import add_global_event_processor
    from sentry_sdk.tracing import Span, Transaction
except ImportError as error:
    raise ImportError(f"{error}: pip install 'django-delayq[sentry]'") from error

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

_ORIGIN = "auto.queue.delayq"
_reported: ContextVar[tuple[str, int] | None] = ContextVar("django_delayq_reported", default=None)
"""The id and the token of the attempt that this thread or task has reported last as a text."""


def instrument() -> None:
    """Report to Sentry each attempt of this process that fails, and each send and attempt that it samples.

    A message keeps Sentry's trace as its trace id, unless it has one of its own, so its attempts are in the trace of
    the send. Each process of the site must call this, those of a worker too: call it where the site calls
    `sentry_sdk.init()`, such as in its settings.
    """
    tracing.use(Sentry())


class Sentry:
    """A `Tracer` that tells Sentry."""

    def sending(self, using: str, messages: Sequence[NewMessage]) -> "_Send":
        """Begin a span, and mark the messages with its trace."""
        header = messages[0].header
        span = sentry_sdk.start_span(op="queue.publish", name=header.key, origin=_ORIGIN)
        span.set_data("messaging.system", "delayq")
        span.set_data("messaging.destination.name", queue_of(header.queue))
        span.set_data("messaging.message.body.size", sum(len(message.body) for message in messages))
        if len(messages) == 1:
            span.set_data("messaging.message.id", messages[0].id)
        else:
            span.set_data("messaging.batch.message_count", len(messages))
        tracing.mark(messages, span.to_traceparent())
        return _Send(span)

    def running(self, handler: tracing.Traced, message: Message[Any]) -> "_Attempt":
        """Begin a transaction, in a scope of its own: what is noted there belongs to this attempt alone."""
        with ExitStack() as stack:
            scope = stack.enter_context(sentry_sdk.isolation_scope())
            scope.clear_breadcrumbs()
            scope.set_tag("delayq.key", message.key)
            scope.set_tag("delayq.queue", message.queue)
            scope.set_context("delayq", {"id": message.id, "attempt": message.attempt, "using": handler.using})
            sent = {"sentry-trace": message.trace_id or ""}
            transaction = sentry_sdk.continue_trace(
                sent, op="queue.task.delayq", name=message.key, source="task", origin=_ORIGIN
            )
            stack.enter_context(sentry_sdk.start_transaction(transaction))
            span = stack.enter_context(sentry_sdk.start_span(op="queue.process", name=message.key, origin=_ORIGIN))
            span.set_data("messaging.system", "delayq")
            span.set_data("messaging.destination.name", message.queue)
            span.set_data("messaging.message.id", message.id)
            span.set_data("messaging.message.receive.latency", message.started_ms - message.due_ms)
            span.set_data("messaging.message.retry.count", message.attempt - 1)
            return _Attempt(handler, message, transaction, span, stack.pop_all())


class _Send:
    """A send that goes on."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, error: BaseException | None) -> None:
        """End the span. An error is raised to the caller, whose it is to report."""
        self._span.set_status("ok" if error is None else "internal_error")
        self._span.finish()


class _Attempt:
    """An attempt that goes on."""

    def __init__(
        self,
        handler: tracing.Traced,
        message: Message[Any],
        transaction: Transaction,
        span: Span,
        opened: ExitStack,
    ) -> None:
        self._handler = handler
        self._message = message
        self._transaction = transaction
        self._span = span
        self._opened = opened

    def end(self, error: BaseException | None) -> None:
        """Report an error, unless the handler asked to run again, and end the transaction."""
        with self._opened:
            failed = error is not None and not isinstance(error, Cancelled | Snooze)
            for each in (self._transaction, self._span):
                each.set_status("internal_error" if failed else "ok")
            if error is not None and not isinstance(error, Cancelled | Retry | Snooze):
                self._report(error)

    def _report(self, error: BaseException) -> None:
        """Send the exception. If the site has texts scrubbed, send its text instead: Sentry would show it as it is."""
        if has_scrubs():
            scope = sentry_sdk.get_current_scope()
            scope.set_context("traceback", {"text": failure.traceback_of(error, self._handler.func)})
            scope.capture_message(failure.line(error), "error")
            _reported.set((self._message.id, self._message.token))
        else:
            sentry_sdk.capture_exception(error)


def _drop_twin(event: "Event", hint: "Hint") -> "Event | None":
    """Drop the event of a log line about an attempt that was reported as a text.

    Where the exception itself was reported, Sentry drops the twin by that.
    """
    record = hint.get("log_record")
    twin = (getattr(record, "id", None), getattr(record, "token", None))
    return None if twin == _reported.get() else event


add_global_event_processor(_drop_twin)
