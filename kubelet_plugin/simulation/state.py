"""What a simulated node is and what has befallen it: one JSON file in the host's tree, `<root>/sim/state.json`.

The file is the hardware: it outlives every process, the simulated NVML (`kubelet_plugin.simulation.nvml`) reads it
before each answer, and tests and the demo change it while a plugin runs (`kubelet_plugin.simulation.host`). Writers
take a lock beside the file and replace it whole, so a reader never sees half a state.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dra_driver.errors import InvalidInput

type Layout = Literal["root", "operator", "gke", "talos"]
"""Where the driver's files lie: `/`, `/run/nvidia/driver`, `/home/kubernetes/bin/nvidia`, Talos' glibc folder."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class NvlinkModel(_Data):
    """Links of every GPU. `version` is NVML's enumeration (6 is 4.0); without switches each link leads to a peer."""

    links: int
    version: int
    switches: int = 0


class GpuModel(_Data):
    """What all GPUs of a node share. None: NVML answers NOT_SUPPORTED. Numbers are NVML's own (enumerations, mW)."""

    name: str
    brand: int
    architecture: int
    compute_capability: tuple[int, int]
    cores: int | None
    memory_mib: int | None
    pci_device: int
    pci_class: int = 0x030200
    power_limit_mw: int | None
    pcie_generation: int | None
    pcie_width: int | None = 16
    addressing_mode: int | None = None
    ecc: bool | None = None
    mig: str | None = None
    """The table of `mig_tables` that says what instances such a GPU can have; None when it cannot be divided."""
    on_base_board: bool = False
    """Sits on an SXM base board and so has a module id."""
    vbios: str
    nvlink: NvlinkModel | None = None


class Place(_Data):
    """Where one GPU sits: PCI address, root complex, NUMA node; and N of its /dev/nvidiaN."""

    address: str
    root: str
    numa: int
    minor: int


class FabricModel(_Data):
    """`nodes` machines share one cluster UUID and clique; 0: NVLink does not leave the machine (zero UUID)."""

    nodes: int = 0
    clique: int = 0


class DriverModel(_Data):
    """`missing`: functions that this driver's library does not have, by their C names."""

    version: str
    cuda: int
    missing: list[str] = Field(default_factory=list)


class Profile(_Data):
    """One file of `profiles/`: a kind of node. GPUs are in NVML's index order."""

    description: str
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    driver: DriverModel
    gpu: GpuModel
    fabric: FabricModel | None = None
    gpus: list[Place]


class FabricState(_Data):
    """As NVML tells it; `state` 3 is completed, `summary` 1 healthy. `cluster` None is the zero UUID."""

    state: int = 3
    status: int = 0
    cluster: str | None = None
    clique: int = 0
    mask: int = 0
    summary: int = 1


class MigState(_Data):
    current: int = 0
    pending: int = 0


class GpuState(_Data):
    """One GPU. `fault` is the NVML code that every query of it answers; `failing` the code by function name."""

    uuid: str
    minor: int
    address: str
    root: str
    numa: int
    serial: str
    module: int | None
    bound_to: str | None = "nvidia"
    fault: int | None = None
    failing: dict[str, int] = Field(default_factory=dict)
    product: str | None = None
    """Instead of the model's name: a display adapter among GPUs."""
    virtualization: int = 0
    mig: MigState | None = None
    compute_mode: int = 0
    time_slice: int = 0
    """NVML's compute mode (3 exclusive process), and the policy of nvidia-smi (0 default to 3 long)."""
    fabric: FabricState | None = None


class DriverState(_Data):
    """`session` counts how often the kernel module was loaded: a session of an earlier one is dead."""

    version: str
    cuda: int
    missing: list[str] = Field(default_factory=list)
    loaded: bool = True
    session: int = 1
    fabric_structure: int = 3
    """The newest version of the fabric info structure that the driver accepts."""


class Event(_Data):
    """An NVML event, as nvmlEventSetWait_v2 tells it. `type` 8 is an Xid, whose number is `data`."""

    number: int
    uuid: str
    type: int = 8
    data: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


class NodeState(_Data):
    """All of it. `gpus` are in the order in which NVML enumerates them."""

    profile: str
    node_index: int
    boots: int = 1
    machine: Literal["x86_64", "aarch64"]
    layout: Layout
    driver: DriverState
    model: GpuModel
    gpus: list[GpuState]
    events: list[Event] = Field(default_factory=list)

    def gpu(self, uuid: str) -> GpuState:
        """Raises KeyError when the node has no such GPU."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise KeyError(uuid)


class StateFile:
    """The state below one host root. Reading is cheap while nothing changes; a missing file is FileNotFoundError."""

    def __init__(self, root: Path) -> None:
        self.path = root / "sim" / "state.json"
        self._read: tuple[tuple[int, int, int], NodeState] | None = None

    def read(self) -> NodeState:
        """The state now. Callers share the object: only `edit` may change it."""
        found = self.path.stat()
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._read is None or self._read[0] != version:
            try:
                self._read = (version, NodeState.model_validate_json(self.path.read_bytes()))
            except ValidationError:
                # Somebody edits the file by hand, and an editor saves in two steps: what was before still holds.
                if self._read is None:
                    raise
        return self._read[1]

    @contextmanager
    def edit(self) -> Iterator[NodeState]:
        """Change the state: nobody else does meanwhile, and nothing is written when the block raises."""
        with (self.path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = NodeState.model_validate_json(self.path.read_bytes())
            yield state
            self.write(state)

    def write(self, state: NodeState) -> None:
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(state.model_dump(mode="json"), indent=1), encoding="utf-8")
        temporary.replace(self.path)


def profile_names() -> tuple[str, ...]:
    """The kinds of nodes there are, sorted."""
    names = (entry.name for entry in files(__package__).joinpath("profiles").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


@cache
def load_profile(name: str) -> Profile:
    """The profile called `name`. Raises InvalidInput that lists the names there are."""
    if name not in profile_names():
        raise InvalidInput(f"no such profile; there are {', '.join(profile_names())}", about=f"profile {name}")
    # Only for a machine that is made: a plugin that finds its machine again does not pay for a YAML parser.
    import yaml

    text = files(__package__).joinpath("profiles", f"{name}.yaml").read_text(encoding="utf-8")
    try:
        return Profile.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        raise InvalidInput(str(error), about=f"profile {name}") from error
