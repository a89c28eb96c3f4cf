"""Spans of the work on claims: one for each prepare and unprepare of a claim, its steps below it.

Listens as metrics do. Each operation runs in a task of its own, so the current span of the task is the operation's.
"""

from contextvars import ContextVar

from dra_driver.names import ClaimRef
from dra_driver.runtime.tracing import (
    CLAIM_NAME,
    CLAIM_UID,
    DEVICES,
    NAMESPACE,
    PODS,
    REPEATED,
    Span,
    Tracer,
)
from kubelet_plugin.prepare.listener import Call, ClaimListener, Operation

_operation: ContextVar[Span | None] = ContextVar("operation", default=None)


class ClaimSpans(ClaimListener):
    """Steps outside of any operation, those of repairs, are spans of their own."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def began(self, call: Call, claim: ClaimRef) -> None:
        about = {CLAIM_UID: claim.uid, CLAIM_NAME: claim.name, NAMESPACE: claim.namespace}
        _operation.set(self._tracer.begin(call, about))

    def step_ended(self, step: str, outcome: str, seconds: float) -> None:
        self._tracer.ended(step, seconds, outcome)

    def ended(self, operation: Operation) -> None:
        span = _operation.get()
        if span is None:
            return
        devices = [one.device for one in operation.devices]
        span.tell({PODS: operation.pods, DEVICES: devices, REPEATED: operation.repeated})
        span.end(operation.outcome, None if operation.error is None else str(operation.error))
