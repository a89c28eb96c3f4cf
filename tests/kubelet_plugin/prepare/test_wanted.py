"""From a claim and a node's offers to devices and holds: kubelet_plugin/prepare/wanted.py. Values in, values out."""

from dataclasses import replace
from typing import Any

import pytest
from support.claims import BOOT, NODE, a_claim, a_config, a_gpu, a_ref, a_result, device_name, uuid_of
from support.inventories import compute_instance, gpu_instance, inventory_spec, mig

from dra_driver.api.inventory import GpuFacts, GpuInstanceFacts, PassthroughFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import InvalidConfig, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.features import Gates
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    GpuIdentity,
    GpuInstance,
    Hold,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
)
from kubelet_plugin.prepare.known_node import KnownNode
from kubelet_plugin.prepare.lifecycle import SharedUse
from kubelet_plugin.prepare.wanted import WantedClaim, wanted_of

GIB = 1 << 30


def a_node(*gpus: GpuFacts, **policy: Any) -> KnownNode:
    table = by_name(offers(inventory_spec(NODE, gpus), PublishingPolicy.of(policy), {}))
    return KnownNode(GPU_DRIVER, NODE, BOOT, table, {gpu.uuid: gpu for gpu in gpus})


def identity(index: int = 0) -> GpuIdentity:
    return GpuIdentity(uuid_of(index), a_gpu(index).pci_bus_id)


def config(kind: str, *requests: str, **fields: Any) -> JsonObject:
    return a_config({"apiVersion": CONFIG_API_VERSION, "kind": kind, **fields}, *requests)


def wanted(node: KnownNode, *results: JsonObject, configs: tuple[JsonObject, ...] = ()) -> WantedClaim:
    return wanted_of(ResourceClaim.of(a_claim(a_ref(), *results, configs=configs)), a_ref(), node)


def mps(**settings: Any) -> JsonObject:
    return {"strategy": "MPS", "mpsConfig": settings}


def daemons(holds: tuple[Hold, ...]) -> list[MpsDaemon]:
    return [hold for hold in holds if isinstance(hold, MpsDaemon)]


