"""NVML of a node that was recorded: answers are the record's, until something in the simulation supersedes them.

`ReplayedNvml` is `SimulatedNvml` but for what the record knows better. A read of a GPU is answered from the record,
with its value or its error, as long as the part of the GPU's state that the answer depends on (`_DEPENDS`) is what it
was at the start. What identifies a GPU, lists instances or changes something is the state machine's. A read that
the record does not have fails with `NOT_RECORDED`, which says so.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import structlog

from kubelet_plugin.record.format import NvmlCall, read_record
from kubelet_plugin.record.values import decoded, fill, pointed, shape
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.nvml_session import Crash, Reference, error
from kubelet_plugin.simulation.operations import mig_devices
from kubelet_plugin.simulation.partitions import layout
from kubelet_plugin.simulation.recorded.answers import Answers, instance_handles
from kubelet_plugin.simulation.recorded.start import RECORD, START
from kubelet_plugin.simulation.state import GpuState, NodeState

_log = structlog.get_logger(__name__)

NOT_RECORDED, HUNG = 9001, 9002
"""Codes that no NVML has."""
_MEANINGS = {
    NOT_RECORDED: "not in the record: the node was not asked this when it was recorded; record it again",
    HUNG: "the call hung when the node was recorded",
}
_DEFINITIVE = "nvmlDeviceGet", "nvmlSystemGet", "nvmlGpuInstanceGetComputeInstanceProfileInfo"

_OF_STATE = frozenset(
    f"nvmlDeviceGet{name}"
    for name in (
        *("Count", "HandleByIndex", "HandleByUUID", "HandleByPciBusId", "GpuInstances", "MigDeviceHandleByIndex"),
        "GpuInstanceRemainingCapacity",
    )
) | {"nvmlSystemGetProcessName"}
"""Answered by the state machine, always."""

_OF_MIG_DEVICE = frozenset({"nvmlDeviceGetAttributes_v2"})
"""Answered from the record of a MIG device that existed; other reads of MIG devices are the state machine's."""

_IDENTITY = frozenset({"nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial"})
"""Whether there is an answer is the record's; the answer is the state's."""


def _health(gpu: GpuState) -> object:
    return gpu.health, gpu.mig


def _processes(gpu: GpuState) -> object:
    return gpu.clients, layout(gpu)


_DEPENDS: dict[str, Callable[[GpuState], object]] = {
    "Name": lambda gpu: gpu.product,
    "VirtualizationMode": lambda gpu: gpu.virtualization,
    "MigMode": lambda gpu: gpu.mig,
    "MaxMigDeviceCount": lambda gpu: gpu.mig,
    "ComputeMode": lambda gpu: gpu.compute_mode,
    "PersistenceMode": lambda gpu: gpu.persistent,
    "P2PStatus": lambda gpu: gpu.mig,
    "GpuFabricInfoV": lambda gpu: gpu.fabric,
    **dict.fromkeys(("TotalEccErrors", "RemappedRows", "RepairStatus", "FieldValues"), _health),
    **dict.fromkeys((f"NvLink{what}" for what in ("State", "Version", "RemoteDeviceType", "RemotePciInfo")),
                    lambda gpu: (gpu.links_down, gpu.links_absent)),
    **dict.fromkeys(("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses_v3"),
                    _processes),
}  # fmt: skip
"""By the name after `nvmlDeviceGet`: what in the state of a GPU its answer follows. All others follow nothing."""


