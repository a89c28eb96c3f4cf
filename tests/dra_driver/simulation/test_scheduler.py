import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.observed_api import ObservedApiServer
from support.scheduling import NAMESPACE, Desk, desk, device

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.meta import DEVICE_CLASSES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.kube.client import Kube


@pytest_asyncio.fixture
async def cluster(api_server: ObservedApiServer, kube: Kube) -> AsyncIterator[Desk]:
    """A class, and both controllers at work."""
    async with desk(api_server, kube) as new_desk:
        await new_desk.device_class()
        new_desk.start_claim_controller()
        new_desk.start_scheduler()
        yield new_desk


def exact(name: str = "gpu", expression: str | None = None, **fields: object) -> JsonObject:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"name": name, "exactly": {"deviceClassName": "gpu", "selectors": selectors, **fields}}


# -- the ordinary way


async def test_a_pod_without_claims_is_scheduled_too(cluster: Desk) -> None:
    await cluster.node("node-1")
    await cluster.pod("plain")
    assert await cluster.scheduled("plain") == "node-1"
    conditions = (await cluster.get_pod("plain"))["status"]["conditions"]
    assert {condition["type"]: condition["status"] for condition in conditions} == {"PodScheduled": "True"}

    async def is_reported() -> bool:
        return [reason for reason, _ in await cluster.events("plain")] == ["Scheduled"]

    await cluster.until(is_reported)


async def test_pods_created_at_once_never_get_one_device_twice(cluster: Desk) -> None:
    for number in range(2):
        await cluster.node(f"node-{number}", *(device(f"gpu-{number}{index}") for index in range(4)))
    await cluster.template("one")
    names = [f"pod-{number:02}" for number in range(12)]
    for name in names:
        await cluster.pod(name, templates=("one",))

    async def eight_run() -> list[str] | None:
        pods = [await cluster.get_pod(name) for name in names]
        scheduled = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
        return scheduled if len(scheduled) == 8 else None

    scheduled = await cluster.until(eight_run)
    devices = [device for name in scheduled for device in await cluster.devices_of(name)]
    assert len(set(devices)) == 8
    for name in set(names) - set(scheduled):
        assert "4 in use" in await cluster.waiting(name)


# -- claims that several pods use


async def test_a_pod_that_may_not_run_where_its_claim_is_says_so(cluster: Desk) -> None:
    await cluster.node("node-1")
    await cluster.node("node-2", device("gpu-0"))
    await cluster.claim("shared")
    await cluster.pod("a", claims=("shared",))
    await cluster.scheduled("a")
    await cluster.pod("b", claims=("shared",), nodeSelector={"kubernetes.io/hostname": "node-1"})
    reason = await cluster.waiting("b")
    assert "1 of 2 nodes: claim shared is allocated to devices of another node" in reason
    assert "1 of 2 nodes: not selected by nodeSelector kubernetes.io/hostname=node-1" in reason


