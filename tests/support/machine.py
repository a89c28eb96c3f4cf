"""A node with a simulated kubelet on it that can be restarted; time passes quickly there."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.plugin import eventually

from dra_driver.api.meta import EVENTS, PODS, RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.simulation.kubelet.kubelet import SimulatedKubelet
from dra_driver.simulation.kubelet.registry import Times

QUICK = Times(
    registry_poll_s=0.02,
    registration_retry_s=0.02,
    pod_retry_s=0.05,
    reconcile_s=0.05,
    wipe_after_s=0.3,
    call_s=5.0,
    health_retry_s=0.05,
)


@dataclass
class Machine:
    """`root` has the folders `kubelet` and `cdi`."""

    kube: Kube
    root: Path
    times: Times = QUICK
    name: str = "node-1"
    kubelet: SimulatedKubelet = field(init=False)

    async def start(self) -> None:
        self.kubelet = SimulatedKubelet(
            self.kube, self.name, self.root / "kubelet", cdi_folders=(self.root / "cdi",), times=self.times
        )
        await self.kubelet.start()

    async def stop(self) -> None:
        await self.kubelet.stop()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Machine"]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def cdi(self, *devices: str) -> None:
        """A CDI file with devices, each of which sets a variable of its name."""
        (self.root / "cdi").mkdir(exist_ok=True)
        content = [{"name": name, "containerEdits": {"env": [f"{name.upper()}=1"]}} for name in devices]
        spec = {"cdiVersion": "0.3.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": content}
        (self.root / "cdi" / "test.json").write_text(json.dumps(spec))

    async def phase(self, name: str = "pod") -> str:
        pod = await self.kube.get(PODS, name, "default")
        return str((pod.get("status") or {}).get("phase"))

    async def runs(self, *names: str) -> None:
        """Until these pods run; `pod` when none is named."""
        for name in names or ("pod",):

            async def running(name: str = name) -> bool:
                return await self.phase(name) == "Running"

            await eventually(running)

    async def says(self, text: str) -> None:
        """Until a pod's event says it."""

        async def is_reported() -> bool:
            events = (await self.kube.list(EVENTS, namespace="default")).items
            return any(text in event["message"] for event in events)

        await eventually(is_reported)

    async def gone(self, name: str = "pod", resource: Resource = PODS) -> None:
        async def absent() -> bool:
            try:
                await self.kube.get(resource, name, "default")
            except NotFound:
                return True
            return False

        await eventually(absent)

    async def claim_uid(self) -> str:
        return str((await self.kube.get(RESOURCE_CLAIMS, "gpu", "default"))["metadata"]["uid"])

    def containers(self, pod: JsonObject) -> dict[str, JsonObject]:
        """What the containers of a pod that runs have got, by name."""
        return {container["name"]: container for container in self.kubelet.containers(pod["metadata"]["uid"])}