FOUR = a_node(*(a_gpu(index) for index in range(4)))
DYNAMIC = a_node(a_gpu(0, mig=mig()), mig=[{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb"]}])
STATIC = a_node(
    a_gpu(
        0,
        mig=mig(
            enabled=True,
            instances=[
                gpu_instance("1g.10gb", 3, 1, compute_instance("1g.10gb", 1, number=7)),
                gpu_instance("3g.40gb", 4, 4, compute_instance("3g.40gb", 3, number=8)),
            ],
        ),
    )
)
ONE_PART = f"{device_name(0)}-mig-1g10gb-3"
BIG_PART = f"{device_name(0)}-mig-3g40gb-4"
INSTANCE = GpuInstance(identity(), "1g.10gb", 5, 3, 1)


class TestWithoutHolds:
    def test_a_full_gpu_needs_nothing(self) -> None:
        assert wanted(FOUR, a_result(0), a_result(1)).holds == ()

    def test_a_mig_device_that_exists_needs_nothing_and_is_known_by_its_uuid(self) -> None:
        static = wanted(STATIC, a_result(ONE_PART))

        (device,) = static.devices
        assert static.holds == ()
        assert device.mig_uuid == "MIG-00000000-0000-4000-8000-000000000007"
        instance = GpuInstanceFacts.model_validate_json(device.gpu_instance)
        assert (instance.start, [part.uuid for part in instance.compute_instances]) == (3, [device.mig_uuid])
        assert '"computeInstances"' in device.gpu_instance

    def test_another_mig_device_is_known_with_its_own_gpu_instance(self) -> None:
        (device,) = wanted(STATIC, a_result(BIG_PART)).devices

        instance = GpuInstanceFacts.model_validate_json(device.gpu_instance)
        assert (instance.start, instance.size) == (4, 4)
        assert [part.uuid for part in instance.compute_instances] == [device.mig_uuid]

    def test_a_part_of_a_profile_that_the_driver_no_longer_reports_has_to_wait(self) -> None:
        offers = {name: replace(offer, profile=None) for name, offer in DYNAMIC.offers.items()}

        with pytest.raises(NodeNotReady, match=r"does not report the profile 1g\.10gb now") as refused:
            wanted(replace(DYNAMIC, offers=offers), a_result(ONE_PART))

        assert ONE_PART in str(refused.value)

    @pytest.mark.parametrize("name", [ONE_PART, device_name(0)])
    def test_who_only_looks_changes_nothing(self, name: str) -> None:
        sharing = mps(defaultActiveThreadPercentage=20)
        configs = (config("GpuConfig", sharing=sharing), config("MigDeviceConfig", sharing=sharing))

        assert wanted(DYNAMIC, a_result(name, adminAccess=True), configs=configs).holds == ()


class TestParts:
    def test_a_part_is_made_from_the_mode_down(self) -> None:
        assert wanted(DYNAMIC, a_result(ONE_PART)).holds == (
            MigMode(identity()),
            INSTANCE,
            ComputeInstance(INSTANCE),
        )

    def test_a_part_of_a_gpu_instance_names_its_slices(self) -> None:
        holds = wanted(DYNAMIC, a_result(f"{device_name(0)}-mig-1c3g40gb-4-2")).holds

        assert holds[2] == ComputeInstance(GpuInstance(identity(), "3g.40gb", 2, 4, 4), 1, 2)

    def test_two_parts_of_one_gpu_in_a_claim_share_what_they_can(self) -> None:
        holds = wanted(DYNAMIC, a_result(ONE_PART), a_result(BIG_PART)).holds

        assert [type(hold).__name__ for hold in holds] == [
            "MigMode",
            *["GpuInstance"] * 2,
            *["ComputeInstance"] * 2,
        ]

    def test_a_gpu_and_a_part_of_it_cannot_be_in_one_claim(self) -> None:
        with pytest.raises(InvalidInput, match="a partitioned GPU cannot be used as a whole"):
            wanted(DYNAMIC, a_result(ONE_PART), a_result(device_name(0)))

    def test_each_mig_device_has_a_daemon_of_its_own_with_its_own_limit(self) -> None:
        sharing = mps(defaultPerDevicePinnedMemoryLimit={"1": "2Gi"}, defaultActiveThreadPercentage=40)
        holds = wanted(
            DYNAMIC,
            a_result(ONE_PART, "small"),
            a_result(BIG_PART, "big"),
            configs=(config("MigDeviceConfig", sharing=sharing),),
        ).holds

        small, big = sorted(daemons(holds), key=lambda daemon: len(daemon.memory_limits))
        assert (small.mig, small.memory_limits) == (ComputeInstance(INSTANCE), ())
        assert big.memory_limits == (("mig", 2 * GIB),)
        assert (small.thread_percentage, big.thread_percentage) == (40, 40)
        assert small.key != big.key
        assert not [hold for hold in holds if isinstance(hold, ComputeMode)]

    def test_what_a_config_asks_for_in_vain_is_told(self) -> None:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
        static = wanted(STATIC, a_result(ONE_PART), configs=(config("MigDeviceConfig", sharing=sharing),))
        assert [ONE_PART in warning and "has no effect" in warning for warning in static.warnings] == [True]

    def test_two_daemons_are_too_many_for_the_containers_of_one_request(self) -> None:
        """Both would be at the same place in the container, and hide each other."""
        with pytest.raises(InvalidInput, match="can use only one") as refused:
            wanted(DYNAMIC, a_result(ONE_PART), a_result(BIG_PART), configs=(config("MigDeviceConfig", sharing=mps()),))
        assert ONE_PART in refused.value.message and BIG_PART in refused.value.message

    def test_the_daemon_of_a_device_that_exists_serves_its_uuid(self) -> None:
        holds = wanted(STATIC, a_result(ONE_PART), configs=(config("MigDeviceConfig", sharing=mps()),)).holds

        assert [daemon.mig for daemon in daemons(holds)] == ["MIG-00000000-0000-4000-8000-000000000007"]


class TestConfigs:
    def test_a_time_slice_is_set_on_each_gpu(self) -> None:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}

        sliced = wanted(FOUR, a_result(2), a_result(0), configs=(config("GpuConfig", sharing=sharing),))

        assert sliced.holds == (TimeSlice(identity(0), "Long"), TimeSlice(identity(2), "Long"))
        assert [device.sharing for device in sliced.devices] == [
            SharedUse("TimeSlicing", settings="time slice Long")
        ] * 2

    def test_gpus_with_one_config_have_one_daemon_and_one_numbering(self) -> None:
        sharing = mps(
            defaultPinnedDeviceMemoryLimit="4Gi",
            defaultPerDevicePinnedMemoryLimit={"0": "1Gi", uuid_of(2): "2Gi"},
            multiUser=True,
        )

        holds = wanted(
            FOUR, a_result(3), a_result(2), a_result(1), configs=(config("GpuConfig", sharing=sharing),)
        ).holds

        gpus = (identity(1), identity(2), identity(3))
        (daemon,) = daemons(holds)
        assert holds[:3] == tuple(ComputeMode(gpu, 3) for gpu in gpus)
        assert (daemon.gpus, daemon.multi_user, daemon.thread_percentage) == (gpus, True, None)
        assert daemon.memory_limits == ((uuid_of(1), GIB), (uuid_of(2), 2 * GIB), (uuid_of(3), 4 * GIB))
        assert daemon.key.startswith(a_ref().uid)

    def test_requests_with_different_configs_have_daemons_of_their_own(self) -> None:
        configs = (
            config("GpuConfig", "big", sharing=mps(defaultActiveThreadPercentage=80)),
            config("GpuConfig", "small", sharing=mps(defaultActiveThreadPercentage=20)),
        )

        holds = wanted(FOUR, a_result(0, "big"), a_result(1, "small"), a_result(2, "none"), configs=configs).holds

        percentages = {daemon.gpus: daemon.thread_percentage for daemon in daemons(holds)}
        assert percentages == {(identity(0),): 80, (identity(1),): 20}
        assert len({daemon.key for daemon in daemons(holds)}) == 2

    def test_a_config_that_the_gpu_cannot_honour_is_refused_with_the_claim(self) -> None:
        old = a_node(a_gpu(0, cuda_compute_capability="6.1", product_name="Tesla P4"))
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}

        with pytest.raises(InvalidConfig, match="Tesla P4") as refused:
            wanted(old, a_result(0), configs=(config("GpuConfig", sharing=sharing),))

        assert refused.value.about == "claim team-a/train"

    @pytest.mark.parametrize(
        ("sharing", "gate"), [({"strategy": "TimeSlicing"}, "TimeSlicingSettings"), ({"strategy": "MPS"}, "MPSSupport")]
    )
    def test_a_strategy_that_is_switched_off_is_refused_and_the_other_is_not(
        self, sharing: JsonObject, gate: str
    ) -> None:
        other = {"TimeSlicingSettings": "MPSSupport", "MPSSupport": "TimeSlicingSettings"}[gate]
        asked = (config("GpuConfig", sharing=sharing),)

        with pytest.raises(InvalidConfig, match=f"by feature gate {gate};") as refused:
            wanted(replace(FOUR, gates=Gates.parse(f"{gate}=false")), a_result(0), configs=asked)

        assert refused.value.about == "claim team-a/train"
        assert wanted(replace(FOUR, gates=Gates.parse(f"{other}=false")), a_result(0), configs=asked).devices
        assert wanted(replace(FOUR, gates=Gates.parse(f"{gate}=false")), a_result(0)).devices

    @pytest.mark.parametrize(("policy", "iommufd"), [("LegacyOnly", False), ("PreferIommuFD", True)])
    def test_a_gpu_for_a_virtual_machine_is_bound(self, policy: str, iommufd: bool) -> None:
        node = a_node(a_gpu(0, passthrough=PassthroughFacts(iommu_group=3)), passthrough=[{}])
        iommu = {"backendPolicy": policy, "enableAPIDevice": iommufd}

        lent = wanted(node, a_result(f"{device_name(0)}-vfio"), configs=(config("VfioDeviceConfig", iommu=iommu),))

        assert lent.holds == (VfioBinding(identity(), iommufd),)
        assert lent.devices[0].vfio_api is iommufd

    def test_a_gpu_that_can_no_longer_be_lent_is_refused_but_for_who_only_looks(self) -> None:
        node = a_node(a_gpu(0, passthrough=PassthroughFacts(iommu_group=3)), passthrough=[{}])
        name = f"{device_name(0)}-vfio"
        lent = replace(node.offers[name], gpu=a_gpu(0, passthrough=None))
        changed = replace(node, offers={**node.offers, name: lent})

        with pytest.raises(InvalidConfig, match=name) as refused:
            wanted(changed, a_result(name))

        assert refused.value.field == "status.allocation.devices.results[0].device"
        assert wanted(changed, a_result(name, adminAccess=True)).holds == ()


class TestShares:
    def share(self, policy: JsonObject, **result: Any) -> WantedClaim:
        node = a_node(a_gpu(0), sharing=[policy])
        return wanted(node, a_result(0, shareID="a-share", **result))

    def test_time_slices_are_set_only_when_the_policy_says_which(self) -> None:
        rule = {"strategy": "TimeSlicing", "replicas": 4}

        assert self.share(rule).holds == ()
        assert self.share({**rule, "interval": "Short"}).holds == (TimeSlice(identity(), "Short"),)

    def test_shares_of_one_device_have_one_daemon(self) -> None:
        node = a_node(a_gpu(0), sharing=[{"strategy": "MPS", "replicas": 4}])
        first = wanted_of(ResourceClaim.of(a_claim(a_ref("one"), a_result(0, shareID="a"))), a_ref("one"), node)
        second = wanted_of(ResourceClaim.of(a_claim(a_ref("two"), a_result(0, shareID="b"))), a_ref("two"), node)
        apart = a_result(f"{device_name(0)}-share-2")
        third = wanted_of(ResourceClaim.of(a_claim(a_ref("three"), apart)), a_ref("three"), node)

        assert first.holds == second.holds == third.holds
        assert first.holds[0] == ComputeMode(identity(), 3)
        assert daemons(first.holds)[0].memory_limits == ()

    @pytest.mark.parametrize(
        ("rule", "settings"),
        [
            ({"strategy": "TimeSlicing", "interval": "Short"}, "time slice Short"),
            ({"strategy": "TimeSlicing"}, ""),
            ({"strategy": "MPS", "multiUser": True}, "MPS for several users"),
            ({"strategy": "MPS"}, ""),
        ],
    )
    def test_what_sharers_must_agree_on_is_said_of_each(self, rule: JsonObject, settings: str) -> None:
        (device,) = self.share({**rule, "replicas": 4}).devices

        assert device.sharing is not None
        assert device.sharing.settings == settings

    def test_equal_shares_are_parts_of_all(self) -> None:
        (device,) = self.share({"strategy": "MPS", "replicas": 4}).devices

        assert device.sharing is not None
        assert (device.sharing.thread_percentage, device.sharing.memory_bytes) == (25, 20 * GIB)

    def test_several_shares_in_one_are_so_much_more(self) -> None:
        (device,) = self.share({"strategy": "MPS", "replicas": 4}, consumedCapacity={"shares": "3"}).devices

        assert device.sharing is not None
        assert (device.sharing.thread_percentage, device.sharing.memory_bytes) == (75, 60 * GIB)

    def test_shares_of_a_mig_device_that_exists_are_parts_of_its_own_memory(self) -> None:
        part = compute_instance("1g.10gb", 1, number=7).model_copy(update={"memory_bytes": 6 * GIB})
        gpu = a_gpu(0, mig=mig(enabled=True, instances=[gpu_instance("1g.10gb", 3, 1, part)]))
        node = a_node(gpu, sharing=[{"devices": "mig", "strategy": "MPS", "replicas": 2}])
        (device,) = wanted(node, a_result(ONE_PART, shareID="a")).devices

        assert device.sharing is not None
        assert device.sharing.memory_bytes == 3 * GIB

    def test_all_shares_are_the_whole(self) -> None:
        (device,) = self.share({"strategy": "MPS", "replicas": 4}, consumedCapacity={"shares": "4"}).devices

        assert device.sharing is not None
        assert device.sharing.thread_percentage == 100

    @pytest.mark.parametrize("memory", ["1Gi", "40Gi"])
    def test_equal_shares_have_the_memory_that_was_consumed(self, memory: str) -> None:
        consumed = {"shares": "1", "memory": memory}

        (device,) = self.share({"strategy": "MPS", "replicas": 4}, consumedCapacity=consumed).devices

        assert device.sharing is not None
        assert device.sharing.memory_bytes == int(memory.removesuffix("Gi")) * GIB

    def test_shares_of_several_gpus_are_too_many_for_one_container(self) -> None:
        node = a_node(a_gpu(0), a_gpu(1), sharing=[{"strategy": "MPS", "replicas": 4}])
        with pytest.raises(InvalidInput, match="can use only one"):
            wanted(node, a_result(0, shareID="a"), a_result(1, shareID="b"))
        assert len(daemons(wanted(node, a_result(0, "one", shareID="a"), a_result(1, "two", shareID="b")).holds)) == 2

    def test_amounts_are_what_was_consumed(self) -> None:
        rule = {"strategy": "MPS", "capacity": ["memory", "cores"]}
        consumed = {f"{GPU_DRIVER}/memory": "8Gi", "cores": "50"}

        (device,) = self.share(rule, consumedCapacity=consumed).devices

        assert device.sharing is not None
        assert (device.sharing.thread_percentage, device.sharing.memory_bytes) == (50, 8 * GIB)

    def test_a_share_without_an_amount_that_was_promised_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="how much of memory") as refused:
            self.share({"strategy": "MPS", "capacity": ["memory"]})

        assert refused.value.field == "status.allocation.devices.results[0].consumedCapacity"

    def test_unlimited_shares_have_no_limit(self) -> None:
        (device,) = self.share({"strategy": "MPS", "unlimited": True}).devices

        assert device.sharing is not None
        assert (device.sharing.thread_percentage, device.sharing.memory_bytes) == (None, None)

    def test_a_shared_device_that_was_given_as_a_whole_belongs_to_one_claim(self) -> None:
        node = a_node(a_gpu(0), sharing=[{"strategy": "MPS", "replicas": 4}])

        whole = wanted(node, a_result(0))

        assert whole.holds == ()
        assert whole.devices[0].use.shared is False

    def test_shares_of_a_part_are_shares_of_one_instance(self) -> None:
        node = a_node(
            a_gpu(0, mig=mig()),
            mig=[{"mode": "Dynamic"}],
            sharing=[{"devices": "mig", "strategy": "MPS", "replicas": 2, "multiUser": True}],
        )

        share = wanted(node, a_result(ONE_PART, shareID="a"))

        assert share.holds[:3] == (MigMode(identity()), INSTANCE, ComputeInstance(INSTANCE))
        (daemon,) = daemons(share.holds)
        assert (daemon.mig, daemon.multi_user) == (ComputeInstance(INSTANCE), True)
        assert share.devices[0].sharing is not None
        assert share.devices[0].sharing.memory_bytes == 5 * GIB

    def test_two_shares_of_one_device_in_a_claim_are_two_devices_for_containers(self) -> None:
        node = a_node(a_gpu(0), sharing=[{"strategy": "TimeSlicing", "replicas": 4}])

        first, second = wanted(node, a_result(0, "a", shareID="a"), a_result(0, "b", shareID="b")).devices

        assert first.cdi_ids != second.cdi_ids


def test_many_names_are_not_all_listed() -> None:
    with pytest.raises(UnknownDevice, match=r"and \d+ more") as refused:
        wanted(DYNAMIC, a_result("gpu-99999999"))

    assert len(refused.value.message) < 800


def test_a_key_is_a_dns_label_whatever_the_uid() -> None:
    ref = replace(a_ref(), uid="X" * 100)
    claim = ResourceClaim.of(a_claim(ref, a_result(0), configs=[config("GpuConfig", sharing=mps())]))

    (daemon,) = daemons(wanted_of(claim, ref, FOUR).holds)

    assert daemon.key.startswith("claim-")
    assert len(daemon.key) <= 63
