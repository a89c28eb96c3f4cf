"""A cluster in few words, a pod that waits in it, and what `dractl explain` says about that pod."""

from collections.abc import Sequence
from typing import Any

from support.allocation import exactly, gpu

from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.world import UnreadKind, World
from dra_driver.explain.explain import Explanation, Scope, explain_claim, explain_pod
from dra_driver.explain.wording import summary
from dra_driver.names import GPU_DRIVER

type Obj = dict[str, Any]

TYPE = f"device.attributes['{GPU_DRIVER}'].type"
MEMORY = f"device.capacity['{GPU_DRIVER}'].memory"
PROFILE = f"device.attributes['{GPU_DRIVER}'].profile"

PROFILES = {
    "1g.10gb": (1, (0, 1, 2, 3, 4, 5, 6)),
    "2g.20gb": (2, (0, 2, 4)),
    "3g.40gb": (4, (0, 4)),
    "7g.80gb": (8, (0,)),
}
"""Of a GPU of 80 GB: memory slices, and where an instance can lie."""


def profile(name: str) -> str:
    """A selector."""
    return f"{PROFILE} == '{name}'"


def at_least(memory: str) -> str:
    """A selector."""
    return f"{MEMORY}.compareTo(quantity('{memory}')) >= 0"


def partitions(*gpus: str) -> list[Obj]:
    """Every profile of these GPUs in every place, drawing on the GPU's memory slices."""
    devices = []
    for name in gpus:
        for kind, (size, starts) in PROFILES.items():
            for start in starts:
                counters = {f"memory-slice-{number}": {"value": "1"} for number in range(start, start + size)}
                device = gpu(f"{name}-mig-{kind.replace('.', '')}-{start}", memory=f"{size * 10}Gi", profile=kind)
                device["attributes"]["type"] = {"string": "mig"}
                devices.append(device | {"consumesCounters": [{"counterSet": name, "counters": counters}]})
    return devices


def counters(*gpus: str) -> list[Obj]:
    """The memory slices of each."""
    slices = {f"memory-slice-{number}": {"value": "1"} for number in range(8)}
    return [{"name": name, "counters": slices} for name in gpus]


def shared(name: str, memory: str = "80Gi", step: str = "1Gi") -> Obj:
    """A GPU that several claims may have parts of."""
    device = gpu(name, memory=memory, sharing="mps")
    policy = {"default": "10Gi", "validRange": {"min": "1Gi", "step": step}}
    device["capacity"]["memory"]["requestPolicy"] = policy
    return device | {"allowMultipleAllocations": True}


def taint(key: str = f"{GPU_DRIVER}/xid", value: str | None = "79", effect: str = "NoSchedule") -> Obj:
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


