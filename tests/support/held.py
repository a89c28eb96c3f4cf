"""A cluster whose nodes our publisher has described, and claims that hold what a test gives them."""

import json
from pathlib import Path

from support.dractl import dractl
from support.objects import allocate, claim, node, pod
from support.published import published_slices

from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.kube.client import Kube
from dra_driver.slices.diff import NodeRef

SHARE = "a671734a-e8e5-11e4-8fde-42010af0932{}"
POLICY = PublishingPolicy.of(
    {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "PublishingPolicy",
        "mig": [{"gpus": {"products": ["NVIDIA H100 80GB HBM3"]}, "mode": "Dynamic"}],
        "sharing": [{"gpus": {"products": ["NVIDIA L40S"]}, "strategy": "MPS", "capacity": ["memory", "cores"]}],
    }
)


class HeldWorld:
    """Published nodes, and claims that hold what a test gives them."""

    def __init__(self, kube: Kube, kubeconfig: Path) -> None:
        self._kube = kube
        self.kubeconfig = kubeconfig
        self.devices: dict[str, JsonObject] = {}

    async def publish(self, name: str, folder: Path, profile: str, policy: PublishingPolicy = POLICY) -> None:
        created = await self._kube.create(NODES, node(name))
        for obj in await published_slices(folder, profile, NodeRef(name, created["metadata"]["uid"]), policy):
            await self._kube.create(RESOURCE_SLICES, obj)
            self.devices |= {device["name"]: device for device in obj["spec"].get("devices") or ()}

    def named(self, kind: str, number: int = 0, ending: str = "") -> str:
        """A device of a type, by the order of names."""
        names = sorted(
            name
            for name, device in self.devices.items()
            if device["attributes"]["type"]["string"] == kind and name.endswith(ending)
        )
        return names[number]

    async def holds(self, name: str, *results: JsonObject) -> None:
        user = await self._kube.create(PODS, pod(f"pod-{name}", claims=[name]))
        await allocate(self._kube, await self._kube.create(RESOURCE_CLAIMS, claim(name)), *results, pods=[user])

    async def show(self, *arguments: str) -> str:
        status, text = await dractl("get", *arguments, "--kubeconfig", str(self.kubeconfig))
        assert status == 0
        return text

    async def data(self, *arguments: str) -> list[JsonObject]:
        claims: list[JsonObject] = json.loads(await self.show(*arguments, "-o", "json"))
        return claims
