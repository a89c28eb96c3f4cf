"""What a claim can be on a node: kubelet_plugin/prepare/lifecycle.py."""

from dataclasses import replace
from typing import Any

import pytest
from support.claims import BOOT, DIGEST, NODE, a_claim, a_held_device, a_ref, a_result, an_entry, device_name, uuid_of
from support.rows import rows

from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.model import DeviceKind, Partition
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    TimeSlice,
)
from kubelet_plugin.prepare.lifecycle import (
    ClaimStanding,
    Entry,
    FileDigests,
    HeldByOther,
    HeldDevice,
    JournalState,
    LeftBehind,
    PreparedDevice,
    SharedUse,
    admitted,
    left_behind,
    mig_uuids,
    needed,
    standing_of,
    state_of,
    without_claim,
)

GPU = GpuIdentity(uuid_of(0), "0000:10:00.0")
SLICE = TimeSlice(GPU, "Long")


def test_a_claim_with_a_free_gpu_is_admitted() -> None:
    first, second = an_entry(a_ref("one")), an_entry(a_ref("two"), a_held_device(1))

    assert admitted({"uid-of-one": first}, second) == {"uid-of-one": first, "uid-of-two": second}


def test_a_second_claim_for_the_same_hardware_is_refused_and_told_who_holds_it() -> None:
    holder = an_entry(a_ref("one"))
    held = {"uid-of-one": holder}

    with pytest.raises(HeldByOther, match=rf"team-a/one \(UID uid-of-one\) as {device_name(0)}: ") as refused:
        admitted(held, an_entry(a_ref("two"), a_held_device(0, device="another-name")))

    assert refused.value.holder == holder
    assert refused.value.about == "claim team-a/two"
    assert held == {"uid-of-one": holder}


def test_hardware_is_compared_by_uuid_and_not_by_name() -> None:
    held = {"uid-of-one": an_entry(a_ref("one"), a_held_device(0))}

    namesake = a_held_device(1, device=device_name(0))

    assert len(admitted(held, an_entry(a_ref("two"), namesake))) == 2


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False), (True, True)])
def test_admin_access_neither_holds_nor_is_refused(first: bool, second: bool) -> None:
    held = {"uid-of-one": an_entry(a_ref("one"), a_held_device(0, admin_access=first))}

    assert len(admitted(held, an_entry(a_ref("two"), a_held_device(0, admin_access=second)))) == 2


def part(profile: str, start: int, size: int, **more: Any) -> HeldDevice:
    return a_held_device(
        0, device=f"{profile}-{start}", kind=DeviceKind.MIG, partition=Partition(profile, start, size), **more
    )


MPS_SHARE = SharedUse("MPS", True)
WHOLE = a_held_device(0)
VFIO = a_held_device(0, device="vfio", kind=DeviceKind.VFIO)
SHARE = a_held_device(0, sharing=MPS_SHARE, share_id="a")
SMALL = part("1g.10gb", 0, 1)


@rows(
    "held, wanted, allowed",
    [
        (SMALL, part("1g.10gb", 1, 1), True),
        (SMALL, part("2g.20gb", 0, 2), False),
        (SMALL, SMALL, False),
        (WHOLE, SMALL, False),
        (SMALL, WHOLE, False),
        (WHOLE, VFIO, False),
        (VFIO, SMALL, False),
        (SHARE, SHARE, True),
        (SHARE, WHOLE, False),
        (SHARE, a_held_device(0, sharing=SharedUse("TimeSlicing", True)), False),
        (SHARE, a_held_device(0, sharing=SharedUse("MPS", True, settings="MPS for several users")), False),
        (part("1g.10gb", 0, 1, sharing=MPS_SHARE), part("1g.10gb", 0, 1, sharing=MPS_SHARE), True),
        (
            a_held_device(0, sharing=SharedUse("MPS", True, 1)),
            a_held_device(0, sharing=SharedUse("MPS", True, 2)),
            True,
        ),
        (
            a_held_device(0, sharing=SharedUse("MPS", True, 1)),
            a_held_device(0, sharing=SharedUse("MPS", True, 1)),
            False,
        ),
    ],
)
def test_what_can_be_side_by_side_is_decided_by_hardware(held: HeldDevice, wanted: HeldDevice, allowed: bool) -> None:
    journal = {"uid-of-one": an_entry(a_ref("one"), held)}
    entry = an_entry(a_ref("two"), wanted)

    if allowed:
        assert len(admitted(journal, entry)) == 2
    else:
        with pytest.raises(HeldByOther, match=r"team-a/one"):
            admitted(journal, entry)


