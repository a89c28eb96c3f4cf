"""Shortcuts change no answer: on machines with many equal parts, the quick search agrees with a plain one."""

import random
from typing import Any
from unittest.mock import patch

import pytest
from support.allocation import (
    DRIVER,
    NODE,
    alternative,
    claim,
    device_class,
    exactly,
    first_of,
    gpu,
    held,
    published,
)
from support.naive_allocation import Reference, Stop, TooLong
from support.rows import examples, rows, slow_but

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.search import Allocated, Limit, NotAllocatable, Undecided, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput

type Obj = dict[str, Any]

CLASS = device_class("gpu", f"device.driver == '{DRIVER}'")
CASES = examples(800)


def machine(random_: random.Random) -> tuple[list[Obj], list[Obj]]:
    """Devices and counter sets: GPUs that are alike, each offered whole, in parts, and as shares."""
    devices: list[Obj] = []
    sets: list[Obj] = []
    offers = [_offer(random_) for _ in range(random_.choice([1, 1, 2]))]
    for index in range(random_.choice([2, 3, 4, 5])):
        parts = random_.choice(offers)
        attributes = {"kind": {"string": random_.choice("aab")}, "link": {"string": random_.choice("xxyz")}}
        name = f"gpu-{index}"
        if any("draws" in part for part in parts):
            counters = {counter: {"value": "2" if counter == "c" else "1"} for counter in ("m0", "m1", "m2", "c")}
            sets.append({"name": name, "counters": counters})
        devices += [_part(name, place, part, attributes) for place, part in enumerate(parts)]
    if random_.random() < 0.2:
        random_.shuffle(devices)
    return devices, sets


def _offer(random_: random.Random) -> list[Obj]:
    """What a GPU can be had as."""
    if random_.random() < 0.3:
        return [{}]
    known: list[Obj] = [
        {"draws": {"m0": 1, "m1": 1, "m2": 1, "c": 2}},
        {"draws": {"m0": 1, "c": 1}},
        {"draws": {"m1": 1, "c": 1}},
        {"draws": {"m2": 1, "c": 1}},
        {"draws": {"m0": 1, "c": 1}, "share": True},
        {"share": True},
        {"draws": {"c": 1}, "taint": True},
    ]
    return random_.sample(known, random_.randint(2, 3))


def _part(gpu: str, place: int, part: Obj, attributes: Obj) -> Obj:
    fields: Obj = {"name": f"{gpu}-{place}", "attributes": {**attributes, "size": {"int": len(part.get("draws", ()))}}}
    if draws := part.get("draws"):
        counters = {name: {"value": str(amount)} for name, amount in draws.items()}
        fields["consumesCounters"] = [{"counterSet": gpu, "counters": counters}]
    if part.get("share"):
        policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
        fields |= {"allowMultipleAllocations": True, "capacity": {"units": {"value": "3", "requestPolicy": policy}}}
    if part.get("taint"):
        fields["taints"] = [{"key": "bad", "effect": "NoSchedule"}]
    return fields


def wanted(random_: random.Random) -> list[Obj]:
    return [_claim(random_, f"claim-{number}") for number in range(random_.choice([1, 1, 2]))]


def _claim(random_: random.Random, name: str) -> Obj:
    requests = []
    for number in range(random_.choice([1, 2, 2, 3])):
        if random_.random() < 0.2:
            alternatives = [alternative(f"a{place}", *_selectors(random_), **_fields(random_)) for place in range(2)]
            requests.append(first_of(f"r{number}", *alternatives))
        else:
            admin = {"adminAccess": True} if random_.random() < 0.15 else {}
            requests.append(exactly(f"r{number}", *_selectors(random_), **_fields(random_), **admin))
    constraints = []
    for _ in range(random_.choice([0, 0, 1, 2])):
        kind = random_.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        covered = [f"r{number}" for number in range(len(requests)) if random_.random() < 0.5]
        constraints.append({"requests": covered, kind: f"{DRIVER}/{random_.choice(['link', 'size', 'kind'])}"})
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }


def _selectors(random_: random.Random) -> list[str]:
    some = [
        f"device.attributes['{DRIVER}'].kind == 'a'",
        f"device.attributes['{DRIVER}'].size == 2",
        f"device.attributes['{DRIVER}'].size >= 2",
        "device.allowMultipleAllocations",
    ]
    return random_.sample(some, 1) if random_.random() < 0.5 else []


