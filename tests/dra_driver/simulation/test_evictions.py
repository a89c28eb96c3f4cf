"""Pods whose devices get a taint with effect NoExecute are deleted, when their claims no longer tolerate it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from support.scheduling import Desk, desk, device

from dra_driver.api.meta import RESOURCE_SLICES
from dra_driver.api.resource import ResourceClaim
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.simulation.controllers import eviction_time, taints_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAINT = {"key": "gpu.nvidia.com/xid", "value": "95", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def slice_with(*taints: dict[str, str], name: str = "gpu-0") -> dict[str, Any]:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "s"},
        "spec": {"driver": "gpu.nvidia.com", "pool": pool, "devices": [{"name": name, "taints": list(taints)}]},
    }


def claim_with(*tolerations: dict[str, Any]) -> ResourceClaim:
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"}
    allocation = {"devices": {"results": [result | {"tolerations": list(tolerations)}]}}
    return ResourceClaim.of(
        {"metadata": {"name": "c"}, "spec": {"devices": {"requests": []}}, "status": {"allocation": allocation}}
    )


@pytest.mark.parametrize(
    ("tolerations", "after_s"),
    [
        ([], 0),
        ([{"operator": "Exists"}], None),
        ([{"key": "gpu.nvidia.com/xid", "operator": "Exists", "tolerationSeconds": 30}], 30),
        ([{"operator": "Exists", "tolerationSeconds": 30}, {"operator": "Exists", "tolerationSeconds": 60}], 60),
        ([{"key": "other", "operator": "Exists"}], 0),
        ([{"operator": "Exists", "effect": "NoSchedule"}], 0),
    ],
)
def test_a_claim_keeps_its_pods_as_long_as_it_tolerates_the_taint(
    tolerations: list[dict[str, Any]], after_s: int | None
) -> None:
    when = eviction_time(claim_with(*tolerations), taints_of(slice_with(TAINT)), NOW)
    assert when == (None if after_s is None else NOW + timedelta(seconds=after_s))


@pytest.mark.parametrize(
    "healthy", [slice_with(), slice_with(TAINT | {"effect": "NoSchedule"}), slice_with(TAINT, name="gpu-1")]
)
def test_other_taints_and_taints_of_other_devices_evict_nothing(healthy: dict[str, Any]) -> None:
    assert eviction_time(claim_with(), taints_of(healthy), NOW) is None


@pytest_asyncio.fixture
async def cluster(api_server: SimulatedApiServer, kube: Kube) -> AsyncIterator[Desk]:
    async with desk(api_server, kube) as new_desk:
        await new_desk.device_class()
        await new_desk.node("node-1", device("gpu-0"), device("gpu-1"))
        new_desk.start_claim_controller()
        new_desk.start_scheduler()
        new_desk.start_eviction()
        yield new_desk


async def test_the_pod_on_the_tainted_device_goes_and_the_other_stays(cluster: Desk) -> None:
    await cluster.template("gpu")
    devices = {}
    for name in ("a", "b"):
        await cluster.pod(name, templates=("gpu",))
        await cluster.scheduled(name)
        (devices[name],) = await cluster.devices_of(name)
    patch = {
        "spec": {"devices": [device(name) | {"taints": [TAINT] * (name == devices["a"])} for name in devices.values()]}
    }
    await cluster.kube.merge_patch(RESOURCE_SLICES, "node-1-gpu", patch)

    async def leaving() -> bool:
        return "deletionTimestamp" in (await cluster.get_pod("a"))["metadata"]

    await cluster.until(leaving)
    assert "deletionTimestamp" not in (await cluster.get_pod("b"))["metadata"]
    assert "DeviceTaintManagerEviction" in [reason for reason, _ in await cluster.events("a")]
