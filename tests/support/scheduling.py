"""A simulated cluster without nodes' processes: API server, scheduler and claim controller, and what they look at."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.observed_api import ObservedApiServer

from dra_driver.api.meta import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.simulation.controllers import SimulatedClaimController, SimulatedTaintEviction
from dra_driver.simulation.scheduler import SimulatedScheduler

NAMESPACE = "default"
_DEADLINE_S = 15.0


class Desk:
    """Where a test sits: writes objects as users and drivers do, and waits for what the controllers make of them."""

    def __init__(self, server: ObservedApiServer | None, kube: Kube) -> None:
        self._server = server
        self.kube = kube
        self.namespace = NAMESPACE
        self.class_name = "gpu"
        """Of requests that do not say another one."""
        self._made: list[tuple[Resource, str]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._scheduler: SimulatedScheduler | None = None

    @property
    def server(self) -> ObservedApiServer:
        assert self._server is not None, "this cluster's API server is a real one"
        return self._server

    async def clear(self) -> None:
        """Delete the nodes, slices and classes made here, and the pods: for servers that outlive the test."""
        await self.kube.delete_collection(PODS, namespace=self.namespace)
        for pod in (await self.kube.list(PODS, namespace=self.namespace)).items:
            await self.kube.delete(PODS, pod["metadata"]["name"], namespace=self.namespace, grace_period_s=0)
        for resource, name in reversed(self._made):
            await self.kube.delete(resource, name)

    # -- controllers

    def start_scheduler(self, *, binding_timeout_s: float = 600.0) -> asyncio.Task[None]:
        self._scheduler = SimulatedScheduler(self.kube, binding_timeout_s=binding_timeout_s)
        return self._start(self._scheduler.run())

    def start_claim_controller(self) -> asyncio.Task[None]:
        return self._start(SimulatedClaimController(self.kube).run())

    def start_eviction(self) -> asyncio.Task[None]:
        return self._start(SimulatedTaintEviction(self.kube).run())

    def _start(self, service: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(service)
        self._tasks.append(task)
        return task

    async def stop(self, *tasks: asyncio.Task[None]) -> None:
        """Cancel these services, all when none is named. An error that one ended with by itself is raised here."""
        stopping = tasks or tuple(self._tasks)
        self._tasks = [task for task in self._tasks if task not in stopping]
        ended = [task for task in stopping if task.done()]
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        for task in ended:
            task.result()

    # -- what users and drivers write

    async def node(self, name: str, *devices: JsonObject, spec: JsonObject | None = None, **metadata: Any) -> None:
        """A node, with a slice when it has devices."""
        await self._make(
            NODES,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}, **metadata},
                "spec": spec or {},
            },
        )
        # A real API server taints new nodes until a controller has seen them to be ready.
        await self.kube.merge_patch(NODES, name, {"spec": {"taints": (spec or {}).get("taints")}})
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        await self.kube.merge_patch(NODES, name, status, subresource="status")
        if devices:
            await self.slice(name, *devices)

    async def _make(self, resource: Resource, obj: JsonObject) -> JsonObject:
        """Create something without a namespace."""
        self._made.append((resource, obj["metadata"]["name"]))
        return await self.kube.create(resource, obj)

    async def allocatable(self, node: str, **amounts: str) -> None:
        """What a device plugin makes of a node; `_` in a name stands for `/`, `.` is written `dot`."""
        names = {name.replace("dot", ".").replace("_", "/"): amount for name, amount in amounts.items()}
        patch = {"status": {"allocatable": names, "capacity": names}}
        await self.kube.merge_patch(NODES, node, patch, subresource="status")

    async def slice(self, node: str, *devices: JsonObject, name: str | None = None, **pool: Any) -> JsonObject:
        return await self._make(
            RESOURCE_SLICES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name or f"{node}-gpu"},
                "spec": {
                    "driver": "gpu.nvidia.com",
                    "nodeName": node,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1, **pool},
                    "devices": list(devices),
                },
            },
        )

    async def device_class(self, name: str = "gpu", *expressions: str, **spec: Any) -> None:
        selectors = expressions or ("device.attributes['gpu.nvidia.com'].type == 'gpu'",)
        await self._make(
            DEVICE_CLASSES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}} for expression in selectors], **spec},
            },
        )

    async def claim(self, name: str, *requests: JsonObject, **devices: Any) -> JsonObject:
        obj = _claim_object("ResourceClaim", name, self._claim_spec(requests, devices))
        return await self.kube.create(RESOURCE_CLAIMS, obj, namespace=self.namespace)

    def _claim_spec(self, requests: tuple[JsonObject, ...], devices: JsonObject) -> JsonObject:
        default = {"name": "gpu", "exactly": {"deviceClassName": self.class_name}}
        return {"devices": {"requests": list(requests) or [default], **devices}}

    async def template(self, name: str, *requests: JsonObject, metadata: JsonObject | None = None) -> None:
        spec = {"metadata": metadata or {}, "spec": self._claim_spec(requests, {})}
        obj = _claim_object("ResourceClaimTemplate", name, spec)
        await self.kube.create(RESOURCE_CLAIM_TEMPLATES, obj, namespace=self.namespace)

    async def pod(
        self,
        name: str,
        *,
        claims: tuple[str, ...] = (),
        templates: tuple[str, ...] = (),
        containers: list[JsonObject] | None = None,
        **spec: Any,
    ) -> JsonObject:
        """A pod with claims by name, and claims from templates; entries are called as what they refer to."""
        entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        entries += [{"name": template, "resourceClaimTemplateName": template} for template in templates]
        container = {
            "name": "main",
            "image": "image",
            "resources": {"claims": [{"name": entry["name"]} for entry in entries]},
        }
        obj = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": containers or [container], "resourceClaims": entries, **spec},
        }
        return await self.kube.create(PODS, obj, namespace=self.namespace)

    async def delete_pod(self, name: str) -> None:
        """As kubelet ends it: at once."""
        await self.kube.delete(PODS, name, namespace=self.namespace, grace_period_s=0)

    async def finish_pod(self, name: str) -> None:
        status = {"status": {"phase": "Succeeded"}}
        await self.kube.merge_patch(PODS, name, status, namespace=self.namespace, subresource="status")

    # -- what is there

    async def get_pod(self, name: str) -> JsonObject:
        return await self.kube.get(PODS, name, self.namespace)

    async def get_claim(self, name: str) -> JsonObject:
        return await self.kube.get(RESOURCE_CLAIMS, name, self.namespace)

    async def claims(self) -> list[JsonObject]:
        return (await self.kube.list(RESOURCE_CLAIMS, namespace=self.namespace)).items

    async def events(self, pod: str) -> list[tuple[str, str]]:
        """Reason and message of the events about a pod, oldest first."""
        events = (await self.kube.list(EVENTS, namespace=self.namespace)).items
        mine = [event for event in events if event["involvedObject"]["name"] == pod]
        return [(event["reason"], event["message"]) for event in sorted(mine, key=_version)]

    # -- waiting

    async def until[T](self, look: Callable[[], Awaitable[T | None]], *, within_s: float = _DEADLINE_S) -> T:
        """The first answer that is true."""
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            if value := await look():
                return value
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not within {within_s} s: {look}")
            await asyncio.sleep(0.01)

    async def scheduled(self, name: str) -> str:
        """Wait for a pod's node."""

        async def node() -> str | None:
            node_name: str | None = (await self.get_pod(name))["spec"].get("nodeName")
            return node_name

        return await self.until(node)

    async def waiting(self, name: str, *, beside: str = "") -> str:
        """Wait for the reason why a pod is not scheduled, another one than `beside`: exactly that of the simulated
        scheduler, what a real one reports."""
        scheduler = self._scheduler
        if scheduler is None:
            return await self.reported(name, beside=beside)

        async def reason() -> str | None:
            known = scheduler.reasons.get((await self.get_pod(name))["metadata"]["uid"], "")
            return known if known != beside else None

        return await self.until(reason)

    async def reported(self, name: str, *, beside: str = "") -> str:
        """Wait for the message that the pod's condition has for its owner, another one than `beside`."""

        async def message() -> str | None:
            conditions = (await self.get_pod(name)).get("status", {}).get("conditions") or ()
            messages = [
                condition["message"]
                for condition in conditions
                if condition["type"] == "PodScheduled" and condition["status"] == "False"
            ]
            return messages[0] if messages and messages[0] != beside else None

        return await self.until(message)

    async def gone(self, claim: str) -> None:
        async def absent() -> bool:
            try:
                await self.get_claim(claim)
            except NotFound:
                return True
            return False

        await self.until(absent)

    async def released(self, claim: str) -> JsonObject:
        """Wait until a claim has neither devices nor reservations nor the finalizer."""

        async def free() -> JsonObject | None:
            obj = await self.get_claim(claim)
            return None if obj.get("status") or obj["metadata"].get("finalizers") else obj

        return await self.until(free)

    async def devices_of(self, pod: str) -> list[str]:
        """Device names of all claims reserved for a pod."""
        uid = (await self.get_pod(pod))["metadata"]["uid"]
        return [
            result["device"]
            for claim in await self.claims()
            if any(consumer["uid"] == uid for consumer in claim.get("status", {}).get("reservedFor") or ())
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]


@asynccontextmanager
async def desk(server: ObservedApiServer | None, kube: Kube) -> AsyncIterator[Desk]:
    """A desk; services that a test left running are stopped, and what they ended with is raised."""
    new_desk = Desk(server, kube)
    try:
        yield new_desk
    finally:
        await new_desk.stop()


def device(name: str, **attributes: str | int) -> JsonObject:
    """A device of type `gpu`."""
    values = {"type": "gpu", **attributes}
    return {
        "name": name,
        "attributes": {
            key: {"int": value} if isinstance(value, int) else {"string": value} for key, value in values.items()
        },
    }


def _claim_object(kind: str, name: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _version(obj: JsonObject) -> int:
    return int(obj["metadata"]["resourceVersion"])
