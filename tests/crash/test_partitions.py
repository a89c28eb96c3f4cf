"""Claims for parts of GPUs through a real plugin: what containers are told, and what the API server hears of it."""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest_asyncio
import yaml
from support.mishaps import slow_call
from support.plugin import eventually
from support.plugin_process import NodeUnderTest, PluginForks, plugin_on
from support.shipped import create_definitions
from support.world import World

from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.errors import NotFound
from dra_driver.names import gpu_device_names
from kubelet_plugin.simulation.host import create_host

GPU = "gpu-cd9d459d"
"""The name of GPU 0 of the profile."""
DYNAMIC = {"mig": [{"mode": "Dynamic"}]}


def a_node(world: World, policy: JsonObject) -> NodeUnderTest:
    folder = world.folder / f"n{next(world.nodes)}"
    node = NodeUnderTest(folder, world.kubeconfig, create_host(folder / "host", "h100-nvl", gpus=2))
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **policy}))
    node.options = (f"--policy={file}", "--discovery-interval=0.2")
    return node


def edits_for(node: NodeUnderTest, uid: str) -> dict[str, Any]:
    """The edits for the claim's only device, with those for all."""
    (path,) = node.cdi.glob(f"*-claim_{uid}.json")
    spec = json.loads(path.read_text())
    (device,) = spec["devices"]
    edits = [spec.get("containerEdits", {}), device["containerEdits"]]
    return {
        "nodes": {device_node["path"]: device_node for part in edits for device_node in part.get("deviceNodes", [])},
        "env": dict(line.split("=", 1) for part in edits for line in part.get("env", [])),
    }


@pytest_asyncio.fixture
async def cluster(world: World) -> World:
    """With what an administrator installs."""
    await create_definitions(world.kube)
    return world


async def inventory(world: World) -> JsonObject:
    (node_inventory,) = (await world.kube.list(NODE_INVENTORIES)).items
    return node_inventory


async def eventually_told(world: World, right: Callable[[JsonObject], Any]) -> JsonObject:
    async with asyncio.timeout(30):
        while True:
            with suppress(NotFound, ValueError):
                node_inventory = await inventory(world)
                if right(node_inventory):
                    return node_inventory
            await asyncio.sleep(0.05)


def instances_of(node_inventory: JsonObject) -> list[JsonObject]:
    instances: list[JsonObject] = node_inventory["spec"]["gpus"][0]["mig"].get("instances", [])
    return instances


def conditions(node_inventory: JsonObject) -> list[tuple[str, str]]:
    return [
        (condition["type"], condition.get("instance", ""))
        for gpu in node_inventory["spec"]["gpus"]
        for condition in gpu["health"].get("conditions", [])
        if condition["type"] != "Unmonitored"
    ]


async def test_a_part_that_is_made_for_a_claim_is_given_with_its_nodes_and_the_api_server_hears_nothing(
    forks: PluginForks, cluster: World
) -> None:
    node = a_node(cluster, DYNAMIC)
    before = node.host.snapshots()
    claim = await cluster.allocated("one", [f"{GPU}-mig-3g47gb-4"])
    async with plugin_on(forks, node) as plugin:
        at_start = await eventually_told(cluster, lambda seen: seen["spec"].get("driver"))
        answer = (await plugin.prepare(claim))[claim.uid]
        assert not isinstance(answer, str), answer
        gpu = node.host.state.gpus[0]
        (instance,) = gpu.instances
        (device,) = instance.compute_instances
        given = edits_for(node, claim.uid)
        first = 3 + 135 * gpu.minor + 9 * instance.id
        assert {f"/dev/nvidia{gpu.minor}", f"/dev/nvidia-caps/nvidia-cap{first}", "/dev/nvidiactl"} <= set(
            given["nodes"]
        )
        assert given["nodes"][f"/dev/nvidia-caps/nvidia-cap{first + device.id + 1}"]["major"] == 237
        assert not {"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"} & set(given["nodes"])
        assert [path for path in given["nodes"] if re.fullmatch(r"/dev/nvidia\d+|/dev/dri/.*", path)] == [
            f"/dev/nvidia{gpu.minor}"
        ]
        await asyncio.sleep(1)  # some looks, of which none may be written
        assert (await plugin.unprepare(claim))[claim.uid] == ""
        await asyncio.sleep(1)  # and some more
        assert (await inventory(cluster))["metadata"]["resourceVersion"] == at_start["metadata"]["resourceVersion"]
    assert node.host.snapshots() == before


