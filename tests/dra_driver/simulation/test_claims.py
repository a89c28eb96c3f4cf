from collections.abc import AsyncIterator

import pytest_asyncio
from support.observed_api import ObservedApiServer
from support.scheduling import NAMESPACE, Desk, desk, device

from dra_driver.api.meta import PODS, RESOURCE_CLAIMS, JsonObject
from dra_driver.kube.client import Kube


@pytest_asyncio.fixture
async def cluster(api_server: ObservedApiServer, kube: Kube) -> AsyncIterator[Desk]:
    """A class, a node of two devices, and both controllers at work."""
    async with desk(api_server, kube) as new_desk:
        await new_desk.device_class()
        await new_desk.node("node-1", device("gpu-0"), device("gpu-1"))
        new_desk.start_claim_controller()
        new_desk.start_scheduler()
        yield new_desk


async def generated(cluster: Desk, pod: str, entry: str) -> JsonObject:
    """The claim that was made for an entry of a pod."""

    async def name() -> str | None:
        statuses = (await cluster.get_pod(pod)).get("status", {}).get("resourceClaimStatuses") or ()
        return next((status["resourceClaimName"] for status in statuses if status["name"] == entry), None)

    return await cluster.get_claim(await cluster.until(name))


# -- making claims


async def test_every_template_entry_of_a_pod_gets_a_claim_of_its_own(cluster: Desk) -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "x"}}
    await cluster.template("one", metadata=metadata)
    await cluster.template("two")
    pod = await cluster.pod("train", templates=("one", "two"))
    claim = await generated(cluster, "train", "one")
    assert claim["metadata"]["name"].startswith("train-one-")
    assert claim["metadata"]["labels"] == {"team": "a"}
    assert claim["metadata"]["annotations"] == {"note": "x", "resource.kubernetes.io/pod-claim-name": "one"}
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", pod["metadata"]["uid"], True)
    assert (await generated(cluster, "train", "two"))["metadata"]["uid"] != claim["metadata"]["uid"]


async def test_a_long_pod_name_leaves_room_for_the_random_part(cluster: Desk) -> None:
    await cluster.template("one")
    await cluster.pod("p" * 63, templates=("one",))
    claim = await generated(cluster, "p" * 63, "one")
    assert claim["metadata"]["generateName"] == "p" * 57
    assert len(claim["metadata"]["name"]) == 62


async def test_a_missing_template_is_told_once_and_used_when_it_comes(cluster: Desk) -> None:
    await cluster.pod("early", templates=("later",))

    async def event_written() -> bool:
        return bool(await cluster.events("early"))

    await cluster.until(event_written)
    await cluster.pod("unrelated")
    await cluster.scheduled("unrelated")
    missing = 'resourceclaimtemplate.resource.k8s.io "later" not found'
    message = f'PodResourceClaim later: resource claim template "later": {missing}'
    assert await cluster.events("early") == [("FailedResourceClaimCreation", message)]
    await cluster.template("later")
    assert await cluster.scheduled("early") == "node-1"


async def test_a_claim_that_the_server_refuses_is_told(cluster: Desk) -> None:
    await cluster.template("one")
    cluster.server.fail_next("POST", r"/resourceclaims$", 422, 1, "exceeded quota")
    await cluster.pod("p", templates=("one",))

    async def event_written() -> bool:
        return bool(await cluster.events("p"))

    await cluster.until(event_written)
    ((reason, message), *_) = await cluster.events("p")
    assert reason == "FailedResourceClaimCreation"
    assert "ResourceClaimTemplate one makes no valid claim" in message
    assert "exceeded quota" in message


async def test_a_claim_whose_pod_was_not_told_of_it_is_found_again(api_server: ObservedApiServer, kube: Kube) -> None:
    """The controller ended between creating the claim and writing the pod's status."""
    async with desk(api_server, kube) as cluster:
        await cluster.template("one")
        await cluster.pod("p", templates=("one",))
        api_server.fail_next("PATCH", r"/pods/p/status", 409, 3)
        cluster.start_claim_controller()
        await generated(cluster, "p", "one")
        assert len(await cluster.claims()) == 1


# -- taking them back


async def test_a_scheduled_pod_that_is_being_deleted_keeps_its_claim_until_kubelet_is_through(cluster: Desk) -> None:
    await cluster.claim("mine")
    await cluster.pod("p", claims=("mine",))
    await cluster.scheduled("p")
    await cluster.kube.delete(PODS, "p", namespace=NAMESPACE)
    await cluster.template("other")
    await cluster.pod("marker", templates=("other",))
    await cluster.scheduled("marker")
    assert (await cluster.get_claim("mine"))["status"]["reservedFor"]
    await cluster.delete_pod("p")
    await cluster.released("mine")


async def test_a_new_pod_of_the_same_name_does_not_inherit_the_reservation(cluster: Desk) -> None:
    await cluster.claim("mine")
    old = await cluster.pod("p", claims=("mine",))
    await cluster.scheduled("p")
    await cluster.delete_pod("p")
    new = await cluster.pod("p", claims=("mine",))
    await cluster.scheduled("p")

    async def reserved_for_the_new_one() -> bool:
        consumers = (await cluster.get_claim("mine")).get("status", {}).get("reservedFor") or ()
        return [consumer["uid"] for consumer in consumers] == [new["metadata"]["uid"]]

    await cluster.until(reserved_for_the_new_one)
    assert old["metadata"]["uid"] != new["metadata"]["uid"]


async def test_a_deleted_claim_goes_when_its_last_pod_is_done(cluster: Desk) -> None:
    await cluster.claim("mine")
    await cluster.pod("p", claims=("mine",))
    await cluster.scheduled("p")
    await cluster.kube.delete(RESOURCE_CLAIMS, "mine", namespace=NAMESPACE)
    assert (await cluster.get_claim("mine"))["metadata"]["deletionTimestamp"]
    await cluster.delete_pod("p")
    await cluster.gone("mine")


async def test_consumers_that_are_no_pods_are_left_alone(cluster: Desk) -> None:
    await cluster.claim("mine")
    await cluster.pod("p", claims=("mine",))
    await cluster.scheduled("p")
    claim = await cluster.get_claim("mine")
    foreign = {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "other"}
    claim["status"]["reservedFor"].append(foreign)
    await cluster.kube.replace(RESOURCE_CLAIMS, claim, subresource="status")
    await cluster.delete_pod("p")

    async def only_foreign() -> bool:
        return bool((await cluster.get_claim("mine"))["status"]["reservedFor"] == [foreign])

    await cluster.until(only_foreign)
    assert (await cluster.get_claim("mine"))["status"]["allocation"]
