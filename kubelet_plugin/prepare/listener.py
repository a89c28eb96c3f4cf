"""Reports of the work on claims: how long each step took, and how each operation ended.

`kubelet_plugin.claims.operations` and `kubelet_plugin.prepare.execute` report; metrics, Events, device status and the
debug page listen. Listeners are called in the event loop, during the kubelet's calls: they take a note, and act later.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dra_driver.api.resource import AllocatedDevice
from dra_driver.errors import DriverError
from dra_driver.names import GPU_DRIVER, ClaimRef

type Call = Literal["prepare", "unprepare"]


@dataclass(frozen=True, slots=True)
class AllocatedTo:
    """A device of our driver in a claim's allocation: its identity in `status.devices`, too."""

    pool: str
    device: str
    share_id: str | None = None

    @classmethod
    def of(cls, result: AllocatedDevice) -> "AllocatedTo":
        return cls(result.pool, result.device, result.share_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One prepare or unprepare of one claim that ended. What was not found out before it failed is empty."""

    call: Call
    claim: ClaimRef
    seconds: float
    driver: str = GPU_DRIVER
    """Whose devices the claim has, of the two of the plugin's process."""
    pods: tuple[str, ...] = ()
    """Names of the pods for which the claim is reserved; known of a prepare whose claim was read."""
    devices: tuple[AllocatedTo, ...] = ()
    repeated: bool = False
    """It was done before: nothing changed."""
    ahead: bool = False
    """The kubelet has not asked: the pod waits for binding conditions."""
    error: DriverError | None = None

    @property
    def outcome(self) -> str:
        """`ok`, or the kind of error."""
        return "ok" if self.error is None else type(self.error).__name__


class ClaimListener:
    """Listens to nothing; others override what they want to hear. No method may raise or wait."""

    def began(self, call: Call, claim: ClaimRef) -> None:
        """A claim's operation begins, in a task of its own, in which it will end."""

    def step_ended(self, step: str, outcome: str, seconds: float) -> None:
        """`step` is `read_claim`, `look_at_node`, `write`, `remove`, or `make_` or `undo_` with the kind of a hold."""

    def ended(self, operation: Operation) -> None:
        """A claim's operation ended, or was found done."""


class Listeners(ClaimListener):
    """Passes on to several."""

    def __init__(self, listeners: Sequence[ClaimListener]) -> None:
        self._began = [item.began for item in listeners if _hears(item, ClaimListener.began)]
        self._step_ended = [item.step_ended for item in listeners if _hears(item, ClaimListener.step_ended)]
        self._ended = [item.ended for item in listeners if _hears(item, ClaimListener.ended)]

    def began(self, call: Call, claim: ClaimRef) -> None:
        for began in self._began:
            began(call, claim)

    def step_ended(self, step: str, outcome: str, seconds: float) -> None:
        for step_ended in self._step_ended:
            step_ended(step, outcome, seconds)

    def ended(self, operation: Operation) -> None:
        for ended in self._ended:
            ended(operation)


def _hears(listener: ClaimListener, method: Callable[..., None]) -> bool:
    return getattr(type(listener), method.__name__) is not method


class Timed:
    """Reports to `tell` how long the block took, and the kind of error that ended it."""

    __slots__ = ("_started", "_step", "_tell")

    def __init__(self, tell: Callable[[str, str, float], None], step: str) -> None:
        self._tell = tell
        self._step = step
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        outcome = "ok" if error is None else error.__name__
        self._tell(self._step, outcome, time.perf_counter() - self._started)
