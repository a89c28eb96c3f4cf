"""The files of a recorded node below a folder: all at once, and in the parts that come and go with the NVIDIA driver.

Names, links, sizes and texts are the record's. Libraries get the header of theirs and nothing behind it, and programs
that the simulation knows are its own. Links never lead out of the folder. `check_tree` of
`kubelet_plugin.record.format` has looked at the paths.
"""

import posixpath
import re
import shutil
import struct
from functools import cached_property
from pathlib import Path, PurePosixPath

from kubelet_plugin.hardware.driver_files import LINKER_CACHE, linker_cache
from kubelet_plugin.hardware.host_programs import ProgramOutput, described_program
from kubelet_plugin.hardware.sysfs import HostFiles, described_node
from kubelet_plugin.record.format import File, Record
from kubelet_plugin.simulation import vfio
from kubelet_plugin.simulation.driver_files import CUDA_CLIENT
from kubelet_plugin.simulation.kernel_files import boot_id
from kubelet_plugin.simulation.programs import script
from kubelet_plugin.simulation.state import NodeState
from kubelet_plugin.simulation.tree import device_folders, link, link_text, path, pci_folder, write

_OF_MODULE = re.compile(
    r"(/proc/driver/nvidia|/sys/bus/pci/drivers/nvidia$|/sys/module/nvidia|.*/dev/nvidia|/dev/dri/)"
)
_OF_KERNEL = re.compile(r"/(proc|sys|dev)(/|$)")
_OF_DRIVER = re.compile(r"nvidia|cuda|nvcuvid|nvoptix|vdpau|GLX|EGL|GLES|gbm|vulkan", re.IGNORECASE)
_OF_TOOLKIT = re.compile(r"nvidia-(ctk|cdi-hook|container)")
_OF_SIMULATION = re.compile(r"/sim(/|$)")
_FOLDERS = ("/dev", "/etc", "/proc", "/run", "/sys", "/sys/bus/pci/drivers", "/tmp", "/var")
_DEVICES, _BOOT_ID = "/proc/devices", "/proc/sys/kernel/random/boot_id"
_INFORMATION = re.compile(r"/proc/driver/nvidia/gpus/([^/]+)/information")
_MINOR = re.compile(r"(Device Minor:\s*)\d+")


