"""Domains on the objects of an API server: they come up, say what is missing, and leave nothing behind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.domain_cluster import (
    DRIVER_NAMESPACE,
    DomainCluster,
    becomes,
    gone,
    inventory_of,
    reason,
    running_keeper,
    tended,
    until,
)
from support.late_watch import late

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import (
    DAEMON_SETS,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
    Resource,
)
from dra_driver.domains.names import DOMAIN_LABEL, daemon_object_name
from dra_driver.errors import Rejected
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer


@pytest_asyncio.fixture
async def cluster(kube: Kube) -> AsyncIterator[DomainCluster]:
    cluster = DomainCluster(kube)
    await cluster.install()
    for name, clique in (("tray-1", 0), ("tray-2", 0), ("tray-3", 1), ("alone", None)):
        await cluster.node(name, clique)
    yield cluster


async def test_a_leftover_that_may_not_be_removed_keeps_no_other(
    kube: Kube, cluster: DomainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tray-1", "tray-2"):
        await kube.merge_patch(NODES, name, {"metadata": {"labels": {DOMAIN_LABEL: "of-a-deleted-domain"}}})
    merge_patch = kube.merge_patch

    async def patching(resource: Resource, name: str, patch: JsonObject, **more: Any) -> JsonObject:
        if name == "tray-1":
            raise Rejected("a policy refuses it", about="Node tray-1", status=403)
        return await merge_patch(resource, name, patch, **more)

    async def one_is_left() -> bool:
        return list(await cluster.labels()) == ["tray-1"]

    monkeypatch.setattr(kube, "merge_patch", patching)
    async with running_keeper(kube):
        await until(one_is_left)


async def test_a_domain_comes_up_with_its_pods_and_leaves_nothing_behind(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        await becomes(cluster, domain, "NoNodes")
        claims = [await cluster.use(domain, "tray-1"), await cluster.use(domain, "tray-2")]
        ready = await becomes(cluster, domain, "AllNodesReady")
        assert ready.status.status == "Ready"
        assert ready.status.ready_nodes == "2/2"
        assert sorted((node.name, node.index, node.status) for node in ready.status.nodes) == [
            ("tray-1", ready.status.nodes[0].index if ready.status.nodes[0].name == "tray-1" else 1, "Ready"),
            ("tray-2", ready.status.nodes[1].index if ready.status.nodes[1].name == "tray-2" else 0, "Ready"),
        ]
        assert len({node.ip_address for node in ready.status.nodes}) == 2
        assert await cluster.labels() == dict.fromkeys(("tray-1", "tray-2"), domain.metadata.uid)
        await cluster.release(domain, claims[0])
        await becomes(cluster, domain, "AllNodesReady")

        async def left_alone() -> bool:
            return list(await cluster.labels()) == ["tray-2"]

        await until(left_alone)
        await cluster.delete(domain)
        await becomes(cluster, domain, "Terminating")
        assert await cluster.labels() == {"tray-2": domain.metadata.uid}  # its program runs
        await cluster.release(domain, claims[1])
        await gone(cluster, domain)
        assert await cluster.left() == []


async def test_nodes_of_several_cliques_have_peers_of_their_own(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("pair")
        for node in ("tray-1", "tray-2", "tray-3", "alone"):
            await cluster.use(domain, node)
        ready = await becomes(cluster, domain, "AllNodesReady")
        places = sorted((node.clique_id[-1:], node.index) for node in ready.status.nodes)
        assert places == [("", 0), ("0", 0), ("0", 1), ("1", 0)]
        assert await reason(cluster, domain, "NodesJoined") == "SeveralCliques"


async def test_a_node_is_in_one_domain_and_the_other_says_whose_it_is(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube):
        first, second = await cluster.domain("first"), await cluster.domain("second")
        claim = await cluster.use(first, "tray-1")
        await becomes(cluster, first, "AllNodesReady")
        await cluster.use(second, "tray-1", channel=1)
        waiting = await becomes(cluster, second, "NodeInOtherDomain")
        assert any("is in ComputeDomain team/first" in condition.message for condition in waiting.status.conditions)
        assert (await cluster.read(first)).status.status == "Ready"
        await cluster.release(first, claim)
        await becomes(cluster, second, "AllNodesReady")
        assert await reason(cluster, first) == "NoNodes"


async def test_a_pod_that_no_node_fits_is_told_after_a_while(
    kube: Kube, cluster: DomainCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.computedomains.cluster.UNPLACED_AFTER_S", 0.2)
    async with running_keeper(kube):
        domain = await cluster.domain("train")
        await becomes(cluster, domain, "NoNodes")
        labels = {DOMAIN_LABEL: domain.metadata.uid}
        for namespace in ("team", "thief"):
            metadata = {"name": "waits", "namespace": namespace, "labels": labels}
            await kube.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": {}})

        async def is_reported(words: str) -> bool:
            return any(words in condition.message for condition in (await cluster.read(domain)).status.conditions)

        await until(lambda: is_reported("a pod of the domain cannot be scheduled"))
        await kube.delete(RESOURCE_CLAIMS, "waits", namespace="team")
        await until(lambda: is_reported("no pod of the domain has been given a node yet"))


async def test_claims_of_another_namespace_bring_no_node_into_a_domain(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        await becomes(cluster, domain, "NoNodes")
        stranger = domain.model_copy(update={"metadata": domain.metadata.model_copy(update={"namespace": "thief"})})
        template = await kube.get(RESOURCE_CLAIM_TEMPLATES, "train-channel", "team")
        template["metadata"] = {"name": "train-channel", "namespace": "thief"}
        await kube.create(RESOURCE_CLAIM_TEMPLATES, template)
        await cluster.use(stranger, "tray-1")
        await cluster.use(domain, "tray-2")
        await becomes(cluster, domain, "AllNodesReady")
        assert list(await cluster.labels()) == ["tray-2"]


async def test_a_fabric_that_is_not_complete_keeps_its_node_out_until_it_is(kube: Kube, cluster: DomainCluster) -> None:
    await cluster.node("tray-4", 0, state="InProgress")
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        await cluster.use(domain, "tray-4")
        waiting = await becomes(cluster, domain, "FabricIncomplete")
        message = next(condition.message for condition in waiting.status.conditions if condition.type == "Ready")
        assert "tray-4" in message
        assert "InProgress" in message
        stored = await kube.get(NODE_INVENTORIES, "tray-4")
        await kube.replace(NODE_INVENTORIES, {**stored, "spec": inventory_of("tray-4")["spec"]})
        await becomes(cluster, domain, "AllNodesReady")


async def test_a_daemon_of_the_node_itself_is_named_where_that_of_the_domain_does_not_start(
    kube: Kube, cluster: DomainCluster
) -> None:
    busy = "nvidia-imex (812, nvidia-imex.service) manages the node's fabric"
    async with running_keeper(kube), tended(kube) as daemons:
        daemons.broken.add("tray-1")
        domain = await cluster.domain("train")
        await cluster.use(domain, "tray-1")
        await becomes(cluster, domain, "DaemonsNotReady")
        stored = await kube.get(NODE_INVENTORIES, "tray-1")
        problem = {"subject": "IMEX", "reason": "ForeignDaemon", "message": busy}
        await kube.replace(NODE_INVENTORIES, {**stored, "spec": {**stored["spec"], "problems": [problem]}})

        async def is_named() -> bool:
            return [str(node.message).endswith(busy) for node in (await cluster.read(domain)).status.nodes] == [True]

        await until(is_named)


async def test_a_daemon_that_is_not_ready_is_named(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube) as daemons:
        daemons.broken.add("tray-2")
        domain = await cluster.domain("train")
        await cluster.use(domain, "tray-1")
        await cluster.use(domain, "tray-2")
        waiting = await becomes(cluster, domain, "DaemonsNotReady")

        async def one_of_two() -> bool:
            return (await cluster.read(domain)).status.ready_nodes == "1/2"

        await until(one_of_two)
        waiting = await cluster.read(domain)
        message = next(condition.message for condition in waiting.status.conditions if condition.type == "Ready")
        assert message.startswith("1 of 2 nodes: tray-2")
        daemons.broken.clear()
        daemons.poke()
        await becomes(cluster, domain, "AllNodesReady")


async def test_a_template_of_somebody_else_is_left_alone_and_named(kube: Kube, cluster: DomainCluster) -> None:
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "mine", "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "x"}}]}}},
    }
    await kube.create(RESOURCE_CLAIM_TEMPLATES, foreign)
    async with running_keeper(kube):
        domain = await cluster.domain("train", template="mine")
        await becomes(cluster, domain, "TemplateNameTaken")
        await cluster.delete(domain)
        await gone(cluster, domain)
        stored = await kube.get(RESOURCE_CLAIM_TEMPLATES, "mine", "team")
        assert stored["spec"]["spec"] == foreign["spec"]["spec"] | stored["spec"]["spec"]
        assert "labels" not in stored["metadata"]


@pytest.mark.parametrize("client", [Kube, late(RESOURCE_CLAIM_TEMPLATES, 1.0)])
async def test_a_name_that_becomes_free_is_taken_at_once(
    api_server: SimulatedApiServer, cluster: DomainCluster, client: type[Kube], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also that of a domain that is made again while its template of before goes."""
    for module in ("keeper", "cluster"):
        monkeypatch.setattr(f"controller.computedomains.{module}.FOREIGN_AGAIN_S", 3600.0)
    async with client(Endpoint(api_server.url)) as kube, running_keeper(kube):
        first = await cluster.domain("one", template="shared")

        async def made() -> bool:
            return bool((await kube.list(RESOURCE_CLAIM_TEMPLATES, namespace="team")).items)

        await until(made)
        second = await cluster.domain("two", template="shared")
        await becomes(cluster, second, "TemplateNameTaken")
        await cluster.delete(first)
        await gone(cluster, first)
        await becomes(cluster, second, "NoNodes")


