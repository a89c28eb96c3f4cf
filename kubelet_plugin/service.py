"""Prepares and unprepares claims: the room that the kubelet's calls enter through `kubelet_plugin.rpc`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.errors import DriverError
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.answer import PreparedDevice


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, and what it could not do yet and tries again; one sentence each, for the log."""

    done: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


class ClaimService:
    """Prepare and unprepare claims of one driver on this node. Every claim of a call is answered on its own."""

    async def start(self) -> RepairReport:
        """Put right what an earlier run left behind. Called once, before the DRA socket is served; never raises."""
        raise NotImplementedError

    async def run(self) -> None:
        """Sweep in the background until cancelled; then let calls in progress finish."""
        raise NotImplementedError

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """The devices of each claim, or why not, by claim UID. A repeated call gives the same answer."""
        raise NotImplementedError

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, DriverError | None]:
        """None for each released claim, or why not, by claim UID. A claim that is not held is released already."""
        raise NotImplementedError
