"""What this driver did for claims never shows in the facts, and what happened to it does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.claims import a_held_device, a_ref, an_entry

from dra_driver.api.inventory import (
    ComputeInstanceFacts,
    FabricFacts,
    GpuFacts,
    GpuInstanceFacts,
    MigFacts,
    MigProfileFacts,
    NvlinkFacts,
)
from dra_driver.devices.model import DeviceKind
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    VfioBinding,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.ours import (
    DriverFootprint,
    InUse,
    claimed,
    kept_facts,
    kept_text,
    lost,
    ours_of,
    without_ours,
)

BOOT = "boot-1"
UUIDS = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(1, 5)]
ONE_G = MigProfileFacts(
    name="1g.10gb", id=19, slices=1, memory_bytes=9984 << 20, multiprocessors=16, size=1, starts=[0, 1], max_instances=7
)


def gpu(number: int, *, instances: list[GpuInstanceFacts] | None = None, **changes: object) -> GpuFacts:
    uuid = UUIDS[number]
    facts = GpuFacts(
        uuid=uuid,
        name=f"gpu-{uuid[4:12]}",
        minor=number,
        pci_bus_id=f"0000:{number + 1:02x}:00.0",
        product_name="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        cuda_compute_capability="9.0",
        memory_bytes=85520809984,
        fabric=FabricFacts(state="Completed"),
        nvlink=NvlinkFacts(links=18, switched=True, peers=[other for other in UUIDS if other != uuid]),
        mig=MigFacts(enabled=bool(instances), pending=bool(instances), profiles=[ONE_G], instances=instances or []),
    )
    return facts.model_copy(update=changes)


def instance(start: int, *uuids: str, gi: int = 7, profile: str = "1g.10gb") -> GpuInstanceFacts:
    devices = [ComputeInstanceFacts(id=index, uuid=uuid, profile=profile, slices=1) for index, uuid in enumerate(uuids)]
    return GpuInstanceFacts(id=gi, profile=profile, start=start, size=1, compute_instances=devices)


def identity(number: int) -> GpuIdentity:
    return GpuIdentity(UUIDS[number], f"0000:{number + 1:02x}:00.0")


def place(number: int, start: int) -> GpuInstance:
    return GpuInstance(identity(number), "1g.10gb", 19, start, 1)


def made(*facts: tuple[str, str], state: HoldState = HoldState.MADE, boot: str = BOOT) -> HoldRecord:
    return HoldRecord(state, boot, Made(facts))


def in_mig_mode(facts: GpuFacts, *instances: GpuInstanceFacts) -> GpuFacts:
    """As NVML answers in MIG mode: no peers, no fabric, other memory."""
    assert facts.mig is not None and facts.nvlink is not None
    mig = facts.mig.model_copy(update={"enabled": True, "pending": True, "instances": list(instances)})
    nvlink = facts.nvlink.model_copy(update={"peers": []})
    return facts.model_copy(update={"mig": mig, "nvlink": nvlink, "memory_bytes": 84000000000, "fabric": None})


def without_peer(facts: GpuFacts, *gone: int) -> GpuFacts:
    assert facts.nvlink is not None
    peers = [uuid for uuid in facts.nvlink.peers if uuid not in {UUIDS[number] for number in gone}]
    return facts.model_copy(update={"nvlink": facts.nvlink.model_copy(update={"peers": peers})})


class TestFactsStayAsTheyAre:
    def before(self) -> tuple[GpuFacts, ...]:
        return tuple(gpu(number) for number in range(4))

    def mode(self, number: int, *, was: str = "off") -> tuple[Hold, HoldRecord]:
        return MigMode(identity(number)), made(("was", was), ("gpu", kept_text(gpu(number))), state=HoldState.INTENT)

    @given(ours=st.sets(st.integers(0, 3)))
    def test_whatever_gpus_are_partitioned_for_claims_the_facts_are_those_of_before(self, ours: set[int]) -> None:
        records: dict[Hold, HoldRecord] = dict(self.mode(number) for number in ours)
        seen = []
        for number in range(4):
            if number in ours:
                records[place(number, 1)] = made(("gi", "7"))
                seen.append(in_mig_mode(gpu(number), instance(1, f"MIG-{number}")))
            else:
                seen.append(without_peer(gpu(number), *ours))
        assert without_ours(seen, ours_of(records, BOOT)) == self.before()

    @given(lent=st.sets(st.integers(0, 3)))
    def test_gpus_lent_to_virtual_machines_are_there_as_before(self, lent: set[int]) -> None:
        records: dict[Hold, HoldRecord] = {
            VfioBinding(identity(number), True): made(("gpu", kept_text(gpu(number)))) for number in lent
        }
        seen = [without_peer(gpu(number), *lent) for number in range(4) if number not in lent]
        assert without_ours(seen, ours_of(records, BOOT)) == self.before()

    def test_a_lent_gpu_keeps_the_name_of_one_that_looks_like_it(self) -> None:
        twin = gpu(0).model_copy(
            update={"uuid": "GPU-00000001-ffff-0000-0000-000000000000", "pci_bus_id": "0000:09:00.0"}
        )
        before = without_ours([gpu(0), twin], DriverFootprint())
        assert [facts.name for facts in before] == ["gpu-000000010", "gpu-00000001f"]
        during = without_ours([gpu(0)], DriverFootprint(lent={GpuIdentity(twin.uuid, twin.pci_bus_id): before[1]}))
        assert [facts.name for facts in during] == [facts.name for facts in before]

    def test_a_lent_gpu_that_answers_again_is_there_once(self) -> None:
        lent = {identity(number): gpu(number) for number in range(2)}
        assert without_ours(self.before(), DriverFootprint(lent=lent)) == self.before()

    def test_a_mode_that_an_administrator_switched_on_is_a_fact(self) -> None:
        seen = in_mig_mode(gpu(0), instance(1, "MIG-a"))
        records = dict([self.mode(0, was="on"), (place(0, 1), made(("gi", "7")))])
        (facts,) = without_ours([seen], ours_of(records, BOOT))
        assert facts.mig is not None
        assert (facts.mig.enabled, facts.mig.instances) == (True, [])

    def test_profiles_are_those_of_before_also_if_nvml_answers_fewer_in_mig_mode(self) -> None:
        seen = in_mig_mode(gpu(0), instance(1, "MIG-a"))
        assert seen.mig is not None
        records = dict([self.mode(0), (place(0, 1), made(("gi", "7")))])
        fewer = seen.model_copy(update={"mig": seen.mig.model_copy(update={"profiles": []})})
        assert without_ours([fewer], ours_of(records, BOOT)) == without_ours([gpu(0)], DriverFootprint())

    def test_an_instance_that_is_not_ours_shows_and_with_it_the_mode(self) -> None:
        seen = in_mig_mode(gpu(0), instance(0, "MIG-x", gi=8), instance(1, "MIG-a"))
        records = dict([self.mode(0), (place(0, 1), made(("gi", "7")))])
        (facts,) = without_ours([seen], ours_of(records, BOOT))
        assert facts.mig is not None
        assert facts.mig.enabled
        assert [instance_facts.start for instance_facts in facts.mig.instances] == [0]

    def test_a_mode_without_facts_of_before_is_still_not_a_fact(self) -> None:
        records: dict[Hold, HoldRecord] = {MigMode(identity(0)): made(("was", "off"))}
        (facts,) = without_ours([in_mig_mode(gpu(0))], ours_of(records, BOOT))
        assert facts.mig is not None
        assert not facts.mig.enabled

    def test_a_peer_that_fell_off_the_bus_is_none_even_if_it_was_one_before(self) -> None:
        records = dict([self.mode(0)])
        facts, _ = without_ours([in_mig_mode(gpu(0)), without_peer(gpu(1), 0, 2, 3)], ours_of(records, BOOT))
        assert facts.nvlink is not None
        assert facts.nvlink.peers == [UUIDS[1]]

    @pytest.mark.parametrize("text", ["", "{}", "no json"])
    def test_facts_that_cannot_be_read_any_more_are_none(self, text: str) -> None:
        assert kept_facts(made(("gpu", text))) is None


def test_kept_facts_are_the_json_of_an_inventory_without_health() -> None:
    text = json.loads(kept_text(gpu(0)))
    assert text["productName"] == "NVIDIA H100 80GB HBM3"
    assert not {"product_name", "health"} & text.keys()


class TestWhatIsLost:
    def test_several_come_in_one_order(self) -> None:
        records: dict[Hold, HoldRecord] = {}
        for number in (3, 1, 0, 2):
            records[ComputeInstance(place(number, 1))] = made(("uuid", f"MIG-{number}"))
        expected = ours_of(records, BOOT)
        assert expected == ours_of(dict(reversed(records.items())), BOOT)
        seen = lost([gpu(number) for number in range(4)], expected)
        assert [device.mig_uuid for device in seen] == ["MIG-0", "MIG-1", "MIG-2", "MIG-3"]

    def records(self, *, boot: str = BOOT, state: HoldState = HoldState.MADE) -> dict[Hold, HoldRecord]:
        made_one = made(("gi", "7"), ("ci", "0"), ("uuid", "MIG-a"), boot=boot, state=state)
        return {place(0, 1): made(("gi", "7"), boot=boot), ComputeInstance(place(0, 1)): made_one}

    def test_nothing_is_lost_that_is_there(self) -> None:
        assert lost([gpu(0, instances=[instance(1, "MIG-a")])], ours_of(self.records(), BOOT)) == ()

    @pytest.mark.parametrize("there", [[], [instance(1, "MIG-b")], [instance(0, "MIG-b")]])
    def test_a_device_of_ours_that_vanished_or_was_replaced_is_lost(self, there: list[GpuInstanceFacts]) -> None:
        (loss,) = lost([gpu(0, instances=there)], ours_of(self.records(), BOOT))
        assert (loss.gpu_uuid, loss.mig_uuid) == (UUIDS[0], "MIG-a")
        assert "1g.10gb at 1" in loss.message
        assert "delete the pods" in loss.message

    @pytest.mark.parametrize("state", [HoldState.INTENT, HoldState.UNDOING])
    def test_a_device_that_is_being_made_or_taken_back_is_not_lost(self, state: HoldState) -> None:
        assert lost([gpu(0)], ours_of(self.records(state=state), BOOT)) == ()

    def test_what_another_boot_made_is_made_again_and_not_lost(self) -> None:
        assert lost([gpu(0)], ours_of(self.records(boot="boot-0"), BOOT)) == ()

    def test_a_fabric_partition_counts_while_it_is_made_in_this_boot(self) -> None:
        states = [*((state, BOOT) for state in HoldState), (HoldState.MADE, "boot-0")]
        records: dict[Hold, HoldRecord] = {
            FabricPartition(number, (identity(number),)): made(state=state, boot=boot)
            for number, (state, boot) in enumerate(states)
        }
        made_now = [number for number, state in enumerate(states) if state == (HoldState.MADE, BOOT)]
        assert ours_of(records, BOOT).partitions == frozenset(made_now)

    def test_nothing_is_known_of_a_gpu_that_could_not_be_read(self) -> None:
        assert lost([gpu(1)], ours_of(self.records(), BOOT)) == ()

    def test_a_device_of_an_administrator_that_vanishes_from_under_a_claim_is_lost_and_not_free(self) -> None:
        before = gpu(0, instances=[instance(1, "MIG-a", gi=8), instance(2, "MIG-b", gi=9)])
        ours = DriverFootprint(in_use=(InUse(UUIDS[0], "MIG-a", instance(1, "MIG-a", gi=8)),))
        after = gpu(0, instances=[instance(2, "MIG-b", gi=9)])
        assert [loss.mig_uuid for loss in lost([after], ours)] == ["MIG-a"]
        assert lost([before], ours) == lost([gpu(1)], ours) == ()
        assert without_ours([after], ours)[0].mig == without_ours([before], ours)[0].mig

    def test_a_part_of_an_instance_that_vanishes_is_put_back_where_it_was(self) -> None:
        whole = instance(1, "MIG-a", "MIG-b")
        part = whole.model_copy(update={"compute_instances": whole.compute_instances[1:]})
        after = gpu(0, instances=[whole.model_copy(update={"compute_instances": whole.compute_instances[:1]})])
        (facts,) = without_ours([after], DriverFootprint(in_use=(InUse(UUIDS[0], "MIG-b", part),)))
        assert facts.mig is not None
        assert facts.mig.instances == [whole]

    def test_a_gpu_is_not_whole_again_while_a_claim_holds_a_lost_part_of_it(self) -> None:
        ours = DriverFootprint(in_use=(InUse(UUIDS[0], "MIG-a", instance(1, "MIG-a")),))
        (facts,) = without_ours([gpu(0)], ours)
        assert facts.mig is not None
        assert facts.mig.enabled

    def test_what_was_held_and_is_not_known_any_more_is_lost_all_the_same(self) -> None:
        ours = DriverFootprint(in_use=(InUse(UUIDS[0], "MIG-a"),))
        assert [loss.mig_uuid for loss in lost([gpu(0)], ours)] == ["MIG-a"]
        (facts,) = without_ours([gpu(0)], ours)
        assert facts.mig == gpu(0).mig


def test_mig_devices_of_an_administrator_are_in_use_by_the_claims_that_have_them_and_do_not_only_look() -> None:
    there = instance(1, "MIG-a")
    held = a_held_device(0, kind=DeviceKind.MIG, mig_uuid="MIG-a", gpu_instance=there.model_dump_json(by_alias=True))
    unreadable = a_held_device(1, kind=DeviceKind.MIG, mig_uuid="MIG-b", gpu_instance="{")
    looks = a_held_device(2, kind=DeviceKind.MIG, mig_uuid="MIG-c", admin_access=True)
    whole = a_held_device(3)
    entries = [an_entry(a_ref("one"), held, looks), an_entry(a_ref("two"), unreadable, whole)]
    expected = (InUse(held.gpu_uuid, "MIG-a", there), InUse(unreadable.gpu_uuid, "MIG-b", None))

    for order in (entries, entries[::-1]):
        assert claimed(Journal({entry.claim.uid: entry for entry in order}), BOOT).in_use == expected
