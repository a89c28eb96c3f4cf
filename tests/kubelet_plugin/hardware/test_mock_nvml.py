"""The whole way from a library's file to slices and containers, with NVIDIA's mock NVML in place of a driver.

The library is loaded as on a node, by ctypes, in processes of its own, and is called as C calls it: what a simulated
NVML in Python cannot get wrong. No kernel module is behind it, so PCI and device files are not the kernel's.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.mock_nvml import MOCK_IS_THERE, MOCK_WHY_NOT, PROFILES, fail, profile, write_driver_root
from support.objects import allocate, claim, result
from support.plugin import eventually, short_folder
from support.plugin_process import PluginForks
from support.real_node import RealNode

from dra_driver.api.meta import RESOURCE_CLAIMS
from dra_driver.kube.client import Kube
from dra_driver.names import ClaimRef, gpu_device_names
from dra_driver.simulation.apiserver.server import SimulatedApiServer

pytestmark = pytest.mark.skipif(not MOCK_IS_THERE, reason=MOCK_WHY_NOT)


def seen(root: Path) -> Any:
    """What the node plugin would report and publish, of a process that loads the library."""
    command = [sys.executable, "-m", "dra_driver.cli", "inventory", "--driver-root", str(root), "-o", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", PROFILES)
def test_every_gpu_is_read_and_published_as_the_library_says(name: str, tmp_path: Path) -> None:
    write_driver_root(tmp_path / "driver", name)
    library = profile(name)
    written = seen(tmp_path / "driver")
    spec = written["inventory"]["spec"]
    assert spec["problems"] == []
    assert spec["driver"]["version"] == library["system"]["driver_version"]
    assert spec["driver"]["cudaVersion"] == library["system"]["cuda_version"]
    everybody = library["device_defaults"]
    capability = everybody["compute_capability"]
    by_address = sorted(library["devices"], key=lambda device: str(device["pci"]["bus_id"]))
    for gpu, device in zip(spec["gpus"], by_address, strict=True):
        assert (gpu["uuid"], gpu["minor"], gpu["pciBusID"]) == (
            device["uuid"],
            device["minor_number"],
            device["pci"]["bus_id"].lower(),
        )
        assert gpu["productName"] == everybody["name"]
        assert gpu["architecture"].replace(" ", "_").lower() == everybody["architecture"]
        assert gpu["cudaComputeCapability"] == f"{capability['major']}.{capability['minor']}"
        assert gpu["memoryBytes"] == everybody["memory"]["total_bytes"]
        assert gpu["powerLimitWatts"] == everybody["power"]["enforced_limit_mw"] // 1000
        assert gpu["health"] == {"healthy": True, "conditions": []}
    (published,) = written["slices"]
    assert [device["name"] for device in published["spec"]["devices"]] == list(
        gpu_device_names([device["uuid"] for device in by_address]).values()
    )


@pytest_asyncio.fixture
async def driver(tmp_path: Path) -> Path:
    write_driver_root(tmp_path / "driver", "l40s")
    return tmp_path / "driver"


@pytest_asyncio.fixture
async def real_node(
    driver: Path, api_server: SimulatedApiServer, kube: Kube, forks: PluginForks
) -> AsyncIterator[RealNode]:
    real = ("--simulate=", "--host-root=/", f"--driver-root={driver}", "--discovery-interval=0.5", "--publisher=node")
    with short_folder() as folder:
        real_node = RealNode(api_server, kube, forks, folder, options=real)
        async with real_node.running():
            yield real_node


async def test_a_claim_gets_device_files_and_libraries_of_that_driver(real_node: RealNode, driver: Path) -> None:
    names = gpu_device_names([gpu["uuid"] for gpu in profile("l40s")["devices"]])
    async with real_node.plugin() as plugin:
        await real_node.published(list(names.values()))
        created = await real_node.kube.create(RESOURCE_CLAIMS, claim())
        uuid = profile("l40s")["devices"][1]["uuid"]
        await allocate(real_node.kube, created, result(names[uuid]))
        ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
        assert isinstance((await plugin.prepare(ref))[ref.uid], tuple)
        written = b"".join(real_node.node.cdi.joinpath(name).read_bytes() for name in real_node.node.cdi_files())
        assert f"{driver}/dev/nvidia1".encode() in written
        assert f"{driver}/dev/nvidia0".encode() not in written
        assert b"libnvidia-ml.so." in written
        assert uuid.encode() in written
        assert await plugin.unprepare(ref) == {ref.uid: ""}


async def test_a_gpu_that_falls_off_the_bus_is_tainted(real_node: RealNode, driver: Path) -> None:
    names = gpu_device_names([gpu["uuid"] for gpu in profile("l40s")["devices"]])
    second = names[profile("l40s")["devices"][1]["uuid"]]

    async def tainted() -> list[str]:
        return [
            device["name"]
            for item in await real_node.slices()
            for device in item["spec"]["devices"]
            if "taints" in device
        ]

    async def only_the_second() -> bool:
        return await tainted() == [second]

    async with real_node.plugin():
        await real_node.published(list(names.values()))
        fail(driver, 1, mode="lost")
        await eventually(only_the_second)
