"""The driver's own programs, found below the driver root and run from there: nvidia-smi, nvidia-cuda-mps-control.

Effects enter here. No shell and no `chroot` is needed: a program is started by its path, with the driver's NVML library
loaded before any other (LD_PRELOAD), as it would find it on the host. What a program says of its failure becomes a
`HardwareError` in one place. Calls block.
"""

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.hardware.driver_root import DriverRoot
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS, program_below
from kubelet_plugin.hardware.sysfs import HostFiles

_LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
)
"""A root with a dynamic linker of its own is a whole system, with a C library that its programs must be run with."""

_ADVICE = {
    3: "this GPU or driver does not support it; remove the setting from the claim or DeviceClass",
    4: "the node plugin must run as root, in a privileged container",
    6: "the driver no longer knows this GPU; see the node's NodeInventory",
    9: "the nvidia kernel module is not loaded; load the driver on this node",
    15: "the GPU is lost; reboot the node, or have it serviced",
}
"""By the exit status of nvidia-smi, which is NVML's number. Source: its manual, "Return value"."""

_HOST_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_NOISE = "from LD_PRELOAD cannot be preloaded"
_MOST_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DriverProgram:
    """A program that was found. Host paths, except for `file`: where this process can start it."""

    name: str
    file: Path
    path: str
    root: str
    """The driver root."""
    library_folder: str
    """Where libnvidia-ml lies, and libcuda beside it."""
    nvml_library: Path
    """For this process."""
    whole_system: bool
    """The driver root is a system of its own: the program can only run with that one's C library, or in it."""

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.path).parent)

    @property
    def chroot(self) -> str:
        """The root that the program must be run in on the host; empty for the host's own."""
        return self.root if self.whole_system else ""

    @property
    def path_inside(self) -> str:
        """Its path below that root."""
        return self.path.removeprefix(self.chroot)

    @property
    def host_environment(self) -> dict[str, str]:
        """With which it finds its libraries, and other programs of the driver, when it is run on the host."""
        if self.whole_system:
            return {"PATH": _HOST_PATH}
        return {"PATH": f"{self.folder}:{_HOST_PATH}", "LD_LIBRARY_PATH": self.library_folder}


class DriverPrograms:
    """The programs of the driver that is installed at the time of each call. `root` raises NodeNotReady."""

    def __init__(self, host: HostFiles, root: Callable[[], DriverRoot]) -> None:
        self._host = host
        self._root = root

    def find(self, name: str) -> DriverProgram:
        """Raises NodeNotReady when the driver root has no such program."""
        root = self._root()
        resolved_root = self._host.resolve(root.path) or PurePosixPath(root.path)
        files = self._host if root.path == "/" else self._host.below(resolved_root)
        below = program_below(self._host, root.path, name)
        if below is None:
            raise NodeNotReady(
                f"{name} is in none of {', '.join(BINARY_FOLDERS)} below the driver root {root.path}: install the whole"
                " driver there, its programs too, or configure the driver root",
                about="driver",
            )
        return DriverProgram(
            name=name,
            file=files.path(below),
            path=_below(resolved_root, below),
            root=root.path,
            library_folder=_below(resolved_root, PurePosixPath(root.nvml_library.parent.relative_to(files.root))),
            nvml_library=root.nvml_library,
            whole_system=root.path != "/" and any(files.resolve(loader) for loader in _LOADERS),
        )

    def run(self, name: str, words: Sequence[str], *, about: str, timeout_s: float = 30.0) -> str:
        """What the program prints. Raises NodeNotReady when there is none, and as `run_program` does."""
        return run_program(self.find(name), words, about=about, timeout_s=timeout_s)


def run_program(
    program: DriverProgram,
    words: Sequence[str],
    *,
    about: str,
    asked: str = "",
    environment: Mapping[str, str] | None = None,
    passed: Sequence[int] = (),
    timeout_s: float = 30.0,
) -> str:
    """What the program prints. `asked` is its standard input, `passed` are file descriptors that it keeps.

    Raises HardwareError about `about` with the program's exit status as code, None when it did not end in time.
    """
    spoken = " ".join((program.name, *words))
    env = {"PATH": os.defpath, "LD_PRELOAD": str(program.nvml_library), **(environment or {})}
    try:
        with _limited_file() as stdout, _limited_file() as stderr:
            done = subprocess.run(
                [program.file, *words],
                input=asked.encode(),
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=passed,
                timeout=timeout_s,
                check=False,
            )
            printed, complaint = _written(stdout), _written(stderr)
    except subprocess.TimeoutExpired as error:
        raise HardwareError(
            f"`{spoken}` has not ended for {timeout_s:g} s; see the kernel log for what the driver waits for",
            about=about,
        ) from error
    except OSError as error:
        raise HardwareError(
            f"`{spoken}` cannot be started: {error.strerror} ({program.file}); the plugin's image must have the"
            " C library and dynamic linker (glibc) that the driver's programs need",
            about=about,
        ) from error
    if done.returncode:
        output = said_by(printed, complaint) or "it says nothing"
        advice = _ADVICE.get(done.returncode) if program.name == "nvidia-smi" else None
        message = f"`{spoken}` failed ({done.returncode}): {output}"
        raise HardwareError(f"{message}; {advice}" if advice else message, about=about, code=done.returncode)
    return printed


@contextmanager
def _limited_file() -> Iterator[int]:
    """A file in memory that cannot grow: a program that prints without end gets an error when it is full. What a
    program prints may come from a container, which can answer in place of its MPS daemon. Source: memfd_create(2)."""
    file = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, _MOST_OUTPUT_BYTES)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        yield file
    finally:
        os.close(file)


def _written(file: int) -> str:
    """The program shares this process' position in the file, so that is how much it wrote."""
    return os.pread(file, os.lseek(file, 0, os.SEEK_CUR), 0).decode(errors="replace")


def said_by(*outputs: str) -> str:
    """What a program said, in one line, without the dynamic linker's remarks."""
    lines = (line.strip() for output in outputs for line in output.splitlines())
    return " ".join(line for line in lines if line and _NOISE not in line)


def _below(root: PurePosixPath, path: PurePosixPath) -> str:
    return str(root / str(path).lstrip("/"))
