"""What a simulated node is and what has befallen it: one JSON file in the host's tree, `<root>/sim/state.json`.

The file is the hardware: it outlives every process, the simulated NVML (`kubelet_plugin.simulation.nvml`) reads it
before each answer, and tests and the demo change it while a plugin runs (`kubelet_plugin.simulation.host`). Writers
take a lock beside the file and replace it whole, so a reader never sees half a state.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dra_driver.errors import InvalidInput
from kubelet_plugin.simulation.mig_tables import MigTable
from kubelet_plugin.simulation.sources import Sources, check_sources

type Layout = Literal["root", "operator", "gke", "talos", "flatcar", "bottlerocket", "nixos"]
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
    pci_subsystem: int
    pci_class: int = 0x030200
    power_limit_mw: int | None
    pcie_generation: int | None
    pcie_width: int | None = 16
    addressing_mode: int | None = None
    ecc: bool | None = None
    mig: str | MigTable | None = None
    """The table of `mig_tables` that says what instances such a GPU can have, or its name; None when it cannot be
    divided."""
    vbios: str
    nvlink: NvlinkModel | None = None


class Place(_Data):
    """Where one GPU sits: PCI address, root complex, NUMA node; and N of its /dev/nvidiaN.

    `module` is NVML's module id: the place on a base board, and often the same for all cards of a PCIe server.
    """

    address: str
    root: str
    numa: int
    minor: int
    module: int | None = None


class FabricModel(_Data):
    """`nodes` machines share one cluster UUID and clique; 0: NVLink does not leave the machine (zero UUID).

    `summary` and `mask` are of a healthy fabric: NVML's enumeration and bits, 0 on GPUs that say nothing of it.
    """

    nodes: int = 0
    clique: int = 0
    summary: int = 0
    mask: int = 0


class DriverModel(_Data):
    """`missing`: functions that this driver's library does not have, by their C names."""

    version: str
    cuda: int
    missing: list[str] = Field(default_factory=list)


class Profile(_Data):
    """One file of `profiles/`: a kind of node. GPUs are in NVML's index order.

    `sources` names a source for each field that the file sets (`sourced_fields`).
    """

    description: str
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    driver: DriverModel
    gpu: GpuModel
    fabric: FabricModel | None = None
    gpus: list[Place]
    sources: Sources

    @property
    def sourced_fields(self) -> tuple[str, ...]:
        """What needs a source: fields of the GPU, and those of the node, each for all GPUs together."""
        node = {
            "machine": self.machine != "x86_64",
            "driver": True,
            "missing": bool(self.driver.missing),
            "fabric": self.fabric is not None,
            "addresses": True,
            "roots": True,
            "numa": True,
            "minors": True,
            "modules": any(place.module is not None for place in self.gpus),
        }
        return (*self.gpu.model_fields_set, *(name for name, is_set in node.items() if is_set))

    @model_validator(mode="after")
    def _every_field_has_a_source(self) -> Self:
        check_sources(self.sources, self.sourced_fields)
        return self


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


class ComputeInstanceState(_Data):
    """A compute instance: a MIG device. `profile` is NVML's enumeration, `start` counts the parent's compute slices."""

    id: int
    uuid: str
    profile: int
    slices: int
    start: int
    index: int
    """As which MIG device of the GPU NVML lists it; a number is given again when its device is gone."""
    compute_mode: int = 0
    recorded: str | None = None
    """The handle of the MIG device in the record; None of one that was made since."""


class GpuInstanceState(_Data):
    """A GPU instance of the profile with this id. Ids are given again, `number` is not: it is that of the creation."""

    id: int
    number: int
    profile: int
    start: int
    size: int
    compute_instances: list[ComputeInstanceState] = Field(default_factory=list)


class Client(_Data):
    """A process that has the GPU open: computes, serves others with MPS, or only watches.

    The ids are those of the instances that it runs in, None for a program that uses the whole GPU.
    """

    pid: int
    name: str
    kind: Literal["compute", "mps", "monitor"] = "compute"
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


class RecordedGpu(_Data):
    """What a GPU was on the recorded node. `name` is that of its handle in the record, empty when NVML did not list it;
    `folder` is its place in sysfs, `drm_nodes` are names below /dev/dri."""

    name: str
    uuid: str
    folder: str | None
    drm_nodes: list[str]


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
    fabric: FabricState | None = None
    recorded: RecordedGpu | None = None
    """None of a profile's GPU."""

    @property
    def persistent(self) -> bool:
        """Whether the GPU stays initialised while nobody uses it."""
        return self.persistenced or bool(self.persistence_mode)

    @property
    def forgetful(self) -> bool:
        """Whether it has settings that the driver forgets when no session is open."""
        idle = not (self.persistent or self.clients) and self.bound_to == "nvidia"
        return idle and bool(self.compute_mode or self.time_slice)


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
    daemon_outdated: bool = False
    """All GPUs were taken from the driver while it ran: from then on it can open one GPU, and no second."""


class Event(_Data):
    """An NVML event, as nvmlEventSetWait_v2 tells it. `type` 8 is an Xid, whose number is `data`."""

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


class RecordedNode(_Data):
    """Where the driver was on the recorded node, as host paths, and its `version`. `init_code`: what starting NVML
    failed with. `caps_major` is that of MIG capabilities."""

    driver_root: str
    library_folder: str
    version: str
    init_code: int | None
    caps_major: int | None


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
    passthrough: PassthroughState = Field(default_factory=PassthroughState)
    recorded: RecordedNode | None = None
    """None of a profile's node."""

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
        self._name = str(self.path)
        self._read: tuple[tuple[int, int, int], NodeState] | None = None

    @property
    def latest(self) -> NodeState:
        """What `read` found last, whatever the file says now: for more about an answer that began with `read`."""
        return self.read() if self._read is None else self._read[1]

    def read(self) -> NodeState:
        """The state now. Callers share the object: only `edit` may change it."""
        # Every call of NVML begins here, some ten thousand in a minute of tests: no Path is made for it.
        found = os.stat(self._name)  # noqa: PTH116 - as said
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
        temporary.write_text(state.model_dump_json(indent=1), encoding="utf-8")
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