async def test_an_administrators_mig_device_is_given_and_told_as_lost_when_it_vanishes_in_use(
    forks: PluginForks, cluster: World
) -> None:
    node = a_node(cluster, {})
    node.host.set_mig(0, 1)
    (uuid,) = node.host.make_instance(0, "2g.24gb", 2)
    claim = await cluster.allocated("one", [f"{GPU}-mig-2g24gb-2"])
    async with plugin_on(forks, node) as plugin:
        answer = (await plugin.prepare(claim))[claim.uid]
        assert not isinstance(answer, str), answer
        assert len([path for path in edits_for(node, claim.uid)["nodes"] if path.startswith("/dev/nvidia-caps/")]) == 2
        published = await eventually_told(cluster, lambda seen: seen["spec"].get("driver"))
        assert conditions(published) == []
        node.host.destroy_instance(0, 2)
        lost = await eventually_told(cluster, conditions)
        assert conditions(lost) == [("InstanceLost", uuid)]
        assert [device["uuid"] for instance in instances_of(lost) for device in instance["computeInstances"]] == [uuid]
        assert (await plugin.unprepare(claim))[claim.uid] == ""
        await eventually_told(cluster, lambda seen: not instances_of(seen))
    assert node.host.snapshot(0)["mig"] == {"current": 1, "pending": 1}


async def test_a_layout_changed_by_hand_is_told_within_seconds(forks: PluginForks, cluster: World) -> None:
    node = a_node(cluster, {})
    node.host.set_mig(0, 1)
    async with plugin_on(forks, node):
        await eventually_told(cluster, lambda seen: seen["spec"].get("driver"))
        uuids = [node.host.make_instance(0, "1g.12gb", start)[0] for start in (0, 5)]
        async with asyncio.timeout(5):
            divided = await eventually_told(cluster, lambda seen: len(instances_of(seen)) == 2)
        assert [device["uuid"] for each in instances_of(divided) for device in each["computeInstances"]] == uuids


async def test_a_gpu_that_hangs_delays_its_own_claims_and_not_the_end_of_the_plugin(
    forks: PluginForks, cluster: World
) -> None:
    node = a_node(cluster, DYNAMIC)
    other = gpu_device_names([gpu.uuid for gpu in node.host.state.gpus])[node.host.state.gpus[1].uuid]
    hangs = await cluster.allocated("hangs", [f"{GPU}-mig-3g47gb-4"])
    goes_on = await cluster.allocated("goes-on", [f"{other}-mig-3g47gb-4"])
    async with plugin_on(forks, node) as plugin:
        slow_call(node.host, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", 3600.0, times=1)
        waiting = asyncio.create_task(plugin.prepare(hangs))
        await eventually(lambda: not node.host.state.gpus[0].mishaps)  # the call has begun
        answer = (await plugin.prepare(goes_on))[goes_on.uid]
        assert not isinstance(answer, str), answer
        assert (await plugin.unprepare(goes_on))[goes_on.uid] == ""
        assert node.host.state.gpus[1].instances == []
        assert not waiting.done()
        async with asyncio.timeout(18):
            assert await plugin.stop() == 0
        assert "NVML has not answered" in (await waiting)[hangs.uid]
    assert "although some of its work hangs" not in node.log.read_text()
    # What it left is taken back by the next one, whose NVML answers.
    async with plugin_on(forks, node) as plugin:
        assert (await plugin.unprepare(hangs))[hangs.uid] == ""
        await eventually(lambda: not any(gpu.mig is not None and gpu.mig.current for gpu in node.host.state.gpus))
