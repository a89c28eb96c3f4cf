"""Makes the driver's device nodes that the host lacks, by the driver's own nvidia-modprobe.

A host without the driver's udev rules (`.run` installers, minimal images) has no nodes until root runs a CUDA program.
`kubelet_plugin.facts.hardware.Hardware` enters here before each look. Calls block.
"""

from collections.abc import Collection, Iterator

import structlog

from dra_driver.api.inventory import Problem
from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import (
    DriverInstallation,
    find_dev_root,
    kernel_module_version,
    without_uvm,
)
from kubelet_plugin.hardware.sysfs import HostFiles, Seen
from kubelet_plugin.hardware.vfio import minor_at

_log = structlog.get_logger(__name__)

_PROGRAM = "nvidia-modprobe"
_GPUS = "/proc/driver/nvidia/gpus"
_CONTROL, _MODESET, _UVM = "nvidiactl", "nvidia-modeset", "nvidia-uvm"
_MAJOR, _CONTROL_MINOR, _MODESET_MINOR = 195, 255, 254
"""Source: NVIDIA/nvidia-modprobe, nvidia-modprobe-utils.h."""


def missing_nodes(host: HostFiles, dev_root: str) -> tuple[str, ...]:
    """Names below `/dev` of `dev_root`, sorted: nodes that are not there, or have other numbers than the kernel's.

    That of unified memory is missing also while the kernel has its module not loaded: nvidia-modprobe loads it. That of
    modeset only if the kernel has its module loaded. Those of GPUs only if none is there: a node that has some of them
    may be a container that was given these GPUs and no others, while its kernel knows them all.
    """
    majors = host.device_majors()
    wanted = {_CONTROL: (_MAJOR, _CONTROL_MINOR), _UVM: (majors.get(_UVM), 0)}
    if _MODESET in majors:
        wanted[_MODESET] = (_MAJOR, _MODESET_MINOR)
    minors = (minor_at(host, address) for address in host.names(_GPUS))
    gpus = {f"nvidia{minor}": (_MAJOR, minor) for minor in minors if minor is not None}
    if not any(_is_right(host, dev_root, name, *numbers) for name, numbers in gpus.items()):
        wanted |= gpus
    missing = {name for name, numbers in wanted.items() if not _is_right(host, dev_root, name, *numbers)}
    return tuple(sorted(missing | ({_UVM} if without_uvm(majors) else set())))


def _is_right(host: HostFiles, dev_root: str, name: str, major: int | None, minor: int) -> bool:
    node = host.device_node(f"{dev_root.rstrip('/')}/dev/{name}")
    return node is not None and node.type == "c" and node.major == (major or node.major) and node.minor == minor


def modprobe_words(missing: Collection[str]) -> Iterator[tuple[str, ...]]:
    """The arguments of each call of nvidia-modprobe that makes these nodes. Pure. Source: its manual page.

    `-c` names minors of the GPUs' nodes, of which 255 is nvidiactl; with `-u`, those of unified memory.
    """
    numbered = [name for name in missing if name not in (_CONTROL, _MODESET, _UVM)]
    minors = [_CONTROL_MINOR] * (_CONTROL in missing) + [int(name.removeprefix("nvidia")) for name in numbered]
    words = (*(f"-c={minor}" for minor in minors), *(["-m"] if _MODESET in missing else []))
    if words:
        yield words
    if _UVM in missing:
        yield ("-u", "-c=0")


class DeviceNodes:
    """Of one node. For one thread at a time. Each set of missing nodes is tried once per boot and driver."""

    def __init__(self, on_host: OnHost, driver: DriverInstallation, programs: DriverPrograms) -> None:
        self._on_host = on_host
        self._host = on_host.files
        self._driver = driver
        self._programs = programs
        self._tried: tuple[str, str, tuple[str, ...]] | None = None
        self._why = ""

    def __call__(self) -> Problem | None:
        """Make what is missing; the problem that is left, None if GPUs can be used. Never raises NodeNotReady."""
        version = kernel_module_version(self._host)
        if version is None:  # then there is nothing that nodes could lead to
            return None
        try:
            known = self._driver.known_for_containers(version)
            dev_root = known.dev_root if known else find_dev_root(self._host, self._driver.root().path, Seen())
            attempt = (self._host.boot_id(), version, missing_nodes(self._host, dev_root))
        except NodeNotReady:  # of the driver or the kernel; the look that follows reports it
            return None
        missing = attempt[2]
        if missing and attempt != self._tried:
            self._tried = attempt
            self._why = self._make(dev_root, missing)
            missing = missing_nodes(self._host, dev_root)
            _log.info("device nodes were missing", nodes=attempt[2], still_missing=missing, problem=self._why or None)
        if not missing:
            self._tried = None
        needed = [name for name in missing if name != _MODESET]
        return _problem(dev_root, needed, self._why) if needed else None

    def _make(self, dev_root: str, missing: tuple[str, ...]) -> str:
        """Why not all of it could be made; empty if nvidia-modprobe says that it did."""
        try:
            program = self._programs.find(_PROGRAM)
            # In the root whose /dev it is; the host's own also for a program that lies in a driver container's root.
            inside = program.chroot != "" and dev_root != "/"
            path = program.path_inside if inside else program.path
            path = path if self._on_host.isolates else str(program.file)
            for words in modprobe_words(missing):
                self._on_host.run(
                    [path, *words],
                    _PROGRAM,
                    root=program.chroot if inside else "",
                    environment=program.host_environment,
                )
        except NodeNotReady as error:
            return error.message
        return ""


def _problem(dev_root: str, missing: Collection[str], why: str) -> Problem:
    paths = ", ".join(f"{dev_root.rstrip('/')}/dev/{name}" for name in missing)
    commands = " && ".join(f"{_PROGRAM} {' '.join(words)}" for words in modprobe_words(missing))
    reason = why or "it made none, as it does if /proc/driver/nvidia/params has ModifyDeviceFiles: 0"
    return Problem(
        subject="device nodes",
        reason="Missing",
        message=f"{paths}: not there, or of another device, and {_PROGRAM} could not make them ({reason});"
        f" run `{commands}` as root on the node, and search the kernel log for NVRM if that fails",
    )
