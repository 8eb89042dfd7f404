"""Its start. The spans are exported in batches, as exporters over a network do."""

from django.apps import AppConfig
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter


class TracedConfig(AppConfig):
    name = "tests.worker.traced"

    def ready(self) -> None:
        from django_delayq.otel import instrument

        spans = TracerProvider()
        spans.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=_line), schedule_delay_millis=60_000))
        instrument(tracer_provider=spans)


def _line(span: ReadableSpan) -> str:
    linked = [f"{link.context.trace_id:032x}" for link in span.links]
    return f"{span.name}: {dict(span.attributes or {})['messaging.message.id']!s} of {linked}\n"
