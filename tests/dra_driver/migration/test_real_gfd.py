"""The labels of the real GPU Feature Discovery, beside what the tests and the migration believe of it.

Needs GPU_DRA_TEST_MOCK_NVML (see tests/support/mock_nvml.py), and

    GPU_DRA_TEST_GFD   the program `gpu-feature-discovery`, built of NVIDIA/k8s-device-plugin
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gfd import Mode
from support.gfd import labels_of as believed
from support.mock_nvml import MOCK_IS_THERE, MOCK_WHY_NOT, PROFILES, write_driver_root

from dra_driver.api.inventory import NodeInventorySpec

_PROGRAM = os.environ.get("GPU_DRA_TEST_GFD", "")

pytestmark = [
    pytest.mark.skipif(not MOCK_IS_THERE, reason=MOCK_WHY_NOT),
    pytest.mark.skipif(not _PROGRAM, reason="no GPU Feature Discovery: set GPU_DRA_TEST_GFD to its program"),
]

OF_THE_MACHINE = {"nvidia.com/gpu.machine", "nvidia.com/gpu.mode", "nvidia.com/vgpu.present"}
"""Not of GPUs and their driver."""
OF_A_RULE = {"nvidia.com/gpu.present"}
"""Node Feature Discovery puts it on nodes, by a rule that comes with GPU Feature Discovery."""


@dataclass(frozen=True)
class Machine:
    """A driver root, and what our node plugin says of it."""

    root: Path
    answer: Any

    @property
    def inventory(self) -> NodeInventorySpec:
        return NodeInventorySpec.model_validate(self.answer["inventory"]["spec"])


@pytest.fixture(scope="module", params=PROFILES)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp(request.param) / "driver"
    write_driver_root(root, request.param)
    command = [sys.executable, "-m", "dra_driver.cli", "inventory", "--driver-root", str(root), "-o", "json"]
    return Machine(root, json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def real_labels(root: Path, folder: Path, sharing: dict[str, Any] | None = None) -> dict[str, str]:
    (folder / "config.yaml").write_text(yaml.safe_dump({"version": "v1", "sharing": sharing or {}}))
    options = {
        "output-file": folder / "labels",
        "config-file": folder / "config.yaml",
        "device-discovery-strategy": "nvml",
        "driver-root-ctr-path": root,
        "use-node-feature-api": "false",
    }
    flags = ["--oneshot", "--no-timestamp", *(f"--{name}={value}" for name, value in options.items())]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(root / "usr/lib64")}
    done = subprocess.run([_PROGRAM, *flags], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = (folder / "labels").read_text().split()
    return {key: value for key, value in (line.split("=", 1) for line in lines) if key not in OF_THE_MACHINE}


def shared(strategy: str, replicas: int, *, renamed: bool) -> dict[str, Any]:
    key = {"time-slicing": "timeSlicing", "mps": "mps"}[strategy]
    resources = [{"name": "nvidia.com/gpu", "replicas": replicas}]
    return {key: {"renameByDefault": renamed, "resources": resources}}


MODES = (
    Mode(),
    Mode(replicas=4, strategy="time-slicing"),
    Mode(replicas=4, strategy="time-slicing", renamed=True),
    Mode(replicas=10, strategy="mps"),
    Mode(replicas=10, strategy="mps", renamed=True),
)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tests_believe_the_labels_that_it_writes(machine: Machine, mode: Mode, tmp_path: Path) -> None:
    sharing = shared(mode.strategy, mode.replicas, renamed=mode.renamed) if mode.strategy != "none" else None
    expected = {key: value for key, value in believed(machine.inventory, mode).items() if key not in OF_A_RULE}
    assert real_labels(machine.root, tmp_path, sharing) == expected
