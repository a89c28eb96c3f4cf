"""Builders for prepared claims: GPUs, claim objects, journal entries; and an API server of claims in memory."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.inventory import DriverFacts, GpuFacts, Problem
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import DriverError, NotFound
from dra_driver.kube.client import Listing
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice

NODE = "node-a"
BOOT = "boot-1"
DIGEST = "d" * 64


def uuid_of(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


def device_name(index: int) -> str:
    return f"gpu-{index:08x}"


def a_gpu(index: int = 0, **changes: Any) -> GpuFacts:
    facts: dict[str, Any] = {
        "uuid": uuid_of(index),
        "name": device_name(index),
        "minor": index,
        "pci_bus_id": f"0000:{index + 16:02x}:00.0",
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": "9.0",
        "memory_bytes": 80 << 30,
    }
    return GpuFacts(**{**facts, **changes})


def node_facts(
    gpus: int | Sequence[GpuFacts] = 8, *, boot_id: str = BOOT, problems: Sequence[Problem] = ()
) -> NodeFacts:
    facts_of_gpus = tuple(a_gpu(index) for index in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    driver = DriverFacts(version="580.105.08", cuda_version="13.0", root="/")
    return NodeFacts(boot_id, driver, facts_of_gpus, tuple(problems))


def a_ref(name: str = "train", uid: str | None = None, namespace: str = "team-a") -> ClaimRef:
    return ClaimRef(namespace, name, uid or f"uid-of-{name}")


def a_result(device: int | str = 0, request: str = "gpu", **changes: Any) -> JsonObject:
    """An allocation result; `device` is a GPU's number or a device name."""
    name = device if isinstance(device, str) else device_name(device)
    return {"request": request, "driver": GPU_DRIVER, "pool": NODE, "device": name, **changes}


def a_config(parameters: JsonObject, *requests: str, source: str = "FromClaim", driver: str = GPU_DRIVER) -> JsonObject:
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def a_claim(
    ref: ClaimRef, *results: JsonObject, configs: Sequence[JsonObject] = (), reserved: bool = True
) -> JsonObject:
    """A ResourceClaim as the API server has it, allocated when there are `results`."""
    status: JsonObject = {}
    if results:
        status["allocation"] = {"devices": {"results": list(results), "config": list(configs)}}
        if reserved:
            status["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": "uid-of-pod"}]
    metadata = {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "status": status}


def a_held_device(index: int = 0, ref: ClaimRef | None = None, **changes: Any) -> HeldDevice:
    values: dict[str, Any] = {
        "request_names": ("gpu",),
        "pool": NODE,
        "device": device_name(index),
        "gpu_uuid": uuid_of(index),
        "pci_bus_id": f"0000:{index + 16:02x}:00.0",
        "cdi_ids": (f"k8s.gpu.nvidia.com/claim={(ref or a_ref()).uid}-{device_name(index)}",),
    }
    return HeldDevice(**{**values, **changes})


def an_entry(ref: ClaimRef | None = None, *devices: HeldDevice, boot_id: str = BOOT, digest: str = DIGEST) -> Entry:
    """A claim in the journal; with GPU 0 when no device is given."""
    ref = ref or a_ref()
    return Entry(ref, boot_id, devices or (a_held_device(0, ref),), digest)


@dataclass
class FakeClaims:
    """The API server's claims, by namespace and name. It can be told to fail, or to do something before it answers."""

    objects: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    failures: list[DriverError] = field(default_factory=list)
    """Raised by the next reads, one each."""
    away: DriverError | None = None
    """Raised by every read."""
    before_answer: Callable[[str], Any] | None = None
    """Awaited with the claim's name."""
    before_list: Callable[[], Any] | None = None
    reads: int = 0

    def put(self, obj: JsonObject) -> ClaimRef:
        metadata = obj["metadata"]
        self.objects[metadata["namespace"], metadata["name"]] = obj
        return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])

    def remove(self, ref: ClaimRef) -> None:
        del self.objects[ref.namespace, ref.name]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        self.reads += 1
        if self.before_answer is not None:
            await self.before_answer(name)
        self._fail()
        obj = self.objects.get((namespace or "", name))
        if obj is None:
            raise NotFound(f'{resource.plural}.{resource.group} "{name}" not found', status=404)
        return obj

    async def pages(self, resource: Resource) -> AsyncGenerator[Listing, None]:
        if self.before_list is not None:
            await self.before_list()
        self._fail()
        yield Listing(list(self.objects.values()), "1")

    def _fail(self) -> None:
        if self.away is not None:
            raise self.away
        if self.failures:
            raise self.failures.pop(0)


@dataclass
class FakeFacts:
    """What Discovery knows; a look at the hardware finds `after` when there is one."""

    facts: NodeFacts = field(default_factory=node_facts)
    after: NodeFacts | None = None
    looks: int = 0

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]:
        return lambda: None

    async def observe(self) -> NodeFacts:
        self.looks += 1
        if self.after is not None:
            self.facts = self.after
        return self.facts
