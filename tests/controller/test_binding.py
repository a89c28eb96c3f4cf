"""Claims that wait for their node, named in its inventory: controller/binding.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.background import background
from support.claims import a_claim, a_ref, a_result
from support.objects import allocate, claim, result
from support.observed_api import ObservedApiServer
from support.shipped import create_definitions

from controller.binding import BindingClaims, waiting_for_nodes
from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.inventory import BindingClaim
from dra_driver.api.meta import NODE_INVENTORIES, RESOURCE_CLAIMS, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import MirrorChange, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.publish.live import Changed
from tests.controller.test_policies import a_node

DRIVERS = (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER)
BINDS = {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}
NOBODY = Changed(lambda selected: None, lambda pool: None)
POD = {"metadata": {"name": "pod", "uid": "uid-of-pod"}}


@pytest.fixture(autouse=True)
async def definitions(kube: Kube) -> None:
    await create_definitions(kube)


@asynccontextmanager
async def naming(kube: Kube, again_s: float = 60.0) -> AsyncIterator[None]:
    watches = Watches(kube)
    binding = BindingClaims(watches, DRIVERS, workers=2, again_s=again_s)
    async with background(watches.run(), binding.run()):
        yield


async def named(kube: Kube, node: str, *wanted: tuple[str, str]) -> None:
    """Until the node's inventory names claims of these drivers, and no others."""
    async with asyncio.timeout(10):
        while True:
            status = (await kube.get(NODE_INVENTORIES, node)).get("status") or {}
            if [(item["driver"], item["name"]) for item in status.get("bindingClaims") or ()] == list(wanted):
                return
            await asyncio.sleep(0.02)


async def allocated(kube: Kube, name: str, *results: JsonObject) -> JsonObject:
    created = await kube.create(RESOURCE_CLAIMS, claim(name))
    return await allocate(kube, created, *results, pods=[POD])


def test_a_claim_is_named_for_each_driver_and_node_that_it_waits_for() -> None:
    results = [
        a_result("a", **BINDS),
        a_result("b", **BINDS),
        a_result("channel-0", driver=COMPUTE_DOMAIN_DRIVER, **BINDS),
        a_result("x", driver="other.example", pool="node-b", **BINDS),
        a_result("c", pool="node-c"),
    ]
    ref = a_ref()
    fields = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    assert waiting_for_nodes(a_claim(ref, *results), DRIVERS) == (
        ("node-a", BindingClaim(driver=COMPUTE_DOMAIN_DRIVER, **fields)),
        ("node-a", BindingClaim(driver=GPU_DRIVER, **fields)),
    )


def test_a_claim_that_no_pod_has_reserved_or_that_is_being_deleted_is_not_named() -> None:
    assert waiting_for_nodes(a_claim(a_ref(), a_result(0, **BINDS), reserved=False), DRIVERS) == ()
    going = a_claim(a_ref(), a_result(0, **BINDS))
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert waiting_for_nodes(going, DRIVERS) == ()


async def test_a_claim_is_named_until_its_node_has_answered(kube: Kube) -> None:
    await a_node(kube, "node-a")
    await a_node(kube, "node-b")
    async with naming(kube):
        mine = await allocated(kube, "mine", result("gpu-0", pool="node-a", **BINDS))
        await allocated(kube, "ready", result("gpu-1", pool="node-a"))
        await named(kube, "node-a", (GPU_DRIVER, "mine"))
        second = await allocated(kube, "second", result("gpu-2", pool="node-a", **BINDS))
        await named(kube, "node-a", (GPU_DRIVER, "mine"), (GPU_DRIVER, "second"))
        condition = {"type": BINDING_READY, "status": "True", "reason": "Prepared", "message": ""}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        device = {"driver": GPU_DRIVER, "pool": "node-a", "device": "gpu-0", "conditions": [condition]}
        mine["status"]["devices"] = [device]
        await kube.replace(RESOURCE_CLAIMS, mine, subresource="status")
        await named(kube, "node-a", (GPU_DRIVER, "second"))
        del second["status"]["allocation"], second["status"]["reservedFor"]
        await kube.replace(RESOURCE_CLAIMS, second, subresource="status")
        await named(kube, "node-a")
        await named(kube, "node-b")


async def test_a_new_leader_corrects_what_an_earlier_one_named(kube: Kube) -> None:
    gone = {"driver": GPU_DRIVER, "namespace": "default", "name": "gone", "uid": "uid-of-gone"}
    await a_node(kube, "node-a", bindingClaims=[gone])
    await allocated(kube, "waits", result("gpu-0", pool="node-b", **BINDS))
    async with naming(kube):
        await named(kube, "node-a")
        await a_node(kube, "node-b")
        await named(kube, "node-b", (GPU_DRIVER, "waits"))


async def test_an_inventory_that_was_made_again_names_the_claims_that_wait(kube: Kube) -> None:
    await a_node(kube, "node-a")
    async with naming(kube, again_s=0.05):
        await allocated(kube, "waits", result("gpu-0", pool="node-a", **BINDS))
        await named(kube, "node-a", (GPU_DRIVER, "waits"))
        await kube.delete(NODE_INVENTORIES, "node-a")
        await a_node(kube, "node-a")
        await named(kube, "node-a", (GPU_DRIVER, "waits"))


async def test_a_node_whose_claims_and_inventory_are_gone_is_forgotten(kube: Kube) -> None:
    binding = BindingClaims(Watches(kube), DRIVERS, workers=2)
    waits = waiting_for_nodes(a_claim(a_ref(), a_result(0, pool="node-c", **BINDS)), DRIVERS)
    binding._saw(MirrorChange(("team-a", "train"), None, waits))
    binding._saw(MirrorChange(("team-a", "train"), waits, None))
    await binding._write("node-c")
    assert not binding._of_nodes


async def test_nothing_is_written_while_no_claim_waits(api_server: ObservedApiServer, kube: Kube) -> None:
    await a_node(kube, "node-a")
    async with naming(kube):
        await allocated(kube, "ready", result("gpu-0", pool="node-a"))
        before = [write for write in api_server.writes if write.resource == NODE_INVENTORIES.plural]
        await asyncio.sleep(0.3)
        assert [write for write in api_server.writes if write.resource == NODE_INVENTORIES.plural] == before
