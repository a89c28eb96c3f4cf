"""What a simulated node is and what has happened to it: one JSON file in the host's tree, `<root>/sim/state.json`.

The file is the hardware: it outlives every process, the simulated NVML (`kubelet_plugin.simulation.nvml`) reads it
before each answer, and tests and the demo change it while a plugin runs (`kubelet_plugin.simulation.host`). Writers
take a lock beside the file and replace it whole, so a reader never sees half a state.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kubelet_plugin.simulation.profiles import GpuModel

type Layout = Literal["root", "operator", "gke", "talos", "flatcar", "bottlerocket", "nixos"]
"""Where the driver's files lie: `/`, `/run/nvidia/driver`, `/home/kubernetes/bin/nvidia`, Talos' glibc folder."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class SimulatedFabric(_Data):
    """As NVML answers it; `state` 3 is completed, `summary` 1 healthy. `cluster` None is the zero UUID."""

    state: int = 3
    status: int = 0
    cluster: str | None = None
    clique: int = 0
    mask: int = 0
    summary: int = 1


class MigState(_Data):
    current: int = 0
    pending: int = 0


class ComputeInstanceState(_Data):
    """A compute instance: a MIG device. `profile` is NVML's enumeration, `start` counts the parent's compute slices."""

    id: int
    uuid: str
    profile: int
    slices: int
    start: int
    index: int
    """As which MIG device of the GPU NVML lists it; a number is given again when its device is gone."""


class GpuInstanceState(_Data):
    """A GPU instance of the profile with this id. Ids are given again, `number` is not: it is that of the creation."""

    id: int
    number: int
    profile: int
    start: int
    size: int
    compute_instances: list[ComputeInstanceState] = Field(default_factory=list)


class Client(_Data):
    """A process that has the GPU open: computes, or only watches.

    The ids are those of the instances that it runs in, None for a program that uses the whole GPU.
    """

    pid: int
    name: str
    kind: Literal["compute", "monitor"] = "compute"
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: int = 0


class HealthState(_Data):
    """What the GPU says of itself. Error counts since the driver was loaded, and over its life; rows of memory."""

    corrected_errors: int = 0
    uncorrected_errors: int = 0
    lifetime_corrected_errors: int = 0
    lifetime_uncorrected_errors: int = 0
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    channel_repair_pending: bool = False
    tpc_repair_pending: bool = False
    recovery_action: int = 0
    """Field 230: 0 none, 1 reset the GPU, 2 reboot, 3 drain P2P, 4 drain and reset."""


class Mishap(_Data):
    """What callers of one NVML function meet: after `delay_s` the answer `code` (0: the true one), for the next
    `times` calls (None: from now on). `crash`: their process dies, before the call does its work or after it."""

    code: int = 0
    delay_s: float = 0.0
    times: int | None = None
    crash: Literal["before", "after"] | None = None


def mishaps_after(mishaps: dict[str, Mishap], function: str, met: Mishap) -> dict[str, Mishap]:
    """`mishaps` when one more call of `function` has met its own, which has `times`."""
    others = {name: mishap for name, mishap in mishaps.items() if name != function}
    left = (met.times or 1) - 1
    return others | ({function: met.model_copy(update={"times": left})} if left else {})


class GpuState(_Data):
    """One GPU. `fault` is the NVML code that every query of it answers; `mishaps` are by function name."""

    uuid: str
    minor: int
    address: str
    root: str
    numa: int
    serial: str
    module: int | None
    bound_to: str | None = "nvidia"
    fault: int | None = None
    mishaps: dict[str, Mishap] = Field(default_factory=dict)
    product: str | None = None
    """Instead of the model's name: a display adapter among GPUs."""
    virtualization: int = 0
    mig: MigState | None = None
    instances: list[GpuInstanceState] = Field(default_factory=list)
    created: int = 0
    """How many instances were ever created: no two have the same number or UUID."""
    clients: list[Client] = Field(default_factory=list)
    compute_mode: int = 0
    time_slice: int = 0
    """NVML's compute mode (3 exclusive process), and the policy of nvidia-smi (0 default to 3 long)."""
    persistence_mode: int = 0
    """The kernel module's own, which NVML sets: it keeps the GPU in use, and no process shows it."""
    persistenced: bool = True
    """Whether nvidia-persistenced has it open."""
    handles: int = 0
    """How often all handles that NVML gave out for it became invalid."""
    health: HealthState = Field(default_factory=HealthState)
    links_down: list[int] = Field(default_factory=list)
    """NVLinks that are not active."""
    links_absent: list[int] = Field(default_factory=list)
    """NVLinks that the chip has and the board does not: NVML answers NOT_SUPPORTED for each."""
    fabric: SimulatedFabric | None = None

    @property
    def persistent(self) -> bool:
        """Whether the GPU stays initialized while it is not in use."""
        return self.persistenced or bool(self.persistence_mode)


class DriverState(_Data):
    """`session` counts how often the kernel module was loaded: a session of an earlier one is dead."""

    version: str
    cuda: int
    missing: list[str] = Field(default_factory=list)
    loaded: bool = True
    privileged: bool = True
    """Whether callers of NVML may change anything: they are root and may use the MIG capabilities."""
    session: int = 1
    fabric_structure: int = 3
    """The newest version of the fabric info structure that the driver accepts."""
    daemon: bool = True
    """Whether nvidia-persistenced runs."""
    resets: Literal["nvml", "nvidia-smi", "together"] = "nvml"
    """What resets one GPU: NVML itself when it sets a MIG mode, only nvidia-smi, or nothing, on a board whose GPUs are
    reset together."""
    daemon_outdated: bool = False
    """All GPUs were taken from the driver while it ran: from then on it can open one GPU, and no second."""


