"""Questions to NVML beyond what discovery asks: read only, cheap, and useful when a defect is looked for later.

`sweep` asks through the recording library (`kubelet_plugin.recording.take`), which keeps the answers; here they are
ignored, and so are refusals. Functions that this binding does not have are left out.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pynvml

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.host_programs import ProgramOutput, answer_within, asking
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.recorded.format import ProgramAnswer

_PATIENCE_S = 15.0
_MOST_OUTPUT = 512 * 1024

_OF_DRIVER: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "--version"),
    ("nvidia-smi", "-L"),
    ("nvidia-smi", "mig", "-lgip"),
    ("nvidia-smi", "mig", "-lgipp"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "-q"),
    ("nvidia-cuda-mps-control", "-h"),
    ("nvidia-imex", "--version"),
    ("nvidia-imex-ctl", "--version"),
    ("nvidia-modprobe", "--version"),
    ("nvidia-persistenced", "--version"),
)
_HOOKS = ("nvidia-cdi-hook", "nvidia-ctk")
_HOOK_COMMANDS = (
    *("create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification"),
    "update-application-profile",
)
_OF_HOST = ("systemctl", "containerd", "crio", "runc", "crun", "kubelet")
_MORE_FOLDERS = ("/usr/local/nvidia/toolkit", "/var/lib/rancher/k3s/data/current/bin", "/usr/local/sbin")

type Progress = Callable[[str], None]


class ProgramsOfNode:
    """`host` is the host's root for this process."""

    def __init__(self, host: HostFiles, programs: DriverPrograms) -> None:
        self._host = host
        self._programs = programs
        self._ask = asking(host.root)

    def answers(self, progress: Progress) -> Iterator[ProgramAnswer]:
        """Of all programs that are there, one after the other."""
        silent: set[str] = set()
        for name, *words in _OF_DRIVER:
            if name not in silent:
                progress(f"asking {name} {' '.join(words)}")
                answer = self._of_driver(name, words)
                if answer is None or (answer.status is None and answer.problem is not None):
                    silent.add(name)  # one that hangs hangs again
                if answer is not None:
                    yield answer
        for path in self._paths((*_HOOKS, *_OF_HOST)):
            progress(f"asking {path}")
            yield from self._of_host(path)

    def _of_driver(self, name: str, words: Sequence[str]) -> ProgramAnswer | None:
        try:
            program = self._programs.find(name)
        except NodeNotReady:
            return None
        environment = {"PATH": os.defpath, "LD_PRELOAD": str(program.nvml_library)}
        return answer_of([str(program.file), *words], program.path, words, environment)

    def _paths(self, names: Sequence[str]) -> Iterator[str]:
        done = set()
        for name in names:
            for folder in (*BINARY_FOLDERS, *_MORE_FOLDERS):
                resolved = self._host.resolve(f"{folder}/{name}")
                if resolved is not None and str(resolved) not in done:
                    done.add(str(resolved))
                    yield f"{folder}/{name}"

    def _of_host(self, path: str) -> Iterator[ProgramAnswer]:
        name = path.rpartition("/")[2]
        questions = [["--version"]]
        if name in _HOOKS:
            hook = ["hook"] if name == "nvidia-ctk" else []
            questions += [[*hook, "--help"], *([*hook, command, "--help"] for command in _HOOK_COMMANDS)]
        for words in questions:
            yield _timed(ProgramAnswer(path=path, words=words), partial(self._ask, [path, *words]))


def answer_of(
    command: Sequence[str],
    path: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    patience_s: float = _PATIENCE_S,
) -> ProgramAnswer:
    """Run it; its children end with it. Never raises for what the program does."""
    ask = partial(answer_within, patience_s, command, environment, about=f"program {path}")
    return _timed(ProgramAnswer(path=path, words=list(words)), ask)


def _timed(answer: ProgramAnswer, ask: Callable[[], ProgramOutput]) -> ProgramAnswer:
    """With what `ask` gets, how long that took, and why there is nothing."""
    started = time.monotonic()
    try:
        got = ask()
        answer.status, answer.output = got.status, got.output[:_MOST_OUTPUT]
    except NodeNotReady as error:
        answer.problem = error.message
    answer.ms = round(1000 * (time.monotonic() - started), 1)
    return answer


_SYSTEM = ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlUnitGetCount")