def _fields(random_: random.Random) -> Obj:
    fields: Obj = {"count": random_.choice([1, 1, 2, 2, 3, 4])}
    if random_.random() < 0.05:
        fields = {"allocationMode": "All"}
    if random_.random() < 0.1:
        fields["capacity"] = {"requests": {"units": random_.choice(["1", "2"])}}
    if random_.random() < 0.3:
        fields["tolerations"] = [{"operator": "Exists"}]
    return fields


@pytest.mark.parametrize(("part", "minor"), slow_but([(0, 36), (1, 36), (2, 36), (3, 36), (4, 35)], (0, 36)))
def test_the_quick_search_and_the_plain_one_choose_the_same(part: int, minor: int) -> None:
    behavior = Behavior.of(minor, partitionable=True, consumable=True, taints=True)
    counts = {"solved": 0, "refused": 0, "stopped": 0, "too long": 0}
    for number in range(CASES // 4):
        random_ = random.Random(f"{part} {number}")
        devices, sets = machine(random_)
        slices = [published(*devices, name="s-0", count=2 if sets else 1)]
        if sets:
            slices.append(published(name="s-1", count=2, sharedCounters=sets))
        free = [obj for obj in devices if not obj.get("allowMultipleAllocations")]
        in_use = [held(obj["name"]) for obj in free if random_.random() < 0.05]
        claims = wanted(random_)
        plain = Reference(
            claims,
            [published_slice.slice.to_wire() for published_slice in slices],
            {"gpu": CLASS.to_wire()},
            [held_claim.to_wire() for held_claim in in_use],
            minor=minor,
            most_steps=1_000,
        )
        snapshot = Snapshot(Catalog(slices, behavior), {"gpu": CLASS}, Usage.of(in_use))
        try:
            expected = plain.solve()
        except TooLong:
            counts["too long"] += 1
            continue
        except Stop:
            with pytest.raises(InvalidInput):
                allocate([ResourceClaim.of(wanted_claim) for wanted_claim in claims], NODE, snapshot)
            counts["stopped"] += 1
            continue
        # Machines as small as these are mostly decided before shortcuts begin, so they begin earlier for half of them.
        with patch("dra_driver.allocation.search._STEPS_BEFORE_SHORTCUTS", 24 * (number % 2)):
            result = allocate([ResourceClaim.of(wanted_claim) for wanted_claim in claims], NODE, snapshot)
        counts["solved" if expected else "refused"] += 1
        if not expected:
            assert not isinstance(result, Allocated), (devices, claims)
            continue
        assert isinstance(result, Allocated), (devices, claims, result)
        assert [
            [(device.request, device.device) for device in each.devices.results] for each in result.allocations
        ] == [[(request, device.device["name"]) for request, device, _ in each] for each in plain.results]
    assert counts["solved"] > CASES / 20
    assert counts["refused"] > CASES / 20
    assert counts["too long"] < CASES / 20


def test_a_device_that_two_claims_hold_through_admin_access_is_missing_once() -> None:
    of_kind = f"device.attributes['{DRIVER}'].kind == '{{}}'".format
    within = Snapshot(Catalog([published(gpu("a", kind="x"), gpu("b", kind="y"), gpu("c", kind="y"))]), {"gpu": CLASS})
    requests = [exactly("all-see", adminAccess=True), exactly("r0", of_kind("x")), exactly("r1", of_kind("y"))]
    with patch("dra_driver.allocation.search._STEPS_BEFORE_SHORTCUTS", 0):
        result = allocate([claim(exactly()), claim(*requests, name="other")], NODE, within)
    assert isinstance(result, Allocated), result
    assert [[device.device for device in each.devices.results] for each in result.allocations] == [
        ["b"],
        ["b", "a", "c"],
    ]


def test_distinct_attribute_remembers_one_value_per_request_so_equal_devices_are_not_as_good_as_each_other() -> None:
    links = {"g0": ("y", "a"), "g1": ("x", "a"), "g2": ("y", "b"), "g3": ("y", "a"), "g4": ("z", "b")}
    devices = [gpu(name, link=link, kind=kind) for name, (link, kind) in links.items()]
    requests = [exactly("r0", count=2), exactly("r1", count=3)]
    wanted = claim(*requests, constraints=[{"distinctAttribute": f"{DRIVER}/link"}])
    result = allocate([wanted], NODE, Snapshot(Catalog([published(*devices)]), {"gpu": CLASS}))
    assert isinstance(result, Allocated), result
    assert [device.device for device in result.allocations[0].devices.results] == ["g2", "g4", "g0", "g1", "g3"]


# -- searches that would take for ever


def of_groups(count: int, size: int) -> list[PublishedSlice]:
    """Devices that link in groups."""
    return [published(*(gpu(f"g{index:03}", link=f"l{index // size}", uuid=f"u{index}") for index in range(count)))]


def of_cards(count: int) -> list[PublishedSlice]:
    """Eight-slice GPUs that can be had whole, in seven ones, three twos, and one of the ones with the media engines."""
    places = [("7g", 0, 8), *(("1g", start, 1) for start in range(7)), *(("2g", start, 2) for start in (0, 2, 4))]
    cards = [f"card-{number}" for number in range(count)]
    devices = [
        gpu(f"{card}-{profile}-{start}{media}", profile=f"{profile}{media}")
        | {"consumesCounters": [{"counterSet": card, "counters": _slices(start, size, media=bool(media))}]}
        for card in cards
        for profile, start, size in places
        for media in (("", "-me") if profile == "1g" else ("",))
    ]
    sets = [{"name": card, "counters": _slices(0, 8, media=True)} for card in cards]
    chunks = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    slices = [published(*chunk, name=f"d-{index}", count=len(chunks) + 1) for index, chunk in enumerate(chunks)]
    return [*slices, published(name="c", count=len(chunks) + 1, sharedCounters=sets)]


def _slices(start: int, size: int, *, media: bool) -> Obj:
    counters = {f"slice-{number}": {"value": "1"} for number in range(start, start + size)}
    return counters | ({"media": {"value": "1"}} if media else {})


def profile(name: str, request: str, count: int) -> Obj:
    return exactly(request, f"device.attributes['{DRIVER}'].profile == '{name}'", count=count)


SAME = [{"requests": [], "matchAttribute": f"{DRIVER}/link"}]
SAME_TYPE_TOO = [*SAME, {"requests": [], "matchAttribute": f"{DRIVER}/type"}]


@rows(
    "slices, claims, fits",
    [
        (of_groups(128, 7), [claim(exactly(count=8), constraints=SAME)], False),
        (of_groups(128, 7), [claim(exactly(count=8), constraints=SAME_TYPE_TOO)], False),
        (of_groups(128, 31), [claim(exactly(count=32), constraints=SAME)], False),
        (of_groups(128, 31), [claim(exactly("a", count=16), exactly("b", count=16), constraints=SAME)], False),
        (of_groups(60, 30), [claim(exactly(count=20), constraints=SAME, name=name) for name in "abc"], False),
        (of_groups(64, 16), [claim(exactly(count=10), constraints=SAME, name=name) for name in "abcd"], True),
        (of_groups(128, 128), [claim(exactly("some", count=30), exactly("none", "false"))], False),
        (of_cards(8), [claim(profile("1g-me", "media", 9))], False),
        (of_cards(8), [claim(profile("1g-me", "media", 8))], True),
        (of_cards(8), [claim(profile("1g", "ones", 7), profile("7g", "whole", 8))], False),
        (of_cards(8), [claim(profile("2g", "twos", 19), profile("7g", "whole", 2))], False),
        (of_cards(8), [claim(profile("1g", "ones", 20), profile("2g", "twos", 12))], True),
    ],
)
def test_hard_searches_end_soon(slices: list[PublishedSlice], claims: list[ResourceClaim], fits: bool) -> None:
    result = allocate(claims, NODE, Snapshot(Catalog(slices), {"gpu": CLASS}), limit=Limit(steps=5000))
    assert not isinstance(result, Undecided)
    assert isinstance(result, Allocated) == fits


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ([profile("1g-me", "media", 9)], "needs 9 devices; their shared counters leave room for 8"),
        (
            [profile("1g-me", "some", 5), profile("1g-me", "more", 5)],
            "the requests draw at least 10 on counters called media; 8 is left",
        ),
    ],
)
def test_what_counters_leave_no_room_for_is_refused_at_the_first_turn(wanted: list[Obj], reason: str) -> None:
    snapshot = Snapshot(Catalog(of_cards(8)), {"gpu": CLASS})
    result = allocate([claim(*wanted)], NODE, snapshot, limit=Limit(steps=200))
    assert isinstance(result, NotAllocatable) and reason in result.reason, result
