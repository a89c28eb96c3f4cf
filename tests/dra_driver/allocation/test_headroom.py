"""What is said to be free is what a claim gets, and what is said to be the largest request is the largest."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.allocation import claim, device_class, exactly, gpu, held, published, snapshot, with_names
from support.rows import examples

from dra_driver.allocation.headroom import DeviceRoom, Headroom, Largest, Shape
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.requests import Cause
from dra_driver.allocation.search import Allocated, Limit, allocate
from dra_driver.allocation.snapshot import Catalog, Snapshot, Usage
from dra_driver.api.resource import Allocation
from dra_driver.checking.knowledge import sites_of_models
from dra_driver.names import GPU_DRIVER

# Every GPU, each with all devices that a policy can ask for, comes last.
H100 = [site for site in sites_of_models(["dgx-h100"]) if site.node.name == "dgx-h100"][-1]
ANY = {"any": device_class("any", f"device.driver == '{GPU_DRIVER}'")}
OWN = f"device.attributes['{GPU_DRIVER}']"
CATALOG = Catalog(with_names(H100.catalog._slices), H100.catalog.behavior)
DEVICES = [candidate for pool in CATALOG.pools(H100.node) for candidate in pool.candidates]
FIRST_GPU = sorted(
    {candidate.id.device for candidate in DEVICES if candidate.device.attributes["type"].string == "gpu"}
)[0]
PARTS = [candidate for candidate in DEVICES if candidate.id.device.startswith(FIRST_GPU)]


def used(names: list[str]) -> Snapshot:
    results = [{"request": "gpu", "driver": GPU_DRIVER, "pool": "dgx-h100", "device": name} for name in names]
    return Snapshot(CATALOG, ANY, Usage.of([Allocation.of({"devices": {"results": results}})]))


def selecting(standing: DeviceRoom) -> list[str]:
    """An expression that is true of this device alone."""
    return [f"{OWN}.name == '{standing.candidate.id.device}'"]


@given(st.lists(st.sampled_from([candidate.id.device for candidate in PARTS]), max_size=3, unique=True))
@settings(max_examples=examples(25))
def test_a_device_is_open_exactly_when_a_claim_for_it_alone_gets_it(names: list[str]) -> None:
    """Also where claims hold more than fits together, which a scheduler never gives them."""
    usage = used(names)
    for standing in Headroom(H100.node, usage, GPU_DRIVER).standings:
        if standing.candidate in PARTS:
            asked = claim(exactly("gpu", *selecting(standing), class_name="any"))
            assert (standing.refusal is None) == isinstance(allocate([asked], H100.node, usage), Allocated), standing


def test_the_largest_requests_are_those_of_an_empty_node() -> None:
    largest = Headroom(H100.node, used([]), GPU_DRIVER).largest
    assert (largest.whole_gpus, largest.mig_profile) == (8, "7g.80gb")
    assert (
        largest.memory_bytes == max(int(candidate.device.capacity["memory"].value[:-2]) for candidate in PARTS) * 2**20
    )


DEVICE = st.fixed_dictionaries(
    {"memory": st.sampled_from(["40Gi", "80Gi"]), "profile": st.sampled_from(["", "1g.10gb"])},
    optional={"sharing": st.just("mps")},
)


@given(st.lists(st.lists(st.tuples(DEVICE, st.booleans()), max_size=4), min_size=2, max_size=5))
@example([[({"memory": memory, "profile": ""}, True)] for memory in ("40Gi", "80Gi")])
@settings(max_examples=examples(25))
def test_nodes_that_share_answers_have_those_that_each_of_them_would_give(
    nodes: list[list[tuple[dict[str, str], bool]]],
) -> None:
    slices, allocations = [], []
    for number, devices in enumerate(nodes):
        named = [(f"gpu-{place}", about, free) for place, (about, free) in enumerate(devices)]
        slices.append(
            published(*(gpu(name, **about) for name, about, _ in named), node=f"n{number}", name=f"s{number}")
        )
        allocations += [held(name, pool=f"n{number}") for name, _, free in named if not free]
    cluster = snapshot(*slices, held=allocations)
    shared: dict[Shape, Largest] = {}
    for number in range(len(nodes)):
        node = NodeView(f"n{number}")
        assert (
            Headroom(node, cluster, GPU_DRIVER, answers=shared).largest == Headroom(node, cluster, GPU_DRIVER).largest
        ), number


def test_what_is_not_decided_is_not_said_to_be_too_large() -> None:
    largest = Headroom(H100.node, used([]), GPU_DRIVER, Limit(steps=1)).largest
    assert largest.undecided is not None and "not decided" in largest.undecided
    assert Headroom(H100.node, used([]), GPU_DRIVER).largest.undecided is None


def test_a_node_without_gpus_has_room_for_nothing() -> None:
    headroom = Headroom(NodeView("elsewhere"), used([]), GPU_DRIVER)
    assert headroom.standings == ()
    assert (headroom.largest.whole_gpus, headroom.largest.mig_profile, headroom.largest.memory_bytes) == (0, None, None)


def test_counters_tell_what_is_left_of_what() -> None:
    half = f"{FIRST_GPU}-mig-3g40gb-0"
    left, total = Headroom(H100.node, used([half]), GPU_DRIVER).counters[
        "dgx-h100", f"{FIRST_GPU}-counters", "memory-slice-0"
    ]
    assert 0 == left < total


@pytest.mark.parametrize(
    ("memory", "cores", "room"),
    [("20Gi", "99", True), ("20Gi", "100", False), ("40Gi", "10", False), ("1Gi", "1", True)],
)
def test_a_shareable_device_is_open_as_long_as_the_least_share_fits(memory: str, cores: str, room: bool) -> None:
    def steps(most: str, least: str) -> dict[str, object]:
        return {"value": most, "requestPolicy": {"default": most, "validRange": {"min": least, "step": least}}}

    device = gpu("a") | {
        "allowMultipleAllocations": True,
        "capacity": {"memory": steps("40Gi", "1Mi"), "cores": steps("100", "1")},
    }
    cluster = snapshot(published(device), held=[held("a", memory=memory, cores=cores)])
    headroom = Headroom(NodeView("node-1"), cluster, GPU_DRIVER)
    (standing,) = headroom.standings
    assert (standing.refusal is None) == room
    if room:
        left = (40 - int(memory[:-2])) * 2**30
        assert (standing.left["memory"], headroom.largest.memory_bytes) == (left, left)
    else:
        assert standing.refusal is not None
        assert standing.refusal.cause is Cause.CAPACITY
        assert headroom.largest.memory_bytes is None


def test_a_pool_that_is_being_updated_is_a_problem_and_has_no_devices() -> None:
    headroom = Headroom(NodeView("node-1"), snapshot(published(gpu("a"), count=2)), GPU_DRIVER)
    assert headroom.standings == ()
    assert headroom.problems == ("pool gpu.nvidia.com/node-1 is being updated: it has 1 of 2 slices",)


def test_a_scheduler_without_partitions_has_only_what_draws_on_no_counters() -> None:
    behavior = replace(H100.catalog.behavior, partitionable=False)
    catalog = type(H100.catalog)(
        [published_slice for of_pool in H100.catalog._known.values() for published_slice in of_pool], behavior
    )
    assert Headroom(H100.node, Snapshot(catalog, ANY), GPU_DRIVER).largest.whole_gpus == 0
