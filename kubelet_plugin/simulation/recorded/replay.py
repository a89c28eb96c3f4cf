"""A simulated node with the files and GPUs of a record; `kubelet_plugin.simulation.recorded.nvml` is its NVML.

Names, links, sizes and texts are the record's. Libraries get the header of theirs and nothing behind it, and programs
that the simulation knows are its own. Links never lead out of the folder: `check_tree` of
`kubelet_plugin.simulation.recorded.format` has checked the paths. The state has only what programs can change.
"""

import posixpath
import re
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from kubelet_plugin.hardware.driver_files import LINKER_CACHE, linker_cache
from kubelet_plugin.hardware.driver_root import kernel_module_version
from kubelet_plugin.hardware.host_programs import ProgramOutput, described_program
from kubelet_plugin.hardware.sysfs import HostFiles, described_node, pci_address
from kubelet_plugin.simulation import vfio
from kubelet_plugin.simulation.driver_files import CUDA_CHECK
from kubelet_plugin.simulation.kernel_files import made_up_uuid
from kubelet_plugin.simulation.profiles import GpuModel
from kubelet_plugin.simulation.programs import script
from kubelet_plugin.simulation.recorded.format import File, Record, members_of, record_of
from kubelet_plugin.simulation.state import (
    Client,
    DriverState,
    GpuState,
    NodeState,
    PassthroughState,
    RecordedNode,
)
from kubelet_plugin.simulation.tree import link, link_text, path, write

RECORD = "sim/record.tar.gz"
"""Below the root of a recorded node."""

_MOST_GPUS = 1024
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SERIAL = "nvmlDeviceGetSerial"
_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)")
_DAEMON = "nvidia-persistenced"[:15]
"""As the kernel calls it."""
_OF_SIMULATION = re.compile(r"/sim(/|$)|/proc/\d+(/|$)")
_OF_DRIVER = re.compile(r"nvidia-(?!ctk|cdi-hook|container)")
_FOLDERS = ("/dev", "/etc", "/proc", "/run", "/sys", "/sys/bus/pci/drivers", "/tmp", "/var")


def of_node(record: Record, whose: str) -> Record:
    """The record of another node of this kind: `whose` is its name, and the node shares no UUID or serial number with
    nodes of other names."""

    def renamed(match: re.Match[str]) -> str:
        return f"{match[1]}-{made_up_uuid(f'{whose}/{match[0]}')}"

    another = record_of({name: _UUID.sub(renamed, text) for name, text in members_of(record).items()})
    for call in another.calls:
        if call.function == _SERIAL and isinstance(call.result, str):
            call.result = f"165{int(made_up_uuid(f'{whose}/{call.result}')[:8], 16) % 10**10:010d}"
    return another


def write_tree(root: Path, record: Record) -> None:
    """The files of the record, except those of processes."""
    for folder in _FOLDERS:
        path(root, folder).mkdir(parents=True, exist_ok=True)
    for file in record.files:
        # A link instead of a folder that every node has would be in the way.
        if not _OF_SIMULATION.match(file.path) and not (file.path in _FOLDERS and file.kind != "folder"):
            _write(root, file)
    for program in sorted({answer.path for answer in record.programs}):
        resolved = HostFiles(root).resolve(program)
        if resolved is not None and not _OF_DRIVER.match(resolved.name):
            answers = {
                " ".join(answer.words): ProgramOutput(answer.status, answer.output)
                for answer in record.programs
                if answer.path == program and answer.status is not None
            }
            write(root, resolved, described_program(answers))
            path(root, resolved).chmod(0o755)


def adopt_recorded(root: Path, record: Record, state: NodeState) -> None:
    """Install the simulated programs of the driver, to be run by this process's interpreter, and show the processes."""
    for file in record.files:
        text = script(PurePosixPath(file.path).name, root, state.driver.version) if file.kind == "file" else None
        if text is not None and path(root, file.path).is_file():
            write(root, file.path, text)
            path(root, file.path).chmod(0o755)
    write(root, CUDA_CHECK, script(CUDA_CHECK.name, root) or "")
    path(root, CUDA_CHECK).chmod(0o755)
    vfio.write_processes(root, state)


def _write(root: Path, file: File) -> None:
    match file.kind:
        case "folder":
            path(root, file.path).mkdir(parents=True, exist_ok=True)
        case "link":
            _write_link(root, file.path, file.target or "")
        case "char" | "block":
            mode = file.mode if file.mode is not None else 0o666
            kind: Any = "c" if file.kind == "char" else "b"
            write(root, file.path, described_node(kind, file.major, file.minor, mode, file.gid))
        case "file" if file.text is not None and file.path.endswith(LINKER_CACHE):
            write(root, file.path, "")
            path(root, file.path).write_bytes(linker_cache(file.text.split()))
        case "file" if file.text is not None:
            write(root, file.path, file.text)
        case _:
            _write_stub(root, file)


def _write_link(root: Path, where: str, target: str) -> None:
    """As it was, unless it is absolute or leads above the root: then to the same place below the root."""
    folder = posixpath.dirname(where)
    steps = posixpath.normpath(target).split("/")
    upwards = sum(step == ".." for step in steps)
    plain = (
        not target.startswith("/") and ".." not in steps[upwards:] and upwards <= len(PurePosixPath(folder).parts) - 1
    )
    if plain and posixpath.normpath(target) == target.rstrip("/"):
        link_text(root, PurePosixPath(where), target)
    else:
        link(root, PurePosixPath(where), PurePosixPath(posixpath.normpath(posixpath.join("/", folder, target))))


