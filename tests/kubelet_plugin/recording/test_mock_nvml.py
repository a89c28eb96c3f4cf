"""Records of NVIDIA's mock NVML, which is loaded and called as a driver's library is: what ctypes writes, replayed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.mock_nvml import MOCK_IS_THERE, MOCK_WHY_NOT, PROFILES, write_driver_root

from kubelet_plugin.simulation.recorded.format import read_record

pytestmark = pytest.mark.skipif(not MOCK_IS_THERE, reason=MOCK_WHY_NOT)


def dractl(*words: str) -> str:
    """In a process of its own: a library stays loaded."""
    command = [sys.executable, "-m", "dra_driver.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", PROFILES)
def test_a_record_of_the_library_is_the_node_that_the_library_shows(name: str, tmp_path: Path) -> None:
    root, file = tmp_path / "driver", tmp_path / "node.tar.gz"
    write_driver_root(root, name)
    dractl("record", "--driver-root", str(root), "--keep-names", "--archive", str(file))
    first = json.loads(dractl("inventory", "--driver-root", str(root), "-o", "json"))
    second = json.loads(dractl("inventory", "--host", str(file), "-o", "json"))
    del first["inventory"]["metadata"], second["inventory"]["metadata"]
    assert without_node(second) == without_node(first)
    calls = read_record(file).calls
    assert {call.function for call in calls} > {"nvmlDeviceGetPciInfo", "nvmlDeviceGetSupportedEventTypes"}
    assert not [call for call in calls if call.hung or call.problem is not None]


def without_node(written: Any) -> Any:
    """Names of the two nodes differ, and so do those of their pools and slices."""
    del written["inventory"]["spec"]["nodeName"]
    for resource_slice in written["slices"]:
        del resource_slice["metadata"], resource_slice["spec"]["nodeName"], resource_slice["spec"]["pool"]["name"]
    return written