async def test_a_keeper_that_ends_anywhere_is_followed_by_one_that_goes_on(kube: Kube, cluster: DomainCluster) -> None:
    """Twenty keepers, each killed a little later than the one before, while domains come, are used, and go."""
    async with tended(kube):
        domains = [await cluster.domain("one"), await cluster.domain("two", num_nodes=2)]
        users = asyncio.create_task(_users(cluster, domains))
        for pause in range(20):
            async with running_keeper(kube):
                await asyncio.sleep(0.01 * pause)
        async with running_keeper(kube):
            await users
            for domain in domains:
                await gone(cluster, domain)
            assert await cluster.left() == []


async def _users(cluster: DomainCluster, domains: list[ComputeDomain]) -> None:
    claims = []
    for domain, nodes in zip(domains, (("tray-1", "alone"), ("tray-2", "tray-3")), strict=True):
        claims += [(domain, await cluster.use(domain, node)) for node in nodes]
    for domain, claim in claims:
        await cluster.release(domain, claim)
    for domain in domains:
        await cluster.delete(domain)


async def test_what_a_domain_left_behind_is_swept(kube: Kube, cluster: DomainCluster) -> None:
    """Somebody took the finalizer away and deleted it while no keeper was there."""
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        claim = await cluster.use(domain, "tray-1")
        await becomes(cluster, domain, "AllNodesReady")
    from dra_driver.api.meta import COMPUTE_DOMAINS

    await kube.merge_patch(COMPUTE_DOMAINS, "train", {"metadata": {"finalizers": None}}, namespace="team")
    await cluster.delete(domain)
    await cluster.release(domain, claim)
    async with running_keeper(kube), tended(kube):

        async def clean() -> bool:
            left = await cluster.left()
            # Owned by the domain: with a garbage collector it would be gone.
            return [name for name in left if name != "ResourceClaimTemplate train-channel"] == []

        await until(clean)


async def test_the_daemons_tolerate_every_taint_and_follow_the_label(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube):
        domain = await cluster.domain("train")
        await becomes(cluster, domain, "NoNodes")
        made = await kube.get(DAEMON_SETS, daemon_object_name(domain.metadata.uid), DRIVER_NAMESPACE)
        pod = made["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"resource.nvidia.com/computeDomain": domain.metadata.uid}
        assert pod["tolerations"] == [{"operator": "Exists"}]
