"""`dractl doctor --prove` on a real cluster: kubelet and runtime start its pods with what CDI gives, of our own image.

There is no GPU. The node's libcuda is a text at first, and the pods say that it cannot be loaded; then it is a library
in C, which opens the device nodes and knows the GPU that the container was given. Set up as for test_real_chart.py.
"""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dractl import run
from support.real_chart import CHART_IS_THERE, CHART_WHY_NOT, OURS
from support.real_cluster import KUBECONFIG, Services, devices, get, install, services_of, until

from dra_driver.doctor.proofs import LABEL

pytestmark = [
    pytest.mark.skipif(not CHART_IS_THERE, reason=CHART_WHY_NOT),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]

LIBCUDA = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static const char *given(void) {
  for (char **one = environ; *one; one++) {
    char *value = strncmp(*one, "NVIDIA_DRA_DEVICE_", 18) ? 0 : strstr(*one, "=GPU-");
    if (value) return value + 5;
  }
  return 0;
}
int cuInit(unsigned flags) {
  int fd = open("/dev/nvidiactl", O_RDWR);
  if (fd >= 0) close(fd);
  return fd < 0 && errno != ENXIO && errno != ENODEV ? 100 : !given() ? 100 : 0;
}
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int index) { *d = index; return 0; }
int cuDeviceGetName(char *name, int length, int d) { strncpy(name, "in C", length); return 0; }
int cuDeviceGetUuid_v2(unsigned char *u, int d) {
  const char *text = given();
  for (int i = 0; i < 16; i++) {
    unsigned byte;
    while (*text == '-') text++;
    sscanf(text, "%2x", &byte);
    u[i] = byte;
    text += 2;
  }
  return 0;
}
int cuDeviceTotalMem_v2(unsigned long *s, int d) { *s = 1UL << 33; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuMemAlloc_v2(unsigned long long *p, unsigned long n) { *p = 4096; return 0; }
int cuMemsetD8_v2(unsigned long long p, unsigned char v, unsigned long n) { return 0; }
int cuMemFree_v2(unsigned long long p) { return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
"""


@pytest.fixture
def services(image: None, tmp_path: Path) -> Iterator[Services]:
    node = install()
    with services_of(tmp_path, "controller", node) as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: devices() == 8, "eight devices are published")
        yield services


def outcomes(node: str, archive: Path) -> dict[str, tuple[str, str]]:
    """Outcome and reason of each proof. Nothing of it may be left."""
    run("doctor", "--prove", "--on", node, "--kubeconfig", KUBECONFIG, "--image", OURS, "--archive", str(archive))
    assert get("pods,resourceclaims", "-A", "-l", LABEL)["items"] == []
    with tarfile.open(archive) as packed:
        member = packed.extractfile("gpu-dra-bundle/prove.json")
        assert member is not None
        return {proof["name"]: (proof["outcome"], proof["reason"]) for proof in json.load(member)["proofs"]}


def test_pods_start_and_say_whether_cuda_does(services: Services, tmp_path: Path) -> None:
    by_name = outcomes(services.node, tmp_path / "text.tar.gz")
    for name in ("pod-gpu", "pod-gpu-user", "pod-shared", "pod-shared-user"):
        outcome, reason = by_name[name]
        assert outcome == "fail" and "libcuda.so.1: " in reason, reason
    assert by_name["pod-mig"][0] == "not tried"

    (library,) = (services.folder / "host/usr/lib").glob("*/libcuda.so.*.*")
    source, built = tmp_path / "cuda.c", tmp_path / "libcuda.so"
    source.write_text(LIBCUDA)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", built, source], check=True)
    library.write_bytes(built.read_bytes())
    by_name = outcomes(services.node, tmp_path / "in-c.tar.gz")
    assert by_name["pod-gpu"] == ("pass", "CUDA works on in C as user 0")
    assert by_name["pod-gpu-user"] == ("pass", "CUDA works on in C as user 65532")
    assert {by_name[name][0] for name in ("pod-shared", "pod-shared-user")} == {"pass"}
