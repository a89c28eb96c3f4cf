"""Builders of what nodes report, and of what policies say of it."""

from collections.abc import Sequence
from typing import Any

from dra_driver.api.gpupolicy import GpuPolicy
from dra_driver.api.inventory import (
    ComputeInstanceFacts,
    DriverFacts,
    GpuFacts,
    GpuInstanceFacts,
    MigFacts,
    MigProfileFacts,
    NodeInventorySpec,
    Registration,
    summary_of,
)
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.names import GPU_DRIVER, gpu_device_names

DRIVER_FACTS = DriverFacts(version="580.126.09", cuda_version="13.0", root="/")


def gpu_uuid(number: int, node: int = 0) -> str:
    return f"GPU-{node * 256 + number:08x}-0000-4000-8000-{number:012x}"


def gpu(number: int = 0, *, node: int = 0, **facts: Any) -> GpuFacts:
    """An H100 with the memory of an H100 and nothing special; `facts` override fields."""
    uuid = gpu_uuid(number, node)
    values: dict[str, Any] = {
        "uuid": uuid,
        "name": gpu_device_names([uuid])[uuid],
        "minor": number,
        "pci_bus_id": f"0000:{0x10 + number:02x}:00.0",
        "product_name": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": "9.0",
        "memory_bytes": 81559 * 2**20,
    }
    return GpuFacts(**{**values, **facts})


def inventory_spec(
    node: str, gpus: Sequence[GpuFacts], *, driver: DriverFacts | None = DRIVER_FACTS, registered: str | None = None
) -> NodeInventorySpec:
    """`registered` is the time of the GPU driver's registration."""
    return NodeInventorySpec(
        node_name=node,
        boot_id="b7e6a6a0-0000-4000-8000-000000000000",
        driver=driver,
        gpus=list(gpus),
        registrations=[] if registered is None else [Registration(driver=GPU_DRIVER, time=registered)],
        summary=summary_of(driver, gpus, []),
    )


def inventory_object(spec: NodeInventorySpec, node_uid: str) -> JsonObject:
    owner = {"apiVersion": "v1", "kind": "Node", "name": spec.node_name, "uid": node_uid}
    return {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "NodeInventory",
        "metadata": {"name": spec.node_name, "ownerReferences": [owner]},
        "spec": spec.to_wire(),
    }


def mig_profiles(*rows: tuple[str, int, int, tuple[int, ...]]) -> list[MigProfileFacts]:
    """MIG profiles from name, memory slices, multiprocessors and starts; ids are their positions."""
    return [
        MigProfileFacts(
            name=name,
            id=number,
            slices=int(name[0]),
            memory_bytes=size * 10 * 2**30,
            multiprocessors=multiprocessors,
            copy_engines=int(name[0]),
            decoders=int(name[0]),
            ofa_engines=int("+me" in name or size == 8),
            size=size,
            starts=list(starts),
            max_instances=len(starts),
        )
        for number, (name, size, multiprocessors, starts) in enumerate(rows)
    ]


H100_PROFILES = mig_profiles(
    ("7g.80gb", 8, 132, (0,)),
    ("4g.40gb", 4, 64, (0,)),
    ("3g.40gb", 4, 60, (0, 4)),
    ("2g.20gb", 2, 32, (0, 2, 4)),
    ("1g.20gb", 2, 26, (0, 2, 4, 6)),
    ("1g.10gb", 1, 16, (0, 1, 2, 3, 4, 5, 6)),
    ("1g.10gb+me", 1, 16, (0, 1, 2, 3, 4, 5, 6)),
)
"""As an H100 has them, by and large."""


def mig(*, enabled: bool = False, instances: Sequence[GpuInstanceFacts] = (), **facts: Any) -> MigFacts:
    """MIG of an H100: can be switched without a reset."""
    values: dict[str, Any] = {"switchable": True, "profiles": H100_PROFILES}
    return MigFacts(**{"enabled": enabled, "pending": enabled, "instances": list(instances), **values, **facts})


def gpu_instance(profile: str, start: int, size: int, *parts: ComputeInstanceFacts) -> GpuInstanceFacts:
    return GpuInstanceFacts(id=start + 1, profile=profile, start=start, size=size, compute_instances=list(parts))


def compute_instance(profile: str, slices: int, *, start: int = 0, number: int = 0) -> ComputeInstanceFacts:
    uuid = f"MIG-00000000-0000-4000-8000-{number:012x}"
    return ComputeInstanceFacts(id=start, uuid=uuid, profile=profile, slices=slices, start=start)


def policy(**rules: Any) -> PublishingPolicy:
    """What a policy says of nodes, with these rules."""
    return PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **rules}, about="test")


def gpu_policy(name: str = "ml", **spec: Any) -> GpuPolicy:
    return GpuPolicy.read({"metadata": {"name": name}, "spec": spec})