async def test_the_257th_pod_of_a_claim_is_told_that_there_is_no_room(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    # Consumers that the claim controller does not know how to look for stay.
    await cluster.claim("crowded")
    await cluster.pod("first", claims=("crowded",))
    await cluster.scheduled("first")
    claim = await cluster.get_claim("crowded")
    others = [{"apiGroup": "example.com", "resource": "jobs", "name": f"j{n}", "uid": f"u{n}"} for n in range(255)]
    claim["status"]["reservedFor"] += others
    await cluster.kube.replace(RESOURCE_CLAIMS, claim, subresource="status")
    await cluster.pod("late", claims=("crowded",))
    assert await cluster.waiting("late") == ("ResourceClaim crowded is in use by 256 pods, which is the maximum")


async def test_a_claim_that_is_being_deleted_is_not_used(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    await cluster.claim("old")
    await cluster.pod("a", claims=("old",))
    await cluster.scheduled("a")
    await cluster.kube.delete(RESOURCE_CLAIMS, "old", namespace=NAMESPACE)
    await cluster.pod("b", claims=("old",))
    assert await cluster.waiting("b") == "ResourceClaim old is being deleted"


# -- what is missing


async def test_a_pod_waits_for_its_claim_and_for_the_class(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    await cluster.pod("early", claims=("later",))
    reason = await cluster.waiting("early")
    assert reason == "there is no ResourceClaim default/later"
    await cluster.claim("later", {"name": "gpu", "exactly": {"deviceClassName": "special"}})
    assert await cluster.waiting("early", beside=reason) == (
        'claim default/later: request "gpu": there is no DeviceClass special'
    )
    assert (await cluster.reported("early")).startswith(
        "0/1 nodes are available: request gpu: device class special does not exist. no new claims to deallocate, "
    )
    await cluster.device_class("special")
    assert await cluster.scheduled("early") == "node-1"


async def test_a_pod_waits_for_nodes_and_for_slices(cluster: Desk) -> None:
    await cluster.claim("mine")
    await cluster.pod("early", claims=("mine",))
    reason = await cluster.waiting("early")
    assert reason == "there are no nodes"
    await cluster.node("node-1")
    assert await cluster.waiting("early", beside=reason) == ("1 of 1 nodes: no devices are published for it")
    await cluster.slice("node-1", device("gpu-0"))
    assert await cluster.scheduled("early") == "node-1"


async def test_a_failing_selector_keeps_the_pod_waiting_until_the_slice_is_repaired(cluster: Desk) -> None:
    """Behavior 29 of the reference: a CEL run-time error is no mismatch."""
    await cluster.node("node-1", device("gpu-0"))
    await cluster.node("node-2", device("gpu-1", model="H100"))
    await cluster.claim("h100", exact(expression="device.attributes['gpu.nvidia.com'].model == 'H100'"))
    await cluster.pod("picky", claims=("h100",))
    reason = await cluster.waiting("picky")
    assert "selector 0 on device gpu.nvidia.com/node-1/gpu-0: column 1: no such key: model" in reason
    slice_ = await cluster.kube.get(RESOURCE_SLICES, "node-1-gpu")
    slice_["spec"]["devices"][0]["attributes"]["model"] = {"string": "A100"}
    slice_["spec"]["pool"]["generation"] = 2
    await cluster.kube.replace(RESOURCE_SLICES, slice_)
    assert await cluster.scheduled("picky") == "node-2"


# -- nodes


async def test_nodes_that_do_not_want_the_pod_are_passed_over_with_a_reason_each(cluster: Desk) -> None:
    await cluster.node("a", device("gpu-a"), spec={"unschedulable": True})
    await cluster.node("b", device("gpu-b"), spec={"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]})
    await cluster.claim("mine")
    await cluster.pod("p", claims=("mine",))
    reason = await cluster.waiting("p")
    assert "1 of 2 nodes: cordoned" in reason and "1 of 2 nodes: tainted team=x" in reason
    assert (await cluster.reported("p")).startswith(
        "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. still not sched"
    )
    await cluster.claim("tolerant")
    await cluster.pod("q", claims=("tolerant",), tolerations=[{"key": "team", "operator": "Exists"}])
    assert await cluster.scheduled("q") == "b"
    await cluster.kube.merge_patch(NODES, "a", {"spec": {"unschedulable": None}})
    assert await cluster.scheduled("p") == "a"


async def test_the_node_where_an_earlier_preference_fits_is_preferred(cluster: Desk) -> None:
    await cluster.node("a", device("gpu-a", model="T4"))
    await cluster.node("b", device("gpu-b", model="H100"))
    alternatives = [
        {
            "name": model.lower(),
            "deviceClassName": "gpu",
            "selectors": [{"cel": {"expression": f"device.attributes['gpu.nvidia.com'].model == '{model}'"}}],
        }
        for model in ("H200", "H100", "T4")
    ]
    await cluster.claim("best", {"name": "gpu", "firstAvailable": alternatives})
    await cluster.pod("p", claims=("best",))
    assert await cluster.scheduled("p") == "b"
    claim = await cluster.get_claim("best")
    assert claim["status"]["allocation"]["devices"]["results"][0]["request"] == "gpu/h100"


async def test_pods_of_another_scheduler_and_gated_pods_are_left_alone(cluster: Desk) -> None:
    await cluster.node("node-1")
    await cluster.pod("other", schedulerName="mine")
    await cluster.pod("gated", schedulingGates=[{"name": "example.com/wait"}])
    await cluster.pod("ours")
    await cluster.scheduled("ours")
    for name in ("other", "gated"):
        assert "nodeName" not in (await cluster.get_pod(name))["spec"]


# -- admin access


async def test_admin_access_neither_needs_nor_takes_free_devices(cluster: Desk) -> None:
    await cluster.kube.merge_patch(
        NAMESPACES, NAMESPACE, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    )
    await cluster.node("node-1", device("gpu-0"), device("gpu-1"))
    await cluster.claim("first")
    await cluster.pod("worker", claims=("first",))
    await cluster.scheduled("worker")
    await cluster.claim("admin", exact(adminAccess=True, allocationMode="All"))
    await cluster.pod("monitor", claims=("admin",))
    await cluster.scheduled("monitor")
    assert await cluster.devices_of("monitor") == ["gpu-0", "gpu-1"]
    await cluster.claim("second")
    await cluster.pod("another", claims=("second",))
    await cluster.scheduled("another")
    assert await cluster.devices_of("another") == ["gpu-1"]


# -- extended resources


def container(name: str, **amounts: str) -> JsonObject:
    limits = {key.replace("nvidia", "nvidia.com/"): value for key, value in amounts.items()}
    return {"name": name, "image": "image", "resources": {"limits": limits, "requests": limits}}


async def test_every_class_answers_to_its_implicit_resource(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    amounts = {"deviceclass.resource.kubernetes.io/gpu": "1"}
    resources = {"limits": amounts, "requests": amounts}
    await cluster.pod("implicit", containers=[{"name": "main", "image": "image", "resources": resources}])
    await cluster.scheduled("implicit")
    assert await cluster.devices_of("implicit") == ["gpu-0"]


async def test_a_node_with_a_device_plugin_serves_the_resource_without_a_claim(cluster: Desk) -> None:
    await cluster.device_class("gpu.nvidia.com", extendedResourceName="nvidia.com/gpu")
    await cluster.node("node-1", device("gpu-0"))
    await cluster.allocatable("node-1", nvidiadotcom_gpu="1")
    await cluster.pod("small", containers=[container("main", nvidiagpu="1")])
    assert await cluster.scheduled("small") == "node-1"
    assert await cluster.claims() == []
    await cluster.pod("large", containers=[container("main", nvidiagpu="2")])
    assert await cluster.waiting("large") == "1 of 1 nodes: too little nvidia.com/gpu"


async def test_a_resource_that_nobody_offers_keeps_the_pod_waiting(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    await cluster.pod("p", containers=[container("main", nvidiagpu="1")])
    reason = await cluster.waiting("p")
    assert reason == "1 of 1 nodes: no nvidia.com/gpu"
    assert "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. " in await cluster.reported("p")
    await cluster.kube.merge_patch(DEVICE_CLASSES, "gpu", {"spec": {"extendedResourceName": "nvidia.com/gpu"}})
    assert await cluster.scheduled("p") == "node-1"


async def test_extended_claims_go_with_their_pod_and_free_the_device(cluster: Desk) -> None:
    await cluster.device_class("gpu.nvidia.com", extendedResourceName="nvidia.com/gpu")
    await cluster.node("node-1", device("gpu-0"))
    await cluster.pod("first", containers=[container("main", nvidiagpu="1")])
    await cluster.scheduled("first")
    await cluster.pod("second", containers=[container("main", nvidiagpu="1")])
    await cluster.waiting("second")
    await cluster.finish_pod("first")
    assert await cluster.scheduled("second") == "node-1"
    assert len(await cluster.claims()) == 1


async def test_a_pod_that_stays_pending_leaves_no_extended_claim_behind(cluster: Desk) -> None:
    await cluster.device_class("gpu.nvidia.com", extendedResourceName="nvidia.com/gpu")
    await cluster.node("node-1", device("gpu-0"))
    await cluster.pod("large", containers=[container("main", nvidiagpu="2")])
    assert "needs 2 devices; the node has 1" in await cluster.waiting("large")
    assert await cluster.claims() == []


# -- failures


async def test_conflicts_and_server_errors_are_tried_again(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    cluster.server.fail_next("PUT", r"/resourceclaims/[^/]+$", 409, 1)
    cluster.server.fail_next("PUT", r"/resourceclaims/[^/]+/status", 409, 2)
    cluster.server.fail_next("POST", r"/binding", 500, 2)
    await cluster.claim("mine")
    await cluster.pod("p", claims=("mine",))
    assert await cluster.scheduled("p") == "node-1"
    assert len((await cluster.get_claim("mine"))["status"]["reservedFor"]) == 1


async def test_an_extended_claim_of_a_failed_attempt_is_not_left_over(cluster: Desk) -> None:
    await cluster.device_class("gpu.nvidia.com", extendedResourceName="nvidia.com/gpu")
    await cluster.node("node-1", device("gpu-0"))
    cluster.server.fail_next("POST", r"/binding", 500, 1)
    await cluster.pod("old", containers=[container("main", nvidiagpu="1")])
    await cluster.scheduled("old")
    (claim,) = await cluster.claims()
    status = (await cluster.get_pod("old"))["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == claim["metadata"]["name"]


async def test_a_server_that_was_away_is_followed_again(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    await cluster.pod("before")
    await cluster.scheduled("before")
    port = int(cluster.server.url.rpartition(":")[2])
    await cluster.server.stop()
    await cluster.server.start(port=port)
    await cluster.claim("mine")
    await cluster.pod("after", claims=("mine",))
    assert await cluster.scheduled("after") == "node-1"


@pytest.mark.parametrize(
    ("meanwhile", "node"),
    [
        pytest.param({"metadata": {"labels": {"zone": "a"}}}, "node-1", id="finished by the next one"),
        pytest.param(
            {"spec": {"unschedulable": True}}, "node-2", id="given back, as it keeps its only pod from running"
        ),
    ],
)
async def test_a_claim_of_the_last_scheduler(
    api_server: ObservedApiServer, kube: Kube, meanwhile: JsonObject, node: str
) -> None:
    """It was allocated on node-1, and its pod was not yet bound."""
    async with desk(api_server, kube) as cluster:
        await cluster.device_class()
        for name in ("node-1", "node-2"):
            await cluster.node(name, device(f"{name}-gpu"))
        api_server.fail_next("POST", r"/binding", 500, 1000)
        scheduler = cluster.start_scheduler()
        await cluster.claim("mine")
        await cluster.pod("p", claims=("mine",))

        async def allocated() -> bool:
            return bool((await cluster.get_claim("mine")).get("status", {}).get("allocation"))

        await cluster.until(allocated)
        await cluster.stop(scheduler)
        await kube.merge_patch(NODES, "node-1", meanwhile)
        api_server.clear_faults()
        cluster.start_scheduler()
        assert await cluster.scheduled("p") == node
        assert await cluster.devices_of("p") == [f"{node}-gpu"]
        assert len((await cluster.get_claim("mine"))["status"]["reservedFor"]) == 1


async def test_a_scheduler_at_rest_writes_nothing(cluster: Desk) -> None:
    await cluster.node("node-1", device("gpu-0"))
    await cluster.claim("mine")
    await cluster.claim("too-much", exact(count=2))
    await cluster.pod("runs", claims=("mine",))
    await cluster.pod("waits", claims=("too-much",))
    await cluster.scheduled("runs")
    await cluster.waiting("waits")
    before = (await cluster.kube.list(PODS)).resource_version
    await cluster.kube.merge_patch(NODES, "node-1", {"metadata": {"labels": {"a": "b"}}})
    await cluster.pod("marker")
    await cluster.scheduled("marker")
    waits = await cluster.get_pod("waits")
    assert int(waits["metadata"]["resourceVersion"]) <= int(before)


# -- devices that a node prepares before the pod is bound

BINDS: JsonObject = {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}


async def says(cluster: Desk, condition: str, value: str = "True") -> None:
    """The node of the only claim answers."""
    (claim,) = await cluster.claims()
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    reported = {"type": condition, "status": value, "reason": "Because", "message": "of that"}
    reported["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    identity = {name: result[name] for name in ("driver", "pool", "device")}
    claim["status"]["devices"] = [{**identity, "conditions": [reported]}]
    await cluster.kube.replace(RESOURCE_CLAIMS, claim, subresource="status")


async def allocated_device(cluster: Desk, *, but: str = "") -> str:
    async def device_name() -> str | None:
        for claim in await cluster.claims():
            for item in ((claim.get("status") or {}).get("allocation") or {"devices": {}})["devices"].get(
                "results", ()
            ):
                if item["device"] != but:
                    return str(item["device"])
        return None

    return await cluster.until(device_name)


async def test_a_pod_is_bound_when_its_node_has_prepared_the_device(cluster: Desk) -> None:
    await cluster.node("node-1", {**device("gpu-0"), **BINDS})
    await cluster.template("one")
    await cluster.pod("train", templates=("one",))
    assert await allocated_device(cluster) == "gpu-0"
    await says(cluster, BINDING_READY, "False")
    await asyncio.sleep(0.2)
    pod = await cluster.get_pod("train")
    assert "nodeName" not in pod["spec"]
    (claim,) = await cluster.claims()
    assert claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]
    await says(cluster, BINDING_READY)
    assert await cluster.scheduled("train") == "node-1"
    assert [reason for reason, _ in await cluster.events("train")] == ["BindingConditionsPending", "Scheduled"]


async def test_a_pod_whose_node_gave_up_gets_another_device(cluster: Desk) -> None:
    await cluster.node("node-1", {**device("gpu-0"), **BINDS})
    await cluster.template("one")
    await cluster.pod("train", templates=("one",))
    assert await allocated_device(cluster) == "gpu-0"
    await cluster.node("node-2", device("gpu-1"))
    for item in (await cluster.kube.list(RESOURCE_SLICES)).items:
        if item["spec"]["nodeName"] == "node-1":
            item["spec"]["devices"][0]["taints"] = [{"key": "example.com/failed", "effect": "NoSchedule"}]
            await cluster.kube.replace(RESOURCE_SLICES, item)
    await says(cluster, BINDING_FAILED)
    assert await cluster.scheduled("train") == "node-2"
    (claim,) = await cluster.claims()
    assert "devices" not in claim["status"]
    assert ("FailedScheduling", "device binding failed: Because: of that") in [
        (reason, note.rpartition(": claim=")[0]) for reason, note in await cluster.events("train")
    ]


async def test_a_node_that_does_not_answer_is_given_up_in_the_end(api_server: ObservedApiServer, kube: Kube) -> None:
    async with desk(api_server, kube) as cluster:
        await cluster.device_class()
        cluster.start_claim_controller()
        cluster.start_scheduler(binding_timeout_s=0.2)
        await cluster.node("node-1", {**device("gpu-0"), **BINDS})
        await cluster.template("one")
        await cluster.pod("train", templates=("one",))
        await allocated_device(cluster)

        async def timed_out() -> bool | None:
            notes = [note for reason, note in await cluster.events("train") if reason == "FailedScheduling"]
            return any("device binding timeout" in note for note in notes) or None

        await cluster.until(timed_out)
        await allocated_device(cluster)
        await says(cluster, BINDING_READY)
        assert await cluster.scheduled("train") == "node-1"


async def test_a_pod_that_is_deleted_while_it_waits_gives_its_claim_back(cluster: Desk) -> None:
    await cluster.node("node-1", {**device("gpu-0"), **BINDS})
    await cluster.claim("mine")
    await cluster.pod("train", claims=("mine",))
    await allocated_device(cluster)
    await cluster.delete_pod("train")
    await cluster.released("mine")
    await cluster.pod("again", claims=("mine",))
    await allocated_device(cluster)
    await says(cluster, BINDING_READY)
    assert await cluster.scheduled("again") == "node-1"