class NvmlEvent(_Data):
    """An NVML event, as nvmlEventSetWait_v2 answers it. `type` 8 is an Xid, whose number is `data`."""

    number: int
    uuid: str
    type: int = 8
    data: int
    gpu_instance: int = 0xFFFFFFFF
    compute_instance: int = 0xFFFFFFFF


class Function(_Data):
    """A function on the bus that is no GPU, in the IOMMU group of the GPU at `beside`: its audio, or another device.

    `home` is the driver that it has after a boot; the one it has now is in sysfs.
    """

    address: str
    beside: str
    vendor: int = 0x10DE
    device: int = 0x22BA
    pci_class: int = 0x040300
    home: str | None = "snd_hda_intel"


class PassthroughState(_Data):
    """What machine and kernel have for VFIO. `modules` can be loaded, `loaded` are; `cdev`: /dev/vfio/devices.

    `groups`: IOMMU groups of GPUs that are not alone in theirs, by address.
    """

    iommu: bool = True
    iommufd: bool = True
    cdev: bool = True
    modules: list[str] = Field(default_factory=lambda: ["vfio_pci"])
    loaded: list[str] = Field(default_factory=list)
    functions: list[Function] = Field(default_factory=list)
    groups: dict[str, int] = Field(default_factory=dict)
    virtual_functions: dict[str, int] = Field(default_factory=dict)


class FabricPartitionState(_Data):
    """A fabric partition. `gpus` are Fabric Manager's own numbers of GPUs, its physical IDs."""

    id: int
    gpus: list[int]
    active: bool = False


class FabricManagerState(_Data):
    """Fabric Manager as libnvfm shows it. `mode` is FABRIC_MODE: 0 bare metal, 1 shared NVSwitch, 2 vGPU; `restart` is
    FABRIC_MODE_RESTART. Not `ready`: it is starting, or waits for the list of active partitions."""

    mode: Literal[0, 1, 2] = 0
    restart: Literal[0, 1] = 0
    running: bool = True
    ready: bool = True
    starts: int = 1
    """How often it was started: a connection to an earlier process is dead."""
    connect_version: int = 2
    """The newest fmConnectParams that libnvfm knows."""
    names_gpus: bool = False
    """Whether it says UUID and PCI address of GPUs, as before H100; else the physical ID is NVML's module ID."""
    partitions: list[FabricPartitionState] = Field(default_factory=list)
    mishaps: dict[str, Mishap] = Field(default_factory=dict)
    """By function of libnvfm; codes are its own, negative ones."""


class RecordedNode(_Data):
    """Where the driver was on the recorded node, as host paths."""

    driver_root: str
    library_folder: str


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
    events: list[NvmlEvent] = Field(default_factory=list)
    passthrough: PassthroughState = Field(default_factory=PassthroughState)
    fabric_manager: FabricManagerState | None = None
    """None on a node without NVSwitches of its own."""
    recorded: RecordedNode | None = None
    """None of a profile's node."""

    def gpu(self, uuid: str) -> GpuState:
        """Raises KeyError when the node has no such GPU."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise KeyError(uuid)


XID, MIG_CONFIGURATION_CHANGED = 8, 0x100
"""NVML events."""

_EVENTS_KEPT = 64
"""Of all GPUs: who waits looks every few milliseconds, and the state is read before every answer."""


def add_event(state: NodeState, uuid: str, kind: int, data: int, **instances: int) -> None:
    """`instances` are the ids of an event of a MIG device, by the names that `NvmlEvent` has for them."""
    number = state.events[-1].number + 1 if state.events else 1
    event = NvmlEvent(number=number, uuid=uuid, type=kind, data=data, **instances)
    state.events = [*state.events, event][-_EVENTS_KEPT:]


class StateFile:
    """The state below one host root. Reading is cheap while nothing changes; a missing file is FileNotFoundError."""

    def __init__(self, root: Path) -> None:
        self.path = root / "sim" / "state.json"
        self._name = str(self.path)
        self._read: tuple[tuple[int, int, int], NodeState] | None = None

    @property
    def latest(self) -> NodeState:
        """What `read` found last, even if the file has changed: for more about an answer that began with `read`."""
        return self.read() if self._read is None else self._read[1]

    def read(self) -> NodeState:
        """The state now. Callers share the object: only `edit` may change it."""
        # Every call of NVML begins here, some ten thousand in a minute of tests: no Path is made for it.
        status = os.stat(self._name)  # noqa: PTH116 - see above
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._read is None or self._read[0] != version:
            try:
                self._read = (version, NodeState.model_validate_json(self.path.read_bytes()))
            except ValidationError:
                # The file is edited by hand, and an editor saves in two steps: what was before still holds.
                if self._read is None:
                    raise
        return self._read[1]

    @contextmanager
    def edit(self) -> Iterator[NodeState]:
        """Change the state: no other process does meanwhile, and nothing is written when the block raises."""
        with (self.path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = NodeState.model_validate_json(self.path.read_bytes())
            yield state
            self.write(state)

    def write(self, state: NodeState) -> None:
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(state.model_dump_json(indent=1), encoding="utf-8")
        temporary.replace(self.path)
