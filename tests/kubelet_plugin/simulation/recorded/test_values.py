"""What NVML takes and answers is the same after it was written into a record and read again."""

import ctypes
from typing import Any

import pynvml
import pytest
from support.rows import rows

from kubelet_plugin.simulation.recorded.values import decoded, encoded, fill, shape

GPU = ctypes.cast(ctypes.c_void_p(0x1000), pynvml.c_nvmlDevice_t)


def named(handle: Any) -> str:
    return f"at {ctypes.cast(handle, ctypes.c_void_p).value}"


def handle(name: str) -> Any:
    return ctypes.cast(ctypes.c_void_p(int(name.removeprefix("at "))), pynvml.c_nvmlDevice_t)


def fabric() -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    info.clusterUuid[:] = list(range(16))
    info.cliqueId, info.state, info.healthMask = 7, 3, 5
    return info


def field_values() -> Any:
    values = (pynvml.c_nvmlFieldValue_t * 2)()
    values[0].fieldId, values[0].value.uiVal = 184, 1
    values[1].fieldId, values[1].nvmlReturn = 230, 3
    return values


def pci() -> Any:
    info = pynvml.nvmlPciInfo_t()
    info.busId, info.pciDeviceId = b"00000000:1B:00.0", 0x233010DE
    return info


def instance() -> Any:
    info = pynvml.c_nvmlGpuInstanceInfo_t()
    info.device, info.id, info.placement.start = GPU, 3, 4
    return info


@pytest.mark.parametrize("make", [fabric, field_values, pci, instance, lambda: ctypes.c_uint(1)])
def test_structures_and_arrays_have_the_same_bytes_again(make: Any) -> None:
    value = make()
    again = decoded(encoded(value, named), handle)
    assert bytes(again) == bytes(value)
    empty = type(value)()
    fill(empty, encoded(ctypes.byref(value), named), handle)
    assert bytes(empty) == bytes(value)


@rows("value", [None, 0, -1, 2**64 - 1, 1.5, "text", [0, 1], "GPU-\u00e9"])
def test_plain_values_are_themselves(value: Any) -> None:
    assert decoded(encoded(value, named), handle) == value


def test_handles_and_lists_of_processes_come_back() -> None:
    assert named(decoded(encoded(GPU, named), handle)) == named(GPU)
    process = pynvml.nvmlFriendlyObject({"pid": 4711, "usedGpuMemory": None})
    (again,) = decoded(encoded([process], named), handle)
    assert vars(again) == vars(process)


def test_a_question_has_the_kind_of_a_structure_and_not_its_content() -> None:
    assert shape(ctypes.byref(fabric()), named) == {"struct": "c_nvmlGpuFabricInfo_v3_t"}
    assert shape(GPU, named) == {"handle": "at 4096"}


@pytest.mark.parametrize(
    "value",
    [
        {"struct": "nvmlInit", "fields": {}},
        {"struct": "os", "fields": {}},
        {"struct": "nvmlPciInfo_t", "fields": {"nothing": 1}},
        {"array": "CDLL", "items": []},
        {"other": 1},
    ],
)
def test_what_nvml_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"NVML|no field"):
        decoded(value, handle)
