"""The node's part of `dractl doctor` and `dractl bundle`: what it is asked, and how it is found.

It comes with the node plugin, which this package does not import, through the entry point group `gpu_dra.doctor`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.findings import Diagnosis
from dra_driver.doctor.proofs import Proof, ProofChange
from dra_driver.errors import NodeNotReady


@dataclass(frozen=True, slots=True)
class NodePlaces:
    """Where things are on this machine, as this process sees them; the same as the plugin's settings of these names."""

    host_root: Path = Path("/")
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_root: Path = Path("/var/run/cdi")
    driver: str = "gpu.nvidia.com"
    driver_root: str | None = None
    cdi_hook: str | None = None
    simulate: str | None = None
    """A profile's name or a record's file, alone or with `:INDEX`: the hardware below `host_root` is simulated."""

    @property
    def state_dir(self) -> Path:
        return self.kubelet_root / "plugins" / self.driver


@dataclass(frozen=True, slots=True)
class NodeFile:
    """A file for a bundle: its name there, and its lines; or `problem`, why it could not be read.

    `content` is for a file that is no text: it has no names and no secrets in it.
    """

    name: str
    lines: tuple[str, ...] = ()
    content: bytes | None = None
    problem: str | None = None


class NodePart(Protocol):
    """What the node plugin brings."""

    def look(self, places: NodePlaces) -> JsonObject:
        """What there is on this machine, as JSON; never raises for what is wrong with it."""

    def findings(self, seen: JsonObject) -> tuple[Diagnosis, ...]:
        """What the checks say of it. Raises InvalidInput for the JSON of something else, or of another release."""

    def files(self, places: NodePlaces) -> Iterator[NodeFile]:
        """What a bundle has of this machine beside that."""

    def prove(self, places: NodePlaces, also: Collection[ProofChange]) -> Iterator[Proof]:
        """Try what must work, one after the other; never raises for what does not. `also`: what may be changed for a
        moment."""


def node_part() -> NodePart:
    """Raises NodeNotReady where the node plugin is not installed."""
    results = list(entry_points(group="gpu_dra.doctor", name="node"))
    if not results:
        raise NodeNotReady("the node plugin is not installed beside dractl", about="checks of a node")
    part: NodePart = results[0].load()
    return part