def test_the_refused_are_told_with_what_settings_a_device_is_shared() -> None:
    shared = a_held_device(0, sharing=SharedUse("TimeSlicing", True, settings="time slice Long"))
    other = a_held_device(0, sharing=SharedUse("TimeSlicing", True, settings="time slice Short"))

    with pytest.raises(HeldByOther, match=r"with time slice Long: .*same settings"):
        admitted({"uid-of-one": an_entry(a_ref("one"), shared)}, an_entry(a_ref("two"), other))


def test_the_refused_are_told_of_no_alias_and_no_settings_where_there_are_none() -> None:
    own = a_held_device(0, sharing=SharedUse("TimeSlicing", settings="time slice Long"))

    with pytest.raises(HeldByOther, match=r"\(UID uid-of-one\): the device"):
        admitted({"uid-of-one": an_entry(a_ref("one"), own)}, an_entry(a_ref("two")))


def with_holds(entry: Entry, *holds: Hold) -> Entry:
    return replace(entry, holds=holds)


def test_a_daemon_cannot_be_two_things_at_once() -> None:
    first = with_holds(an_entry(a_ref("one"), SHARE), MpsDaemon("gpu", (GPU,)))
    second = with_holds(an_entry(a_ref("two"), SHARE), MpsDaemon("gpu", (GPU,), multi_user=True))

    with pytest.raises(HeldByOther, match=r"for several users .*, but claim team-a/one .* has MPS daemon gpu of GPU"):
        admitted({"uid-of-one": first}, second)


def test_a_hold_is_needed_as_long_as_an_entry_lists_it_even_one_on_its_way_out() -> None:
    held = {"uid-of-one": replace(with_holds(an_entry(a_ref("one")), SLICE), releasing=True)}

    assert needed(held, SLICE)
    assert not needed(held, SLICE, but="uid-of-one")
    assert not needed(held, TimeSlice(GPU, "Short"))


def test_what_no_claim_lists_is_in_the_way_of_its_gpu_only() -> None:
    records = {SLICE: HoldRecord(HoldState.MADE, BOOT)}

    assert left_behind({}, records) == (SLICE,)
    with pytest.raises(LeftBehind, match="time slice Long"):
        admitted({}, an_entry(a_ref("two")), records)
    assert admitted({}, an_entry(a_ref("two"), a_held_device(1)), records)
    assert admitted({}, an_entry(a_ref("two"), a_held_device(0, admin_access=True)), records)
    assert admitted({}, with_holds(an_entry(a_ref("two")), SLICE), records)


@rows(
    "record, releasing, state",
    [
        (HoldRecord(HoldState.MADE, BOOT), False, JournalState.PREPARED),
        (HoldRecord(HoldState.MADE, BOOT), True, JournalState.UNFINISHED),
        (HoldRecord(HoldState.INTENT, BOOT), False, JournalState.UNFINISHED),
        (HoldRecord(HoldState.UNDOING, BOOT), False, JournalState.UNFINISHED),
        (HoldRecord(HoldState.MADE, "boot-0"), False, JournalState.UNFINISHED),
        (None, False, JournalState.UNFINISHED),
    ],
)
def test_a_claim_is_prepared_when_its_holds_are_made(
    record: HoldRecord | None, releasing: bool, state: JournalState
) -> None:
    entry = replace(with_holds(an_entry(), MigMode(GPU)), releasing=releasing)

    assert state_of(entry, FileDigests(DIGEST), {} if record is None else {MigMode(GPU): record}) is state


def test_an_entry_without_a_digest_is_not_finished_by_having_no_file() -> None:
    assert state_of(replace(an_entry(), cdi_digest=None), None) is JournalState.UNFINISHED


def test_a_claim_replaces_its_own_entry() -> None:
    before = an_entry(a_ref("one"), a_held_device(0))
    after = an_entry(a_ref("one"), a_held_device(0), a_held_device(1))

    assert admitted({"uid-of-one": before}, after) == {"uid-of-one": after}


