"""Follow sends and attempts with OpenTelemetry: spans and metrics. It needs the extra `otel`.

The names follow OpenTelemetry's semantic conventions for messaging, whose `messaging.destination.name` is the queue
here. What they have no name for begins with `messaging.delayq.`. A span is named after the key, because a queue says
little about what a message does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from django_delayq import tracing
from django_delayq.core.errors import Cancelled, Snooze
from django_delayq.core.figures import BOUNDS_MS
from django_delayq.core.lanes import queue_of
from django_delayq.core.message import Message
from django_delayq.core.requests import NewMessage
from django_delayq.support.sanitize import text_of
from django_delayq.worker import failure

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(f"{error}: pip install 'django-delayq[otel]'") from error

_NAME = "django_delayq"
_QUEUE = "messaging.destination.name"
_KEY = "messaging.delayq.key"
_ALIAS = "messaging.delayq.alias"
_TRACEPARENT = "traceparent"
_W3C = TraceContextTextMapPropagator()
_ROOT = context.Context()

_SEND_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The bounds that the conventions ask for, in seconds."""
_BOUNDS_S = tuple(bound_ms / 1000 for bound_ms in BOUNDS_MS)


def instrument(
    *,
    parent: bool = False,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Follow each send and each attempt of this process, with the global providers unless others are given.

    A send is a producer span in the caller's trace. Its `traceparent` becomes the trace id of the message, unless the
    message has a trace id of its own. Each attempt is a consumer span in a new trace, with a link to the send. With
    `parent=True` it is a child of the send instead, which makes one trace of all. During a handler the span of its
    attempt is the current one.

    Each process of the site must call this, those of a worker too: call it in `AppConfig.ready()`.
    """
    tracing.use(OpenTelemetry(parent, tracer_provider, meter_provider))


class OpenTelemetry:
    """A `Tracer` that makes spans and metrics."""

    def __init__(
        self,
        parent: bool,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
    ) -> None:
        self._parent = parent
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._instruments = _Instruments(metrics.get_meter(_NAME, meter_provider=meter_provider))

    def sending(self, using: str, messages: Sequence[NewMessage]) -> "_Send":
        """Begin a span, and mark the messages with it."""
        shared = _operation("send") | _shared(using, messages)
        if len(messages) == 1:
            own: dict[str, str | int] = {"messaging.message.id": messages[0].id}
        else:
            own = {"messaging.batch.message_count": len(messages)}
        span = self._tracer.start_span(
            _name("send", shared), kind=trace.SpanKind.PRODUCER, attributes={**shared, **own}
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, _ROOT))
        if _TRACEPARENT in carrier:  # there is none without an SDK
            tracing.mark(messages, carrier[_TRACEPARENT])
        return _Send(span, self._instruments, using, messages, shared)

    def running(self, handler: tracing.Traced, message: Message[Any]) -> "_Attempt":
        """Begin a span, and make it the current one."""
        labels = _operation("process") | _labels(handler.using, message.queue, message.key)
        sent = _W3C.extract({_TRACEPARENT: message.trace_id or ""}, _ROOT)
        creation = trace.get_current_span(sent).get_span_context()
        span = self._tracer.start_span(
            _name("process", labels),
            context=sent if self._parent else _ROOT,
            kind=trace.SpanKind.CONSUMER,
            attributes=labels | {"messaging.message.id": message.id, "messaging.delayq.attempt": message.attempt},
            links=[trace.Link(creation)] if creation.is_valid else None,
        )
        self._instruments.lateness.record(message.lateness.total_seconds(), labels)
        return _Attempt(span, self._instruments, handler, labels)


class _Instruments:
    """The metrics. Their attributes are those of the spans that take few values."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were sent, or could not be."
        )
        self.send_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long sends took.",
            explicit_bucket_boundaries_advisory=_SEND_S,
        )
        self.consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Attempts.")
        self.run_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long attempts ran.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self.lateness = meter.create_histogram(
            "messaging.delayq.lateness",
            "s",
            "How late attempts started.",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )


class _Send:
    """A send that goes on."""

    def __init__(
        self,
        span: trace.Span,
        instruments: _Instruments,
        using: str,
        messages: Sequence[NewMessage],
        shared: Mapping[str, str],
    ) -> None:
        self._span = span
        self._instruments = instruments
        self._using = using
        self._messages = messages
        self._shared = shared
        self._began_at = perf_counter()

    def end(self, error: BaseException | None) -> None:
        """Count the messages, and end the span."""
        failed = _failed(error)
        self._instruments.send_duration.record(perf_counter() - self._began_at, {**self._shared, **failed})
        pairs = Counter((queue_of(message.header.queue), message.header.key) for message in self._messages)
        for (queue, key), count in pairs.items():
            self._instruments.sent.add(count, _operation("send") | _labels(self._using, queue, key) | failed)
        if error is not None:
            _record(self._span, error, text_of(error, error.__traceback__))
        self._span.end()


class _Attempt:
    """An attempt that goes on."""

    def __init__(
        self, span: trace.Span, instruments: _Instruments, handler: tracing.Traced, labels: Mapping[str, str]
    ) -> None:
        self._span = span
        self._instruments = instruments
        self._handler = handler
        self._labels = labels
        self._began_at = perf_counter()
        self._before = context.attach(trace.set_span_in_context(span, _ROOT))

    def end(self, error: BaseException | None) -> None:
        """Count the attempt, and end the span."""
        context.detach(self._before)
        error = None if isinstance(error, Cancelled | Snooze) else error
        labels = {**self._labels, **_failed(error)}
        self._instruments.run_duration.record(perf_counter() - self._began_at, labels)
        self._instruments.consumed.add(1, labels)
        if error is not None:
            _record(self._span, error, failure.traceback_of(error, self._handler.func))
        self._span.end()


def _operation(name: str) -> dict[str, str]:
    return {"messaging.system": "delayq", "messaging.operation.name": name, "messaging.operation.type": name}


def _labels(using: str, queue: str, key: str) -> dict[str, str]:
    return {_ALIAS: using, _QUEUE: queue, _KEY: key}


def _shared(using: str, messages: Sequence[NewMessage]) -> dict[str, str]:
    """Return those of `_labels` that all the messages have in common."""
    first = messages[0].header
    queue = queue_of(first.queue)
    labels = _labels(using, queue, first.key)
    if any(queue_of(message.header.queue) != queue for message in messages):
        del labels[_QUEUE]
    if any(message.header.key != first.key for message in messages):
        del labels[_KEY]
    return labels


def _name(operation: str, labels: Mapping[str, str]) -> str:
    return f"{operation} {labels[_KEY]}" if _KEY in labels else operation


def _failed(error: BaseException | None) -> dict[str, str]:
    if error is None:
        return {}
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"error.type": name}


def _record(span: trace.Span, error: BaseException, traceback: str) -> None:
    """Note an error in its span, without secrets and without what the site has scrubbed."""
    kind = _failed(error)
    line = failure.line(error)
    span.set_attributes(kind)
    span.set_status(trace.StatusCode.ERROR, line)
    span.add_event(
        "exception",
        {"exception.type": kind["error.type"], "exception.message": line, "exception.stacktrace": traceback},
    )
