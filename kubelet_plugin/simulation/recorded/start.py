"""The state that a simulated node starts with when it is made from a record, as a profile gives one.

What effects change (MIG, modes, bindings, programs, health) must be in the state, equal to what was recorded; all
else is answered from the record itself, see `kubelet_plugin.simulation.recorded.nvml`. `files` is the recorded tree,
already below the new host's root.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from kubelet_plugin.hardware.driver_root import kernel_module_version
from kubelet_plugin.hardware.sysfs import HostFiles, PciFacts, pci_address
from kubelet_plugin.record.format import File, Record
from kubelet_plugin.simulation.kernel_files import made_up_uuid
from kubelet_plugin.simulation.profiles import GpuModel, NvlinkModel
from kubelet_plugin.simulation.recorded.answers import Answers, fields, handle, instances_of_record, table_of_record
from kubelet_plugin.simulation.state import (
    Client,
    DriverState,
    Function,
    GpuState,
    HealthState,
    MigState,
    NodeState,
    PassthroughState,
    RecordedGpu,
    RecordedNode,
    SimulatedFabric,
)

RECORD, START = "sim/record.tar.gz", "sim/start.json"
"""Below the root of a recorded node: the archive, and the state that it started with."""

_MOST_GPUS = 1024
_MOST_LINKS = 64
_NOT_SUPPORTED = 3
_GPU_IS_LOST = 15
_TO_SWITCH = 2
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")
_ALIAS = re.compile(r"alias \S+ (\S+)")
_DAEMON = "nvidia-persistenced"[:15]
"""As the kernel calls it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the new node is. The node of index 0 without a name is the recorded one; others share no UUID with it."""

    name: str
    index: int
    machine: str

    @property
    def is_recorded(self) -> bool:
        return not self.index and not self.machine

    def uuid(self, recorded: str) -> str:
        """`GPU-…` or `MIG-…`, of this node."""
        if self.is_recorded:
            return recorded
        prefix = recorded.partition("-")[0]
        return f"{prefix}-{made_up_uuid(f'{self.name}/{self.index}/{self.machine}/{recorded}')}"

    def serial(self, recorded: str) -> str:
        made_up = int(made_up_uuid(f"{self.name}/{self.index}/{self.machine}/{recorded}")[:8], 16)
        return recorded if self.is_recorded else f"165{made_up % 10**10:010d}"


def state_of_record(record: Record, files: HostFiles, identity: Identity) -> NodeState:
    """Raises ValueError when what the record says cannot be: the caller names the record."""
    answers = Answers(record.calls)
    gpus, driver = list(_gpus(answers, files, identity)), _driver(answers, files, record)
    _add_clients(gpus, record.files)
    driver.daemon = any(gpu.persistenced for gpu in gpus)
    return NodeState(
        profile=identity.name,
        node_index=identity.index,
        machine="aarch64" if record.about.machine == "aarch64" else "x86_64",
        layout="root",
        driver=driver,
        model=_model(answers, _typical(answers, gpus)),
        gpus=gpus,
        passthrough=_passthrough(files, gpus),
        recorded=_node(answers, files, record, driver),
    )


def _node(answers: Answers, files: HostFiles, record: Record, driver: DriverState) -> RecordedNode:
    library = record.about.library or "/usr/lib64/libnvidia-ml.so.1"
    return RecordedNode(
        driver_root=record.about.driver_root or "/",
        library_folder=str(PurePosixPath(library).parent),
        version=driver.version,
        init_code=answers.code("nvmlInitWithFlags", 1),
        caps_major=files.device_majors().get("nvidia-caps"),
    )


def _driver(answers: Answers, files: HostFiles, record: Record) -> DriverState:
    loaded = kernel_module_version(files)
    library = _LIBRARY.search(record.about.library or "")
    version = answers.result("nvmlSystemGetDriverVersion") or loaded or (library[1] if library is not None else None)
    structures = (3, 2)
    accepted = (
        number
        for number in structures
        if answers.result("nvmlDeviceGetGpuFabricInfoV", handle("gpu0"), {"struct": f"c_nvmlGpuFabricInfo_v{number}_t"})
        is not None
    )
    return DriverState(
        version=version or "0.0",
        cuda=answers.result("nvmlSystemGetCudaDriverVersion_v2") or 0,
        loaded=loaded is not None or answers.result("nvmlSystemGetDriverVersion") is not None,
        fabric_structure=next(accepted, 3),
    )


def _typical(answers: Answers, gpus: list[GpuState]) -> str:
    """The handle of the GPU that the state machine takes all to be like: one that can be divided, if there is one."""
    names = [gpu.recorded.name for gpu in gpus if gpu.recorded is not None and gpu.recorded.name]
    told = [name for name in names if answers.result("nvmlDeviceGetName", handle(name)) is not None]
    divisible = (name for name in told if answers.result("nvmlDeviceGetMigMode", handle(name)) is not None)
    return next(divisible, next(iter(told), ""))


def _model(answers: Answers, gpu: str) -> GpuModel:
    """Of the GPU with this handle: what the state machine must know of it."""
    ask = _Asking(answers, gpu)
    capability = ask("CudaComputeCapability") or [0, 0]
    memory = fields(ask("MemoryInfo")).get("total")
    pci = fields(ask("PciInfo"))
    ecc = ask("EccMode")
    return GpuModel(
        name=ask("Name") or "NVIDIA GPU",
        brand=ask("Brand") or 0,
        architecture=ask("Architecture") or 0,
        compute_capability=(capability[0], capability[1]),
        cores=ask("NumGpuCores"),
        memory_mib=memory >> 20 if memory is not None else None,
        pci_device=pci.get("pciDeviceId", 0) >> 16,
        pci_subsystem=pci.get("pciSubSystemId", 0) >> 16,
        power_limit_mw=ask("EnforcedPowerLimit"),
        pcie_generation=ask("MaxPcieLinkGeneration"),
        pcie_width=ask("MaxPcieLinkWidth"),
        addressing_mode=ask("AddressingMode"),
        ecc=bool(ecc[0]) if ecc is not None else None,
        mig=table_of_record(answers, gpu),
        vbios=ask("VbiosVersion") or "",
        nvlink=_nvlink(answers, gpu),
    )


class _Asking:
    """`nvmlDeviceGet…` of one GPU; None when it was refused or not asked."""

    def __init__(self, answers: Answers, gpu: str) -> None:
        self._answers = answers
        self._gpu = handle(gpu)

    def __call__(self, name: str, *args: Any) -> Any:
        return self._answers.result(f"nvmlDeviceGet{name}", self._gpu, *args)

    def code(self, name: str, *args: Any) -> int | None:
        return self._answers.code(f"nvmlDeviceGet{name}", self._gpu, *args)


def _nvlink(answers: Answers, gpu: str) -> NvlinkModel | None:
    ask = _Asking(answers, gpu)
    links = [link for link in range(_MOST_LINKS) if ask("NvLinkState", link) is not None]
    if not links:
        return None
    versions = (ask("NvLinkVersion", link) for link in links)
    switched = any(ask("NvLinkRemoteDeviceType", link) == _TO_SWITCH for link in links)
    version = next((item for item in versions if item is not None), 0)
    return NvlinkModel(links=links[-1] + 1, version=version, switches=int(switched))


def _gpus(answers: Answers, files: HostFiles, identity: Identity) -> Iterator[GpuState]:
    """Those that NVML listed, in its order, then those that only the kernel knows: bound to another driver."""
    places = {facts.address: facts for facts in files.nvidia_gpus()}
    count = min(answers.result("nvmlDeviceGetCount") or 0, _MOST_GPUS)
    addresses = [_address(answers, f"gpu{index}") for index in range(count)]
    unlisted = [place for place in places if place not in addresses]
    bound = [text for text in unlisted if places[text].driver == "nvidia"]
    for index in range(count):
        address = addresses[index] or (bound.pop(0) if bound else f"ffff:{index:02x}:00.0")
        yield _gpu(answers, files, identity, places.get(address) or PciFacts(address, driver="nvidia"), index)
    for address in unlisted:
        if places[address].driver != "nvidia":
            yield _gpu(answers, files, identity, places[address], None)


def _address(answers: Answers, gpu: str) -> str | None:
    try:
        return pci_address(fields(answers.result("nvmlDeviceGetPciInfo", handle(gpu))).get("busId", ""))
    except ValueError:
        return None


def _gpu(answers: Answers, files: HostFiles, identity: Identity, pci: PciFacts, index: int | None) -> GpuState:
    name = f"gpu{index}" if index is not None else ""
    ask = _Asking(answers, name)
    uuid = ask("UUID") or f"GPU-{made_up_uuid(f'{identity.name}/{pci.address}')}"
    mode = ask("MigMode")
    folder = files.resolve(f"/sys/bus/pci/devices/{pci.address}")
    links = _links(ask)
    return GpuState(
        uuid=identity.uuid(uuid),
        minor=ask("MinorNumber") or 0,
        address=pci.address,
        root=pci.root or "pci0000:00",
        numa=pci.numa_node if pci.numa_node is not None else -1,
        serial=identity.serial(ask("Serial") or ""),
        module=ask("ModuleId", {"c": "c_uint"}),
        bound_to=pci.driver,
        fault=answers.code("nvmlDeviceGetHandleByIndex", index) if index is not None else None,
        product=ask("Name"),
        virtualization=ask("VirtualizationMode") or 0,
        mig=MigState(current=mode[0], pending=mode[1]) if mode is not None else None,
        instances=(made := instances_of_record(answers, name, identity.uuid)),
        created=len(made) + sum(len(gpu_instance_state.compute_instances) for gpu_instance_state in made),
        compute_mode=ask("ComputeMode") or 0,
        persistence_mode=ask("PersistenceMode") or 0,
        persistenced=False,
        health=_health(ask),
        links_down=[link for link, active in links.items() if active == 0],
        links_absent=[link for link in range(max(links, default=0)) if ask.code("NvLinkState", link) == _NOT_SUPPORTED],
        fabric=_fabric(answers, name),
        recorded=RecordedGpu(
            name=name,
            uuid=uuid,
            folder=str(folder) if folder is not None else None,
            drm_nodes=list(pci.drm_nodes),
        ),
    )


def _links(ask: _Asking) -> dict[int, int]:
    """State of each NVLink that has one: 1 is active."""
    states = {link: ask("NvLinkState", link) for link in range(_MOST_LINKS)}
    return {link: state for link, state in states.items() if state is not None}


def _fabric(answers: Answers, gpu: str) -> SimulatedFabric | None:
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        call = answers.call("nvmlDeviceGetGpuFabricInfoV", (handle(gpu), {"struct": structure}))
        info = fields(call.out.get(1)) if call is not None and call.code is None else {}
        if info:
            cluster = info["clusterUuid"]["bytes"]
            return SimulatedFabric(
                state=info["state"],
                status=info["status"],
                cluster=str(UUID(cluster)) if int(cluster, 16) else None,
                clique=info["cliqueId"],
                mask=info["healthMask"],
                summary=info.get("healthSummary", 0),
            )
    return None


def _health(ask: _Asking) -> HealthState:
    remapped = ask("RemappedRows") or (0, 0, 0, 0)
    repair = ask("RepairStatus") or (0, 0)
    values = ask("FieldValues", [230])
    action = fields(values["items"][0]) if values else {}
    return HealthState(
        corrected_errors=ask("TotalEccErrors", 0, 0) or 0,
        uncorrected_errors=ask("TotalEccErrors", 1, 0) or 0,
        lifetime_corrected_errors=ask("TotalEccErrors", 0, 1) or 0,
        lifetime_uncorrected_errors=ask("TotalEccErrors", 1, 1) or 0,
        remapped_corrected=remapped[0],
        remapped_uncorrected=remapped[1],
        remap_pending=bool(remapped[2]),
        remap_failed=bool(remapped[3]),
        channel_repair_pending=bool(repair[0]),
        tpc_repair_pending=bool(repair[1]),
        recovery_action=fields(action.get("value")).get("ullVal", 0) if action.get("nvmlReturn") == 0 else 0,
    )


def _add_clients(gpus: list[GpuState], files: tuple[File, ...]) -> None:
    """Programs that had a GPU open; nvidia-persistenced is among them where it runs."""
    names = {item.path: (item.text or "").strip() for item in files if item.path.endswith("/comm")}
    by_node = {f"/dev/nvidia{gpu.minor}": gpu for gpu in gpus}
    for file in files:
        process, held, _ = file.path.partition("/fd/")
        gpu, pid = by_node.get(file.target or ""), process.removeprefix("/proc/")
        if held and gpu is not None and pid.isdigit():
            command = names.get(f"{process}/comm", "?")
            if command == _DAEMON:
                gpu.persistenced, gpu.persistence_mode = True, 0
            else:
                gpu.clients.append(Client(pid=int(pid), name=command))


def _passthrough(files: HostFiles, gpus: list[GpuState]) -> PassthroughState:
    release = files.read_text("/proc/sys/kernel/osrelease") or ""
    aliases = (files.read_text(f"/lib/modules/{release}/modules.alias") or "").splitlines()
    modules = {match[1] for line in aliases if (match := _ALIAS.fullmatch(line)) is not None}
    groups = {gpu.address: group for gpu in gpus if (group := files.pci(gpu.address).iommu_group) is not None}
    return PassthroughState(
        iommu=bool(groups),
        iommufd=files.device_node("/dev/iommu") is not None,
        modules=sorted(modules or {"vfio_pci"}),
        groups=groups,
        functions=list(_companions(files, groups)),
    )


def _companions(files: HostFiles, groups: dict[str, int]) -> Iterator[Function]:
    for gpu in groups:
        for address in sorted(files.names(f"/sys/bus/pci/devices/{gpu}/iommu_group/devices")):
            facts = files.pci(address)
            if address not in groups and facts.vendor is not None:
                yield Function(
                    address=address,
                    beside=gpu,
                    vendor=facts.vendor,
                    device=facts.device or 0,
                    pci_class=facts.device_class or 0,
                    home=facts.driver,
                )
