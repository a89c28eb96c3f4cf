"""What is published of a GPU is true, has the names of NVIDIA's driver, and keeps within the limits of the API."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import DRIVER_FACTS, gpu, inventory_spec

from dra_driver.api.inventory import FabricFacts, GpuFacts, HealthFacts, MigFacts, NvlinkFacts
from dra_driver.api.policy import AttributeRule, PublishingPolicy, Rule
from dra_driver.api.resource import Attribute, Device
from dra_driver.names import GPU_ATTRIBUTES, GPU_DRIVER
from dra_driver.quantity import Quantity, Version
from dra_driver.slices.describe import MAX_ATTRIBUTES_AND_CAPACITIES, Description, described_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures

EVERYTHING = PublishingPolicy.EVERYTHING
ALWAYS = {
    *("type", "uuid", "sharing", "isolation", "productName", "brand", "architecture", "cudaComputeCapability"),
    *("driverVersion", "cudaDriverVersion", "resource.kubernetes.io/pciBusID"),
    *("migCapable", "migEnabled", "multiprocessors", "eccEnabled", "nvlinkLinks"),
    *("powerLimitWatts", "pcieGeneration", "pcieWidth"),
}


def described(
    *gpus: GpuFacts, policy: PublishingPolicy = EVERYTHING, features: ServerFeatures = ALL_FEATURES, **more: Any
) -> Description:
    return described_devices(inventory_spec("node-a", gpus, **more), policy, {}, GPU_DRIVER, features)


def device(facts: GpuFacts, policy: PublishingPolicy = EVERYTHING) -> Device:
    (found,) = described(facts, policy=policy).devices
    return found


def values(item: Device) -> dict[str, Any]:
    return {name: next(iter(value.to_wire().values())) for name, value in item.attributes.items()}


def adding(**extra: str | int) -> PublishingPolicy:
    return PublishingPolicy(attributes=[AttributeRule.model_validate({"values": extra})])


FULL = gpu(
    3,
    addressing_mode="HMM",
    numa_node=1,
    pcie_root="pci0000:15",
    fabric=FabricFacts(state="Completed", cluster_uuid="c0ffee00-0000-4000-8000-000000000000", clique_id=32766),
    nvlink=NvlinkFacts(links=18, version="5.0", switched=True, peers=[]),
    mig=MigFacts(enabled=False, pending=False),
    ecc_enabled=True,
    multiprocessors=132,
    power_limit_watts=700,
    pcie_generation=5,
    pcie_width=16,
    serial="1654321000123",
    vbios_version="96.00.89.00.01",
)


def test_a_gpu_that_says_everything_has_every_attribute() -> None:
    assert values(device(FULL)) == {
        "type": "gpu",
        "uuid": FULL.uuid,
        "sharing": "exclusive",
        "isolation": "hardware",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.126.9",
        "cudaDriverVersion": "13.0.0",
        "resource.kubernetes.io/pciBusID": "0000:13:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:15",
        "resource.kubernetes.io/numaNode": 1,
        "addressingMode": "HMM",
        "nvlinkDomain": "c0ffee00-0000-4000-8000-000000000000.32766",
        "clique": "c0ffee00-0000-4000-8000-000000000000.32766",
        "clusterUUID": "c0ffee00-0000-4000-8000-000000000000",
        "cliqueID": 32766,
        "migCapable": True,
        "migEnabled": False,
        "multiprocessors": 132,
        "eccEnabled": True,
        "nvlinkLinks": 18,
        "nvlinkVersion": "5.0.0",
        "powerLimitWatts": 700,
        "pcieGeneration": 5,
        "pcieWidth": 16,
        "serial": "1654321000123",
        "vbiosVersion": "96.00.89.00.01",
    }
    assert set(values(device(FULL))) == set(GPU_ATTRIBUTES)
    assert device(FULL).capacity["memory"].value == "81559Mi"


def test_a_gpu_that_says_little_has_what_selectors_rely_on() -> None:
    assert values(device(gpu(0))).keys() == ALWAYS


def test_versions_are_semver_and_strings_are_strings() -> None:
    attributes = device(FULL).attributes
    kinds = {name: next(iter(value.to_wire())) for name, value in attributes.items()}
    assert {name for name, kind in kinds.items() if kind == "version"} == {
        *("cudaComputeCapability", "driverVersion", "cudaDriverVersion", "nvlinkVersion")
    }
    assert kinds["vbiosVersion"] == "string"


def test_memory_that_is_not_known_is_not_published() -> None:
    assert device(gpu(0, memory_bytes=None)).capacity == {}


def test_devices_are_in_the_order_of_the_inventory() -> None:
    gpus = [gpu(number) for number in (3, 1, 2)]
    assert [item.name for item in described(*gpus).devices] == [item.name for item in gpus]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"health": HealthFacts(healthy=False, reason="Xid79", message="it fell off the bus")}, "it fell off the bus"),
        ({"health": HealthFacts(healthy=False)}, "it is not healthy"),
        ({"mig": MigFacts(enabled=True, pending=True)}, "MIG mode"),
        ({"name": "GPU 0"}, "not a DNS label"),
        ({"name": gpu(1).name}, "another device of the node has this name"),
    ],
)
def test_a_gpu_that_nobody_could_use_is_not_published_and_the_others_are(facts: dict[str, Any], reason: str) -> None:
    found = described(gpu(1), gpu(0, **facts), gpu(2))
    assert [item.name for item in found.devices] == [gpu(1).name, gpu(2).name]
    assert len(found.notes) == 1 and reason in found.notes[0]


def test_what_the_policy_leaves_out_is_no_news() -> None:
    rules = PublishingPolicy(withhold=[Rule.model_validate({"gpus": {"uuids": [gpu(0).uuid]}})])
    found = described(gpu(0), gpu(1), policy=rules)
    assert [item.name for item in found.devices] == [gpu(1).name]
    assert found.notes == ()


def test_without_a_driver_version_there_is_none() -> None:
    (found,) = described(gpu(0), driver=None).devices
    assert not {"driverVersion", "cudaDriverVersion"} & found.attributes.keys()


def test_long_descriptions_are_cut_and_long_identities_left_out() -> None:
    found = values(device(gpu(0, product_name="é" * 40, serial="s" * 65)))
    assert found["productName"] == "é" * 32
    assert "serial" not in found


def test_a_cut_in_the_middle_of_a_character_is_moved_before_it() -> None:
    assert values(device(gpu(0, product_name="x" + "é" * 40)))["productName"] == "x" + "é" * 31


def test_what_is_no_version_is_left_out() -> None:
    facts = DRIVER_FACTS.model_copy(update={"version": "unknown"})
    (found,) = described(gpu(0), driver=facts).devices
    assert "driverVersion" not in found.attributes


def test_extra_attributes_are_added_under_the_drivers_own_domain() -> None:
    found = values(device(gpu(0), adding(rack="r1", **{"gpu.nvidia.com/zone": "z1", "example.com/tier": 2})))
    assert (found["rack"], found["zone"], found["example.com/tier"]) == ("r1", "z1", 2)


def test_the_drivers_own_attribute_is_never_overridden() -> None:
    found = values(device(gpu(0), adding(**{"gpu.nvidia.com/uuid": "other"})))
    assert found["uuid"] == gpu(0).uuid
    assert "gpu.nvidia.com/uuid" not in found


def test_extra_attributes_take_the_room_of_the_least_needed_ones() -> None:
    policy = adding(**{f"extra{number:02d}": number for number in range(10)})
    found = described(FULL, policy=policy)
    (item,) = found.devices
    assert len(item.attributes) + len(item.capacity) == MAX_ATTRIBUTES_AND_CAPACITIES
    assert {f"extra{number:02d}" for number in range(10)} <= item.attributes.keys()
    assert set(GPU_ATTRIBUTES) - item.attributes.keys() == set(GPU_ATTRIBUTES[-8:])
    assert len(found.notes) == 8 and all("has no room for attribute" in note for note in found.notes)


texts = st.text(max_size=80).filter(lambda text: text.isprintable())


@given(
    st.builds(
        lambda **facts: gpu(0, **facts),
        product_name=texts,
        brand=texts,
        architecture=texts,
        serial=st.none() | texts,
        vbios_version=st.none() | texts,
        cuda_compute_capability=st.from_regex(r"[0-9]{1,2}\.[0-9]|n/a", fullmatch=True),
        memory_bytes=st.none() | st.integers(0, 2**45),
        numa_node=st.none() | st.integers(0, 1023),
        pcie_root=st.none() | texts,
        multiprocessors=st.none() | st.integers(0, 1000),
        nvlink=st.none() | st.builds(NvlinkFacts, links=st.integers(0, 18), version=st.none() | texts),
        mig=st.none() | st.just(MigFacts(enabled=False, pending=False)),
        ecc_enabled=st.none() | st.booleans(),
    ),
    st.dictionaries(st.from_regex(r"[a-z]{1,12}x", fullmatch=True), st.integers(0, 9), max_size=40),
)
def test_every_device_keeps_within_the_limits_of_the_api(facts: GpuFacts, extra: dict[str, int]) -> None:
    item = device(facts, adding(**extra) if extra else EVERYTHING)
    assert len(item.attributes) + len(item.capacity) <= 32
    for value in item.attributes.values():
        wire = value.to_wire()
        assert len(wire) == 1
        if (text := wire.get("string", wire.get("version"))) is not None:
            assert 0 < len(text.encode()) <= 64
        if "version" in wire:
            Version.parse(wire["version"])
    for amount in item.capacity.values():
        assert str(Quantity.parse(amount.value)) == amount.value
    assert item.attributes["type"] == Attribute(string="gpu")
