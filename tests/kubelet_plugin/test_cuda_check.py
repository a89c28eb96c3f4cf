"""The program of proof pods: what it reports of a libcuda that works, and of one that fails at any step."""

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubelet_plugin.cuda_check import MESSAGE_VARIABLE, check, run

UUID = "69a54c71-b1f2-5842-8e4e-bc13abbc6d3c"
_C = """
#include <string.h>
typedef unsigned long long ptr; typedef unsigned long size;
static ptr taken;
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int index) { *d = 40 + index; return 0; }
int cuDeviceGetName(char *name, int length, int d) { strncpy(name, d == 40 ? "C GPU" : "?", length); return 0; }
int cuDeviceGetUuid_v2(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = i; return d != 40; }
int cuDeviceTotalMem_v2(size *s, int d) { *s = 5UL << 32; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)0x123456789aUL; return 0; }
int cuCtxSetCurrent(void *c) { return c != (void *)0x123456789aUL; }
int cuMemAlloc_v2(ptr *p, size n) { taken = *p = 0x7f0000000000ULL + n; return 0; }
int cuMemsetD8_v2(ptr p, unsigned char v, size n) { return p != taken || p - n != 0x7f0000000000ULL || v; }
int cuMemFree_v2(ptr p) { return p != taken; }
int cuDevicePrimaryCtxRelease_v2(int d) { return d != 40; }
"""


class Library:
    """One device, with the functions of CUDA; `fails` answers 999 from one of them."""

    def __init__(self, fails: str = "", lacks: str = "") -> None:
        self._fails, self._lacks = fails, lacks
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == self._lacks or not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.called.append(name)
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = 1
            if name.startswith("cuDeviceGetUuid"):
                arguments[0].raw = bytes.fromhex(UUID.replace("-", ""))
            if name == "cuGetErrorName":
                ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_char_p))[0] = b"CUDA_ERROR_UNKNOWN"
            return 999 if name == self._fails else 0

        return call


def test_memory_of_each_device_is_taken_and_given_back() -> None:
    library = Library()
    report = check(lambda _: library)
    assert (report["step"], report["error"]) == (None, None)
    assert [device["uuid"] for device in report["devices"]] == [UUID]
    assert library.called[-5:] == [
        *("cuCtxSetCurrent", "cuMemAlloc_v2", "cuMemsetD8_v2", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"),
    ]


@pytest.mark.parametrize("step", ["cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2"])
def test_a_step_that_fails_is_named_with_what_cuda_says(step: str) -> None:
    report = check(lambda _: Library(fails=step))
    assert (report["step"], report["error"]) == (step, "CUDA_ERROR_UNKNOWN (999)")


def test_a_failed_allocation_gives_the_context_back() -> None:
    library = Library(fails="cuMemAlloc_v2")
    check(lambda _: library)
    assert "cuDevicePrimaryCtxRelease_v2" in library.called


def test_a_library_without_a_function_and_an_older_driver() -> None:
    assert "no such function" in check(lambda _: Library(lacks="cuMemAlloc_v2"))["error"]
    older = Library(fails="cuDeviceGetUuid_v2")
    assert check(lambda _: older)["error"] is None, "drivers before 11.4 have the plain function alone"


def test_a_missing_library_is_reported_where_kubernetes_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MESSAGE_VARIABLE, str(tmp_path / "message"))
    assert run([], user=65532) == 1
    report = json.loads((tmp_path / "message").read_text())
    assert report == json.loads(capsys.readouterr().out)
    assert (report["user"], report["step"]) == (65532, "load")
    assert "libcuda.so.1: cannot open shared object file" in report["error"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_calls_reach_a_library_in_c_as_cuda_declares_them(tmp_path: Path) -> None:
    """Addresses of 64 bits, sizes, and values by reference: what a test double in Python cannot tell."""
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text(_C)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    report = check(lambda name: ctypes.CDLL(str(tmp_path / name)))
    assert report["error"] is None
    assert report["version"] == 12080
    assert report["devices"] == [
        {"uuid": "00010203-0405-0607-0809-0a0b0c0d0e0f", "name": "C GPU", "memoryBytes": 5 << 32}
    ]