class ReplayedNvml(SimulatedNvml):
    """Of the node below `root`, which was made from a record."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._answers = Answers(read_record(root / RECORD).calls)
        start = NodeState.model_validate_json((root / START).read_bytes())
        self._instances = {
            gpu.recorded.name: instance_handles(self._answers, gpu.recorded.name)
            for gpu in start.gpus
            if gpu.recorded is not None
        }
        self._start = {gpu.recorded.name: gpu for gpu in start.gpus if gpu.recorded is not None}
        self._driver = start.driver
        self._untold: set[str] = set()
        pynvml.NVMLError._errcode_to_string.update(_MEANINGS)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(_DEFINITIVE) and name not in _OF_STATE:
            return partial(super().__getattribute__("_recorded"), name)
        return super().__getattribute__(name)

    def nvmlInitWithFlags(self, flags: int) -> None:
        state = self._file.read()
        assert state.recorded is not None
        if state.recorded.init_code and state.driver == self._driver and state.boots == 1:
            raise error(state.recorded.init_code)
        super().nvmlInitWithFlags(flags)

    def _recorded(self, name: str, *args: Any) -> Any:
        state = self.node(name)
        by_state = partial(getattr(SimulatedNvml, name, _unknown), self, *args)
        if not args:
            return by_state() if state.driver != self._driver else self._answer(name, args)
        reference = self._reference(args[0])
        gpu = state.gpu(reference.uuid)
        if self._recorded_name(reference, gpu, name) is None or not state.driver.privileged:
            return by_state()
        if self._superseded(name, gpu, args):
            return by_state()
        if name in _IDENTITY:
            self.check(gpu)
            self._answer(name, args)
            return by_state()
        dies, gpu = self.met(state, reference.uuid, name)
        self.check(gpu)
        answer = self._answer(name, args)
        if dies:
            raise Crash(name)
        return answer

    def _recorded_name(self, reference: Reference, gpu: GpuState, function: str) -> str | None:
        """The handle in the record that has the answer; None when the state machine has it."""
        if gpu.recorded is None:
            return None
        match reference.kind:
            case "gpu":
                return gpu.recorded.name
            case "gpu instance":
                profiles = [instance.profile for instance in gpu.instances if instance.number == reference.number]
                return self._instances[gpu.recorded.name].get(profiles[0]) if profiles else None
            case "mig" if function in _OF_MIG_DEVICE:
                handles = (item.recorded for _, item in mig_devices(gpu) if item.uuid == reference.mig_uuid)
                return next(handles, None)
        return None

    def _superseded(self, name: str, gpu: GpuState, args: tuple[Any, ...]) -> bool:
        depends = _DEPENDS.get(name.removeprefix("nvmlDeviceGet"))
        others = [self.gpu_of(arg, name) for arg in args[1:] if isinstance(arg, pynvml.c_nvmlDevice_t)]
        return depends is not None and any(
            depends(gpu_state) != depends(self._start[gpu_state.recorded.name])
            for gpu_state in (gpu, *others)
            if gpu_state.recorded is not None
        )

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        """The result of the recorded call, with its by-reference arguments filled. Raises NVMLError."""
        named = partial(self._named, name)
        call = self._answers.call(name, [shape(arg, named) for arg in args])
        if call is None:
            self._report(name)
            raise error(NOT_RECORDED)
        if call.hung or call.problem is not None:
            raise error(HUNG if call.hung else NOT_RECORDED)
        self._fill(call, args)
        if call.code is not None:
            raise error(call.code)
        return decoded(call.result, self._handle)

    def _fill(self, call: NvmlCall, args: tuple[Any, ...]) -> None:
        try:
            for place, value in call.out.items():
                fill(pointed(args[place]), value, self._handle)
        except IndexError:
            raise error(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) from None

    def _report(self, name: str) -> None:
        if name not in self._untold:
            self._untold.add(name)
            _log.warning("a call of NVML is not in the record", function=name)

    def _named(self, function: str, handle: Any) -> str:
        """A handle as the record calls it."""
        reference = self._reference(handle)
        return self._recorded_name(reference, self._file.latest.gpu(reference.uuid), function) or ""

    def _handle(self, name: str) -> Any:
        for gpu in self._file.latest.gpus:
            if gpu.recorded is not None and gpu.recorded.name == name and gpu.uuid in self._uuids:
                return self.gpu_handle(gpu.uuid)
        return ctypes.cast(ctypes.c_void_p(0), pynvml.c_nvmlDevice_t)


def _unknown(*_args: object) -> None:
    raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def nvml_of(host: SimulatedHost) -> SimulatedNvml:
    """That of a node from a record or from a profile."""
    return ReplayedNvml(host.root) if host.state.recorded is not None else SimulatedNvml(host.root)
