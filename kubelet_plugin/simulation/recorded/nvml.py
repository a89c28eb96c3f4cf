"""NVML of a recorded node: each call is looked up in the record, and gets the value or the error that it has there.

A recorded node does not change, so calls that change a GPU's MIG instances are refused. What the simulated node itself
keeps is answered from its state: sessions, events, faults that `dractl simulate` injects, compute and persistence mode,
and the processes that have a GPU open. A call that the record does not have fails with `NOT_RECORDED`.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import structlog

from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.nvml_session import Reference, error
from kubelet_plugin.simulation.recorded.format import NvmlCall, read_record
from kubelet_plugin.simulation.recorded.replay import RECORD
from kubelet_plugin.simulation.recorded.values import decoded, fill, pointed, shape
from kubelet_plugin.simulation.state import GpuState

_log = structlog.get_logger(__name__)

NOT_RECORDED, HUNG, NOT_CHANGED = 9001, 9002, 9003
"""Codes that no NVML has."""
_MEANINGS = {
    NOT_RECORDED: "not in the record: the node was not asked this when it was recorded; record it again",
    HUNG: "the call hung when the node was recorded",
    NOT_CHANGED: "a recorded node cannot be changed; simulate a profile instead of the record",
}
_READS = "nvmlDeviceGet", "nvmlSystemGet", "nvmlGpuInstanceGet", "nvmlComputeInstanceGet"
_CHANGES = (
    *("nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreate", "nvmlGpuInstanceDestroy"),
    "nvmlComputeInstanceDestroy",
)
_OF_STATE = frozenset(
    {
        *("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetComputeMode"),
        *("nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlSystemGetProcessName"),
    }
)
"""Reads of what the simulated node keeps."""
_KINDS = ("gpu", "recorded")


class ReplayedNvml(SimulatedNvml):
    """Of the node below `root`, which was made from a record."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._calls: dict[str, NvmlCall] = {}
        for call in read_record(root / RECORD).calls:
            self._calls.setdefault(_key(call.function, call.args), call)
        self._reported: set[str] = set()
        pynvml.NVMLError._errcode_to_string.update(_MEANINGS)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(_CHANGES):
            return _refuse
        if name.startswith(_READS) and name not in _OF_STATE:
            return partial(super().__getattribute__("_recorded"), name)
        return super().__getattribute__(name)

    def nvmlInitWithFlags(self, flags: int) -> None:
        call = self._calls.get(_key("nvmlInitWithFlags", [flags]))
        if call is not None and call.code is not None:
            raise error(call.code)
        super().nvmlInitWithFlags(flags)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._answer("nvmlDeviceGetHandleByIndex", (index,))
        return super().nvmlDeviceGetHandleByIndex(index)

    def _recorded(self, name: str, *args: Any) -> Any:
        if not args or isinstance(args[0], int):
            self.node(name)
            return self._answer(name, args)

        def answer(reference: Reference, gpu: GpuState) -> Any:
            return self._answer(name, args, reference.uuid)

        return self.answered(args[0], name, _KINDS, answer)

    def _answer(self, name: str, args: tuple[Any, ...], gpu_uuid: str = "") -> Any:
        """The result of the recorded call, with its by-reference arguments filled. Raises NVMLError."""
        call = self._calls.get(_key(name, [shape(arg, self._name_of) for arg in args]))
        if call is None and name not in self._reported:
            self._reported.add(name)
            _log.warning("a call of NVML is not in the record", function=name)
        if call is None or call.problem is not None:
            raise error(NOT_RECORDED)
        if call.hung:
            raise error(HUNG)
        handle = partial(self._handle, gpu_uuid)
        try:
            for place, value in call.out.items():
                fill(pointed(args[place]), value, handle)
            result = decoded(call.result, handle)
        except IndexError:
            raise error(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) from None
        except (ValueError, TypeError):
            raise error(NOT_RECORDED) from None
        if call.code is not None:
            raise error(call.code)
        return result

    def _name_of(self, handle: Any) -> str:
        reference = self._reference(handle)
        return reference.mig_uuid or f"gpu{self._uuids.index(reference.uuid)}"

    def _handle(self, gpu_uuid: str, name: str) -> Any:
        """The handle with this name in the record; one that is no GPU's own belongs to the GPU of the call."""
        kind = name.rstrip("0123456789")
        if kind == "gpu":
            return self.gpu_handle(self._uuids[int(name.removeprefix("gpu"))])
        reference = Reference("recorded", self._session, gpu_uuid, mig_uuid=name)
        return self._pointer(reference, getattr(pynvml, f"c_nvml{kind}_t", pynvml.c_nvmlDevice_t))


def _refuse(*_args: object) -> None:
    raise error(NOT_CHANGED)


def _key(function: str, args: list[Any]) -> str:
    return json.dumps([function, *args], sort_keys=True)


def nvml_of(host: SimulatedHost) -> SimulatedNvml:
    """That of a node from a record or from a profile."""
    return ReplayedNvml(host.root) if host.state.recorded is not None else SimulatedNvml(host.root)
