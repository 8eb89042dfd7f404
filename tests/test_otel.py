"""OpenTelemetry: a span for each send, linked to one for each attempt, and metrics by queue and key."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pytest_django import Settings

from django_delayq import (
    Message,
    Retry,
    Send,
    SendError,
    Snooze,
    asend_delay_message,
    asend_delay_messages,
    delay_execute,
    get_delay_message,
    send_delay_message,
    send_delay_messages,
    tracing,
)
from django_delayq.brokers import get_backend
from django_delayq.core.errors import BrokerUnavailable
from django_delayq.core.requests import Header, NewMessage
from django_delayq.otel import instrument
from django_delayq.testing import run_due
from tests.worker.rig import Rig, make_handler

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STEPS: list[BaseException | None] = []
"""The exceptions that the attempts of `run` raise, one after another."""


class Telemetry:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = TracerProvider(shutdown_on_exit=False)
        self.spans.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.metrics = MeterProvider([self.reader], shutdown_on_exit=False)

    def instrument(self, *, parent: bool = False) -> None:
        instrument(parent=parent, tracer_provider=self.spans, meter_provider=self.metrics)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name that have ended, in the order in which they did."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def counted(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """The attributes of each series of a metric, with its value: how often, for a histogram."""
        data = self.reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
            if metric.name == name
        ]
        return [(dict(point.attributes or {}), getattr(point, "count", None) or point.value) for point in found]  # type: ignore[union-attr]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Yield what a site exports whose attempts are linked to their sends."""
    telemetry = Telemetry()
    telemetry.instrument()
    yield telemetry
    tracing.use(None)


@pytest.fixture
def site(registry: None, settings: Settings) -> None:
    """A site without a store that has a handler `run` on the queue `mail`, which does its `STEPS`."""
    settings.DELAYQ = {"default": {"BROKER": "django_delayq.testing.VirtualTimeBroker", "STORE": None}}
    STEPS.clear()

    @delay_execute(key="run", queue="mail", backoff=1, max_attempts=3)
    def run(message: Message[Any]) -> None:
        if STEPS and (error := STEPS.pop(0)) is not None:
            raise error

    @delay_execute(key="other", queue="mail")
    def other(message: Message[Any]) -> None: ...


def trace_id(id: str) -> str | None:
    found = get_delay_message(id)
    assert found is not None
    return found.trace_id


def written(context: trace.SpanContext | None) -> str:
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def traceparent(span: ReadableSpan) -> str:
    return written(span.get_span_context())


def links_of(span: ReadableSpan) -> list[str]:
    return [written(link.context) for link in span.links]


@pytest.mark.usefixtures("site")
def test_an_attempt_is_a_trace_of_its_own_that_is_linked_to_the_send(telemetry: Telemetry) -> None:
    with telemetry.spans.get_tracer("site").start_as_current_span("request"):
        send_delay_message("run", id="a")
    sent, request = telemetry.one("send run"), telemetry.one("request")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent == request.get_span_context()
    assert sent.attributes == {
        "messaging.system": "delayq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": "a",
        "messaging.delayq.key": "run",
        "messaging.delayq.alias": "default",
    }
    assert trace_id("a") == traceparent(sent)
    with telemetry.spans.get_tracer("site").start_as_current_span("a test"):
        run_due()
    ran = telemetry.one("process run")
    assert ran.kind is SpanKind.CONSUMER
    assert ran.parent is None
    assert links_of(ran) == [traceparent(sent)]
    assert ran.attributes == {
        "messaging.system": "delayq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": "a",
        "messaging.delayq.key": "run",
        "messaging.delayq.alias": "default",
        "messaging.delayq.attempt": 1,
    }
    assert ran.status.status_code is StatusCode.UNSET