def test_a_released_claim_holds_nothing() -> None:
    held = {"uid-of-one": an_entry(a_ref("one"))}

    assert without_claim(held, "uid-of-one") == {}
    assert without_claim(held, "uid-of-two") == held


@pytest.mark.parametrize(
    ("has_entry", "digest", "state"),
    [
        (False, None, JournalState.ABSENT),
        (False, DIGEST, JournalState.ORPHANED),
        (True, DIGEST, JournalState.PREPARED),
        (True, None, JournalState.UNFINISHED),
        (True, "e" * 64, JournalState.UNFINISHED),
    ],
)
def test_the_state_is_read_from_entry_and_file(has_entry: bool, digest: str | None, state: JournalState) -> None:
    files = None if digest is None else FileDigests(digest)
    assert state_of(an_entry() if has_entry else None, files) is state


def claim(*results: dict[str, Any], uid: str = "uid-of-train", reserved: bool = True) -> ResourceClaim:
    return ResourceClaim.of(a_claim(a_ref("train", uid), *results, reserved=reserved))


OTHER_DRIVER = a_result("channel-0", driver="compute-domain.nvidia.com")


@rows(
    "current, standing",
    [
        (claim(a_result(0)), ClaimStanding.STANDS),
        (claim(OTHER_DRIVER, a_result(0)), ClaimStanding.STANDS),
        (None, ClaimStanding.GONE),
        (claim(a_result(0), uid="another"), ClaimStanding.RECREATED),
        (claim(), ClaimStanding.DEALLOCATED),
        (claim(a_result(1)), ClaimStanding.MOVED),
        (claim(a_result(0), a_result(1)), ClaimStanding.MOVED),
        (claim(a_result(0, pool="node-b")), ClaimStanding.MOVED),
        (claim(OTHER_DRIVER), ClaimStanding.MOVED),
        (claim(a_result(0), reserved=False), ClaimStanding.STANDS),
    ],
)
def test_a_claim_stands_while_the_api_says_what_the_journal_says(
    current: ResourceClaim | None, standing: ClaimStanding
) -> None:
    assert standing_of(an_entry(), current, GPU_DRIVER, BOOT) is standing


def test_admin_access_is_a_part_of_what_a_claim_was_allocated() -> None:
    entry, looks = an_entry(a_ref(), a_held_device(0, admin_access=True)), claim(a_result(0, adminAccess=True))

    assert standing_of(entry, looks, GPU_DRIVER, BOOT) is ClaimStanding.STANDS
    assert standing_of(entry, claim(a_result(0)), GPU_DRIVER, BOOT) is ClaimStanding.MOVED


def test_mig_devices_of_a_claim_are_those_it_was_given_and_those_that_are_made() -> None:
    instance = GpuInstance(GPU, "1g.10gb", 5, 0, 1)
    made, lost = ComputeInstance(instance), ComputeInstance(replace(instance, start=1))
    entry = with_holds(an_entry(a_ref(), part("1g.10gb", 2, 1, mig_uuid="MIG-given")), MigMode(GPU), made, lost)
    records = {
        made: HoldRecord(HoldState.MADE, BOOT, Made((("uuid", "MIG-made"),))),
        MigMode(GPU): HoldRecord(HoldState.MADE, BOOT, Made((("uuid", "not-of-a-device"),))),
    }

    assert mig_uuids(entry, records) == {"MIG-given", "MIG-made"}


def test_after_a_boot_a_claim_that_no_pod_uses_has_no_right_any_more() -> None:
    assert standing_of(an_entry(), claim(a_result(0), reserved=False), GPU_DRIVER, "boot-2") is ClaimStanding.UNUSED
    assert standing_of(an_entry(), claim(a_result(0)), GPU_DRIVER, "boot-2") is ClaimStanding.STANDS


def test_only_what_the_api_said_makes_a_claim_stale() -> None:
    assert [standing for standing in ClaimStanding if not standing.is_stale] == [
        ClaimStanding.STANDS,
        ClaimStanding.UNKNOWN,
    ]


def test_the_answer_is_what_kubelet_needs_and_no_more() -> None:
    device = a_held_device(2, request_names=("train",), share_id="share")

    assert device.answer() == PreparedDevice(("train",), NODE, device_name(2), device.cdi_ids, "share")
    assert uuid_of(2) not in repr(device.answer())
