"""ComputeDomains as the API server keeps them, and what the controller makes of them there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from support.api import Api, Refused
from support.domain_cluster import DRIVER_NAMESPACE, DomainCluster, Kubelets, becomes, gone, running_keeper, tended

from docs.from_code.crds import DEFINITIONS
from dra_driver.api.meta import (
    DAEMON_SETS,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
)
from dra_driver.bundled import read_yaml
from dra_driver.domains.names import FINALIZER
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.simulation.workloads.controller import SimulatedWorkloadController

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
READY = {
    "type": "Ready", "status": "True", "reason": "AllNodesReady", "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}  # fmt: skip


class Domains:
    """Those of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.path = f"/apis/resource.nvidia.com/v1beta1/namespaces/{namespace}/computedomains"
        self.api = api

    def body(self, name: str = "train", **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": name},
            "spec": {"channel": {"resourceClaimTemplate": {"name": "channel"}}, **spec},
        }

    async def create(self, **spec: Any) -> dict[str, Any]:
        return await self.api.post(self.path, self.body(**spec))


@pytest_asyncio.fixture
async def domains(api: Api, namespace: str) -> AsyncIterator[Domains]:
    for definition in DEFINITIONS:
        body = read_yaml(definition.file.read_text())
        try:
            await api.post(CRDS, body)
        except Refused as refused:
            # A real server is the same for all tests.
            assert refused.reason == "AlreadyExists"
        await api.until_served(body)
    domains = Domains(api, namespace)
    yield domains
    await api.delete(domains.path)


@pytest.mark.parametrize(
    "change",
    [
        {"numNodes": 3},
        {"numNodes": None},
        {"channel": {"resourceClaimTemplate": {"name": "other"}}},
        {"channel": {"allocationMode": "All"}},
    ],
)
async def test_a_spec_cannot_be_changed(domains: Domains, change: dict[str, Any]) -> None:
    await domains.create(numNodes=2)
    refusal = await domains.api.refused(
        "PATCH", f"{domains.path}/train", {"spec": change}, "application/merge-patch+json"
    )
    assert (refusal.status, refusal.causes) == (422, {("spec", "FieldValueInvalid")})
    assert "a ComputeDomain cannot be changed; delete it and create another" in refusal.message
    same = await domains.api.patch(
        f"{domains.path}/train", {"spec": {"numNodes": 2}, "metadata": {"labels": {"a": "b"}}}
    )
    assert (same["metadata"]["generation"], same["metadata"]["labels"]) == (1, {"a": "b"})


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"numNodes": -1}, ("spec.numNodes", "FieldValueInvalid")),
        ({"numNodes": "2"}, ("spec.numNodes", "FieldValueTypeInvalid")),
        ({"channel": None}, ("spec.channel", "FieldValueRequired")),
        ({"channel": {}}, ("spec.channel.resourceClaimTemplate", "FieldValueRequired")),
        ({"channel": {"resourceClaimTemplate": {}}}, ("spec.channel.resourceClaimTemplate.name", "FieldValueRequired")),
        (
            {"channel": {"resourceClaimTemplate": {"name": "a"}, "allocationMode": "Some"}},
            ("spec.channel.allocationMode", "FieldValueNotSupported"),
        ),
    ],
)
async def test_what_makes_no_sense_is_refused(domains: Domains, spec: dict[str, Any], cause: tuple[str, str]) -> None:
    refusal = await domains.api.refused("POST", domains.path, domains.body(**spec))
    assert refusal.status == 422
    assert cause in refusal.causes


async def test_the_status_is_written_apart_and_by_whoever_saw_the_last_version(domains: Domains) -> None:
    body = {**domains.body(), "status": {"status": "Ready"}}
    made = await domains.api.post(domains.path, body)
    assert "status" not in made
    path, version = f"{domains.path}/train", made["metadata"]["resourceVersion"]
    node = {"name": "tray-1", "index": 0, "status": "Ready", "ipAddress": "10.0.0.1", "cliqueID": "rack.1"}
    status = {"status": "Ready", "readyNodes": "1/1", "nodes": [node], "conditions": [READY], "observedGeneration": 1}
    patch = {"metadata": {"resourceVersion": version}, "spec": {"numNodes": 7}, "status": status}
    written = await domains.api.patch(f"{path}/status", patch)
    assert written["status"] == status
    assert (written["spec"], written["metadata"]["generation"]) == (made["spec"], 1)
    late = await domains.api.refused("PATCH", f"{path}/status", patch, "application/merge-patch+json")
    assert (late.status, late.reason) == (409, "Conflict")
    wrong = {"status": {"status": "Almost"}}
    refusal = await domains.api.refused("PATCH", f"{path}/status", wrong, "application/merge-patch+json")
    assert ("status.status", "FieldValueNotSupported") in refusal.causes


