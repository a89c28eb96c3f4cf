"""The table of wrong configs (`tests/dra_driver/api/bad_configs.yaml`), and the nodes on which they are tried."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.claims import a_config, a_gpu, device_name

from dra_driver.api.inventory import GpuFacts, MigFacts, MigProfileFacts, PassthroughFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.names import CONFIG_API_VERSION

FILE = Path(__file__).parents[1] / "dra_driver" / "api" / "bad_configs.yaml"
TABLE: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Place:
    """A node with one GPU, and the device of it that the request was given."""

    gpu: GpuFacts
    device: str
    policy: PublishingPolicy


def _place(device: str = "", *, policy: Mapping[str, Any] | None = None, **facts: Any) -> Place:
    rules = PublishingPolicy.of(dict(policy)) if policy else PublishingPolicy.EVERYTHING
    return Place(a_gpu(0, **facts), device_name(0) + device, rules)


_PROFILE = MigProfileFacts(
    name="1g.10gb", id=19, slices=1, memory_bytes=2**33, multiprocessors=16, size=1, starts=[0], max_instances=7
)
PLACES = {
    "H100": _place(),
    "P4": _place(product_name="Tesla P4", cuda_compute_capability="6.1"),
    "vGPU": _place(product_name="NVIDIA A40-48C", cuda_compute_capability="8.6", virtualization="VGPUGuest"),
    "MIG": _place(
        "-mig-1g10gb-0",
        policy={"mig": [{"mode": "Dynamic"}]},
        mig=MigFacts(enabled=False, pending=False, switchable=True, profiles=[_PROFILE]),
    ),
    "VFIO": _place("-vfio", policy={"passthrough": [{}]}, passthrough=PassthroughFacts(iommu_group=7)),
    "shared": _place("-share-0", policy={"sharing": [{"strategy": "TimeSlicing", "replicas": 4}]}),
}


def place_of(row: Mapping[str, Any]) -> Place:
    return PLACES[row.get("for", "H100")]


def configs_of(row: Mapping[str, Any]) -> list[JsonObject]:
    """As an allocation has them."""
    header = {} if row.get("bare") else {"apiVersion": CONFIG_API_VERSION}
    named = ["gpu"] if row.get("names") else []
    of_class = [a_config(header | parameters, "gpu", source="FromClass") for parameters in row.get("class", ())]
    return of_class + [a_config(header | parameters, *named) for parameters in row.get("claim", ())]


def messages_of(row: Mapping[str, Any]) -> list[str]:
    """One for each problem."""
    return [
        re.sub(r"\{(\d)\}", r"status.allocation.devices.config[\1].opaque.parameters", text) for text in row["says"]
    ]
