"""Every mistake in a config gives its message: `bad_configs.yaml`, from the allocation to the device."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.api.inventory import GpuFacts, MigFacts, MigProfileFacts
from dra_driver.api.policy import SharingRule
from dra_driver.api.resource import AllocatedConfig
from dra_driver.devices.fit import checked_against, config_kind
from dra_driver.devices.model import Kind, Offer, Partition
from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, RequestName
from dra_driver.opaque import config_for, listed_configs

TABLE: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "bad_configs.yaml").read_text(encoding="utf-8"))


def gpu(product: str, capability: str, **facts: object) -> GpuFacts:
    known: dict[str, object] = {
        "uuid": "GPU-5a7b8d0e-0000-4000-8000-000000000001",
        "name": "gpu-5a7b8d0e",
        "minor": 0,
        "pciBusID": "0000:1b:00.0",
        "productName": product,
        "brand": "Nvidia",
        "architecture": "any",
        "cudaComputeCapability": capability,
    }
    return GpuFacts.of(known | facts)


H100 = gpu("NVIDIA H100 80GB HBM3", "9.0", mig=MigFacts(enabled=False, pending=False))
PROFILE = MigProfileFacts(
    name="1g.10gb", id=19, slices=1, memory_bytes=2**33, multiprocessors=16, size=1, starts=[0], max_instances=7
)
DEVICES = {
    "H100": Offer(H100.name, Kind.GPU, H100),
    "P4": Offer(H100.name, Kind.GPU, gpu("Tesla P4", "6.1")),
    "vGPU": Offer(H100.name, Kind.GPU, gpu("NVIDIA A40-48C", "8.6", virtualization="VGPUGuest")),
    "MIG": Offer(f"{H100.name}-mig-1g10gb-0", Kind.MIG, H100, Partition("1g.10gb", 0, 1), PROFILE),
    "VFIO": Offer(f"{H100.name}-vfio", Kind.VFIO, H100),
    "shared": Offer(H100.name, Kind.GPU, H100, sharing=SharingRule(strategy="TimeSlicing", replicas=4)),
}


def allocated(row: dict[str, Any]) -> list[AllocatedConfig]:
    header = {} if row.get("bare") else {"apiVersion": CONFIG_API_VERSION}
    written = [("FromClass", one) for one in row.get("class", ())] + [
        ("FromClaim", one) for one in row.get("claim", ())
    ]
    named = ["gpu"] if row.get("names") else []
    return [
        AllocatedConfig.of(
            {
                "source": source,
                "requests": ["gpu"] if source == "FromClass" else named,
                "opaque": {"driver": GPU_DRIVER, "parameters": header | one},
            }
        )
        for source, one in written
    ]


def refused(row: dict[str, Any]) -> InvalidConfig:
    device = DEVICES[row.get("for", "H100")]
    kind = config_kind(device.kind)
    with pytest.raises(InvalidConfig) as error:
        config = config_for(RequestName("gpu"), listed_configs(allocated(row), GPU_DRIVER), kind, kind())
        checked_against(config, [device])
    return error.value


def placed(text: str) -> str:
    return re.sub(r"\{(\d)\}", r"status.allocation.devices.config[\1].opaque.parameters", text)


@pytest.mark.parametrize("row", TABLE, ids=[str(row["says"][0]).partition(";")[0] for row in TABLE])
def test_every_mistake_gives_its_message(row: dict[str, Any]) -> None:
    error = refused(row)
    wanted = [placed(text) for text in row["says"]]
    assert [*(error.problems or [str(error)])] == wanted
    assert str(error) == "; ".join(wanted)
    assert error.retry_after_s is None


def test_the_table_is_large_and_no_row_is_there_twice() -> None:
    assert len(TABLE) >= 45
    assert len({str(row) for row in TABLE}) == len(TABLE)
