"""Spans: what a service did for whom, part by part, for those who collect traces. Off unless an endpoint is given.

`Tracer` is the port. This one makes no spans, and nothing is imported for it: a service that is not traced pays for a
method call that does nothing. `open_tracer` gives the one of `dra_driver.runtime.otel` instead where a setting or the
standard variables of OpenTelemetry ask for it; the packages are the extra `otel`.

A span that is begun is the current one for what follows in the same task and in tasks that it makes, so parts need not
be told what they are part of.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

from dra_driver.errors import InvalidInput

type Value = str | bool | int | float | Sequence[str]
"""Of an attribute, as OpenTelemetry has them."""

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
"""Whether the pool is now as it should be; a pool that nobody wants, or whose plugin may be gone, is not."""

OK = "ok"

_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span:
    """One that nobody records."""

    def tell(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes."""

    def end(self, outcome: str = OK, reason: str | None = None) -> None:
        """`outcome` is `ok` or the kind of error, `reason` what the error says. Called once."""


class Tracer:
    """Makes spans that nobody records."""

    def adopt(self, traceparent: str | None) -> None:
        """What follows in this task is part of somebody else's span: a `traceparent` as W3C Trace Context has it.

        None, or one that makes no sense, changes nothing.
        """

    def begin(self, name: str, attributes: Mapping[str, Value]) -> Span:
        """A span that is the current one until the task ends. Whoever begins it ends it."""
        return _UNRECORDED

    def ended(self, name: str, seconds: float, outcome: str) -> None:
        """A part of the current span that took so long and ended just now; without one, a span of its own."""

    def span(self, name: str, attributes: Mapping[str, Value]) -> AbstractContextManager[Span]:
        """A span for the block; an exception that leaves it is its outcome."""
        return nullcontext(_UNRECORDED)

    def request(self, verb: str, resource: str) -> AbstractContextManager[Mapping[str, str]]:
        """A request to the API server, as part of the current span; gives the headers that tell the server so.

        Without a current span there is none: leases and watches would fill a store with nothing.
        """
        return nullcontext(_NO_HEADERS)

    def close(self) -> None:
        """Send what is left, for a few seconds at most; blocking."""


_UNRECORDED = Span()
_NO_HEADERS: Mapping[str, str] = {}

OFF = Tracer()
"""The one of services that are not traced."""


def endpoint_asked_for(setting: str, environment: Mapping[str, str]) -> str | None:
    """Where traces go: the setting, else what OpenTelemetry's variables say; None: nowhere.

    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` switch the variables off, not the setting.
    Source: OpenTelemetry specification, environment variables of SDKs and of the OTLP exporter.
    """
    if setting:
        return setting
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    return next((environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)), None)


@asynccontextmanager
async def open_tracer(endpoint: str | None, service: str, node: str | None = None) -> AsyncIterator[Tracer]:
    """The tracer of a service while it runs; `OFF` without an endpoint. `node` is None for what belongs to no node.

    Raises InvalidInput when the packages of the extra are not installed.
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
        # Only here: it costs memory in every process that imports it.
        from dra_driver.runtime.otel import exporting_tracer
    except ImportError as error:
        raise InvalidInput(
            f"traces cannot be sent to {endpoint}: {error}; install the extra: pip install 'gpu-dra-driver[otel]', or"
            " leave --otlp-endpoint and OTEL_EXPORTER_OTLP_ENDPOINT out",
            about="setting --otlp-endpoint",
        ) from error
    return exporting_tracer(endpoint, service, node)
