"""An A100 that switches its MIG mode because a GpuPolicy asks for it: real controller and plugin, simulated GPUs."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.dractl import dractl
from support.places import SHORT

from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    GPU_POLICIES,
    NODE_INVENTORIES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode
from kubelet_plugin.commands.simulate import act
from kubelet_plugin.simulation.host import SimulatedHost

NODE = "a100-pcie-80-1"


def policy(uuid: str) -> JsonObject:
    mig = {"mode": "Dynamic", "modeChange": "WhenIdle", "profiles": ["1g.10gb"]}
    return {
        "apiVersion": GPU_POLICIES.api_version,
        "kind": GPU_POLICIES.kind,
        "metadata": {"name": "parts"},
        "spec": {"gpus": {"uuids": [uuid]}, "mig": mig},
    }


def pod(name: str, device_class: str) -> tuple[JsonObject, JsonObject]:
    """With its template."""
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    spec = {
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    return template, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Story:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.kube = cluster.kube
        self.folder = cluster.node_folder(NODE) / "host"
        self.host = SimulatedHost(self.folder)

    async def act(self, name: str, *given: str) -> str:
        return await asyncio.to_thread(act, self.folder, name, list(given), None)

    async def create(self, name: str, device_class: str) -> None:
        template, made = pod(name, device_class)
        await self.kube.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
        await self.kube.create(PODS, made, namespace="default")

    async def until(self, right: Any, what: str, timeout_s: float = 60.0) -> None:
        await self.cluster.wait(right, what, timeout_s)

    async def runs(self, name: str) -> None:
        async def running() -> bool:
            current = await self.kube.get(PODS, name, "default")
            return bool((current.get("status") or {}).get("phase") == "Running")

        await self.until(running, f"pod {name} does not run")

    async def says(self, reason: str, text: str = "") -> None:
        """The policy, or without a controller the inventory."""

        async def followed() -> bool:
            reason_and_message = await (
                self._of_policy() if self.cluster.publisher == "controller" else self._of_inventory()
            )
            return reason_and_message[0] == reason and text in reason_and_message[1]

        await self.until(followed, f"nobody says {reason} {text}")

    async def _of_policy(self) -> tuple[str, str]:
        status = (await self.kube.get(GPU_POLICIES, "parts")).get("status") or {}
        followed = next(
            (condition for condition in status.get("conditions", ()) if condition["type"] == "Followed"), {}
        )
        return followed.get("reason", ""), followed.get("message", "")

    async def _of_inventory(self) -> tuple[str, str]:
        status = NodeInventory.of(await self.kube.get(NODE_INVENTORIES, NODE)).status
        if status.limitations:
            return status.limitations[0].reason, status.limitations[0].message
        waiting = status.policy.waiting if status.policy is not None else []
        return ("Waiting", str(waiting[0])) if waiting else ("Followed", "")

    async def offers(self, parts: int) -> None:
        """So many parts of the first GPU, and all other GPUs."""
        gpus = len(self.host.state.gpus) - (1 if parts else 0)

        async def offered() -> bool:
            slices = (await self.kube.list(RESOURCE_SLICES)).items
            devices = [device for item in slices for device in item["spec"].get("devices") or ()]
            kinds = sorted(device["attributes"]["type"]["string"] for device in devices)
            return kinds == ["gpu"] * gpus + ["mig"] * parts

        await self.until(offered, f"not {parts} parts are offered")

    def mode(self) -> tuple[int, int]:
        mig = self.host.state.gpus[0].mig
        assert mig is not None
        return mig.current, mig.pending

    async def findings(self, *command: str) -> list[JsonObject]:
        _, text = await dractl(*command, "--kubeconfig", str(self.cluster.kubeconfig), "-o", "json")
        data = json.loads(text)
        findings: list[JsonObject] = (data[0] if isinstance(data, list) else data)["findings"]
        return findings


@pytest.mark.slow
@pytest.mark.parametrize("publisher", ["controller", "node"])
async def test_a_policy_partitions_an_a100_and_gives_it_back(publisher: str) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        node = SimulatedNode(NODE, "a100-pcie-80", 0)
        running = SimulatedCluster.running(Path(folder), [node], publisher=publisher, gates="MigModeChange=true")
        async with running as cluster:
            story = Story(cluster)
            await story.offers(0)
            await a_claim_and_a_monitor_are_waited_for(story)
            await a_pod_gets_a_part(story)
            await the_mode_goes_with_the_policy(story)


async def a_claim_and_a_monitor_are_waited_for(story: Story) -> None:
    await story.create("whole", "gpu.nvidia.com")
    await story.runs("whole")
    opened = await story.act("open-gpu", "0", "dcgm-exporter")
    pid = opened.partition("(")[2].partition(")")[0]
    await story.kube.create(GPU_POLICIES, policy(story.host.state.gpus[0].uuid))
    await story.says("Waiting", "when claims default/whole-gpu-")
    await story.create("part", "mig.nvidia.com")
    await story.until(lambda: waiting_is_explained(story), "nobody says what the pod waits for")
    await story.kube.delete(PODS, "whole", namespace="default")
    await story.says("ModeChangeBlocked", f"dcgm-exporter ({pid})")
    assert story.mode() == (0, 0)
    assert any("dcgm-exporter" in str(finding) for finding in await story.findings("doctor"))
    await story.act("close-gpu", pid)


async def waiting_is_explained(story: Story) -> bool:
    waits = [
        finding for finding in await story.findings("explain", "pod", "part") if finding.get("code") == "policy-waits"
    ]
    return any("are gone and a reset has switched its MIG mode on" in finding["text"] for finding in waits)


async def a_pod_gets_a_part(story: Story) -> None:
    await story.runs("part")
    assert story.mode() == (1, 1)
    await story.says("Followed")
    await story.offers(7)


async def the_mode_goes_with_the_policy(story: Story) -> None:
    await story.kube.delete(GPU_POLICIES, "parts")
    await asyncio.sleep(1.0)
    assert story.mode() == (1, 1), "the pod is still there"
    await story.kube.delete(PODS, "part", namespace="default")
    await story.offers(0)
    assert story.mode() == (0, 0)