OF_GPU = tuple(
    f"nvmlDeviceGet{name}"
    for name in (
        *("Name", "Brand", "Architecture", "UUID", "MinorNumber", "PciInfo", "CudaComputeCapability", "Serial"),
        *("BoardPartNumber", "BoardId", "MultiGpuBoard", "VbiosVersion", "InforomImageVersion", "BusType"),
        *("MemoryInfo", "BAR1MemoryInfo", "MemoryBusWidth", "NumGpuCores", "EccMode", "DefaultEccMode"),
        *("RemappedRows", "RowRemapperHistogram", "RetiredPagesPendingStatus", "RepairStatus", "MigMode"),
        *("MaxMigDeviceCount", "ComputeMode", "PersistenceMode", "DisplayMode", "DisplayActive"),
        *("VirtualizationMode", "HostVgpuMode", "AddressingMode", "NumaNodeId", "IrqNum", "GspFirmwareVersion"),
        *("GspFirmwareMode", "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "MaxPcieLinkWidth"),
        *("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PcieLinkMaxSpeed", "PcieSpeed", "EnforcedPowerLimit"),
        *("PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints"),
        *("PowerManagementMode", "PerformanceState", "NumFans", "SupportedEventTypes"),
        *("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses_v3"),
    )
)
"""Each takes a handle and nothing else."""

_OF_MIG_DEVICE = ("UUID", "Name", "GpuInstanceId", "ComputeInstanceId", "Attributes_v2", "MemoryInfo", "ComputeMode")
_MOST_LINKS = 36
_LINK_CAPABILITIES = 6
_P2P_INDICES = (0, 1, 2, 3, 4)
"""Read, write, NVLink, atomics, PCI. Source: nvml.h, nvmlGpuP2PCapsIndex_t; the binding has a tuple for the first."""
_FIELDS = range(1, 301)
_FIELDS_AT_ONCE = 50
_EVENT_WAIT_MS = 100


def sweep(library: Any, progress: Progress) -> None:
    """Ask all of it, in a session of its own. `library` is initialised again, which NVML counts."""
    ask = _Asking(library)
    if ask("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS) is FAILED:
        return
    for name in _SYSTEM:
        ask(name)
    count = ask("nvmlDeviceGetCount")
    handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(count if isinstance(count, int) else 0)]
    gpus = [handle for handle in handles if handle is not FAILED]
    for number, gpu in enumerate(gpus):
        progress(f"asking NVML about GPU {number + 1} of {len(gpus)}")
        _one(ask, gpu)
    for first in gpus:
        for second in gpus:
            if first is not second:
                _pair(ask, first, second)
    _events(ask, gpus)
    ask("nvmlShutdown")


FAILED = object()


class _Asking:
    """Calls by name; FAILED for a refusal and for a function that is not there."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, name: str, *args: Any) -> Any:
        if not hasattr(self._library, name):
            return FAILED
        try:
            return getattr(self._library, name)(*args)
        except (self._library.NVMLError, UnicodeDecodeError, ValueError, TypeError):
            return FAILED


def _one(ask: _Asking, gpu: Any) -> None:
    for name in OF_GPU:
        ask(name, gpu)
    ask("nvmlDeviceGetModuleId", gpu, ctypes.c_uint())
    for kind in range(4):
        ask("nvmlDeviceGetMaxClockInfo", gpu, kind)
    for kind in (0, 1):
        for counter in (0, 1):
            ask("nvmlDeviceGetTotalEccErrors", gpu, kind, counter)
        ask("nvmlDeviceGetRetiredPages", gpu, kind)
    ask("nvmlDeviceGetCpuAffinity", gpu, 16)
    ask("nvmlDeviceGetMemoryAffinity", gpu, 4, 0)
    for start in range(0, len(_FIELDS), _FIELDS_AT_ONCE):
        ask("nvmlDeviceGetFieldValues", gpu, list(_FIELDS[start : start + _FIELDS_AT_ONCE]))
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        ask("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(getattr(pynvml, structure)()))
    _links(ask, gpu)
    _mig(ask, gpu)


def _links(ask: _Asking, gpu: Any) -> None:
    for link in range(_MOST_LINKS):
        if ask("nvmlDeviceGetNvLinkState", gpu, link) is not FAILED:
            for name in ("Version", "RemoteDeviceType", "RemotePciInfo"):
                ask(f"nvmlDeviceGetNvLink{name}", gpu, link)
            for capability in range(_LINK_CAPABILITIES):
                ask("nvmlDeviceGetNvLinkCapability", gpu, link, capability)


def _mig(ask: _Asking, gpu: Any) -> None:
    mode, most = ask("nvmlDeviceGetMigMode", gpu), ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if mode is FAILED or not mode[0] or not isinstance(most, int):
        return
    for index in range(most):
        device = ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        if device is not FAILED:
            for name in _OF_MIG_DEVICE:
                ask(f"nvmlDeviceGet{name}", device)


def _pair(ask: _Asking, first: Any, second: Any) -> None:
    ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
    for index in _P2P_INDICES:
        ask("nvmlDeviceGetP2PStatus", first, second, index)


def _events(ask: _Asking, gpus: list[Any]) -> None:
    """Whether events can be waited for, and whether a wait lasts as long as it should."""
    events = ask("nvmlEventSetCreate")
    if events is FAILED:
        return
    for gpu in gpus:
        supported = ask("nvmlDeviceGetSupportedEventTypes", gpu)
        if isinstance(supported, int):
            ask("nvmlDeviceRegisterEvents", gpu, supported, events)
    if gpus:
        ask("nvmlEventSetWait_v2", events, _EVENT_WAIT_MS)
    ask("nvmlEventSetFree", events)
