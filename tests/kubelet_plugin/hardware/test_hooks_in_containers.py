"""What our CDI specs ask of hook programs is done by every release of them, in containers of the real `runc`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support import bundles, toolkit
from support.driver_tree import VERSION, DriverTree
from support.inventories import gpu

from dra_driver.cdi.edits import ClaimDevice, DriverFiles, HookProgram, claim_spec
from dra_driver.cdi.model import CdiSpec, DeviceNode
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.hook_program import hook_program
from kubelet_plugin.hardware.host_programs import asking
from kubelet_plugin.hardware.sysfs import HostFiles

pytestmark = toolkit.NEEDED

FOLDER = "/usr/lib/x86_64-linux-gnu"
COMPAT = "/usr/local/cuda/compat"
NEWER = "595.10.01"
CLAIM = "0b5b1c8e-6b9e-4b0e-8f0a-000000000001"
LOOK = f"""
for f in libcuda.so libcuda.so.1; do echo "$f $(busybox readlink {FOLDER}/$f)"; done
busybox grep ModifyDeviceFiles /proc/driver/nvidia/params
busybox cat /etc/nvidia/nvidia-application-profiles-rc.d/* 2>/dev/null || echo no profile; echo
busybox ls /dev/dri/by-path 2>/dev/null
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> DriverFiles:
    """Of a host that is a folder, for the runtime, too."""
    bundles.needed()
    tree = DriverTree(tmp_path_factory.mktemp("host"))
    for name in ("libcuda", "libnvidia-ml"):
        bundles.library(tree.path(f"{FOLDER}/{name}.so.{VERSION}"), f"{name}.so.1")
    tree.control_nodes()
    tree.settle()
    installation = DriverInstallation(HostFiles(tree.root, runtime_root=str(tree.root)))
    return installation.for_containers(VERSION).files


@pytest.fixture
def bundle(tmp_path: Path) -> bundles.Bundle:
    """A container of an image with libraries for a driver that is newer than the host's."""
    bundle = bundles.Bundle.of(tmp_path / "bundle")
    bundles.library(bundle.root / f"{COMPAT[1:]}/libcuda.so.{NEWER}", "libcuda.so.1")
    (bundle.root / f"{COMPAT[1:]}/libcuda.so.1").symlink_to(f"libcuda.so.{NEWER}")
    return bundle


def spec(driver: DriverFiles, hook: HookProgram | None) -> CdiSpec:
    nodes = [("/dev/nvidia3", 195, 3), ("/dev/dri/card1", 226, 1), ("/dev/dri/renderD128", 226, 128)]
    devices = tuple(DeviceNode(path, type="c", major=major, minor=minor) for path, major, minor in nodes)
    facts = gpu(3)
    return claim_spec("gpu.nvidia.com", CLAIM, (ClaimDevice(facts.name, facts, devices),), replace(driver, hook=hook))


def program(path: Path) -> HookProgram:
    return hook_program(str(path), "/sbin/ldconfig", asking(Path("/")))


USED = [path for path in toolkit.programs() if not path.parent.name.startswith("1.11.")]


@pytest.mark.parametrize("path", USED or [Path()], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_each_release_does_what_it_is_asked(path: Path, driver: DriverFiles, bundle: bundles.Bundle) -> None:
    hook = program(path)
    done = bundle.run(spec(driver, hook), LOOK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["libcuda.so libcuda.so.1", f"libcuda.so.1 libcuda.so.{VERSION}"]
    masked = "disable-device-node-modification" in hook.sub_commands
    assert f"ModifyDeviceFiles: {0 if masked else 1}" in lines
    profiled = "update-application-profile" in hook.sub_commands
    assert any("EGLVisibleDGPUDevices" in line and "0x8" in line for line in lines) is profiled
    assert {"pci-0000:13:00.0-card", "pci-0000:13:00.0-render"} <= set(lines)
    compat = [f"{COMPAT}/libcuda.so.1"] if "enable-cuda-compat" in hook.sub_commands else []
    assert bundle.cached("libcuda.so.1") == [*compat, f"{FOLDER}/libcuda.so.1"]
    assert bundle.cached("libnvidia-ml.so.1") == [f"{FOLDER}/libnvidia-ml.so.1"]


def test_without_a_program_libraries_have_all_names_where_the_linker_looks(
    driver: DriverFiles, bundle: bundles.Bundle
) -> None:
    done = bundle.run(spec(driver, None), f"busybox ls {FOLDER} /usr/lib64; {LOOK}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("libcuda.so.1") == 2
    assert "ModifyDeviceFiles: 1" in lines


def test_a_flag_that_a_release_does_not_have_keeps_the_container_from_starting(
    driver: DriverFiles, bundle: bundles.Bundle
) -> None:
    """Why programs are asked for their flags."""
    assert toolkit.FOLDER is not None
    hook = program(toolkit.FOLDER / "1.14.6" / "nvidia-ctk")
    newer: Mapping[str, frozenset[str]] = {**hook.sub_commands, "update-ldcache": frozenset({"--ldconfig-path"})}
    done = bundle.run(spec(driver, replace(hook, sub_commands=newer)), LOOK)
    assert done.returncode != 0
    assert "flag provided but not defined: -ldconfig-path" in done.stderr
