"""Traces: spans for each operation and its parts. Off unless an endpoint is set. `Tracer` is the interface and the
implementation without tracing: it imports nothing, so an untraced service pays only for empty method calls.
`open_tracer` returns the tracer of `dra_driver.runtime.otel` if a setting or OpenTelemetry's standard variables enable
it; the packages are the extra `otel`. A started span is the current one for later code in the same task and for tasks
that it creates, so parts find their parent by themselves.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

from dra_driver.errors import InvalidInput

type Value = str | bool | int | float | Sequence[str]
"""Value of an attribute in OpenTelemetry."""

CLAIM_UID = "gpu_dra.claim.uid"
CLAIM_NAME = "gpu_dra.claim.name"
NAMESPACE = "k8s.namespace.name"
NODE = "k8s.node.name"
PODS = "gpu_dra.pods"
DEVICES = "gpu_dra.devices"
REPEATED = "gpu_dra.repeated"
OUTCOME = "gpu_dra.outcome"
"""`ok`, or the kind of error."""
POOL = "gpu_dra.pool"
AS_WANTED = "gpu_dra.as_wanted"
"""Whether the pool is up to date; False for a pool that is not wanted, or whose plugin may be gone."""

OK = "ok"

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span:
    """A span that is not recorded."""

    def tell(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""

    def end(self, outcome: str = OK, reason: str | None = None) -> None:
        """`outcome` is `ok` or the kind of error, `reason` the error's message. Called once."""


class Tracer:
    """Makes spans that are not recorded."""

    def adopt(self, traceparent: str | None) -> None:
        """Makes the remote span the parent of what follows in this task: a `traceparent` of W3C Trace Context. None or
        an invalid one changes nothing.
        """

    def begin(self, name: str, attributes: Mapping[str, Value]) -> Span:
        """A span that is the current one until the task ends. The caller must end it."""
        return _UNRECORDED

    def ended(self, name: str, seconds: float, outcome: str) -> None:
        """A child of the current span that took this long and ended now; without a current span, a root span."""

    def span(self, name: str, attributes: Mapping[str, Value]) -> AbstractContextManager[Span]:
        """A span for the block; an exception from the block is its outcome."""
        return nullcontext(_UNRECORDED)

    def request(self, verb: str, resource: str) -> AbstractContextManager[Mapping[str, str]]:
        """A span for a request to the API server, as a child of the current span; returns the headers that pass the
        trace on. Without a current span it makes none, because spans of leases and watches would only fill the storage.
        """
        return nullcontext(_NO_HEADERS)

    def close(self) -> None:
        """Sends the remaining spans for at most a few seconds; blocking."""


_UNRECORDED = Span()
_NO_HEADERS: Mapping[str, str] = {}

OFF = Tracer()
"""The tracer of services without tracing."""


def endpoint_asked_for(setting: str | None, environment: Mapping[str, str]) -> str | None:
    """The collector's URL from the setting, otherwise from OpenTelemetry's variables; None: no traces.
    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` disable the variables, not the setting. Source:
    OpenTelemetry specification, environment variables of SDKs and of the OTLP exporter.
    """
    if setting:
        return setting
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    return next((environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)), None)


@asynccontextmanager
async def open_tracer(endpoint: str | None, service: str, node: str | None = None) -> AsyncIterator[Tracer]:
    """The tracer of a service while it runs; `OFF` without an endpoint. `node` is None for services that belong to no
    node. Raises InvalidInput if the packages of the extra are not installed.
    """
    if endpoint is None:
        yield OFF
        return
    tracer = _of_opentelemetry(endpoint, service, node)
    try:
        yield tracer
    finally:
        tracer.close()


def _of_opentelemetry(endpoint: str, service: str, node: str | None) -> Tracer:
    try:
        # Imported here, because it costs memory in every process that imports it.
        from dra_driver.runtime.otel import exporting_tracer
    except ImportError as error:
        raise InvalidInput(
            f"traces cannot be sent to {endpoint}: {error}; install opentelemetry-sdk and"
            " opentelemetry-exporter-otlp-proto-grpc, or leave --otlp-endpoint and OTEL_EXPORTER_OTLP_ENDPOINT out",
            about="setting --otlp-endpoint",
        ) from error
    return exporting_tracer(endpoint, service, node)
