"""libcuda of a simulated node, for `kubelet_plugin.cuda_check`: it answers from what the container was given.

The library must be mounted. A GPU counts when its device node is there, a MIG device when its two capabilities are, and
only the first one, as CUDA enumerates them. With the pipe folder of an MPS daemon mounted, CUDA starts as a client of
it. Another user than root needs nodes that everybody may open.
"""

import ctypes
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kubelet_plugin.cuda_check import run
from kubelet_plugin.simulation.programs.mps_control import connected
from kubelet_plugin.simulation.programs.node import (
    DEVICES_VARIABLE,
    MOUNTS_VARIABLE,
    USER_VARIABLE,
    RootedNode,
    connect,
)


def attached(pipe: str, server: socket.socket) -> dict[str, object]:
    try:
        with connected(pipe) as ask:
            answer = json.loads(ask("attach"))
    except OSError as error:
        raise ValueError(f"no MPS daemon in {pipe}: {error}") from error
    if "error" in answer:
        raise ValueError(answer["error"])
    connect(server, f"{pipe}/{answer['socket']}")
    asked = {
        "pid": os.getpid(),
        "threads": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        "memory": os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    }
    server.sendall(json.dumps(asked).encode() + b"\n")
    granted: dict[str, object] = json.loads(server.makefile().readline() or '{"error": "the MPS server went away"}')
    if "error" in granted:
        raise ValueError(granted["error"])
    return granted


_PIPE = "/tmp/nvidia-mps"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local")
_OK, _INVALID, _NO_MEMORY, _UNAVAILABLE, _NO_DEVICE, _MPS_FAILED, _UNKNOWN = 0, 1, 2, 46, 100, 805, 999
_NOT_READY = 802
_NAMES = {
    _INVALID: b"CUDA_ERROR_INVALID_VALUE", _NO_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    _UNAVAILABLE: b"CUDA_ERROR_DEVICE_UNAVAILABLE", _NO_DEVICE: b"CUDA_ERROR_NO_DEVICE",
    _MPS_FAILED: b"CUDA_ERROR_MPS_CONNECTION_FAILED", _UNKNOWN: b"CUDA_ERROR_UNKNOWN",
    _NOT_READY: b"CUDA_ERROR_SYSTEM_NOT_READY",
}  # fmt: skip
"""Source: cuda.h, CUresult."""
_DEFAULT_MODE, _PROHIBITED = 0, 2


class _Device(NamedTuple):
    uuid: str
    name: str
    memory_bytes: int
    compute_mode: int


def check(arguments: Sequence[str]) -> int:
    root, *options = arguments
    return run(options, lambda name: _load(RootedNode(root), name), int(os.environ.get(USER_VARIABLE, "0")))


def _load(node: RootedNode, name: str) -> "CudaLibrary":
    """Raises OSError, as the dynamic linker's answer reaches Python."""
    mounts = dict(json.loads(os.environ.get(MOUNTS_VARIABLE, "[]")))
    files = [host for path, host in mounts.items() if path.endswith(f"/{name}") and path.startswith(_FOLDERS)]
    if not any(os.path.exists(file) for file in files):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    return CudaLibrary(node, mounts.get(_PIPE))