async def test_kubectl_shows_state_nodes_reason_and_template(domains: Domains) -> None:
    await domains.create()
    status = {"status": "Ready", "readyNodes": "1/1", "conditions": [{**READY, "type": "NodesJoined"}, READY]}
    await domains.api.patch(f"{domains.path}/train/status", {"status": status})
    table = await domains.api.request("GET", domains.path, headers=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name", "Status", "Nodes", "Reason", "Template", "Age",
    ]  # fmt: skip
    (row,) = table["rows"]
    assert row["cells"][:5] == ["train", "Ready", "1/1", "AllNodesReady", "channel"]


async def test_a_domain_with_our_finalizer_waits_for_us(domains: Domains) -> None:
    path = f"{domains.path}/train"
    made = await domains.create()
    version = made["metadata"]["resourceVersion"]
    await domains.api.patch(path, {"metadata": {"finalizers": [FINALIZER], "resourceVersion": version}})
    await domains.api.delete(path)
    going = await domains.api.get(path)
    assert going["metadata"]["deletionTimestamp"]
    refusal = await domains.api.refused(
        "PATCH", path, {"metadata": {"finalizers": [FINALIZER, "a.example/b"]}}, "application/merge-patch+json"
    )
    assert refusal.status == 422
    await domains.api.patch(
        path, {"metadata": {"finalizers": [], "resourceVersion": going["metadata"]["resourceVersion"]}}
    )
    assert await domains.api.is_gone(path)


@pytest_asyncio.fixture
async def kube(api: Api, domains: Domains) -> AsyncIterator[Kube]:
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as kube:
        yield kube


@asynccontextmanager
async def daemon_sets_kept(api: Api, kube: Kube) -> AsyncIterator[None]:
    """By kube-controller-manager, or in its place."""
    if api.simulated is None:
        yield
        return
    task = asyncio.create_task(SimulatedWorkloadController(kube).run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_keeper_brings_a_domain_up_keeps_another_off_its_node_and_leaves_nothing(
    api: Api, kube: Kube, namespace: str
) -> None:
    """The story of tests/controller/computedomains, with objects that a server of either kind validates, and daemons'
    pods of a DaemonSet controller of either kind."""
    api.needs_controllers()
    cluster, nodes = DomainCluster(kube), [f"{namespace}-1", f"{namespace}-2"]
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DRIVER_NAMESPACE}}
    await kube.create(NAMESPACES, made)
    for node in nodes:
        await cluster.node(node)
    async with daemon_sets_kept(api, kube), running_keeper(kube), tended(kube, Kubelets(kube)):
        first = await cluster.domain("first", namespace=namespace)
        second = await cluster.domain("second", namespace=namespace)
        claims = [await cluster.use(first, node) for node in nodes]
        ready = await becomes(cluster, first, "AllNodesReady")
        assert {(node.name, node.status) for node in ready.status.nodes} == {(node, "Ready") for node in nodes}
        other = await cluster.use(second, nodes[0], channel=1)
        await becomes(cluster, second, "NodeInOtherDomain")
        await cluster.delete(first)
        await becomes(cluster, first, "Terminating")
        for claim in claims:
            await cluster.release(first, claim)
        await gone(cluster, first)
        await becomes(cluster, second, "AllNodesReady")
        assert await cluster.labels() == {nodes[0]: second.metadata.uid}
        await cluster.release(second, other)
        await cluster.delete(second)
        await gone(cluster, second)
    for node in nodes:
        await kube.delete(NODES, node)
        await kube.delete(NODE_INVENTORIES, node)
    for space in (namespace, DRIVER_NAMESPACE):
        for resource in (DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, PODS):
            assert not (await kube.list(resource, namespace=space)).items
