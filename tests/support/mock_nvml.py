"""A driver root around NVIDIA's mock NVML: the real way to load a library, to real C functions, without a GPU.

GPU_DRA_TEST_MOCK_NVML   a clone of NVIDIA/k8s-test-infra in whose folder pkg/gpu/mocknvml `make` has been run

The library says what a file of its clone says of a GPU model; it finds that file by where it lies itself. Everything
else that a driver has is an empty file here.
"""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import yaml

_CLONE = os.environ.get("GPU_DRA_TEST_MOCK_NVML", "")
_BUILT = sorted(Path(_CLONE, "pkg/gpu/mocknvml").glob("libnvidia-ml.so.*.*")) if _CLONE else []

MOCK_IS_THERE = bool(_BUILT)
MOCK_WHY_NOT = (
    f"no library was made in {_CLONE}/pkg/gpu/mocknvml: run `make` there"
    if _CLONE
    else "no mock NVML: set GPU_DRA_TEST_MOCK_NVML to a clone of NVIDIA/k8s-test-infra"
)
PROFILES = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")
_LIBRARIES = ("libcuda", "libnvidia-ptxjitcompiler", "libnvidia-nvvm")
_FOLDER = "usr/lib64"
_CONTROL_NODES = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}


def profile(name: str, machine: int = 0) -> dict[str, Any]:
    """What the mock says of a GPU model; the GPUs of each machine have UUIDs of their own."""
    path = Path(_CLONE, "deployments/nvml-mock/helm/nvml-mock/profiles", f"{name}.yaml")
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    for device in values["devices"]:
        first, _, *rest = device["uuid"].removeprefix("GPU-").split("-")
        device["uuid"] = "-".join(("GPU", first, f"{machine:04x}", *rest))
    return values


def write_driver_root(root: Path, name: str, *, machine: int = 0, **system: Any) -> Path:
    """A driver root of that model; `system` replaces what the profile says of the driver. Needs root, for nodes.

    Answers the library's path.
    """
    values = profile(name, machine)
    values["system"] |= system
    version = values["system"]["driver_version"]
    folder = root / _FOLDER
    folder.mkdir(parents=True)
    library = folder / f"libnvidia-ml.so.{version}"
    shutil.copy(_BUILT[0], library)
    (folder / "libnvidia-ml.so.1").symlink_to(library.name)
    for library_name in _LIBRARIES:
        # Its header says for which machine a library is; the rest is never read.
        (folder / f"{library_name}.so.{version}").write_bytes(_BUILT[0].read_bytes()[:4096])
    (root / "config").mkdir()
    (root / "config" / "config.yaml").write_text(json.dumps(values))
    (root / "dev").mkdir()
    nodes = {f"nvidia{device['minor_number']}": (195, device["minor_number"]) for device in values["devices"]}
    for node, (major, minor) in {**_CONTROL_NODES, **nodes}.items():
        os.mknod(root / "dev" / node, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        (root / "dev" / node).chmod(0o666)
    return library


def fail(root: Path, index: int, **failure: Any) -> None:
    """From now on that GPU fails as `failure` says (`mode: lost`, `xid: 79` …); without one all are well again.

    Processes that have loaded the library notice within a second.
    """
    devices = {str(index): {"failure": failure}} if failure else {}
    new = root / "config" / "overrides.new"
    new.write_text(json.dumps({"version": 1, "devices": devices}))
    new.rename(root / "config" / "overrides.yaml")
