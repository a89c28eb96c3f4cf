"""What befalls domains while they live: deletions, nodes that come and go, other keepers, other people's hands."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest_asyncio
from support.domain_cluster import (
    DRIVER_NAMESPACE,
    SETTINGS,
    DomainCluster,
    becomes,
    gone,
    reason,
    running_keeper,
    tended,
    until,
)

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import DAEMON_SETS, NODE_INVENTORIES, NODES, RESOURCE_CLAIM_TEMPLATES
from dra_driver.domains.names import daemon_object_name
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube

TRAYS = ("tray-1", "tray-2", "tray-3")


@pytest_asyncio.fixture
async def cluster(kube: Kube) -> AsyncIterator[DomainCluster]:
    cluster = DomainCluster(kube)
    await cluster.install()
    for name in TRAYS:
        await cluster.node(name, 0)
    yield cluster


async def places(cluster: DomainCluster, domain: ComputeDomain) -> dict[str, int]:
    return {node.name: node.index for node in (await cluster.read(domain)).status.nodes}


async def test_a_domain_that_is_deleted_while_it_starts_leaves_nothing_behind(
    kube: Kube, cluster: DomainCluster
) -> None:
    async with running_keeper(kube), tended(kube) as daemons:
        daemons.broken.update(TRAYS)
        domain = await cluster.domain("train")
        claims = [await cluster.use(domain, node) for node in TRAYS[:2]]
        await becomes(cluster, domain, "DaemonsNotReady")
        await cluster.delete(domain)
        terminating = await becomes(cluster, domain, "Terminating")
        ready = next(condition for condition in terminating.status.conditions if condition.type == "Ready")
        assert "delete the pods of" in ready.message
        for claim in claims:
            await cluster.release(domain, claim)
        await gone(cluster, domain)
        assert await cluster.left() == []


async def test_nodes_join_and_leave_while_the_others_keep_their_places(kube: Kube, cluster: DomainCluster) -> None:
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        claims = {node: await cluster.use(domain, node) for node in TRAYS[:2]}
        await becomes(cluster, domain, "AllNodesReady")

        async def has(*nodes: str) -> None:
            async def true() -> bool:
                status = (await cluster.read(domain)).status
                return {node.name for node in status.nodes} == set(nodes) and status.status == "Ready"

            await until(true)

        await has(*TRAYS[:2])
        before = await places(cluster, domain)
        await cluster.use(domain, "tray-3")
        await has(*TRAYS)
        grown = await places(cluster, domain)
        assert grown == {**before, "tray-3": 2}
        await cluster.release(domain, claims["tray-1"])
        await has("tray-2", "tray-3")
        assert await places(cluster, domain) == {"tray-2": before["tray-2"], "tray-3": 2}
        # A node that is gone with its pods, and what is new in its place.
        await kube.delete(NODE_INVENTORIES, "tray-2")
        await kube.delete(NODES, "tray-2")
        await becomes(cluster, domain, "NodeGone")
        await cluster.release(domain, claims["tray-2"])
        await cluster.node("tray-4", 0)
        await cluster.use(domain, "tray-4")
        await has("tray-3", "tray-4")
        assert (await places(cluster, domain))["tray-3"] == 2


async def test_a_domain_that_is_larger_than_a_clique_may_be_says_which_node_is_too_many(
    kube: Kube, cluster: DomainCluster
) -> None:
    async with running_keeper(kube, replace(SETTINGS, max_nodes=2)), tended(kube):
        domain = await cluster.domain("train")
        claims = [await cluster.use(domain, node) for node in TRAYS]

        async def two_in() -> bool:
            return len(await places(cluster, domain)) == 2

        await until(two_in)
        full = await becomes(cluster, domain, "CliqueFull")
        (left_out,) = set(TRAYS) - {node.name for node in full.status.nodes}
        assert left_out in next(condition.message for condition in full.status.conditions if condition.type == "Ready")
        await cluster.release(domain, claims[TRAYS.index(full.status.nodes[0].name)])
        ready = await becomes(cluster, domain, "AllNodesReady")
        assert left_out in {node.name for node in ready.status.nodes}


async def test_the_next_keeper_goes_on_where_the_last_one_was_and_two_at_once_do_no_harm(
    kube: Kube, cluster: DomainCluster
) -> None:
    async with tended(kube) as daemons:
        daemons.broken.add("tray-2")
        async with running_keeper(kube):
            domain = await cluster.domain("train")
            claims = [await cluster.use(domain, node) for node in TRAYS]
            await becomes(cluster, domain, "DaemonsNotReady")

            async def all_in() -> bool:
                return len(await places(cluster, domain)) == len(TRAYS)

            await until(all_in)
            before = await places(cluster, domain)
        daemons.broken.clear()
        daemons.poke()
        async with running_keeper(kube), running_keeper(kube):
            await becomes(cluster, domain, "AllNodesReady")
            assert await places(cluster, domain) == before
            for claim in claims:
                await cluster.release(domain, claim)
            await cluster.delete(domain)
            await gone(cluster, domain)
            assert await cluster.left() == []


async def test_what_somebody_deletes_of_a_domain_comes_back_and_what_he_changes_stays(
    kube: Kube, cluster: DomainCluster
) -> None:
    """A DaemonSet is not put right: that would restart daemons below running programs."""
    async with running_keeper(kube), tended(kube):
        domain = await cluster.domain("train")
        kept_claim = await cluster.use(domain, "tray-1")
        await becomes(cluster, domain, "AllNodesReady")
        daemons = daemon_object_name(domain.metadata.uid)
        for resource, name, namespace in (
            (RESOURCE_CLAIM_TEMPLATES, "train-channel", "team"),
            (RESOURCE_CLAIM_TEMPLATES, daemons, DRIVER_NAMESPACE),
            (DAEMON_SETS, daemons, DRIVER_NAMESPACE),
        ):
            old = (await kube.get(resource, name, namespace))["metadata"]["uid"]
            await kube.delete(resource, name, namespace=namespace)

            async def back(resource=resource, name=name, namespace=namespace, old=old) -> bool:
                try:
                    return bool((await kube.get(resource, name, namespace))["metadata"]["uid"] != old)
                except NotFound:
                    return False

            await until(back)
        await becomes(cluster, domain, "AllNodesReady")
        change = {"metadata": {"labels": None}, "spec": {"template": {"spec": {"priorityClassName": "mine"}}}}
        await kube.merge_patch(DAEMON_SETS, daemons, change, namespace=DRIVER_NAMESPACE)
        claim = await cluster.use(domain, "tray-2")  # something to look at it for
        await becomes(cluster, domain, "AllNodesReady")
        await cluster.release(domain, claim)
        stored = await kube.get(DAEMON_SETS, daemons, DRIVER_NAMESPACE)
        assert stored["spec"]["template"]["spec"]["priorityClassName"] == "mine"
        assert await reason(cluster, domain, "TemplateReady") == "TemplateMade"
        await cluster.delete(domain)
        await cluster.release(domain, kept_claim)
        await gone(cluster, domain)
        assert await cluster.left() == [], "also what lost its label"


async def test_another_image_reaches_daemons_when_nobody_uses_the_domain(kube: Kube, cluster: DomainCluster) -> None:
    """Neither before, for programs would lose their peers' memory, nor again and again."""

    newer = replace(SETTINGS, image="driver:2")

    async def image(domain: ComputeDomain) -> str:
        try:
            daemon_set = await kube.get(DAEMON_SETS, daemon_object_name(domain.metadata.uid), DRIVER_NAMESPACE)
        except NotFound:
            return ""
        return str(daemon_set["spec"]["template"]["spec"]["containers"][0]["image"])

    async with tended(kube):
        async with running_keeper(kube):
            used, idle = await cluster.domain("used"), await cluster.domain("idle")
            claim = await cluster.use(used, "tray-1")
            await becomes(cluster, used, "AllNodesReady")
            await becomes(cluster, idle, "NoNodes")

        async def idle_is_new() -> bool:
            return await image(idle) == "driver:2"

        async def used_is_new() -> bool:
            return await image(used) == "driver:2"

        async with running_keeper(kube, newer):
            await until(idle_is_new)
            assert await image(used) == SETTINGS.image
            await becomes(cluster, used, "AllNodesReady")
            await cluster.release(used, claim)
            await until(used_is_new)
            await cluster.use(used, "tray-2")
            await becomes(cluster, used, "AllNodesReady")
            uids = [daemon_set["metadata"]["uid"] for daemon_set in (await kube.list(DAEMON_SETS)).items]
            changed = {"spec": {"template": {"spec": {"priorityClassName": "mirrored"}}}}
            await kube.merge_patch(
                DAEMON_SETS, daemon_object_name(idle.metadata.uid), changed, namespace=DRIVER_NAMESPACE
            )
        async with running_keeper(kube, newer):
            await becomes(cluster, used, "AllNodesReady")
            assert [daemon_set["metadata"]["uid"] for daemon_set in (await kube.list(DAEMON_SETS)).items] == uids
