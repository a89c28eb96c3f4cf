"""What the node plugin shows on its debug page: claims, holds, and what went wrong last."""

from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

from dra_driver.names import ClaimRef
from dra_driver.runtime.telemetry import DebugSection
from dra_driver.runtime.tracing import CLAIM_NAME, CLAIM_UID, DEVICES, NAMESPACE, PODS, REPEATED, Span, Tracer
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.prepare.holds import described
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.listener import Call, ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore

_REMEMBERED = 50


class LastErrors(ClaimListener):
    """The last operations on claims that failed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_REMEMBERED)

    def ended(self, operation: Operation) -> None:
        if operation.error is not None:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            kind = type(operation.error).__name__
            self._lines.append(
                f"{now} {operation.call} {operation.claim} ({operation.claim.uid}): {kind}: {operation.error}"
            )

    def lines(self) -> Iterable[str]:
        """The latest first."""
        return reversed(self._lines)


def sections(facts: SeenFacts, journal: JournalStore, errors: LastErrors) -> Mapping[str, DebugSection]:
    """For `dra_driver.runtime.telemetry`."""
    return {
        "held claims": lambda: _claims(journal.current),
        "holds": lambda: _holds(journal.current),
        "last errors": errors.lines,
        "problems of the node": lambda: [
            f"{problem.subject}: {problem.reason}: {problem.message}" for problem in facts.facts.problems
        ],
    }


def _claims(journal: Journal) -> Iterable[str]:
    for uid in sorted(journal.held):
        entry = journal.held[uid]
        devices = ", ".join(f"{device.device} ({device.gpu_uuid})" for device in entry.devices)
        state = "releasing" if entry.releasing else "prepared" if entry.cdi_digest is not None else "unfinished"
        yield f"{entry.claim} ({uid}): {state}, boot {entry.boot_id}: {devices}"


def _holds(journal: Journal) -> Iterable[str]:
    for hold, record in sorted(journal.holds.items(), key=lambda item: described(item[0])):
        facts = ", ".join(f"{name}={value}" for name, value in record.made.facts)
        users = sum(hold in entry.holds for entry in journal.held.values())
        yield f"{described(hold)}: {record.state.value}, boot {record.boot_id}, claims: {users}, {facts}"


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
        devices = [device.device for device in operation.devices]
        span.tell({PODS: operation.pods, DEVICES: devices, REPEATED: operation.repeated})
        span.end(operation.outcome, None if operation.error is None else str(operation.error))
