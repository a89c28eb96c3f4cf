"""GpuPolicies of the installation, and the status of each: controller/policies.py."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from support.background import background
from support.inventories import gpu_policy
from support.shipped import create_definitions

from controller.policies import PolicyKeeper
from dra_driver.api.gpupolicy import GpuPolicy, GpuPolicyStatus
from dra_driver.api.meta import CRDS, GPU_POLICIES, NODE_INVENTORIES, JsonObject, Resource
from dra_driver.errors import NotFound, Rejected
from dra_driver.features import Gates
from dra_driver.kube.client import Kube
from dra_driver.kube.events import News
from dra_driver.kube.watch import Watches


@pytest.fixture(autouse=True)
async def definitions(kube: Kube) -> None:
    await create_definitions(kube)


@pytest.mark.parametrize(
    ("mig", "mistake"),
    [
        ({"mode": "Static", "modeChange": "WhenIdle"}, "modeChange are for mode Dynamic"),
        ({"mode": "Dynamic", "modeChange": "Always"}, "modeChange"),
        ({"mode": "Dynamic", "modeChange": True}, "modeChange"),
        ({"modeChange": "WhenIdle"}, "mode"),
        ({"mode": "Static", "modeChange": "Never"}, None),
        ({"mode": "Dynamic", "modeChange": "WhenIdle"}, None),
    ],
)
async def test_the_api_server_refuses_a_mode_change_that_makes_no_sense(
    kube: Kube, mig: JsonObject, mistake: str | None
) -> None:
    kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
    with nullcontext() if mistake is None else pytest.raises(Rejected, match=mistake):
        await kube.create(GPU_POLICIES, {**kind, "metadata": {"name": "ml"}, "spec": {"mig": mig}})


@asynccontextmanager
async def keeping(
    kube: Kube, *installed: GpuPolicy, gates: Gates = Gates.DEFAULT, tell: Callable[[News], None] = lambda news: None
) -> AsyncIterator[PolicyKeeper]:
    watches = Watches(kube)
    keeper = PolicyKeeper(watches, gates, installed, tell)
    async with background(watches.run(), keeper.run()):
        yield keeper


async def specs(kube: Kube) -> dict[str, JsonObject]:
    """Without the default priority."""
    return {
        item["metadata"]["name"]: {key: value for key, value in item["spec"].items() if (key, value) != ("priority", 0)}
        for item in (await kube.list(GPU_POLICIES)).items
    }


async def until(kube: Kube, name: str, true: Callable[[GpuPolicyStatus], bool]) -> GpuPolicyStatus:
    async with asyncio.timeout(15):
        while True:
            obj = await kube.get(GPU_POLICIES, name)
            status = GpuPolicyStatus.of(obj.get("status") or {})
            if status.observed_generation == obj["metadata"]["generation"] and true(status):
                return status
            await asyncio.sleep(0.02)


async def has(kube: Kube, **wanted: JsonObject) -> None:
    async with asyncio.timeout(15):
        while True:
            if await specs(kube) == {name.replace("_", "-"): spec for name, spec in wanted.items()}:
                return
            await asyncio.sleep(0.02)


async def a_node(kube: Kube, name: str, **status: Any) -> None:
    spec = {
        "nodeName": name,
        "bootID": "b",
        "summary": {"gpus": 2, "healthy": "2/2", "product": "x", "driver": "1", "clique": "-"},
    }
    kind = {"apiVersion": NODE_INVENTORIES.api_version, "kind": NODE_INVENTORIES.kind}
    await kube.create(NODE_INVENTORIES, {**kind, "metadata": {"name": name}, "spec": spec})
    await kube.merge_patch(NODE_INVENTORIES, name, {"status": status}, subresource="status")


def conditions(status: GpuPolicyStatus) -> dict[str, str]:
    return {condition.type: condition.reason for condition in status.conditions}


# -- of the installation


async def test_policies_of_the_installation_are_made_changed_and_removed(kube: Kube) -> None:
    async with keeping(kube, gpu_policy("installed-a", publish=False), gpu_policy("installed-b", publish=True)):
        await has(kube, installed_a={"publish": False}, installed_b={"publish": True})
    await kube.create(GPU_POLICIES, gpu_policy("mine", publish=True).to_object())
    async with keeping(kube, gpu_policy("installed-a", publish=True, priority=-3)):
        await has(kube, installed_a={"publish": True, "priority": -3}, mine={"publish": True})


async def test_a_policy_of_the_installation_that_somebody_deletes_or_changes_is_made_again(kube: Kube) -> None:
    """The publisher goes by it all the time."""
    async with keeping(kube, gpu_policy("installed-a", publish=False)):
        await has(kube, installed_a={"publish": False})
        await kube.delete(GPU_POLICIES, "installed-a")
        await has(kube, installed_a={"publish": False})
        await kube.merge_patch(GPU_POLICIES, "installed-a", {"spec": {"publish": True}})
        await has(kube, installed_a={"publish": False})


async def test_a_policy_of_somebody_else_with_that_name_stays(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("installed-a", publish=True).to_object())
    async with keeping(kube, gpu_policy("installed-a", publish=False), gpu_policy("installed-b", publish=False)):
        await has(kube, installed_a={"publish": True}, installed_b={"publish": False})
    async with keeping(kube):
        await has(kube, installed_a={"publish": True})


async def test_a_policy_that_is_refused_keeps_no_other_from_being_made_or_answered(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await kube.create(GPU_POLICIES, gpu_policy(name, publish=True).to_object())
    create, merge_patch = kube.create, kube.merge_patch
    refusal = Rejected("another policy refuses it", about="GpuPolicy", status=422)

    async def creating(resource: Resource, obj: JsonObject) -> JsonObject:
        if obj["metadata"]["name"] == "installed-a":
            raise refusal
        return await create(resource, obj)

    async def patching(resource: Resource, name: str, patch: JsonObject, **more: Any) -> JsonObject:
        if name == "a":
            raise refusal
        return await merge_patch(resource, name, patch, **more)

    monkeypatch.setattr(kube, "create", creating)
    monkeypatch.setattr(kube, "merge_patch", patching)
    async with keeping(kube, gpu_policy("installed-a", publish=False), gpu_policy("installed-b", publish=False)):
        await has(kube, a={"publish": True}, b={"publish": True}, installed_b={"publish": False})
        await until(kube, "b", lambda status: status.conditions != [])


# -- statuses

GROUP = {"uuids": ["GPU-1", "GPU-2"], "policies": ["ml"]}
LIMIT = {
    "driver": "gpu.nvidia.com",
    "rule": "mig of GpuPolicy ml",
    "reason": "ResetNeeded",
    "gpus": ["gpu-1"],
    "message": "MIG mode is off",
    "fix": "reset it",
}


async def test_a_status_adds_up_what_nodes_do(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("ml", mig={"mode": "Dynamic"}).to_object())
    await kube.create(GPU_POLICIES, gpu_policy("other", publish=True).to_object())
    offered = [{"policy": "ml", "kind": "gpu", "devices": 2}]
    events: list[News] = []
    async with keeping(kube, tell=events.append):
        assert conditions(await until(kube, "ml", lambda status: bool(status.conditions))) == {
            "Accepted": "Accepted",
            "Followed": "Followed",
        }
        for number in range(3):
            await a_node(kube, f"n{number}", policy={"gpus": [GROUP], "offered": offered})
        status = await until(kube, "ml", lambda status: status.nodes == 3)
        assert (status.gpus, status.offered) == (6, "6 gpu")
        await a_node(kube, "bad", policy={"gpus": [GROUP]}, limitations=[LIMIT])
        await a_node(kube, "worse", policy={"gpus": [GROUP]}, limitations=[LIMIT])
        status = await until(kube, "ml", lambda status: status.nodes == 5 and bool(status.problems))
        (problem,) = status.problems
        assert (problem.reason, problem.nodes, problem.examples, problem.fix) == (
            "ResetNeeded",
            2,
            ["bad", "worse"],
            "reset it",
        )
        assert conditions(status)["Followed"] == "ResetNeeded"
        assert [(news.type, news.reason) for news in events] == [("Warning", "ResetNeeded")]
        assert "reset it" in events[0].note
        for name in ("bad", "worse"):
            await kube.delete(NODE_INVENTORIES, name)
        status = await until(kube, "ml", lambda status: status.nodes == 3)
        assert (status.problems, conditions(status)["Followed"]) == ([], "Followed")
        other = await until(kube, "other", lambda status: bool(status.conditions))
        assert (other.nodes, other.gpus, other.offered) == (0, 0, "")


async def test_gpus_that_wait_are_named_with_their_claims(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("ml", publish=False).to_object())
    waiting = [{"gpu": "gpu-1", "uuid": "GPU-1", "claims": ["team/one"], "policies": ["ml"]}]
    events: list[News] = []
    async with keeping(kube, tell=events.append):
        await a_node(kube, "n0", policy={"gpus": [GROUP], "waiting": waiting})
        status = await until(kube, "ml", lambda status: status.waiting_gpus == 1)
        assert [(gpu.node, gpu.gpu, gpu.claims) for gpu in status.waiting] == [("n0", "gpu-1", ["team/one"])]
        assert conditions(status) == {"Accepted": "Accepted", "Followed": "Waiting"}
        assert "team/one" in status.conditions[1].message
        await kube.merge_patch(NODE_INVENTORIES, "n0", {"status": {"policy": {"waiting": []}}}, subresource="status")
        await until(kube, "ml", lambda status: status.waiting_gpus == 0)
    assert [(news.regarding.name, news.type, news.reason) for news in events] == [
        ("ml", "Normal", "Waiting"),
        ("ml", "Normal", "Followed"),
    ]
    assert "team/one" in events[0].note


async def test_what_a_feature_gate_forbids_is_said(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("ml", passthrough=True, publish=True).to_object())
    async with keeping(kube, gates=Gates.parse("PassthroughSupport=false")):
        status = await until(kube, "ml", lambda status: bool(status.problems))
        (problem,) = status.problems
        assert problem.reason == "FeatureGateOff"
        assert "PassthroughSupport" in problem.message and "PassthroughSupport: true" in problem.fix


async def test_a_policy_that_makes_no_sense_is_named(kube: Kube) -> None:
    crd = next(item for item in (await kube.list(CRDS)).items if item["spec"]["names"]["kind"] == "GpuPolicy")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = anything
    await kube.replace(CRDS, crd)
    obj = gpu_policy("odd").to_object() | {"spec": {"mig": {"mode": "Sideways"}}}
    await kube.create(GPU_POLICIES, obj)
    events: list[News] = []
    async with keeping(kube, tell=events.append):
        status = await until(kube, "odd", lambda status: bool(status.conditions))
        (accepted,) = status.conditions
        assert (accepted.type, accepted.status, accepted.reason) == ("Accepted", "False", "Invalid")
        assert "mig.mode" in accepted.message
        before = await kube.get(GPU_POLICIES, "odd")
        await a_node(kube, "n0", policy={"gpus": []})
        await asyncio.sleep(1.5)
        assert await kube.get(GPU_POLICIES, "odd") == before, "it is said once"
    assert [news.reason for news in events] == ["Invalid"]


async def test_nothing_is_written_twice(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("ml", publish=True).to_object())
    async with keeping(kube):
        await until(kube, "ml", lambda status: bool(status.conditions))
    before = await kube.get(GPU_POLICIES, "ml")
    async with keeping(kube):
        await a_node(kube, "n0", policy={"gpus": []})
        await asyncio.sleep(1)
    assert await kube.get(GPU_POLICIES, "ml") == before


async def test_channels_are_known_once_the_policies_are(kube: Kube) -> None:
    await kube.create(GPU_POLICIES, gpu_policy("cd", computeDomains={"channels": 4}).to_object())
    async with keeping(kube) as keeper, asyncio.timeout(10):
        assert await keeper.several_channels()
        with pytest.raises(NotFound):
            await kube.get(GPU_POLICIES, "none")