def _write_stub(root: Path, file: File) -> None:
    """A file of the recorded size, which takes no space, with the header of a library if it was one."""
    write(root, file.path, "")
    with path(root, file.path).open("wb") as stub:
        if file.elf is not None:
            bits = 2 if file.elf.bits == 64 else 1
            stub.write(b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HHI", 3, file.elf.machine, 1))
        stub.truncate(max(file.size, stub.tell()))
    if file.mode is not None and file.kind == "file":
        path(root, file.path).chmod(file.mode & 0o777 | 0o600)


def state_of(record: Record, files: HostFiles, name: str, index: int) -> NodeState:
    """`files` is the written tree. Raises ValueError, TypeError or KeyError when no NVML answers as the record says."""
    ask = _Results(record)
    library = record.about.library or "/usr/lib64/libnvidia-ml.so.1"
    loaded, in_name = kernel_module_version(files), _LIBRARY.search(library)
    version = ask("nvmlSystemGetDriverVersion")
    gpus = [_gpu(ask, number) for number in range(min(ask("nvmlDeviceGetCount") or 0, _MOST_GPUS))]
    _add_clients(gpus, record.files)
    return NodeState(
        profile=name,
        node_index=index,
        machine="x86_64",  # nothing asks: libraries have the headers of the recorded ones
        layout="root",
        driver=DriverState(
            version=version or loaded or (in_name[1] if in_name is not None else "0.0"),
            cuda=ask("nvmlSystemGetCudaDriverVersion_v2") or 0,
            loaded=loaded is not None or version is not None,
            daemon=any(gpu.persistenced for gpu in gpus),
        ),
        model=_model(ask),
        gpus=gpus,
        passthrough=PassthroughState(modules=[]),
        recorded=RecordedNode(
            driver_root=record.about.driver_root or "/", library_folder=str(PurePosixPath(library).parent)
        ),
    )


class _Results:
    """Results of recorded calls that succeeded; None for all others."""

    def __init__(self, record: Record) -> None:
        self._results: dict[str, Any] = {}
        for call in record.calls:
            if call.code is None and not call.hung:
                self._results.setdefault(f"{call.function} {call.args}", call.result)

    def __call__(self, function: str, *args: Any) -> Any:
        return self._results.get(f"{function} {list(args)}")

    def of_gpu(self, number: int, name: str) -> Any:
        return self(f"nvmlDeviceGet{name}", {"handle": f"gpu{number}"})


def _gpu(ask: _Results, number: int) -> GpuState:
    bus_id = (ask.of_gpu(number, "PciInfo") or {"fields": {}})["fields"].get("busId", "")
    return GpuState(
        uuid=ask.of_gpu(number, "UUID") or f"GPU-{made_up_uuid(f'unread/{number}')}",
        minor=ask.of_gpu(number, "MinorNumber") or 0,
        address=pci_address(bus_id) if bus_id else f"ffff:{number % 256:02x}:00.0",
        root="",
        numa=-1,
        serial=ask.of_gpu(number, "Serial") or "",
        module=None,
        product=ask.of_gpu(number, "Name"),
        compute_mode=ask.of_gpu(number, "ComputeMode") or 0,
        persistence_mode=ask.of_gpu(number, "PersistenceMode") or 0,
        persistenced=False,
    )


def _model(ask: _Results) -> GpuModel:
    """What programs must know of a GPU: that of the first."""
    capability = ask.of_gpu(0, "CudaComputeCapability") or [0, 0]
    memory = (ask.of_gpu(0, "MemoryInfo") or {"fields": {}})["fields"].get("total")
    return GpuModel(
        name=ask.of_gpu(0, "Name") or "NVIDIA GPU",
        brand=0,
        architecture=0,
        compute_capability=(capability[0], capability[1]),
        cores=None,
        memory_mib=memory >> 20 if memory is not None else None,
        pci_device=0,
        pci_subsystem=0,
        power_limit_mw=None,
        pcie_generation=None,
        vbios="",
    )


def _add_clients(gpus: list[GpuState], files: tuple[File, ...]) -> None:
    """Programs that had a GPU open; nvidia-persistenced is among them where it runs."""
    names = {file.path: (file.text or "").strip() for file in files if file.path.endswith("/comm")}
    by_node = {f"/dev/nvidia{gpu.minor}": gpu for gpu in gpus}
    for gpu, process in _opened(by_node, files):
        command = names.get(f"/proc/{process}/comm", "?")
        if command == _DAEMON:
            gpu.persistenced, gpu.persistence_mode = True, 0
        else:
            gpu.clients.append(Client(pid=int(process), name=command))


def _opened(by_node: dict[str, GpuState], files: tuple[File, ...]) -> Iterator[tuple[GpuState, str]]:
    for file in files:
        match = re.fullmatch(r"/proc/(\d+)/fd/\d+", file.path)
        if match is not None and file.target in by_node:
            yield by_node[file.target], match[1]