@pytest.mark.usefixtures("site")
def test_each_attempt_has_a_span_and_a_failed_one_its_error(telemetry: Telemetry) -> None:
    STEPS[:] = [ValueError("password=hush"), Retry(delay=1), Snooze(1), None]
    send_delay_message("run")
    run_due("1h", errors="keep")
    spans = telemetry.named("process run")
    assert [span.attributes and span.attributes["messaging.delayq.attempt"] for span in spans] == [1, 2, 3, 3]
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 2 + [StatusCode.UNSET] * 2
    assert {(*links_of(span),) for span in spans} == {(traceparent(telemetry.one("send run")),)}
    failed = spans[0]
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert failed.status.description == "ValueError: password=***"
    (event,) = failed.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "ValueError"
    assert "in run\n" in str(event.attributes["exception.stacktrace"])
    assert "hush" not in str(event.attributes)


@pytest.mark.usefixtures("site")
def test_an_attempt_may_be_a_child_of_the_send(telemetry: Telemetry) -> None:
    telemetry.instrument(parent=True)
    send_delay_message("run")
    run_due()
    sent, ran = telemetry.one("send run"), telemetry.one("process run")
    assert ran.parent is not None
    assert ran.parent.is_remote
    assert (ran.parent.trace_id, ran.parent.span_id) == (sent.context.trace_id, sent.context.span_id)
    assert links_of(ran) == [traceparent(sent)]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(("own", "linked"), [("order 7", []), (OWN, [OWN])])
def test_a_trace_id_of_the_site_stays(telemetry: Telemetry, own: str, linked: list[str]) -> None:
    send_delay_message("run", id="a", trace_id=own)
    assert trace_id("a") == own
    run_due()
    assert links_of(telemetry.one("process run")) == linked


def batch(count: int, *keys: str) -> Iterator[Send]:
    for number in range(count):
        for key in keys:
            yield Send(key, id=f"{key}{number}")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_is_one_span_that_all_its_messages_share(telemetry: Telemetry, is_async: bool) -> None:
    if is_async:
        asyncio.run(asend_delay_messages(batch(6, "run"), batch_size=4, on_commit=False))
    else:
        send_delay_messages(batch(6, "run"), batch_size=4)
    first, second = telemetry.named("send run")
    counts = [span.attributes and span.attributes["messaging.batch.message_count"] for span in (first, second)]
    assert counts == [4, 2]
    assert "messaging.message.id" not in (first.attributes or {})
    assert [trace_id(f"run{number}") for number in range(6)] == [traceparent(first)] * 4 + [traceparent(second)] * 2


@pytest.mark.usefixtures("site")
def test_a_mixed_batch_has_the_attributes_that_are_common_to_it(telemetry: Telemetry) -> None:
    send_delay_messages(batch(1, "run", "other"))
    sent = telemetry.one("send").attributes
    assert sent is not None
    assert (sent["messaging.destination.name"], "messaging.delayq.key" in sent) == ("mail", False)
    keys = [
        (labels["messaging.delayq.key"], value) for labels, value in telemetry.counted("messaging.client.sent.messages")
    ]
    assert sorted(keys) == [("other", 1), ("run", 1)]


def test_messages_that_share_a_header_share_it_once_they_are_marked() -> None:
    plain, own = Header("q", "k"), Header("q", "k", trace_id="own")
    messages = [NewMessage(str(n), header, b"1") for n, header in enumerate([plain, plain, own])]
    tracing.mark(messages, "new")
    assert [message.header.trace_id for message in messages] == ["new", "new", "own"]
    assert messages[0].header is messages[1].header
    assert plain.trace_id is None, "it is that of all sends of this handler"


