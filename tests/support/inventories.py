"""Builders of what nodes report."""

from collections.abc import Sequence
from typing import Any

from dra_driver.api.inventory import (
    DriverFacts,
    GpuFacts,
    NodeInventorySpec,
    Registration,
    summary_of,
)
from dra_driver.api.meta import JsonObject
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
