"""The tracer of OpenTelemetry. Only `dra_driver.runtime.tracing` imports this, and only if tracing is enabled.
OpenTelemetry's own variables (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
`OTEL_EXPORTER_OTLP_*`) are read by its SDK. Spans are sent with OTLP over gRPC, because a plugin has grpc in memory
already.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dra_driver import __version__
from dra_driver.runtime.tracing import NODE, OK, OUTCOME, Span, Tracer, Value

_LAST_WORD_S = 3.0
"""How long a stopping service waits for its collector; the kubelet waits for the plugin, and pods wait for the
kubelet."""

_NANOSECONDS = 1_000_000_000


class _Recorded(Span):
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def tell(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def end(self, outcome: str = OK, reason: str | None = None) -> None:
        self._span.set_attribute(OUTCOME, outcome)
        if outcome != OK:
            self._span.set_status(Status(StatusCode.ERROR, reason))
        self._span.end()


class OtelTracer(Tracer):
    """Records spans with `processor`, for one event loop."""

    def __init__(self, processor: SpanProcessor, service: str, node: str | None = None) -> None:
        about: dict[str, str] = {"service.name": service, "service.version": __version__}
        if node is not None:
            about[NODE] = node
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the defaults.
        resource = Resource(about).merge(Resource.create())
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("gpu-dra-driver", __version__)
        self._headers = TraceContextTextMapPropagator()

    def adopt(self, traceparent: str | None) -> None:
        if traceparent is not None:
            context.attach(self._headers.extract({"traceparent": traceparent}))

    def begin(self, name: str, attributes: Mapping[str, Value]) -> Span:
        span = self._tracer.start_span(name, attributes=attributes)
        context.attach(trace.set_span_in_context(span))
        return _Recorded(span)

    def ended(self, name: str, seconds: float, outcome: str) -> None:
        end = time.time_ns()
        span = self._tracer.start_span(name, start_time=end - int(seconds * _NANOSECONDS))
        span.set_attribute(OUTCOME, outcome)
        if outcome != OK:
            span.set_status(StatusCode.ERROR)
        span.end(end)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Value]) -> Iterator[Span]:
        with self._current(name, SpanKind.INTERNAL, attributes) as span:
            yield span

    @contextmanager
    def request(self, verb: str, resource: str) -> Iterator[Mapping[str, str]]:
        if not trace.get_current_span().get_span_context().is_valid:
            yield {}
            return
        with self._current(f"{verb} {resource}", SpanKind.CLIENT, {}):
            headers: dict[str, str] = {}
            self._headers.inject(headers)
            yield headers

    def close(self) -> None:
        # The SDK's own shutdown has no time limit if the collector does not answer.
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(_LAST_WORD_S)

    @contextmanager
    def _current(self, name: str, kind: SpanKind, attributes: Mapping[str, Value]) -> Iterator[Span]:
        span = self._tracer.start_span(name, kind=kind, attributes=attributes)
        recorded = _Recorded(span)
        token = context.attach(trace.set_span_in_context(span))
        try:
            yield recorded
        except BaseException as error:
            recorded.end(type(error).__name__, str(error))
            raise
        else:
            recorded.end()
        finally:
            context.detach(token)


def exporting_tracer(endpoint: str, service: str, node: str | None) -> OtelTracer:
    """An exporter to the collector at `endpoint`: `http://host:4317` or, with TLS, `https://host:4317`."""
    return OtelTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), service, node)
