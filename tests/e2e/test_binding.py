"""Binding conditions from end to end: real controller and plugins, simulated GPUs and scheduler.

With a real kube-scheduler: test_real_binding.py.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pynvml
import pytest
from support.dractl import dractl
from support.mishaps import fail_call
from support.places import SHORT

from dra_driver.api.gpupolicy import INSTALLED, policies_of
from dra_driver.api.meta import (
    NODE_INVENTORIES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cli.simulated.scenario import leftovers
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes
from kubelet_plugin.simulation.host import SimulatedHost

FIRST, SECOND = "h100-nvl-1", "h100-nvl-2"
MAKE = "nvmlDeviceCreateGpuInstanceWithPlacement"
DYNAMIC = PublishingPolicy.of({"mig": [{"mode": "Dynamic", "profiles": ["1g.12gb"]}]})
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com"}}
TEMPLATE: JsonObject = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "small"},
    "spec": {"spec": {"devices": {"requests": [REQUEST]}}},
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


@asynccontextmanager
async def two_nodes() -> AsyncIterator[SimulatedCluster]:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        running = SimulatedCluster.running(
            Path(folder),
            parse_nodes("h100-nvl:2"),
            installed=policies_of(DYNAMIC, INSTALLED),
            gates="MigBindingConditions=true",
        )
        async with running as cluster:
            await cluster.kube.create(RESOURCE_CLAIM_TEMPLATES, TEMPLATE, namespace="default")

            async def published() -> bool:
                slices = (await cluster.kube.list(RESOURCE_SLICES)).items
                binding = {
                    item["spec"]["nodeName"]
                    for item in slices
                    for device in item["spec"].get("devices", ())
                    if device.get("bindingConditions")
                }
                return binding == {FIRST, SECOND}

            await cluster.wait(published, "the nodes publish no devices with binding conditions", 60)
            yield cluster


def no_mig_device(cluster: SimulatedCluster, code: int = pynvml.NVML_ERROR_IN_USE) -> None:
    """Can be made on the first node; 0: it can again."""
    host = SimulatedHost(cluster.node_folder(FIRST) / "host")
    for index in range(len(host.state.gpus)):
        fail_call(host, index, MAKE, code)


async def pod_is(cluster: SimulatedCluster, phase: str, node: str | None, timeout_s: float) -> None:
    async def true() -> bool:
        pod = await cluster.kube.get(PODS, "small", "default")
        return (pod["status"].get("phase"), pod["spec"].get("nodeName")) == (phase, node)

    await cluster.wait(true, f"the pod is not {phase} on {node}", timeout_s)


async def conditions(cluster: SimulatedCluster) -> dict[str, str]:
    """Of the devices of all claims, status by type."""
    claims = (await cluster.kube.list(RESOURCE_CLAIMS)).items
    devices = [device for claim in claims for device in (claim.get("status") or {}).get("devices") or ()]
    return {item["type"]: item["status"] for device in devices for item in device.get("conditions") or ()}


async def nothing_is_left(cluster: SimulatedCluster, before: dict[str, str]) -> None:
    async def true() -> bool:
        claims = (await cluster.kube.list(RESOURCE_CLAIMS)).items
        inventories = (await cluster.kube.list(NODE_INVENTORIES)).items
        named = [claim for item in inventories for claim in item["status"].get("bindingClaims") or ()]
        return not claims and not named and not leftovers(cluster, before)

    await cluster.wait(true, "something is left of the claim", 30)


@pytest.mark.slow
async def test_a_pod_waits_for_its_mig_device_and_leaves_nothing_whenever_it_is_deleted() -> None:
    async with two_nodes() as cluster:
        before = cluster.hardware()
        no_mig_device(cluster)
        await cluster.kube.create(PODS, POD, namespace="default")

        async def tried() -> bool:
            return (await conditions(cluster)).get("BindingReady") == "False"

        await cluster.wait(tried, "the node does not say that it cannot prepare the claim", 30)
        await pod_is(cluster, "Pending", None, 5)
        _, text = await dractl("explain", "pod", "small", "--kubeconfig", str(cluster.kubeconfig))
        assert f"gets node {FIRST} when the node has prepared its devices" in text and "HardwareError" in text
        await cluster.kube.delete(PODS, "small", namespace="default")
        await nothing_is_left(cluster, before)

        no_mig_device(cluster, 0)
        await cluster.kube.create(PODS, POD, namespace="default")
        await pod_is(cluster, "Running", FIRST, 30)
        assert (await conditions(cluster))["BindingReady"] == "True"
        await cluster.kube.delete(PODS, "small", namespace="default")
        await nothing_is_left(cluster, before)


@pytest.mark.slow
async def test_a_node_that_makes_no_mig_device_is_given_up_for_another() -> None:
    async with two_nodes() as cluster:
        before = cluster.hardware()
        no_mig_device(cluster)
        await cluster.kube.create(PODS, POD, namespace="default")
        await pod_is(cluster, "Running", SECOND, 90)
        slices = (await cluster.kube.list(RESOURCE_SLICES)).items
        tainted = {
            item["spec"]["nodeName"]
            for item in slices
            for device in item["spec"].get("devices", ())
            if any(taint["key"] == "gpu.nvidia.com/prepare-failed" for taint in device.get("taints") or ())
        }
        assert tainted == {FIRST}
        await cluster.kube.delete(PODS, "small", namespace="default")
        await nothing_is_left(cluster, before)
