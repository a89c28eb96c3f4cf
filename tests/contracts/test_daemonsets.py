"""The DaemonSet controller: which pods there are, how they look, and what the status counts.

Nothing schedules or runs pods here: what kubelet would write is written by the tests.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest_asyncio
from support.api import Api

from dra_driver.kube.client import Endpoint, Kube
from dra_driver.simulation.workloads.controller import SimulatedWorkloadController

NODES = "/api/v1/nodes"


class Daemons:
    """A DaemonSet for two of three nodes, in a namespace of its own; all called `unique`."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.name = api, namespace
        self.sets = f"/apis/apps/v1/namespaces/{namespace}/daemonsets"
        self.path = f"{self.sets}/{namespace}"

    def node(self, number: int) -> str:
        return f"{self.name}-{number}"

    async def label(self, number: int, value: str | None) -> None:
        await self.api.patch(f"{NODES}/{self.node(number)}", {"metadata": {"labels": {self.name: value}}})

    async def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.api.get(f"/api/v1/namespaces/{self.name}/pods"))["items"]
        return items

    async def nodes(self) -> list[str]:
        return sorted(wanted_node(pod) for pod in await self.pods())

    async def become(self, *numbers: int) -> None:
        """Until the pods are those of these nodes."""

        async def there() -> bool:
            return await self.nodes() == [self.node(number) for number in numbers]

        await self.api.eventually(there)

    async def counted(self, **wanted: int) -> None:
        """Until the status says so; what is not named is 0 or absent."""

        async def so() -> bool:
            status = (await self.api.get(self.path))["status"]
            return {name: count for name, count in status.items() if count and name != "observedGeneration"} == wanted

        await self.api.eventually(so)

    async def make_ready(self, pod: dict[str, Any]) -> None:
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        path = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}/status"
        await self.api.patch(path, {"status": ready})

    async def remove(self) -> None:
        await self.api.delete(self.path)
        for number in range(3):
            await self.api.delete(f"{NODES}/{self.node(number)}")


def wanted_node(pod: dict[str, Any]) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = affinity["nodeSelectorTerms"]
    assert term.keys() == {"matchFields"}
    (field,) = term["matchFields"]
    assert (field["key"], field["operator"]) == ("metadata.name", "In")
    (name,) = field["values"]
    return str(name)


@pytest_asyncio.fixture
async def daemons(api: Api, namespace: str) -> AsyncIterator[Daemons]:
    api.needs_controllers()
    daemons_ = Daemons(api, namespace)
    for number in range(3):
        await api.post(NODES, {"metadata": {"name": daemons_.node(number)}})
    for number in (0, 1):
        await daemons_.label(number, "yes")
    spec = {
        "selector": {"matchLabels": {"app": namespace}},
        "template": {
            "metadata": {"labels": {"app": namespace}},
            "spec": {
                "nodeSelector": {namespace: "yes"},
                # A node that nobody runs is tainted.
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "one"}],
            },
        },
    }
    await api.post(daemons_.sets, {"apiVersion": "apps/v1", "metadata": {"name": namespace}, "spec": spec})
    simulated = None
    async with Kube(Endpoint(api.url)) if api.simulated else nullcontext() as kube:
        if kube is not None:
            simulated = asyncio.create_task(SimulatedWorkloadController(kube).run())
        yield daemons_
        await daemons_.remove()
        if simulated is not None:
            simulated.cancel()
            await asyncio.gather(simulated, return_exceptions=True)


async def test_each_selected_node_gets_a_pod_that_is_for_it_alone(daemons: Daemons) -> None:
    await daemons.become(0, 1)
    assert len(await daemons.pods()) == 2
    for pod in await daemons.pods():
        metadata = pod["metadata"]
        assert metadata["generateName"] == f"{daemons.name}-"
        assert metadata["labels"].keys() == {"app", "controller-revision-hash", "pod-template-generation"}
        (owner,) = metadata["ownerReferences"]
        assert {**owner, "uid": ""} == {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": daemons.name,
            "uid": "",
            "controller": True,
            "blockOwnerDeletion": True,
        }
        tolerated = {
            (toleration.get("key"), toleration["operator"], toleration.get("effect"))
            for toleration in pod["spec"]["tolerations"]
        }
        prefix = "node.kubernetes.io"
        assert tolerated >= {
            (None, "Exists", None),
            (f"{prefix}/not-ready", "Exists", "NoExecute"),
            (f"{prefix}/unreachable", "Exists", "NoExecute"),
            (f"{prefix}/disk-pressure", "Exists", "NoSchedule"),
            (f"{prefix}/memory-pressure", "Exists", "NoSchedule"),
            (f"{prefix}/pid-pressure", "Exists", "NoSchedule"),
            (f"{prefix}/unschedulable", "Exists", "NoSchedule"),
        }
    await daemons.counted(
        currentNumberScheduled=2, desiredNumberScheduled=2, numberUnavailable=2, updatedNumberScheduled=2
    )


async def test_pods_come_and_go_with_labels_and_the_status_counts_those_that_are_ready(daemons: Daemons) -> None:
    await daemons.become(0, 1)
    await daemons.label(2, "yes")
    await daemons.label(0, None)
    await daemons.become(1, 2)
    await daemons.make_ready((await daemons.pods())[0])
    await daemons.counted(
        currentNumberScheduled=2,
        desiredNumberScheduled=2,
        numberAvailable=1,
        numberReady=1,
        numberUnavailable=1,
        updatedNumberScheduled=2,
    )


async def test_a_pod_that_is_deleted_or_has_ended_is_replaced(daemons: Daemons) -> None:
    await daemons.become(0, 1)
    first, second = await daemons.pods()
    await daemons.api.delete(f"/api/v1/namespaces/{daemons.name}/pods/{first['metadata']['name']}")
    path = f"/api/v1/namespaces/{daemons.name}/pods/{second['metadata']['name']}/status"
    await daemons.api.patch(path, {"status": {"phase": "Failed"}})
    before = {first["metadata"]["uid"], second["metadata"]["uid"]}

    async def replaced() -> bool:
        return len(before & {pod["metadata"]["uid"] for pod in await daemons.pods()}) == 0

    await daemons.api.eventually(replaced)
    await daemons.become(0, 1)


async def test_a_changed_template_replaces_pods_that_are_not_ready(daemons: Daemons) -> None:
    await daemons.become(0, 1)
    container = {"name": "main", "image": "two"}
    await daemons.api.patch(daemons.path, {"spec": {"template": {"spec": {"containers": [container]}}}})

    async def replaced() -> bool:
        images = [pod["spec"]["containers"][0]["image"] for pod in await daemons.pods()]
        return images == ["two", "two"]

    await daemons.api.eventually(replaced)
    await daemons.counted(
        currentNumberScheduled=2, desiredNumberScheduled=2, numberUnavailable=2, updatedNumberScheduled=2
    )