@pytest.mark.usefixtures("site")
def test_a_send_that_fails_has_its_error(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise BrokerUnavailable("nobody there")

    monkeypatch.setattr(get_backend().queue, "enqueue", away)
    with pytest.raises(BrokerUnavailable):
        send_delay_message("run")
    with pytest.raises(SendError):
        send_delay_messages([Send("run")])
    for span in telemetry.named("send run"):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "django_delayq.core.errors.BrokerUnavailable"
    ((labels, count),) = telemetry.counted("messaging.client.sent.messages")
    assert (labels["error.type"], count) == ("django_delayq.core.errors.BrokerUnavailable", 2)


@pytest.mark.usefixtures("site")
def test_a_send_from_async_code_is_in_the_trace_of_its_caller(telemetry: Telemetry) -> None:
    async def request() -> None:
        with telemetry.spans.get_tracer("site").start_as_current_span("request"):
            await asend_delay_message("run", on_commit=False)

    asyncio.run(request())
    assert telemetry.one("send run").parent == telemetry.one("request").get_span_context()


@pytest.mark.usefixtures("site")
def test_metrics_are_by_queue_and_key(telemetry: Telemetry) -> None:
    STEPS[:] = [ValueError("no"), None]
    send_delay_message("run")
    run_due("1h", errors="keep")
    run = {
        "messaging.system": "delayq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.delayq.key": "run",
        "messaging.delayq.alias": "default",
    }
    send = run | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    attempts = [(run | {"error.type": "ValueError"}, 1), (run, 1)]
    assert telemetry.counted("messaging.client.sent.messages") == [(send, 1)]
    assert telemetry.counted("messaging.client.operation.duration") == [(send, 1)]
    assert telemetry.counted("messaging.client.consumed.messages") == attempts
    assert telemetry.counted("messaging.process.duration") == attempts
    assert telemetry.counted("messaging.delayq.lateness") == [(run, 2)]


@pytest.mark.parametrize("is_async", [False, True])
def test_in_a_worker_the_spans_of_a_handler_are_children_of_its_attempt(telemetry: Telemetry, is_async: bool) -> None:
    tracer = telemetry.spans.get_tracer("site")

    def run(message: Message[Any]) -> None:
        with tracer.start_as_current_span("query"):
            pass

    async def arun(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        run(message)

    rig = Rig()
    rig.send("a", "b", trace_id=OWN)
    rig.drain(make_handler(arun if is_async else run))
    attempts, queries = telemetry.named("process k"), telemetry.named("query")
    assert [query.parent for query in queries] == [attempt.get_span_context() for attempt in attempts]
    assert len(attempts) == 2
    assert [links_of(attempt) for attempt in attempts] == [[OWN], [OWN]]


def test_an_async_handler_that_was_cancelled_at_its_time_out_says_so(telemetry: Telemetry) -> None:
    async def wait(message: Message[Any]) -> None:
        await asyncio.Event().wait()

    rig = Rig()
    rig.send("a")
    rig.drain(make_handler(wait, timeout_ms=20))
    ran = telemetry.one("process k")
    assert ran.attributes is not None
    assert ran.attributes["error.type"] == "django_delayq.core.errors.HandlerTimeout"
    assert ran.status.description == "HandlerTimeout: It ran for longer than 20ms."


@pytest.mark.usefixtures("site")
@pytest.mark.django_db
def test_an_async_handler_in_the_transaction_of_a_test_is_followed_too(telemetry: Telemetry) -> None:
    @delay_execute(key="arun")
    async def arun(message: Message[Any]) -> None:
        assert trace.get_current_span().get_span_context().is_valid

    send_delay_message("arun")
    run_due()
    assert telemetry.one("process arun").status.status_code is StatusCode.UNSET


class Broken(SpanProcessor):
    """What an exporter or a hook of a site may be."""

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._do("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._do("on_end")

    def _do(self, what: str) -> None:
        if what == self._fails_at:
            raise RuntimeError(f"{what} broke")


class BrokenExporter(InMemorySpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError("export broke")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "broken",
    [Broken("on_start"), Broken("on_end"), SimpleSpanProcessor(BrokenExporter())],
    ids=["start", "end", "export"],
)
def test_what_fails_in_telemetry_fails_no_send_and_no_attempt(
    telemetry: Telemetry, broken: SpanProcessor, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry.spans.add_span_processor(broken)
    send_delay_message("run", id="a")
    send_delay_messages([Send("run")])
    assert len(run_due()) == 2
    assert get_delay_message("a") is None
    assert "broke" in caplog.text
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.usefixtures("site")
def test_without_an_sdk_messages_are_sent_as_they_are() -> None:
    instrument()
    try:
        send_delay_message("run", id="a")
        assert trace_id("a") is None
        run_due()
    finally:
        tracing.use(None)


def test_where_it_is_not_installed_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import django_delayq.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("pip install 'django-delayq[otel]'")