class RecordedTree:
    """The files of `record`. The state says what of it is there now: the driver, its version, bindings, boots."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._files = tuple(
            file for file in record.files if not _OF_SIMULATION.match(file.path) and not _is_in_the_way(file)
        )

    def write_all(self, root: Path) -> None:
        """Everything as it was recorded; then `adopt`, when the node's state is known."""
        self._make_folders(root)
        for file in self._files:
            if not _of_process(file):
                self._write(root, file, None)

    def adopt(self, root: Path, state: NodeState) -> None:
        """Make what `write_all` wrote the node's own: its UUIDs, its programs and those who use its GPUs."""
        for file in self._files:
            if _INFORMATION.fullmatch(file.path):
                self._write(root, file, state)
        self._write_answering(root)
        self.adopt_programs(root, state)
        vfio.write_processes(root, state)

    def write_machine(self, root: Path, state: NodeState) -> None:
        """What is there without an NVIDIA driver."""
        self._make_folders(root)
        for file in self._files:
            if not self._of_module(file) and not self._of_driver(file) and not _of_process(file):
                self._write(root, file, state)
        self._write_devices(root, loaded=False)
        if state.boots > 1:
            write(root, _BOOT_ID, boot_id(state) + "\n")
        self._write_answering(root)
        vfio.write_processes(root, state)

    def write_kernel_files(self, root: Path, state: NodeState) -> None:
        """What the NVIDIA kernel module shows, for GPUs that it holds now."""
        for file in self._files:
            if self._of_module(file) and not _is_of_holder(file):
                self._write(root, file, state)
        self._write_devices(root, loaded=True)
        for gpu in state.gpus:
            if gpu.bound_to == "nvidia":
                vfio.hold(root, state, gpu)
        vfio.write_processes(root, state)

    def remove_kernel_files(self, root: Path, state: NodeState) -> None:
        for file in self._files:
            if self._of_module(file) and file.kind != "folder":
                path(root, file.path).unlink(missing_ok=True)
        for folder in ("/proc/driver/nvidia", "/proc/driver/nvidia-caps", "/sys/bus/pci/drivers/nvidia"):
            shutil.rmtree(path(root, folder), ignore_errors=True)
        for devices in device_folders(state):
            shutil.rmtree(path(root, devices / "nvidia-caps"), ignore_errors=True)
        self._write_devices(root, loaded=False)
        vfio.write_processes(root, state)
        for gpu in state.gpus:
            if gpu.bound_to == "nvidia":
                path(root, pci_folder(gpu) / "driver").unlink(missing_ok=True)
            shutil.rmtree(path(root, pci_folder(gpu) / "drm"), ignore_errors=True)

    def write_driver_files(self, root: Path, state: NodeState) -> None:
        for file in self._files:
            if self._of_driver(file):
                self._write(root, file, state)
        self.adopt_programs(root, state)

    def remove_driver_files(self, root: Path, state: NodeState) -> None:
        for file in self._files:
            if self._of_driver(file) and file.kind != "folder":
                path(root, self._renamed(file.path, state)).unlink(missing_ok=True)

    def adopt_programs(self, root: Path, state: NodeState) -> None:
        """The driver's programs that are there, and that the simulation has, are run by this process's interpreter."""
        for file in self._files:
            name = file.path.rpartition("/")[2]
            text = script(name, root, state.driver.version) if self._of_driver(file) and file.kind == "file" else None
            place = path(root, file.path)
            if text is not None and place.exists():
                write(root, file.path, text)
                place.chmod(0o755)
        write(root, CUDA_CLIENT, script(CUDA_CLIENT.name, root) or "")
        path(root, CUDA_CLIENT).chmod(0o755)

    def _make_folders(self, root: Path) -> None:
        for folder in _FOLDERS:
            path(root, folder).mkdir(parents=True, exist_ok=True)

    def _of_module(self, file: File) -> bool:
        if _OF_MODULE.match(file.path) is not None:
            return True
        return _OF_KERNEL.match(file.path) is not None and _is_of_holder(file)

    def _of_driver(self, file: File) -> bool:
        if _OF_KERNEL.match(file.path) is not None:
            return False
        name, root = file.path.rpartition("/")[2], self._record.about.driver_root or "/"
        if _OF_TOOLKIT.match(name):
            return False
        inside = root != "/" and (file.path == root or file.path.startswith(f"{root}/"))
        return inside or (file.kind != "folder" and _OF_DRIVER.search(name) is not None) or "/firmware/" in file.path

    @cached_property
    def _version(self) -> str:
        library = self._record.about.library or ""
        return library.rpartition(".so.")[2] if ".so." in library else ""

    def _renamed(self, text: str, state: NodeState) -> str:
        """Names of a driver's files with the version that is installed now."""
        version = self._version
        return text.replace(version, state.driver.version) if version.count(".") else text

    def _write(self, root: Path, file: File, state: NodeState | None) -> None:
        """Without a state as it was recorded."""
        upgraded = state is not None and _upgraded(state) and self._of_driver(file)
        where = self._renamed(file.path, state) if state is not None and upgraded else file.path
        match file.kind:
            case "folder":
                path(root, where).mkdir(parents=True, exist_ok=True)
            case "link":
                target = file.target or ""
                _write_link(root, where, self._renamed(target, state) if state is not None and upgraded else target)
            case "char" | "block":
                mode = file.mode if file.mode is not None else 0o666
                node = described_node("c" if file.kind == "char" else "b", file.major, file.minor, mode, file.gid)
                write(root, where, node)
            case "file" if file.text is not None:
                _write_text(root, file, _identified(file, state) if state is not None else file.text)
            case _:
                _write_stub(root, where, file)

    def _write_devices(self, root: Path, *, loaded: bool) -> None:
        lines = (self._record.text(_DEVICES) or "").splitlines(keepends=True)
        write(root, _DEVICES, "".join(line for line in lines if loaded or "nvidia" not in line))

    def _write_answering(self, root: Path) -> None:
        """Programs of the host that were asked, and are none of the driver's: they answer the same again."""
        files = HostFiles(root)
        for program in sorted({answer.path for answer in self._record.programs}):
            resolved = files.resolve(program)
            if resolved is not None and not self._of_driver(File(path=str(resolved), kind="file")):
                answers = {
                    " ".join(answer.words): ProgramOutput(answer.status, answer.output)
                    for answer in self._record.programs
                    if answer.path == program and answer.status is not None
                }
                write(root, resolved, described_program(answers))
                path(root, resolved).chmod(0o755)


def _upgraded(state: NodeState) -> bool:
    return state.recorded is not None and state.driver.version != state.recorded.version


def _is_of_holder(file: File) -> bool:
    """Whether it is there because the NVIDIA driver has a function of the bus."""
    return (file.path.endswith("/driver") and (file.target or "").endswith("/nvidia")) or "/drm" in file.path


def _is_in_the_way(file: File) -> bool:
    """A link instead of a folder that every node has."""
    return file.path in _FOLDERS and file.kind != "folder"


def _of_process(file: File) -> bool:
    return re.match(r"/proc/\d+(/|$)", file.path) is not None


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


def _identified(file: File, state: NodeState) -> str:
    """Text with the UUID and the minor number that this node's GPU has."""
    text, match = file.text or "", _INFORMATION.fullmatch(file.path)
    gpu = next((gpu_state for gpu_state in state.gpus if match is not None and gpu_state.address == match[1]), None)
    if gpu is None or gpu.recorded is None:
        return text
    return _MINOR.sub(rf"\g<1>{gpu.minor}", text.replace(gpu.recorded.uuid, gpu.uuid))


def _write_text(root: Path, file: File, text: str) -> None:
    if file.path.endswith(LINKER_CACHE):
        place = path(root, file.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(linker_cache(text.split()))
    else:
        write(root, file.path, text)


def _write_stub(root: Path, where: str, file: File) -> None:
    """A file of the recorded size, which takes no space, with the header of a library if it was one."""
    write(root, where, "")
    with path(root, where).open("wb") as stub:
        if file.elf is not None:
            bits = 2 if file.elf.bits == 64 else 1
            stub.write(b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HHI", 3, file.elf.machine, 1))
        stub.truncate(max(file.size, stub.tell()))
    if file.mode is not None and file.kind == "file":
        path(root, where).chmod(file.mode & 0o777 | 0o600)
