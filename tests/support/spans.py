"""Spans of the code under test: in memory, and as a collector receives them of another process."""

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
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

    def span(self, name: str) -> ReadableSpan:
        (match,) = [span for span in self.spans if span.name == name]
        return match

    def below(self, parent: ReadableSpan) -> list[str]:
        """Names of the spans that are part of this one, in the order in which they ended."""
        assert parent.context is not None
        return [
            span.name
            for span in self.spans
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]

    def attributes(self, name: str) -> dict[str, object]:
        return dict(self.span(name).attributes or {})


class Collector(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """What an OpenTelemetry collector is to its clients."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        """Requests, as they came."""
        self.url = ""

    def service(self, details: Any) -> Any:
        def export(request: Any, context: Any) -> Any:
            self.received.append(request)
            return otlp.ExportTraceServiceResponse()

        assert details.method == "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        return grpc.unary_unary_rpc_method_handler(
            export,
            request_deserializer=otlp.ExportTraceServiceRequest.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    @property
    def names(self) -> list[str]:
        """Of all spans that came."""
        scopes = [scope for request in self.received for spans in request.resource_spans for scope in spans.scope_spans]
        return [span.name for scope in scopes for span in scope.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port while the block runs."""
    collector, server = Collector(), grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((collector,))
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0)
