"""What is published of a GPU is true, has the names of NVIDIA's driver, and keeps within the limits of the API."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import DRIVER_FACTS, compute_instance, gpu, gpu_instance, inventory_spec, mig
from support.mig import gpu_of, table_profiles

from dra_driver.api.inventory import (
    FabricFacts,
    FabricPartitionFacts,
    GpuFacts,
    HealthFacts,
    MigFacts,
    NvlinkFacts,
    PassthroughFacts,
)
from dra_driver.api.policy import AttributeRule, MigRule, PublishingPolicy, Rule
from dra_driver.api.resource import Attribute, Device
from dra_driver.checking.knowledge import inventory_of_model, model_names
from dra_driver.devices.health import xid_condition
from dra_driver.names import GPU_ATTRIBUTES, GPU_DRIVER, NVLINK_PEERS
from dra_driver.quantity import Quantity, Version
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures
from dra_driver.slices.properties import MAX_ATTRIBUTES_AND_CAPACITIES

EVERYTHING = PublishingPolicy.EVERYTHING
ALWAYS = {
    *("type", "uuid", "sharing", "isolation", "productName", "brand", "architecture", "cudaComputeCapability"),
    *("driverVersion", "cudaDriverVersion", "resource.kubernetes.io/pciBusID"),
    *("fabric", "migCapable", "migEnabled", "multiprocessors", "eccEnabled", "nvlinkLinks"),
    *("powerLimitWatts", "pcieGeneration", "pcieWidth"),
}


def described(
    *gpus: GpuFacts, policy: PublishingPolicy = EVERYTHING, features: ServerFeatures = ALL_FEATURES, **more: Any
) -> Description:
    return described_devices(inventory_spec("node-a", gpus, **more), policy, {}, GPU_DRIVER, features)


def device(facts: GpuFacts, policy: PublishingPolicy = EVERYTHING) -> Device:
    (published,) = described(facts, policy=policy).devices
    return published


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
        "fabric": "complete",
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
    assert set(values(device(FULL))) == set(GPU_ATTRIBUTES) - ELSEWHERE
    assert device(FULL).capacity["memory"].value == "81559Mi"


FABRIC = {"partition1", "partition2", "partition4", "partition8", "gpuModuleID"}
ELSEWHERE = {*FABRIC, NVLINK_PEERS}
"""Attributes behind shared switches, and the one that is always a list."""


def test_a_gpu_behind_shared_switches_has_its_partitions() -> None:
    """The ID 0 is one like any other; of two partitions of one size no ID would be right."""
    parts = [FabricPartitionFacts(id=id_, size=size) for id_, size in ((8, 1), (3, 2), (4, 2), (1, 4), (0, 8), (9, 6))]
    gpu_facts = FULL.model_copy(update={"fabric_partitions": parts, "module_id": 2})
    attributes = values(device(gpu_facts))
    assert {name: attributes.get(name) for name in FABRIC} == {
        "partition1": 8,
        "partition2": None,
        "partition4": 1,
        "partition8": 0,
        "gpuModuleID": 2,
    }


def test_a_gpu_that_says_little_has_what_selectors_rely_on() -> None:
    attributes = values(device(gpu(0)))
    assert attributes.keys() == ALWAYS
    unknown = ("nvlinkLinks", "powerLimitWatts", "pcieGeneration", "pcieWidth")
    assert {attributes[name] for name in unknown} == {0}


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        (None, "none"),
        (FabricFacts(state="Completed"), "complete"),
        (FabricFacts(state="InProgress"), "not-registered"),
        (FabricFacts(state="Completed", status=999), "refused"),
        (FabricFacts(state="Completed", health="Unhealthy"), "unhealthy"),
    ],
)
def test_a_gpu_says_whether_its_nvlink_fabric_can_be_used(fabric: FabricFacts | None, expected: str) -> None:
    assert values(device(gpu(0, fabric=fabric)))["fabric"] == expected


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
    description = described(gpu(1), gpu(0, **facts), gpu(2))
    assert [item.name for item in description.devices] == [gpu(1).name, gpu(2).name]
    assert len(description.notes) == 1 and reason in str(description.notes[0])


LOST = xid_condition(79, since="2026-01-01T00:00:00Z")
WARNED = xid_condition(94, since="2026-01-01T00:00:00Z")
NO_TAINTS = replace(ALL_FEATURES, taints=False)


def test_a_gpu_that_is_not_healthy_is_tainted_or_where_there_are_no_taints_not_published() -> None:
    ill = gpu(0, health=HealthFacts(healthy=False, conditions=[LOST]))
    (published,) = described(ill).devices
    assert [(taint.key, taint.value, taint.effect) for taint in published.taints or ()] == [
        ("gpu.nvidia.com/xid", "79", "NoSchedule")
    ]
    without = described(ill, gpu(1), features=NO_TAINTS)
    assert [item.name for item in without.devices] == [gpu(1).name]
    assert "fell off the bus" in str(without.notes[0])


def test_a_warning_is_a_taint_without_effect_where_the_server_knows_such_taints() -> None:
    warned = gpu(0, health=HealthFacts(conditions=[WARNED]))
    (published,) = described(warned).devices
    assert [taint.effect for taint in published.taints or ()] == ["None"]
    for features in (NO_TAINTS, replace(ALL_FEATURES, counters_apart=False)):
        (published,) = described(warned, features=features).devices
        assert published.taints is None


def test_a_mig_device_feels_what_befalls_its_gpu_and_itself_but_not_its_neighbour() -> None:
    parts = [compute_instance("1g.10gb", 1, number=number) for number in (0, 1)]
    instances = [gpu_instance("1g.10gb", start, 1, part) for start, part in enumerate(parts)]
    health = HealthFacts(conditions=[LOST.model_copy(update={"instance": parts[0].uuid})])
    devices = described(gpu(0, mig=mig(enabled=True, instances=instances), health=health)).devices
    assert [bool(item.taints) for item in devices] == [True, False]
    devices = described(gpu(0, mig=mig(), health=health), policy=DYNAMIC).devices
    assert {item.name for item in devices if item.taints} == {gpu(0).name}


DYNAMIC = PublishingPolicy(mig=[MigRule(mode="Dynamic", compute_instances=["1c.3g.40gb"])])


def test_a_partition_has_the_attributes_and_capacities_of_nvidias_driver() -> None:
    devices = {item.name: item for item in described(gpu_of("h100-80"), policy=DYNAMIC).devices}
    item = devices[f"{gpu(0).name}-mig-3g40gb-0"]
    own = values(item)
    assert own["type"] == "mig" and own["parentUUID"] == gpu(0).uuid and own["profile"] == "3g.40gb"
    assert (own["sharing"], own["isolation"]) == ("exclusive", "hardware")
    assert "uuid" not in own
    assert {name: amount.value for name, amount in item.capacity.items()} == {
        "memory": "40448Mi",
        "multiprocessors": "60",
        "copyEngines": "3",
        "decoders": "3",
        "encoders": "0",
        "jpegEngines": "3",
        "ofaEngines": "0",
    }
    part = devices[f"{gpu(0).name}-mig-1c3g40gb-0-2"]
    assert (values(part)["profile"], values(part)["isolation"]) == ("1c.3g.40gb", "none")
    assert (part.capacity["multiprocessors"].value, part.capacity["memory"].value) == ("16", "13482Mi")


@pytest.mark.parametrize("model", model_names())
def test_partitions_on_demand_have_no_more_attributes_than_a_map_of_16_in_go_has_room_for(model: str) -> None:
    """Seven of eight places are used; beyond that the map is twice as large, in each process that keeps slices."""
    inventory = inventory_of_model(model)
    devices = described_devices(inventory, DYNAMIC, {}, GPU_DRIVER, ALL_FEATURES).devices
    on_demand = [item for item in devices if values(item)["type"] == "mig" and "uuid" not in values(item)]
    assert bool(on_demand) == any(facts.mig is not None for facts in inventory.gpus)
    assert all(len(item.attributes) <= 14 for item in on_demand)


def test_a_mig_device_that_exists_says_its_uuid_and_its_memory_slices() -> None:
    part = compute_instance("7g.80gb", 7).model_copy(update={"memory_bytes": 80 * 2**30, "multiprocessors": 130})
    instances = [gpu_instance("7g.80gb", 0, 8, part)]
    facts = FULL.model_copy(update={"mig": mig(enabled=True, instances=instances, profiles=table_profiles("h100-80"))})
    rules = PublishingPolicy.model_validate(
        {"sharing": [{"devices": "mig", "strategy": "TimeSlicing", "capacity": ["cores"]}]}
    )
    for policy in (EVERYTHING, rules):
        (item,) = described(facts, policy=policy).devices
        assert values(item)["uuid"] == part.uuid
        assert {f"memorySlice{number}" for number in range(8)} <= item.capacity.keys()
        assert (item.capacity["memory"].value, item.capacity["multiprocessors"].value) == ("80Gi", "130")
        assert {"pciBusID", "addressingMode"} <= {name.rpartition("/")[2] for name in values(item)}
        assert len(item.attributes) + len(item.capacity) <= MAX_ATTRIBUTES_AND_CAPACITIES


def sharing(**rule: Any) -> PublishingPolicy:
    return PublishingPolicy.model_validate({"sharing": [rule]})


MEMORY = "81559Mi"


@pytest.mark.parametrize(
    ("rule", "isolation", "policies"),
    [
        (
            {"strategy": "TimeSlicing", "replicas": 4},
            "none",
            {"shares": ("4", "1", "1", "4", "1"), "memory": (MEMORY, "0", "0", MEMORY, "1Mi")},
        ),
        (
            {"strategy": "MPS", "replicas": 4},
            "limits",
            {"shares": ("4", "1", "1", "4", "1"), "memory": (MEMORY, "20389Mi", "1Mi", MEMORY, "1Mi")},
        ),
        (
            {"strategy": "MPS", "capacity": ["memory", "cores"]},
            "limits",
            {"cores": ("100", "100", "1", "100", "1"), "memory": (MEMORY, MEMORY, "1Mi", MEMORY, "1Mi")},
        ),
        (
            {"strategy": "MPS", "capacity": ["cores"]},
            "none",
            {"cores": ("100", "100", "1", "100", "1"), "memory": (MEMORY, "0", "0", MEMORY, "1Mi")},
        ),
        ({"strategy": "MPS", "unlimited": True}, "none", {"memory": (MEMORY, "0", "0", MEMORY, "1Mi")}),
    ],
)
def test_a_shared_gpu_says_what_a_claim_consumes(
    rule: dict[str, Any], isolation: str, policies: dict[str, tuple[str, ...]]
) -> None:
    item = device(gpu(0), sharing(**rule))
    assert item.allow_multiple_allocations
    assert values(item)["isolation"] == isolation
    assert values(item)["sharing"] == {"TimeSlicing": "time-slicing", "MPS": "mps"}[rule["strategy"]]
    amounts = {}
    for name, amount in item.capacity.items():
        assert amount.request_policy is not None
        bounds = amount.request_policy["validRange"]
        amounts[name] = (amount.value, amount.request_policy["default"], bounds["min"], bounds["max"], bounds["step"])
    assert amounts == policies


def test_on_a_shared_mig_device_nothing_is_consumed_that_nobody_asked_for() -> None:
    rules = PublishingPolicy.model_validate(
        {"mig": [{"mode": "Dynamic"}], "sharing": [{"devices": "mig", "strategy": "TimeSlicing", "replicas": 4}]}
    )
    devices = described(gpu_of("h100-80"), policy=rules).devices
    shared = [item for item in devices if item.allow_multiple_allocations]
    assert len(shared) == len(devices) - 1
    for item in shared:
        defaults = {name: (amount.request_policy or {})["default"] for name, amount in item.capacity.items()}
        assert defaults.pop("shares") == "1"
        assert set(defaults.values()) == {"0"}


def test_a_separate_share_has_its_part_of_the_device() -> None:
    description = described(
        gpu(0), policy=sharing(strategy="MPS", replicas=4), features=replace(ALL_FEATURES, consumable=False)
    )
    *shares, whole = description.devices
    assert [item.allow_multiple_allocations for item in description.devices] == [None] * 5
    assert {item.capacity["memory"].value for item in shares} == {str(Quantity.of_bytes(81559 * 2**20 // 4))}
    assert {values(item)["isolation"] for item in shares} == {"limits"}
    assert values(whole)["sharing"] == "exclusive"


def test_a_gpu_for_virtual_machines_says_how_it_is_passed_on() -> None:
    iommu = PassthroughFacts(iommu_group=17, iommufd=True)
    rules = PublishingPolicy.model_validate({"passthrough": [{}]})
    _, item = described(gpu(0, passthrough=iommu, pci_device_id="0x2330"), policy=rules).devices
    assert values(item) == {
        "type": "vfio",
        "uuid": gpu(0).uuid,
        "sharing": "exclusive",
        "isolation": "hardware",
        "productName": "NVIDIA H100 80GB HBM3",
        "vendorID": "0x10de",
        "deviceID": "0x2330",
        "iommuFDEnabled": True,
        "iommuGroup": 17,
        "resource.kubernetes.io/pciBusID": "0000:10:00.0",
    }
    assert item.capacity["addressableMemory"].value == MEMORY


def test_what_finds_no_room_on_many_devices_is_said_once_for_each_gpu() -> None:
    crowded = adding(**{f"extra{number:02d}": number for number in range(20)})
    policy = crowded.model_copy(update={"mig": DYNAMIC.mig})
    description = described(gpu_of("h100-80"), policy=policy)
    texts = [str(note) for note in description.notes]
    assert len(texts) == 2 and all("no room" in text for text in texts)
    assert sum("extra19" in text for text in texts) == 1


def test_what_the_policy_leaves_out_is_no_news() -> None:
    rules = PublishingPolicy(withhold=[Rule.model_validate({"gpus": {"uuids": [gpu(0).uuid]}})])
    description = described(gpu(0), gpu(1), policy=rules)
    assert [item.name for item in description.devices] == [gpu(1).name]
    assert description.notes == ()


def test_without_a_driver_version_there_is_none() -> None:
    (published,) = described(gpu(0), driver=None).devices
    assert not {"driverVersion", "cudaDriverVersion"} & published.attributes.keys()


def test_long_descriptions_are_cut_and_long_identities_left_out() -> None:
    attributes = values(device(gpu(0, product_name="é" * 40, serial="s" * 65)))
    assert attributes["productName"] == "é" * 32
    assert "serial" not in attributes


def test_a_cut_in_the_middle_of_a_character_is_moved_before_it() -> None:
    assert values(device(gpu(0, product_name="x" + "é" * 40)))["productName"] == "x" + "é" * 31


def test_what_is_no_version_is_left_out() -> None:
    facts = DRIVER_FACTS.model_copy(update={"version": "unknown"})
    (published,) = described(gpu(0), driver=facts).devices
    assert "driverVersion" not in published.attributes


def test_extra_attributes_are_added_under_the_drivers_own_domain() -> None:
    attributes = values(device(gpu(0), adding(rack="r1", **{"gpu.nvidia.com/zone": "z1", "example.com/tier": 2})))
    assert (attributes["rack"], attributes["zone"], attributes["example.com/tier"]) == ("r1", "z1", 2)


def test_the_drivers_own_attribute_is_never_overridden() -> None:
    attributes = values(device(gpu(0), adding(**{"gpu.nvidia.com/uuid": "other"})))
    assert attributes["uuid"] == gpu(0).uuid
    assert "gpu.nvidia.com/uuid" not in attributes


def test_extra_attributes_take_the_room_of_the_least_needed_ones() -> None:
    policy = adding(**{f"extra{number:02d}": number for number in range(10)})
    description = described(FULL, policy=policy)
    (item,) = description.devices
    assert len(item.attributes) + len(item.capacity) == MAX_ATTRIBUTES_AND_CAPACITIES
    assert {f"extra{number:02d}" for number in range(10)} <= item.attributes.keys()
    assert set(GPU_ATTRIBUTES) - ELSEWHERE - item.attributes.keys() == set(GPU_ATTRIBUTES[-9:])
    (note,) = description.notes
    assert note.text.count(", ") == 8 and "no room for attributes" in note.text and note.rule is None


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


class TestBindingConditions:
    """Of devices that the node must make first, where server, controller and plugin take part."""

    DYNAMIC = PublishingPolicy(mig=[MigRule.model_validate({"mode": "Dynamic"})])

    def binding(
        self,
        *gpus: GpuFacts,
        features: ServerFeatures = ALL_FEATURES,
        prepares: bool | None = True,
        policy: PublishingPolicy = DYNAMIC,
    ) -> set[str]:
        spec = inventory_spec("node-a", gpus).model_copy(update={"prepares_for_binding": prepares})
        devices = described_devices(spec, policy, {}, GPU_DRIVER, features).devices
        assert devices
        for item in devices:
            assert (item.binding_conditions is None) == (item.binding_failure_conditions is None)
        return {item.name for item in devices if item.binding_conditions == ["BindingReady"]}

    def test_partitions_that_are_made_on_demand_have_them_and_nothing_else_has(self) -> None:
        names = self.binding(gpu(0, mig=mig()), gpu(1))
        assert names and all("-mig-" in name for name in names)
        existing = gpu_instance("1g.10gb", 0, 1, compute_instance("1g.10gb", 1))
        static = PublishingPolicy(mig=[MigRule.model_validate({"mode": "Static"})])
        facts = gpu(0, mig=mig(enabled=True, instances=[existing]))
        assert self.binding(facts, policy=static) == set()

    def test_without_one_of_those_who_take_part_no_device_has_any(self) -> None:
        facts = gpu(0, mig=mig())
        assert self.binding(facts, features=replace(ALL_FEATURES, binding=False)) == set()
        assert self.binding(facts, prepares=None) == set()
