"""A policy that asks for MIG on A100s, whose MIG mode only a reset switches: real controller or plugin, simulated GPUs.

One cluster for each story, since it costs some seconds: everybody who asks hears what is in the way, once and at rest
without another write; when the GPUs were reset, nobody says so any more and the pod runs.
"""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from support.dractl import dractl
from support.places import SHORT

from dra_driver.api.gpupolicy import INSTALLED, policies_of
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    EVENTS,
    GPU_POLICIES,
    NODE_INVENTORIES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes
from dra_driver.terminal import Status
from kubelet_plugin.commands.simulate import act
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.state import MIG_CONFIGURATION_CHANGED, add_event

NODE = "dgx-a100-80-1"
DYNAMIC = PublishingPolicy.of({"mig": [{"gpus": {"products": ["NVIDIA A100*"]}, "mode": "Dynamic"}]})
TEMPLATE: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "small"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}}},
}
POD: JsonObject = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "small"},
    "spec": {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "small"}],
    },
}

RULE = "mig of GpuPolicy installed-mig-0"


async def inventory(cluster: SimulatedCluster) -> NodeInventory:
    return NodeInventory.of(await cluster.kube.get(NODE_INVENTORIES, NODE))


async def tells(cluster: SimulatedCluster, *reasons: str) -> None:
    """These Events of the node, each once; they follow the status."""

    async def true() -> bool:
        events = (await cluster.kube.list(EVENTS, namespace="default")).items
        return sorted(event["reason"] for event in events if event["reason"].startswith("Policy")) == sorted(reasons)

    await cluster.wait(true, f"the Events are not {reasons}", 30)


async def says(cluster: SimulatedCluster, reason: str, text: str) -> None:
    async def true() -> bool:
        conditions = (await inventory(cluster)).status.conditions
        return [condition.reason for condition in conditions] == [reason] and text in conditions[0].message

    await cluster.wait(true, f"the inventory does not say {reason} {text}", 60)


async def all_gpus(cluster: SimulatedCluster, action: str, *arguments: str) -> None:
    """And NVML tells the plugin, which would look by itself some time later."""
    host = cluster.node_folder(NODE) / "host"
    for number in range(8):
        await asyncio.to_thread(act, host, action, [str(number), *arguments], None)
    with SimulatedHost(host).edit() as state:
        add_event(state, state.gpus[0].uuid, MIG_CONFIGURATION_CHANGED, 0)


async def finding(cluster: SimulatedCluster, *command: str) -> tuple[int, list[JsonObject]]:
    """Exit status, and findings about rules that are not followed."""
    status, text = await dractl(*command, "--kubeconfig", str(cluster.kubeconfig), "-o", "json")
    data = json.loads(text)
    every = (data[0] if isinstance(data, list) else data)["findings"]
    return status, [item for item in every if "policy-not-followed" in (item.get("trouble"), item.get("code"))]


@pytest.mark.slow
@pytest.mark.parametrize("publisher", ["controller", "node"])
async def test_a_rule_that_needs_a_reset_is_said_everywhere_until_the_gpus_were_reset(publisher: str) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        running = SimulatedCluster.running(
            Path(folder), parse_nodes("dgx-a100-80"), publisher=publisher, installed=policies_of(DYNAMIC, INSTALLED)
        )
        async with running as cluster:
            await says(
                cluster,
                "ResetNeeded",
                "mig of GpuPolicy installed-mig-0: 8 GPUs: only the whole GPU is offered because MIG mode is off",
            )
            await cluster.kube.create(RESOURCE_CLAIM_TEMPLATES, TEMPLATE, namespace="default")
            await cluster.kube.create(PODS, POD, namespace="default")
            await commands_say_it(cluster)

            await all_gpus(cluster, "mig-mode", "on", "pending")
            await says(cluster, "ResetNeeded", "8 GPUs: only the whole GPU is offered because MIG mode is set to on")
            await tells(cluster, "PolicyNotFollowed")

            await all_gpus(cluster, "reset")
            await says(cluster, "Followed", "")
            await nobody_says_it(cluster)


async def commands_say_it(cluster: SimulatedCluster) -> None:
    status, (not_followed,) = await finding(cluster, "doctor")
    assert (status, not_followed["about"], not_followed["verdict"]) == (Status.DONE, f"Node {NODE}", "warning")
    assert f"rule {RULE}: 8 GPUs" in not_followed["sentence"]
    assert f"drain {NODE}" in not_followed["fix"] and "nvidia-smi -i 0000:07:00.0,0000:0f:00.0," in not_followed["fix"]
    status, (not_followed,) = await finding(cluster, "explain", "pod", "small")
    assert (status, not_followed["about"]) == (Status.NO, f"node {NODE}")
    assert f"rule {RULE} cannot be followed on 8 GPUs" in not_followed["text"] and "-mig 1" in not_followed["fix"]
    _, text = await dractl("get", "nodes", "--kubeconfig", str(cluster.kubeconfig), "-o", "json")
    (row,) = json.loads(text)
    assert f"{RULE}: 8 GPUs: ResetNeeded" in row["problems"]


async def nobody_says_it(cluster: SimulatedCluster) -> None:
    async def runs() -> bool:
        small = await cluster.kube.get(PODS, "small", "default")
        return bool((small.get("status") or {}).get("phase") == "Running")

    await cluster.wait(runs, "the pod does not run", 60)
    assert (await inventory(cluster)).status.limitations == []
    assert await finding(cluster, "doctor") == (Status.DONE, [])
    _, text = await dractl("get", "nodes", "--kubeconfig", str(cluster.kubeconfig), "-o", "json")
    assert "ResetNeeded" not in text
    await tells(cluster, "PolicyFollowed", "PolicyNotFollowed")


async def test_a_live_policy_decides_what_the_plugin_makes_of_an_xid() -> None:
    """Xid 31 is a fault of an application, which nobody but a policy makes something of."""
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes("t4")) as cluster:
            host = cluster.node_folder("t4-1") / "host"
            kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
            spec = {"health": {"escalateXids": [31]}}
            await cluster.kube.create(GPU_POLICIES, {**kind, "metadata": {"name": "strict"}, "spec": spec})

            async def decided() -> bool:
                status = (await cluster.kube.get(NODE_INVENTORIES, "t4-1")).get("status") or {}
                return bool(status.get("policy", {}).get("health", {}).get("escalateXids") == [31])

            await cluster.wait(decided, "the inventory does not say what holds", 30)

            async def tainted() -> bool:
                await asyncio.to_thread(act, host, "xid", ["0", "31"], None)
                slices = (await cluster.kube.list(RESOURCE_SLICES)).items
                return any(device.get("taints") for item in slices for device in item["spec"].get("devices") or ())

            await cluster.wait(tainted, "the GPU is not tainted", 60)
