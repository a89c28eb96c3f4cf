"""The journal as text: kubelet_plugin/prepare/journal.py."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.claims import a_held_device, a_ref, an_entry

from dra_driver.devices.model import DeviceKind, Partition
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    SwitchedMode,
    TimeSlice,
    UnknownHold,
    VfioBinding,
    in_order,
)
from kubelet_plugin.prepare.journal import (
    DomainClaim,
    DomainDevice,
    DomainName,
    Journal,
    Unreadable,
    decode,
    encode,
    encode_change,
    hold_of,
)
from kubelet_plugin.prepare.lifecycle import ClaimMetadata, Entry, SharedUse


def a_journal(*entries: Entry) -> Journal:
    return Journal({entry.claim.uid: entry for entry in entries})


def two_claims() -> Journal:
    return a_journal(an_entry(a_ref("one")), an_entry(a_ref("two"), a_held_device(1, a_ref("two"))))


GPU = GpuIdentity("GPU-1", "0000:1b:00.0")
INSTANCE = GpuInstance(GPU, "3g.40gb", 9, 4, 4)

gpus = st.builds(GpuIdentity, st.text(), st.text())
gpu_instances = st.builds(GpuInstance, gpus, st.text(), st.integers(), st.integers(0, 7), st.integers(1, 8))
compute_instances = st.builds(ComputeInstance, gpu_instances, st.none() | st.integers(1, 8), st.integers(0, 7))
holds: st.SearchStrategy[Hold] = st.one_of(
    st.builds(MigMode, gpus),
    gpu_instances,
    compute_instances,
    st.builds(ComputeMode, gpus, st.sampled_from([0, 3])),
    st.builds(TimeSlice, gpus, st.sampled_from(["Default", "Short", "Medium", "Long"])),
    st.builds(
        MpsDaemon,
        st.text(),
        st.lists(gpus, max_size=2).map(tuple),
        st.none() | st.text() | compute_instances,
        st.booleans(),
        st.none() | st.integers(1, 100),
        st.lists(st.tuples(st.text(), st.integers(1)), max_size=2).map(tuple),
    ),
    st.builds(VfioBinding, gpus, st.booleans()),
    st.builds(SwitchedMode, gpus),
    st.builds(FabricPartition, st.integers(0, 63), st.lists(gpus, min_size=1, max_size=2).map(tuple)),
)
records = st.builds(
    HoldRecord,
    st.sampled_from(HoldState),
    st.text(),
    st.dictionaries(st.text(), st.text(), max_size=3).map(lambda facts: Made(tuple(sorted(facts.items())))),
)


def with_hold(hold: Hold = INSTANCE) -> Journal:
    entry = replace(an_entry(a_ref("one")), holds=(hold,))
    return replace(a_journal(entry), holds={hold: HoldRecord(HoldState.MADE, "boot-1", Made((("gi", "1"),)))})


def object_of(line: bytes) -> dict[str, Any]:
    obj: dict[str, Any] = json.loads(line.partition(b" ")[2])
    return obj


def lines_of(journal: Journal) -> list[bytes]:
    return encode(journal).splitlines(keepends=True)


def resealed(line: bytes, **changes: Any) -> bytes:
    """The line as another release would have written it, with other fields and its own checksum."""
    text = json.dumps({**json.loads(line.partition(b" ")[2]), **changes}).encode()
    return hashlib.sha256(text).hexdigest()[:32].encode() + b" " + text + b"\n"


entries = st.builds(
    lambda name, namespace, boot, devices, admin, share: an_entry(
        a_ref(name, namespace=namespace),
        *(a_held_device(index, admin_access=admin, share_id=share) for index in sorted(devices)),
        boot_id=boot,
    ),
    st.text(min_size=1),
    st.text(),
    st.text(),
    st.sets(st.integers(0, 15), min_size=1, max_size=4),
    st.booleans(),
    st.none() | st.text(),
)
entries_with_holds = st.builds(
    lambda entry, needs, releasing, metadata: replace(
        entry, holds=in_order(needs), releasing=releasing, metadata=metadata
    ),
    entries,
    st.lists(holds, max_size=3),
    st.booleans(),
    st.none() | st.builds(ClaimMetadata, st.text(), st.text()),
)
domain_claims = st.builds(
    DomainClaim,
    st.builds(a_ref, st.text(min_size=1)),
    st.lists(
        st.builds(
            DomainDevice,
            st.text(),
            st.sampled_from(["channel", "daemon"]),
            st.lists(st.text()).map(tuple),
            st.text(),
            st.sampled_from(["Single", "All", None]),
            st.booleans(),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    st.none() | st.builds(DomainName, st.text(), st.text(), st.text(), st.text()),
)
journals = st.builds(
    lambda listed, incomplete, holds, domains: replace(
        a_journal(*listed), incomplete=incomplete, holds=holds, domains={claim.claim.uid: claim for claim in domains}
    ),
    st.lists(entries_with_holds, max_size=5),
    st.booleans(),
    st.dictionaries(holds, records, max_size=4),
    st.lists(domain_claims, max_size=2),
)


@given(journals)
def test_what_was_encoded_is_decoded(journal: Journal) -> None:
    assert decode(encode(journal)) == journal


@given(journals)
def test_the_same_journal_gives_the_same_bytes(journal: Journal) -> None:
    backwards = replace(
        journal,
        held=dict(reversed(journal.held.items())),
        holds=dict(reversed(journal.holds.items())),
        domains=dict(reversed(journal.domains.items())),
    )

    assert encode(backwards) == encode(journal)


@given(st.lists(journals, min_size=2, max_size=4))
def test_changes_that_follow_each_other_say_the_last_journal(states: list[Journal]) -> None:
    content = encode(states[0]) + b"".join(map(encode_change, states, states[1:]))

    assert decode(content) == states[-1]


def test_a_change_has_only_what_is_new() -> None:
    before = two_claims()
    other = an_entry(a_ref("three"), a_held_device(3))
    after = Journal({"uid-of-two": before.held["uid-of-two"], "uid-of-three": other})

    _, added, gone = encode_change(before, after).splitlines()
    assert object_of(added)["claim"]["uid"] == "uid-of-three"
    assert object_of(gone) == {"goneClaim": "uid-of-one"}
    assert encode_change(after, after).count(b"\n") == 1


def test_of_one_claim_of_both_drivers_one_can_go() -> None:
    both = replace(
        a_journal(an_entry(a_ref("one"))),
        domains={"uid-of-one": DomainClaim(a_ref("one"), (DomainDevice("c", "channel", (), "", None),), None)},
    )
    for after in (replace(both, held={}), replace(both, domains={})):
        assert decode(encode(both) + encode_change(both, after)) == after


@pytest.mark.parametrize(
    "earlier",
    [[two_claims()], [two_claims(), with_hold()], [Journal({}, incomplete=True)]],
    ids=["claims", "a change", "a header"],
)
def test_a_change_whose_end_is_missing_does_not_count_and_is_seen(earlier: list[Journal]) -> None:
    whole = encode(earlier[0]) + b"".join(map(encode_change, earlier, earlier[1:]))
    change = encode_change(earlier[-1], a_journal(an_entry(a_ref("three"))))
    assert decode(whole + change).unfinished is None

    for length in range(1, len(change) - 1):
        decoded = decode(whole + change[:length])
        assert decoded.unfinished is not None
        assert replace(decoded, unfinished=None) == earlier[-1]


@given(st.data())
def test_any_flipped_byte_of_a_change_is_noticed(data: st.DataObject) -> None:
    before, after = two_claims(), with_hold()
    first, change = encode(before), bytearray(encode_change(before, after))
    place = data.draw(st.integers(0, len(change) - 1))
    change[place] ^= data.draw(st.integers(1, 255))

    decoded = decode(first + bytes(change))

    assert decoded.damage or decoded.unfinished
    assert decoded.incomplete or decoded.unfinished


def test_a_change_of_a_newer_release_that_keeps_this_one_out_is_not_damaged() -> None:
    header, *lines = encode_change(Journal({}), two_claims()).splitlines(keepends=True)

    with pytest.raises(Unreadable, match="newer release"):
        decode(encode(Journal({})) + resealed(header, minReader=2) + b"".join(lines))


def test_what_a_newer_release_says_of_the_file_lasts_until_the_next_change() -> None:
    header, line = encode_change(Journal({}), a_journal(an_entry(a_ref("one")))).splitlines(keepends=True)

    decoded = decode(encode(Journal({})) + resealed(header, writer="2.0") + line)

    assert object_of(lines_of(decoded)[0])["writer"] == "2.0"
    again = encode_change(decoded, replace(decoded, held={}))
    assert object_of(again.splitlines()[0])["writer"] == "2.0"


def test_a_line_that_is_missing_before_the_last_change_is_noticed() -> None:
    empty, both = Journal({}), two_claims()
    header, first, _ = encode_change(empty, both).splitlines(keepends=True)

    decoded = decode(encode(empty) + header + first + encode_change(both, both))

    assert [damage.reason for damage in decoded.damage] == ["1 of 2 lines are missing"]
    assert decoded.incomplete and list(decoded.held) == ["uid-of-one"]


def test_a_line_too_many_is_damage() -> None:
    header, first, second = lines_of(two_claims())

    decoded = decode(resealed(header, lines=1) + first + second)

    assert [damage.line for damage in decoded.damage] == [second.rstrip(b"\n")]
    assert decoded.held == two_claims().held


@given(st.data())
def test_any_flipped_byte_costs_its_line_and_is_noticed(data: st.DataObject) -> None:
    journal = two_claims()
    content = bytearray(encode(journal))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))

    decoded = decode(bytes(content))

    assert decoded.damage
    assert decoded.incomplete
    assert decoded.held.items() <= journal.held.items()
    assert len(decoded.held) >= len(journal.held) - 2


@given(st.data())
def test_a_file_cut_off_anywhere_is_noticed(data: st.DataObject) -> None:
    content = encode(two_claims())

    decoded = decode(content[: data.draw(st.integers(0, len(content) - 2))])  # without the last newline nothing is lost

    assert decoded.damage
    assert decoded.incomplete


def test_a_damaged_line_is_reported_as_it_is_and_the_others_are_kept() -> None:
    header, first, second = lines_of(two_claims())
    bad = first.replace(b"team-a", b"team-b")

    decoded = decode(header + bad + second)

    assert [damage.line for damage in decoded.damage] == [bad.rstrip(b"\n")]
    assert "checksum" in decoded.damage[0].reason
    assert list(decoded.held) == ["uid-of-two"]


def test_a_damaged_header_costs_no_entry() -> None:
    header, first, second = lines_of(two_claims())

    decoded = decode(header.replace(b"lines", b"liens") + first + second)

    assert decoded.held == two_claims().held
    assert decoded.incomplete


def test_entries_missing_at_the_end_are_counted_and_the_others_are_kept() -> None:
    header, first, _ = lines_of(two_claims())

    decoded = decode(header + first)

    assert decoded.damage[0].reason == "1 of 2 lines are missing"
    assert list(decoded.held) == ["uid-of-one"]


def test_an_incomplete_journal_stays_so() -> None:
    assert decode(encode(Journal({}, incomplete=True))).incomplete


def test_fields_of_a_newer_release_survive_a_rewrite_by_this_one() -> None:
    header, line = lines_of(a_journal(an_entry(a_ref("one"))))
    obj = json.loads(line.partition(b" ")[2])
    obj["devices"][0]["mig"] = {"gi": 3}
    newer = resealed(header, writer="2.0", version=2) + resealed(line, preparedAt="now", **obj)

    rewritten = encode(decode(newer))

    assert json.loads(rewritten.splitlines()[0].partition(b" ")[2])["writer"] == "2.0"
    entry = json.loads(rewritten.splitlines()[1].partition(b" ")[2])
    assert entry["preparedAt"] == "now"
    assert entry["devices"][0]["mig"] == {"gi": 3}
    assert not decode(newer).damage


def test_a_journal_that_a_newer_release_keeps_from_this_one_is_not_damaged() -> None:
    header, line = lines_of(a_journal(an_entry(a_ref("one"))))

    with pytest.raises(Unreadable, match="newer release"):
        decode(resealed(header, minReader=2) + line)


def test_an_entry_with_a_good_checksum_and_missing_fields_is_damage() -> None:
    header, line = lines_of(a_journal(an_entry(a_ref("one"))))
    text = b'{"claim":{"uid":"uid-of-one"},"devices":[]}'
    bad = hashlib.sha256(text).hexdigest()[:32].encode() + b" " + text + b"\n"

    assert "namespace" in decode(header + bad).damage[0].reason
    assert not decode(header + line).damage


def test_a_claim_of_a_domain_without_devices_is_damage() -> None:
    claim = DomainClaim(a_ref("one"), (DomainDevice("channel", "channel", (), "", None, False),), None)
    header, line = lines_of(replace(a_journal(), domains={"uid-of-one": claim}))

    assert decode(header + line).domains
    decoded = decode(header + resealed(line, devices=[]))
    assert (decoded.damage[0].reason, decoded.domains) == ("a claim without devices", {})


def test_a_device_with_an_unknown_field_further_down_is_damage() -> None:
    place = Partition("1g.10gb", 0, 1)
    device = a_held_device(1, kind=DeviceKind.MIG, partition=place)
    header, line = lines_of(a_journal(an_entry(a_ref("one"), device)))
    (wire,) = object_of(line)["devices"]

    decoded = decode(header + resealed(line, devices=[{**wire, "partition": {**wire["partition"], "colour": "green"}}]))
    assert "not known" in decoded.damage[0].reason
    assert decoded.held == {}


def test_devices_that_are_no_full_gpus_keep_what_they_are() -> None:
    made = a_held_device(kind=DeviceKind.MIG, partition=Partition("3g.40gb", 4, 4, compute_slices=1, compute_start=2))
    existing = a_held_device(
        1, kind=DeviceKind.MIG, partition=Partition("1g.10gb", 0, 1), mig_uuid="MIG-1", gpu_instance="{}"
    )
    passed = a_held_device(2, kind=DeviceKind.VFIO, vfio_api=True)
    shared = a_held_device(3, sharing=SharedUse("MPS", True, 2, "several users", 25, 1 << 30))
    journal = a_journal(an_entry(a_ref("one"), made, existing, passed, shared))

    assert decode(encode(journal)) == journal


def test_a_line_has_no_fields_without_meaning() -> None:
    assert set(object_of(lines_of(two_claims())[0])) == {"version", "minReader", "lines"}
    assert set(object_of(lines_of(two_claims())[1])) == {
        *("claim", "bootId", "devices", "cdiDigest"),
    }


def test_a_hold_of_a_newer_release_is_kept_as_it_is() -> None:
    header, entry, record = lines_of(with_hold())
    newer = {"kind": "power-cap", "gpu": "GPU-1", "watts": 300}
    content = header + resealed(entry, holds=[newer]) + resealed(record, hold=newer, since="now")

    decoded = decode(content)

    (hold,) = decoded.held["uid-of-one"].holds
    assert hold == UnknownHold("power-cap", json.dumps(newer, separators=(",", ":"), sort_keys=True))
    assert not decoded.damage
    again = [object_of(line) for line in lines_of(decoded)]
    assert again[1]["holds"] == [newer]
    assert (again[2]["hold"], again[2]["since"], again[2]["made"]) == (newer, "now", {"gi": "1"})


def test_a_hold_with_a_field_of_a_newer_release_is_another_hold() -> None:
    header, entry, record = lines_of(with_hold())
    newer = {**object_of(record)["hold"], "extraMemory": True}

    decoded = decode(header + entry + resealed(record, hold=newer))

    assert INSTANCE not in decoded.holds
    assert [type(hold) for hold in decoded.holds] == [UnknownHold]
    assert object_of(lines_of(decoded)[2])["hold"] == newer


@pytest.mark.parametrize("hold", [{}, {"kind": 1}])
def test_a_record_of_nothing_that_has_a_kind_is_damage(hold: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a hold without kind"):
        hold_of(hold)


def test_a_hold_with_values_of_other_types_is_kept_as_it_is() -> None:
    assert isinstance(hold_of({"kind": "time-slice", "gpu": 1, "interval": "Long"}), UnknownHold)


def test_a_lost_record_is_missed() -> None:
    header, entry, _ = lines_of(with_hold())

    decoded = decode(header + entry)

    assert decoded.damage[0].reason == "1 of 2 lines are missing"
    assert decoded.incomplete
