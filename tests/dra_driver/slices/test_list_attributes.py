"""Attributes that are lists: only if the cluster stores them, within the API's limits, and with what they match."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocation import NODE, claim, device_class, exactly, published, snapshot
from support.inventories import gpu, inventory_spec, mig
from support.mig import gpu_of

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.search import Allocated, allocate
from dra_driver.api.inventory import GpuFacts, NvlinkFacts, PassthroughFacts
from dra_driver.api.policy import AttributeRule, PublishingPolicy
from dra_driver.api.resource import Attribute, Device
from dra_driver.names import GPU_DRIVER, NVLINK_PEERS
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.features import ALL_FEATURES
from dra_driver.slices.properties import MAX_VALUES

LISTS = replace(ALL_FEATURES, list_attributes=True)
NUMA = "resource.kubernetes.io/numaNode"
ROOT = "resource.kubernetes.io/pcieRoot"


def linked(number: int, *peers: int, **facts: Any) -> GpuFacts:
    uuids = sorted(gpu(peer).uuid for peer in peers)
    return gpu(number, nvlink=NvlinkFacts(links=4, peers=uuids), **{"numa_node": 0, **facts})


def described(gpus: Sequence[GpuFacts], policy: PublishingPolicy | None = None, *, lists: bool = True) -> Description:
    rules = policy or PublishingPolicy.EVERYTHING
    return described_devices(inventory_spec("node-1", gpus), rules, {}, GPU_DRIVER, LISTS if lists else ALL_FEATURES)


def test_what_can_be_several_is_a_list_and_what_is_one_stays_a_value() -> None:
    (device,) = described([linked(1, 0, 2, numa_node=3, pcie_root="pci0000:15")]).devices
    assert device.attributes[NUMA] == Attribute(ints=[3])
    assert device.attributes[NVLINK_PEERS] == Attribute(strings=sorted(gpu(number).uuid for number in range(3)))
    assert device.attributes[ROOT] == Attribute(string="pci0000:15")


def test_without_lists_all_is_as_it_was() -> None:
    (device,) = described([linked(1, 0, numa_node=3)], lists=False).devices
    assert device.attributes[NUMA] == Attribute(int_=3)
    assert NVLINK_PEERS not in device.attributes


def test_what_there_is_none_of_is_no_empty_list() -> None:
    (device,) = described([linked(0, numa_node=None)]).devices
    assert not device.attributes.keys() & {NUMA, NVLINK_PEERS}


def test_nvlink_does_not_reach_mig_devices_and_virtual_machines() -> None:
    facts = gpu_of(
        "h100-80",
        0,
        mig=mig(profiles=gpu_of("h100-80", 0).mig.profiles),  # type: ignore[union-attr]
        passthrough=PassthroughFacts(iommu_group=7),
        nvlink=linked(0, 1).nvlink,
        numa_node=1,
    )
    policy = PublishingPolicy.of({"mig": [{"mode": "Dynamic"}], "passthrough": [{}]})
    by_kind = {str(device.attributes["type"].string): device for device in described([facts], policy).devices}
    assert all(device.attributes[NUMA] == Attribute(ints=[1]) for device in by_kind.values())
    assert {kind for kind, device in by_kind.items() if NVLINK_PEERS in device.attributes} == {"gpu"}
    assert by_kind.keys() == {"gpu", "mig", "vfio"}


@given(st.integers(1, 63), st.integers(0, 20))
def test_a_device_has_no_more_values_than_the_api_allows(peers: int, more: int) -> None:
    values_of = {f"extra{number}": number for number in range(more)}
    rules = [AttributeRule.model_validate({"values": values_of})] if more else []
    facts = linked(0, *range(1, peers + 1))
    description = described([facts], PublishingPolicy(attributes=rules))
    (device,) = description.devices
    values = sum(len(value.strings or value.ints or "1") for value in device.attributes.values())
    assert values <= MAX_VALUES
    missing = NVLINK_PEERS not in device.attributes
    assert missing == any(NVLINK_PEERS in note.text for note in description.notes)
    if peers == 7 and not more:
        assert not missing


def chosen(devices: Sequence[Device], attribute: str, count: int, names: dict[str, str]) -> set[str] | None:
    """The UUIDs of GPUs that match in `attribute`; None if there are none."""
    wanted = claim(exactly(count=count), constraints=[{"matchAttribute": attribute}])
    classes = [device_class("gpu", f"device.driver == '{GPU_DRIVER}'")]
    slices = published(*(device.to_wire() for device in devices), driver=GPU_DRIVER)
    result = allocate([wanted], NODE, snapshot(slices, classes=classes, behavior=Behavior.of(36, list_attributes=True)))
    if not isinstance(result, Allocated):
        return None
    return {names[item.device] for allocation in result.allocations for item in allocation.devices.results}


@pytest.mark.parametrize(
    ("peers", "count", "expected"),
    [
        # A bridge for each pair: 0 with 3, 1 with 2.
        ({0: [3], 1: [2], 2: [1], 3: [0]}, 2, {"0", "3"}),
        ({0: [3], 1: [2], 2: [1], 3: [0]}, 3, None),
        # Behind switches all reach all.
        ({0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2]}, 4, {"0", "1", "2", "3"}),
        ({0: [], 1: [2], 2: [1], 3: []}, 2, {"1", "2"}),
    ],
)
def test_gpus_match_in_their_peers_if_nvlink_connects_them(
    peers: dict[int, list[int]], count: int, expected: set[str] | None
) -> None:
    gpus = [linked(number, *others) for number, others in peers.items()]
    names = {facts.name: str(number) for number, facts in enumerate(gpus)}
    devices = described(gpus).devices
    assert chosen(devices, f"{GPU_DRIVER}/{NVLINK_PEERS}", count, names) == expected