class Cluster:
    """Objects as the API has them; classes `gpu` and `mig` are there."""

    def __init__(
        self, *, behavior: Behavior = CURRENT, live: bool = True, classes: Sequence[str] = ("gpu", "mig")
    ) -> None:
        self._objects: list[Obj] = []
        self._behavior = behavior
        self._live = live
        self.unread: tuple[UnreadKind, ...] = ()
        self.add("Namespace", "team-a")
        for name in classes:
            self.device_class(name, f"device.driver == '{GPU_DRIVER}' && {TYPE} == '{name}'")

    # -- the cluster

    def add(
        self, kind: str, name: str, namespace: str | None = None, metadata: Obj | None = None, **fields: Any
    ) -> Obj:
        own = {"name": name, "uid": f"uid-{name}"} | ({"namespace": namespace} if namespace else {})
        obj = {"kind": kind, "metadata": own | (metadata or {}), **fields}
        self._objects.append(obj)
        return obj

    def device_class(self, name: str, *expressions: str, **spec: Any) -> None:
        selectors = [{"cel": {"expression": expression}} for expression in expressions]
        self.add("DeviceClass", name, spec={"selectors": selectors, **spec})

    def node(
        self, name: str, *devices: Obj, allocatable: Obj | None = None, labels: Obj | None = None, **spec: Any
    ) -> None:
        """With a slice when it has devices."""
        status = {"allocatable": allocatable or {}}
        self.add("Node", name, spec=spec, status=status, metadata={"labels": labels or {}})
        if devices:
            self.slice(name, *devices)

    def mig_node(self, name: str, *gpus: str) -> None:
        self.node(name)
        self.slice(name, *partitions(*gpus), count=2)
        self.slice(name, count=2, part="counters", sharedCounters=counters(*gpus))

    def slice(
        self, node: str, *devices: Obj, count: int = 1, part: str = "devices", generation: int = 1, **spec: Any
    ) -> None:
        pool = {"name": node, "generation": generation, "resourceSliceCount": count}
        own = {"devices": list(devices)} if devices else {}
        self.add(
            "ResourceSlice",
            f"{node}-{part}",
            spec={"driver": GPU_DRIVER, "nodeName": node, "pool": pool, **own, **spec},
        )

    # -- what others have

    def holding(
        self, name: str, node: str, *devices: str, pod: str | None = None, gone: bool = False, **consumed: str
    ) -> Obj:
        """A claim with devices, and the pod that uses them, named like the claim; `gone` when that is no more."""
        results = [self._result(node, device, consumed) for device in devices]
        selector = {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        }
        user = pod or name
        status = {
            "allocation": {"devices": {"results": results}, "nodeSelector": selector},
            "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"}],
        }
        claim = self.add("ResourceClaim", name, "team-a", spec={"devices": {"requests": [exactly()]}}, status=status)
        if not gone:
            self.add("Pod", user, "team-a", spec={"containers": [{"name": "main"}], "nodeName": node})
        return claim

    def _result(self, node: str, device: str, consumed: Obj) -> Obj:
        result: Obj = {"request": "gpu", "driver": GPU_DRIVER, "pool": node, "device": device}
        if consumed:
            result |= {"shareID": "a671734a-e8e5-11e4-8fde-42010af09327", "consumedCapacity": consumed}
        return result

    # -- what is asked for

    def claim(self, name: str, *requests: Obj, **devices: Any) -> Obj:
        spec = {"devices": {"requests": list(requests) or [exactly()], **devices}}
        return self.add("ResourceClaim", name, "team-a", spec=spec)

    def template(self, name: str, *requests: Obj, **devices: Any) -> None:
        spec = {"devices": {"requests": list(requests) or [exactly()], **devices}}
        self.add("ResourceClaimTemplate", name, "team-a", spec={"spec": spec})

    def bare_pod(self, name: str, *, claims: Sequence[str] = (), templates: Sequence[str] = (), **spec: Any) -> Obj:
        entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        entries += [{"name": template, "resourceClaimTemplateName": template} for template in templates]
        own = {"containers": [{"name": "main"}], "resourceClaims": entries} | spec
        return self.add("Pod", name, "team-a", spec=own)

    def pod(self, *requests: Obj, name: str = "train", constraints: Sequence[Obj] = (), **spec: Any) -> None:
        """A pod that waits for one claim, called `gpu`."""
        self.claim("gpu", *requests, constraints=list(constraints))
        self.bare_pod(name, claims=["gpu"], **spec)

    # -- what is said

    @property
    def world(self) -> World:
        loaded = world_of(self._objects, behavior=self._behavior, unread=self.unread, live=self._live)
        assert not loaded.problems, loaded.problems
        return loaded.world

    def explained(self, name: str = "train", **options: Any) -> Explanation:
        return explain_pod(self.world, ("team-a", name), Scope(**options))

    def explained_claim(self, name: str = "gpu", **options: Any) -> Explanation:
        return explain_claim(self.world, ("team-a", name), Scope(**options))

    def why(self, name: str = "train") -> str:
        """In one line."""
        return summary(self.explained(name))

    def would_fit(self) -> list[str]:
        return [suggestion.text for suggestion in self.explained("train").suggestions]