class CudaLibrary:
    """The functions that the check calls, with the arguments that ctypes gives them. `pipe` is None without MPS."""

    def __init__(self, node: RootedNode, pipe: str | None) -> None:
        self._node = node
        self._pipe = pipe
        self._devices: list[_Device] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._limits: dict[str, int] = {}

    def cuInit(self, _flags: int) -> int:
        state = self._node.read()
        nodes = set(os.environ.get(DEVICES_VARIABLE, "").split(":"))
        if not state["driver"]["loaded"] or not _opened(self._node, "/dev/nvidiactl", nodes):
            return _NO_DEVICE
        if not _opened(self._node, "/dev/nvidia-uvm", nodes):
            return _UNKNOWN
        self._devices = list(_devices(self._node, state, nodes))
        if not self._devices:
            return _NO_DEVICE
        if not _joined(state, {device.uuid for device in self._devices}):
            return _NOT_READY
        return self._attach() if self._pipe is not None else _OK

    def _attach(self) -> int:
        try:
            granted = attached(str(self._pipe), self._server)
        except (OSError, ValueError):
            return _MPS_FAILED
        devices, memory = granted["devices"], granted["memory"]
        self._devices = [device for device in self._devices if isinstance(devices, list) and device.uuid in devices]
        self._limits = memory if isinstance(memory, dict) else {}
        return _OK if self._devices else _NO_DEVICE

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self._node.read()["driver"]["cuda"]
        return _OK

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._devices)
        return _OK

    def cuDeviceGet(self, device: Any, index: int) -> int:
        if index >= len(self._devices):
            return _INVALID
        device._obj.value = index
        return _OK

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = self._devices[device.value].name.encode()[: length - 1]
        return _OK

    def cuDeviceGetUuid_v2(self, uuid: Any, device: Any) -> int:
        digits = self._devices[device.value].uuid.partition("-")[2].replace("-", "")
        uuid.raw = bytes.fromhex(digits)
        return _OK

    def cuDeviceTotalMem_v2(self, total: Any, device: Any) -> int:
        total._obj.value = self._devices[device.value].memory_bytes
        return _OK

    def cuDevicePrimaryCtxRetain(self, _context: Any, device: Any) -> int:
        return _UNAVAILABLE if self._devices[device.value].compute_mode == _PROHIBITED else _OK

    def cuCtxSetCurrent(self, _context: Any) -> int:
        return _OK

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:
        device = self._devices[0]
        if size.value > self._limits.get(device.uuid, device.memory_bytes):
            return _NO_MEMORY
        pointer._obj.value = 1 << 32
        return _OK

    def cuMemsetD8_v2(self, _pointer: Any, _value: Any, _count: Any) -> int:
        return _OK

    def cuMemFree_v2(self, _pointer: Any) -> int:
        return _OK

    def cuDevicePrimaryCtxRelease_v2(self, _device: Any) -> int:
        return _OK

    def cuGetErrorName(self, code: int, text: Any) -> int:
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = _NAMES.get(code, b"CUDA error")
        return _OK


def _devices(node: RootedNode, state: dict[str, Any], nodes: set[str]) -> Iterator[_Device]:
    """In the order of the driver; of MIG devices the first alone."""
    minors = _capability_minors(node)
    mig = False
    for gpu in state["gpus"]:
        usable = gpu["bound_to"] == "nvidia" and not gpu["fault"]
        if not usable or not _opened(node, f"/dev/nvidia{gpu['minor']}", nodes):
            continue
        name = gpu.get("product") or state["model"]["name"]
        if not (gpu.get("mig") or {}).get("current"):
            yield _Device(gpu["uuid"], name, (state["model"]["memory_mib"] or 0) << 20, gpu["compute_mode"])
            continue
        for instance in gpu["instances"]:
            for device in instance["compute_instances"]:
                place = f"gpu{gpu['minor']}/gi{instance['id']}"
                needed = (minors.get(f"{place}/access"), minors.get(f"{place}/ci{device['id']}/access"))
                caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in needed]
                if not mig and all(_opened(node, cap, nodes) for cap in caps):
                    mig = True
                    share = (state["model"]["memory_mib"] or 0) * instance["size"] // 8
                    yield _Device(device["uuid"], f"{name} MIG", share << 20, _DEFAULT_MODE)


def _joined(state: dict[str, Any], uuids: set[str]) -> bool:
    """Whether each GPU has joined its fabric: where switches are shared, it is in an active partition."""
    manager = state.get("fabric_manager") or {}
    if manager.get("mode") != 1:
        return True
    active = {number for part in manager["partitions"] if part["active"] for number in part["gpus"]}
    own = [gpu["module"] for gpu in state["gpus"] if gpu["uuid"] in uuids]
    return active.issuperset(9 - module if manager["names_gpus"] else module for module in own)


def _capability_minors(node: RootedNode) -> dict[str, str]:
    with open(f"{node.root}/proc/driver/nvidia-caps/mig-minors", encoding="utf-8") as file:
        return dict(line.split() for line in file if line.strip())


def _opened(node: RootedNode, path: str, nodes: set[str]) -> bool:
    """Whether the container has this node, and its user may open it."""
    if path not in nodes:
        return False
    if os.environ.get(USER_VARIABLE, "0") == "0":
        return True
    try:
        with open(f"{node.root}{path}", encoding="utf-8") as file:
            mode = int(file.read().split()[-1], 8)
    except (OSError, ValueError):
        return True
    return bool(mode & 0o004)


if __name__ == "__main__":
    sys.exit(check(sys.argv[1:]))
