"""Spans of the code under test, in memory."""

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dra_driver.runtime.otel import OtelTracer


class Recorder:
    """A tracer and what it recorded."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer(SimpleSpanProcessor(self._exporter), "service", "node-1")

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Those that ended, in that order."""
        return self._exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def below(self, parent: ReadableSpan) -> list[str]:
        """Names of the spans that are part of this one, in the order in which they ended."""
        assert parent.context is not None
        return [
            span.name
            for span in self.spans
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]

    def told(self, name: str) -> dict[str, object]:
        return dict(self.one(name).attributes or {})
