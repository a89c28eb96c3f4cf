"""What Kubernetes 1.36 has for DRA and does not switch on by itself, on its real programs: lists, states of pools.

Needs kube-scheduler and kube-controller-manager beside the binaries that KUBEBUILDER_ASSETS names.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from support import real_api_server, real_scheduler
from support.inventories import gpu, inventory_spec
from support.real_api_server import RealApiServer
from support.scheduling import Desk, desk
from support.versions import real_minor

from dra_driver.api.inventory import NvlinkFacts
from dra_driver.api.meta import NAMESPACES, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.api.policy import PublishingPolicy
from dra_driver.names import GPU_DRIVER, NVLINK_PEERS, STANDARD_DOMAIN
from dra_driver.publish.observed import server_features
from dra_driver.slices.offline import published_offline

POOL_STATUSES = Resource(
    "resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests", "ResourcePoolStatusRequest", False
)


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    if (minor := real_minor(real_api_server.assets_folder())) < 36:
        pytest.skip(f"1.{minor} has none of it")
    server = real_scheduler.start(
        tmp_path_factory.mktemp("off-by-default"),
        {"DRAListTypeAttributes": True, "DRAResourcePoolStatus": True},
        controllers=["resourcepoolstatusrequest-controller"],
    )
    yield server
    server.stop()


@pytest_asyncio.fixture
async def pairs(control_plane: RealApiServer, unique: str) -> AsyncIterator[Desk]:
    """A node with four GPUs as published: NVLink connects 0 with 3, and 1 with 2; 0 and 1 are on one NUMA node."""
    linked = {0: 3, 1: 2, 2: 1, 3: 0}
    gpus = [
        gpu(number, numa_node=number // 2, nvlink=NvlinkFacts(links=4, peers=[gpu(other).uuid]))
        for number, other in linked.items()
    ]
    async with real_scheduler.client(control_plane) as kube, desk(None, kube) as new_desk:
        await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": unique}})
        new_desk.namespace = new_desk.class_name = unique
        await new_desk.device_class(unique, f"device.driver == '{GPU_DRIVER}'")
        await new_desk.node(unique)
        features = await server_features(kube, GPU_DRIVER, unique, lists=True)
        (pool,) = published_offline(inventory_spec(unique, gpus), PublishingPolicy.EVERYTHING, {}, "uid", features)
        for slice_ in pool.slices:
            del slice_["metadata"]["ownerReferences"]
            await kube.create(RESOURCE_SLICES, slice_)
        yield new_desk
        await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.nodeName={unique}")
        await new_desk.clear()


def wanting(desk: Desk, count: int, *expressions: str) -> JsonObject:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"name": "gpu", "exactly": {"deviceClassName": desk.class_name, "count": count, "selectors": selectors}}


async def given(desk: Desk, claim: str, request: JsonObject, **more: Any) -> set[str]:
    await desk.claim(claim, request, **more)
    await desk.pod(claim, claims=(claim,))
    await desk.scheduled(claim)
    return set(await desk.devices_of(claim))


async def test_the_scheduler_selects_by_lists_and_matches_them_in_1_37(pairs: Desk) -> None:
    """The allocator of 1.36.2 that the scheduler takes knows no lists in constraints: kubernetes/kubernetes#139332."""
    names = [gpu(number).name for number in range(4)]
    second = f"device.attributes['{STANDARD_DOMAIN}'].numaNode.includes(1)"
    assert await given(pairs, "near", wanting(pairs, 1, second)) == {names[2]}
    alike = [{"matchAttribute": f"{GPU_DRIVER}/{NVLINK_PEERS}"}]
    if (await pairs.kube.server_version())[1] >= 37:
        assert await given(pairs, "pair", wanting(pairs, 2), constraints=alike) == {names[0], names[3]}
        return
    await pairs.claim("pair", wanting(pairs, 2), constraints=alike)
    await pairs.pod("pair", claims=("pair",))
    assert "cannot allocate all claims" in await pairs.reported("pair")


async def test_kubernetes_counts_the_devices_of_a_pool(pairs: Desk, unique: str) -> None:
    await given(pairs, "three", wanting(pairs, 3))
    api = {"apiVersion": POOL_STATUSES.api_version, "kind": POOL_STATUSES.kind}
    spec = {"driver": GPU_DRIVER, "poolName": unique}
    await pairs.kube.create(POOL_STATUSES, {**api, "metadata": {"name": unique}, "spec": spec})

    async def answered() -> list[JsonObject] | None:
        status = (await pairs.kube.get(POOL_STATUSES, unique)).get("status") or {}
        pools: list[JsonObject] | None = status.get("pools")
        return pools

    (pool,) = await pairs.until(answered)
    assert (pool["totalDevices"], pool["allocatedDevices"], pool["resourceSliceCount"]) == (4, 3, 1)
    await pairs.kube.delete(POOL_STATUSES, unique)
