"""The kubelet's calls, claim by claim: each claim gets its own answer, then its result is logged and reported.

Both drivers of the plugin's process enter here with what they do for a claim. Every operation ends with one line in
the log and a call of the `listener`. When the kubelet gives up a call, an operation that only waits is dropped
(`ClaimNotes.wanted`, `ClaimNotes.while_wanted`), and one that has begun is finished in the background.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import DriverError, NodeNotReady
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import Begun
from kubelet_plugin.prepare.listener import AllocatedTo, Call, ClaimListener, Operation

_log = structlog.get_logger(__name__)


class ClaimNotes:
    """What an operation learns about its claim."""

    __slots__ = ("_given_up", "_waiting", "ahead", "devices", "pods", "repeated")

    def __init__(self, *, ahead: bool = False) -> None:
        self.ahead = ahead
        self._given_up = False
        """The caller no longer waits for the answer."""
        self._waiting: asyncio.Task[Any] | None = None
        """The operation's task while it only waits."""
        self.pods: tuple[str, ...] = ()
        self.devices: tuple[AllocatedTo, ...] = ()
        self.repeated = False

    def wanted(self, claim: ClaimRef) -> None:
        """Raises NodeNotReady when kubelet has given up the call: it comes again, and its claims may be others then."""
        if self._given_up:
            raise NodeNotReady(
                "the kubelet gave up this call before anything changed, and tries again", about=str(claim)
            )

    def give_up(self) -> None:
        self._given_up = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def while_wanted[T](self, claim: ClaimRef, wait: Callable[[], Coroutine[None, None, T]]) -> T:
        """What `wait` returns. When kubelet gives up the call, cancels it, and raises as `wanted` does."""
        self.wanted(claim)
        task = self._waiting = asyncio.current_task()
        assert task is not None
        try:
            return await wait()
        except asyncio.CancelledError:
            if self._given_up and task.uncancel() == 0:
                self.wanted(claim)
            raise
        finally:
            self._waiting = None

    def read(self, claim: ResourceClaim, driver: str) -> None:
        self.pods = tuple(pod.name for pod in claim.pods)
        self.devices = tuple(map(AllocatedTo.of, claim.results_of(driver)))


type Act[T] = Callable[[ClaimRef, ClaimNotes], Coroutine[None, None, T]]
"""What is done for a claim; raises DriverError that says why it cannot be."""


class Operations:
    """Those of one driver."""

    def __init__(self, driver: str, listener: ClaimListener) -> None:
        self._driver = driver
        self._listener = listener
        self._begun: set[Begun[Any]] = set()
        self._unreported = 0
        self._reported = asyncio.Event()
        """Set while every operation that ended is reported."""
        self._reported.set()

    async def each[T](
        self, call: Call, claims: Sequence[ClaimRef], act: Act[T], *, ahead: bool = False
    ) -> dict[str, T | DriverError]:
        """The answer for each claim, or why there is none, by claim UID. `ahead`: the kubelet has not asked."""
        notes = {claim: ClaimNotes(ahead=ahead) for claim in {claim.uid: claim for claim in claims}.values()}
        begun = [self.begin(self._run(call, claim, act, notes[claim])) for claim in notes]
        try:
            for work in begun:
                await work.ended()
        except asyncio.CancelledError:
            for each in notes.values():
                each.give_up()
            raise
        return dict(work.task.result() for work in begun)

    async def ahead[T](self, claim: ClaimRef, act: Act[T]) -> DriverError | None:
        """Prepare a claim whose pod waits for binding conditions, as the kubelet will ask. None when it is prepared."""
        answer = (await self.each("prepare", [claim], act, ahead=True))[claim.uid]
        return answer if isinstance(answer, DriverError) else None

    def begin[T](self, work: Coroutine[None, None, T]) -> Begun[T]:
        """Start work that `close` waits for."""
        return Begun(work, self._begun)

    async def close(self) -> None:
        """Finish what was begun. Called after the last call was accepted."""
        while self._begun:
            await next(iter(self._begun)).ended()
        await self._reported.wait()

    async def _run[T](self, call: Call, claim: ClaimRef, act: Act[T], notes: ClaimNotes) -> tuple[str, T | DriverError]:
        """The claim's UID and its answer. The operation is logged and reported after the caller has its answer."""
        self._listener.began(call, claim)
        started = time.perf_counter()
        answer: T | DriverError
        try:
            answer = await act(claim, notes)
        except DriverError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - one claim's defect is not the others'
            _log.error("failed unexpectedly", claim=str(claim), uid=claim.uid, exc_info=error)
            answer = DriverError(f"internal error, see the log of the node plugin: {error!r}", about=str(claim))
        operation = Operation(
            driver=self._driver,
            call=call,
            claim=claim,
            seconds=time.perf_counter() - started,
            pods=notes.pods,
            devices=notes.devices,
            repeated=notes.repeated,
            ahead=notes.ahead,
            error=answer if isinstance(answer, DriverError) else None,
        )
        self._unreported += 1
        self._reported.clear()
        # The event loop runs a timer after the callbacks that send the answer to the kubelet.
        asyncio.get_running_loop().call_later(0, self._report, operation)
        return claim.uid, answer

    def _report(self, operation: Operation) -> None:
        try:
            _log_line(operation)
            self._listener.ended(operation)
        finally:
            self._unreported -= 1
            if not self._unreported:
                self._reported.set()


def _log_line(operation: Operation) -> None:
    """One for each operation on a claim."""
    line = {
        "claim": f"{operation.claim.namespace}/{operation.claim.name}",
        "uid": operation.claim.uid,
        "pods": list(operation.pods),
        "devices": [device.device for device in operation.devices],
        "duration_ms": round(1000 * operation.seconds, 1),
        "outcome": operation.outcome,
        **({"ahead": True} if operation.ahead else {}),
    }
    if operation.error is not None:
        _log.warning(operation.call, **line, error=str(operation.error))
    else:
        _log.info(operation.call, **line, repeated=operation.repeated)
