from typing import Any

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
    gpus,
    published,
    snapshot,
)
from support.rows import rows

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, Limit, NotAllocatable, Undecided, allocate
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.resource import Allocation, ResourceClaim
from dra_driver.errors import InvalidInput, NodeNotReady


def chosen(*claims: ResourceClaim, within: Snapshot, node: NodeView = NODE) -> list[str]:
    """`request=device` of all claims; fails when they do not fit."""
    return [
        f"{device.request}={device.device}"
        for each in allocated(*claims, within=within, node=node)
        for device in each.devices.results
    ]


def allocated(*claims: ResourceClaim, within: Snapshot, node: NodeView = NODE) -> tuple[Allocation, ...]:
    result = allocate(claims, node, within)
    assert isinstance(result, Allocated), result
    return result.allocations


def refused(*claims: ResourceClaim, within: Snapshot, node: NodeView = NODE) -> str:
    result = allocate(claims, node, within)
    assert isinstance(result, NotAllocatable), result
    return result.reason


# -- which devices


def test_the_first_free_device_is_taken() -> None:
    assert chosen(claim(), within=snapshot(gpus("a", "b", "c"), in_use=["a"])) == ["gpu=b"]


def test_devices_are_taken_in_the_order_of_pools_then_slices_then_the_list() -> None:
    slices = (
        published(gpu("z"), name="s-0", pool="pool-b"),
        published(gpu("y"), name="s-2", pool="pool-a", count=2),
        published(gpu("x"), gpu("w"), name="s-1", pool="pool-a", count=2),
    )
    got = chosen(claim(exactly(count=4)), within=snapshot(*slices))
    assert got == ["gpu=x", "gpu=w", "gpu=y", "gpu=z"]


def test_an_earlier_request_gives_way_when_a_later_one_needs_its_device() -> None:
    within = snapshot(published(gpu("large", size=80), gpu("small", size=40)))
    wanted = claim(exactly("any"), exactly("large", f"device.attributes['{DRIVER}'].size >= 80"))
    assert chosen(wanted, within=within) == ["any=small", "large=large"]


def test_claims_of_one_pod_get_different_devices() -> None:
    assert chosen(claim(), claim(name="other"), within=snapshot(gpus("a", "b"))) == ["gpu=a", "gpu=b"]
    assert refused(claim(), claim(name="other"), within=snapshot(gpus("a"))) == (
        "the requests need 2 devices together, and only 1 could serve them"
    )


def test_class_and_request_selectors_must_all_hold() -> None:
    within = snapshot(
        published(gpu("a", size=1, kind="x"), gpu("b", size=2, kind="x"), gpu("c", size=2, kind="y")),
        classes=[device_class("gpu", f"device.attributes['{DRIVER}'].size == 2")],
    )
    assert chosen(claim(exactly("gpu", f"device.attributes['{DRIVER}'].kind == 'y'")), within=within) == ["gpu=c"]


def test_a_request_may_want_an_amount_of_a_capacity() -> None:
    within = snapshot(published(gpu("a", memory="40Gi"), gpu("b"), gpu("c", memory="80Gi")))
    wanted = claim(exactly(capacity={"requests": {"memory": "64Gi"}}))
    assert chosen(wanted, within=within) == ["gpu=c"]
    more = claim(exactly(capacity={"requests": {"memory": "96Gi"}}))
    assert refused(more, within=within).endswith("2 with less than 96Gi of memory, 1 without capacity memory")


# -- all devices


def test_all_means_every_matching_device_of_the_node() -> None:
    within = snapshot(published(gpu("a"), gpu("b", broken=True), gpu("c")))
    selector = f"!has(device.attributes['{DRIVER}'].broken)"
    assert chosen(claim(exactly("gpu", selector, allocationMode="All")), within=within) == ["gpu=a", "gpu=c"]


def test_all_fails_when_one_device_is_in_use() -> None:
    wanted = claim(exactly(allocationMode="All"))
    assert refused(wanted, within=snapshot(gpus("a", "b"), in_use=["b"])) == (
        'request "gpu" of claim claim needs all devices; of 2 on the node: 1 in use'
    )


def test_all_needs_at_least_one_device() -> None:
    wanted = claim(exactly("gpu", "false", allocationMode="All"))
    assert "needs all devices of class gpu, and none matches" in refused(wanted, within=snapshot(gpus("a")))


def test_all_waits_for_pools_that_are_being_updated_even_of_another_driver() -> None:
    incomplete = published(gpu("n"), driver="nic.example.com", name="nic", count=2)
    within = snapshot(gpus("a"), incomplete, classes=[device_class("gpu", f"device.driver == '{DRIVER}'")])
    with pytest.raises(NodeNotReady) as raised:
        allocate([claim(exactly(allocationMode="All"))], NODE, within)
    assert str(raised.value) == (
        "pool nic.example.com/node-1: is being updated: it has 1 of 2 slices, "
        'and request "gpu" of claim claim asks for all devices'
    )
    assert chosen(claim(), within=within) == ["gpu=a"]


def test_all_with_a_constraint_that_a_device_violates_stops_the_pod() -> None:
    within = snapshot(published(gpu("a", link="x"), gpu("b", link="y")))
    wanted = claim(exactly(allocationMode="All"), constraints=[{"matchAttribute": f"{DRIVER}/link"}])
    with pytest.raises(InvalidInput, match=r"node-1/b is against matchAttribute gpu\.nvidia\.com/link"):
        allocate([wanted], NODE, within)


def test_all_with_a_violated_constraint_stops_the_pod_also_where_no_capacity_is_left() -> None:
    shareable = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}}
    within = snapshot(published(gpu("a", link="x") | shareable))
    requests = exactly("first"), exactly("every", allocationMode="All")
    distinct = [{"distinctAttribute": f"{DRIVER}/link"}]
    with pytest.raises(InvalidInput, match=r"node-1/a is against distinctAttribute"):
        allocate([claim(*requests, constraints=distinct)], NODE, within)
    assert "without enough memory left" in refused(claim(*requests), within=within)
    both = exactly("every", allocationMode="All"), exactly("one")
    assert "without enough memory left" in refused(
        claim(*both, constraints=[{"matchAttribute": f"{DRIVER}/link"}]), within=within
    )


# -- preference lists


def test_the_first_alternative_that_fits_is_taken() -> None:
    within = snapshot(published(gpu("a", model="H100"), gpu("b", model="H200")))
    wanted = claim(
        first_of(
            "gpu",
            alternative("h300", f"device.attributes['{DRIVER}'].model == 'H300'"),
            alternative("h200", f"device.attributes['{DRIVER}'].model == 'H200'"),
            alternative("any"),
        )
    )
    assert chosen(wanted, within=within) == ["gpu/h200=b"]


def test_a_later_request_can_force_a_lower_alternative() -> None:
    wanted = claim(first_of("many", alternative("three", count=3), alternative("two", count=2)), exactly("one"))
    assert chosen(wanted, within=snapshot(gpus("a", "b", "c"))) == ["many/two=a", "many/two=b", "one=c"]


def test_an_alternative_of_too_many_devices_is_passed_over() -> None:
    wanted = claim(
        exactly("most", count=30), first_of("rest", alternative("five", count=5), alternative("two", count=2))
    )
    got = chosen(wanted, within=snapshot(gpus(*(f"g{index:02}" for index in range(40)))))
    assert got[-2:] == ["rest/two=g30", "rest/two=g31"]


def test_an_abandoned_alternative_gives_its_devices_back() -> None:
    """Also when a later request finds that the claim has too many devices with it."""
    wanted = claim(
        first_of("first", alternative("twenty", count=20), alternative("five", count=5)), exactly("second", count=20)
    )
    got = chosen(wanted, within=snapshot(gpus(*(f"g{index:02}" for index in range(25)))))
    assert got[:5] == [f"first/five=g{index:02}" for index in range(5)]
    assert len(got) == 25


def test_a_claim_of_more_devices_than_the_api_has_room_for_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="asks for 33 devices; a claim can have 32"):
        allocate([claim(exactly(count=33))], NODE, snapshot(gpus("a")))


# -- constraints


def test_match_attribute_takes_devices_with_one_value() -> None:
    within = snapshot(
        published(gpu("a", link="x"), gpu("b"), gpu("c", link="y"), gpu("d", link=1), gpu("e", link="y")),
    )
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/link"}])
    assert chosen(wanted, within=within) == ["gpu=c", "gpu=e"]


def test_who_only_looks_finds_devices_that_a_claim_of_the_same_pod_has_taken() -> None:
    """Also when the search had to go back once, and counts beforehand what later requests will find."""
    within = snapshot(published(gpu("a", link=1), gpu("b", link=2), gpu("c", link=2)))
    work = claim(exactly("work", count=2), constraints=[{"matchAttribute": f"{DRIVER}/link"}])
    look = claim(exactly("look", count=3, adminAccess=True), name="look")
    assert chosen(work, look, within=within) == ["work=b", "work=c", "look=a", "look=b", "look=c"]


def test_versions_match_by_their_text_as_in_the_scheduler() -> None:
    """For CEL they would be equal."""
    within = snapshot(published(gpu("a", build="v1.0.0+a"), gpu("b", build="v1.0.0+b"), gpu("c", build="v1.0.0+a")))
    constraints = [{"matchAttribute": f"{DRIVER}/build"}]
    assert chosen(claim(exactly(count=2), constraints=constraints), within=within) == ["gpu=a", "gpu=c"]


@pytest.mark.parametrize("other", [True, "1"])
def test_values_of_different_types_never_match(other: bool | str) -> None:
    """Python takes 1 and True for the same."""
    within = snapshot(published(gpu("a", link=1), gpu("b", link=other), gpu("c", link=1)))
    constraints = [{"matchAttribute": f"{DRIVER}/link"}]
    assert chosen(claim(exactly(count=2), constraints=constraints), within=within) == ["gpu=a", "gpu=c"]


def test_match_attribute_across_requests_leaves_other_requests_alone() -> None:
    within = snapshot(published(gpu("a", link="x"), gpu("b", link="y"), gpu("c", link="y")))
    constraint = {"requests": ["left", "right"], "matchAttribute": f"{DRIVER}/link"}
    wanted = claim(exactly("left"), exactly("right"), exactly("free"), constraints=[constraint])
    assert chosen(wanted, within=within) == ["left=b", "right=c", "free=a"]


def test_match_attribute_finds_attributes_of_other_domains_by_their_full_name() -> None:
    devices = [gpu("a"), gpu("b"), gpu("c")]
    for device, root in zip(devices, ("pci0", "pci1", "pci1"), strict=True):
        device["attributes"]["resource.kubernetes.io/pcieRoot"] = {"string": root}
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": "resource.kubernetes.io/pcieRoot"}])
    assert chosen(wanted, within=snapshot(published(*devices))) == ["gpu=b", "gpu=c"]


def test_an_attribute_of_another_domain_is_not_the_drivers_own_of_the_same_name() -> None:
    within = snapshot(published(gpu("a", link="x"), gpu("b", link="x")))
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": "other.example/link"}])
    assert refused(wanted, within=within)


def test_no_group_large_enough_is_refused_with_the_constraint() -> None:
    within = snapshot(published(gpu("a", link="x"), gpu("b", link="y")))
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/link"}])
    assert refused(wanted, within=within) == (
        'request "gpu" of claim claim needs 2 devices with one gpu.nvidia.com/link; the largest group has 1 ("x")'
    )


def test_a_bool_is_written_as_in_kubernetes() -> None:
    devices = [gpu("a"), gpu("b")]
    for device, value in zip(devices, (True, False), strict=True):
        device["attributes"]["linked"] = {"bool": value}
    wanted = claim(exactly(count=2), constraints=[{"matchAttribute": f"{DRIVER}/linked"}])
    assert 'the largest group has 1 ("true")' in refused(wanted, within=snapshot(published(*devices)))


def test_a_constraint_on_an_alternative_counts_only_when_it_is_chosen() -> None:
    within = snapshot(published(gpu("a", link="x"), gpu("b", link="y")))
    constraint = {"requests": ["gpu/pair"], "matchAttribute": f"{DRIVER}/link"}
    wanted = claim(first_of("gpu", alternative("pair", count=2), alternative("two", count=2)), constraints=[constraint])
    assert chosen(wanted, within=within) == ["gpu/two=a", "gpu/two=b"]


def test_distinct_attribute_takes_devices_with_different_values() -> None:
    within = snapshot(published(gpu("a", board="x"), gpu("b", board="x"), gpu("c", board="y")))
    wanted = claim(exactly("one"), exactly("two"), constraints=[{"distinctAttribute": f"{DRIVER}/board"}])
    assert chosen(wanted, within=within) == ["one=a", "two=c"]


def test_a_constraint_of_no_kind_is_an_error() -> None:
    with pytest.raises(InvalidInput, match=r"constraints\[0\]: neither matchAttribute nor distinctAttribute"):
        allocate([claim(constraints=[{"requests": ["gpu"]}])], NODE, snapshot(gpus("a")))


# -- admin access


def test_admin_access_gets_devices_that_others_hold() -> None:
    wanted = claim(exactly(adminAccess=True, allocationMode="All"))
    (allocation,) = allocated(wanted, within=snapshot(gpus("a", "b"), in_use=["a"]))
    assert [(device.device, device.admin_access) for device in allocation.devices.results] == [("a", True), ("b", True)]


def test_admin_access_does_not_get_a_device_twice_in_one_claim() -> None:
    wanted = claim(exactly("one", adminAccess=True), exactly("two", adminAccess=True))
    assert chosen(wanted, within=snapshot(gpus("a", "b"), in_use=["a", "b"])) == ["one=a", "two=b"]


# -- taints


def test_tainted_devices_need_a_toleration() -> None:
    within = snapshot(
        published(
            gpu("a", taints=[{"key": "xid", "value": "79", "effect": "NoSchedule"}]),
            gpu("b", taints=[{"key": "drain", "effect": "NoExecute"}]),
            gpu("c", taints=[{"key": "note", "effect": "None"}]),
        )
    )
    assert chosen(claim(), within=within) == ["gpu=c"]
    assert refused(claim(exactly(count=2)), within=within).endswith(
        "of 3 on the node: 1 tainted drain, 1 tainted xid=79"
    )
    tolerant = claim(exactly(count=3, tolerations=[{"operator": "Exists"}]))
    (allocation,) = allocated(tolerant, within=within)
    assert [device.device for device in allocation.devices.results] == ["a", "b", "c"]
    assert allocation.devices.results[0].to_wire()["tolerations"] == [{"operator": "Exists"}]


@rows(
    "toleration, accepted",
    [
        ({"key": "xid", "operator": "Exists"}, True),
        ({"key": "xid", "value": "79"}, True),
        ({"key": "xid", "value": "79", "effect": "NoSchedule"}, True),
        ({"key": "xid", "value": "79", "effect": "NoExecute"}, False),
        ({"key": "xid", "value": "13"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
    ],
)
def test_a_toleration_matches_as_for_nodes(toleration: dict[str, str], accepted: bool) -> None:
    within = snapshot(published(gpu("a", taints=[{"key": "xid", "value": "79", "effect": "NoSchedule"}])))
    result = allocate([claim(exactly(tolerations=[toleration]))], NODE, within)
    assert isinstance(result, Allocated) == accepted


# -- pools and nodes


def test_only_the_newest_generation_counts() -> None:
    old, new = published(gpu("old"), name="s-0", generation=1), published(gpu("new"), name="s-1", generation=2)
    assert chosen(claim(), within=snapshot(old, new)) == ["gpu=new"]


def test_an_incomplete_pool_offers_nothing() -> None:
    within = snapshot(published(gpu("a"), count=2))
    assert refused(claim(), within=within) == "pool gpu.nvidia.com/node-1 is being updated: it has 1 of 2 slices"


def test_a_pool_that_is_complete_on_other_nodes_is_usable() -> None:
    here = published(gpu("a"), name="s-0", pool="shared", count=2)
    there = published(gpu("b"), name="s-1", node="node-2", pool="shared", count=2)
    assert chosen(claim(), within=snapshot(here, there)) == ["gpu=a"]


def test_a_pool_whose_newer_generation_left_the_node_is_ignored() -> None:
    here = published(gpu("a"), name="s-0", pool="shared", count=2)
    there = published(gpu("b"), name="s-1", node="node-2", pool="shared", generation=2)
    assert refused(claim(), within=snapshot(here, there)) == "no devices are published for it"


def test_a_pool_with_two_devices_of_one_name_is_invalid() -> None:
    within = snapshot(published(gpu("a"), name="s-0", count=2), published(gpu("a"), name="s-1", count=2))
    assert refused(claim(), within=within) == "pool gpu.nvidia.com/node-1 is invalid: it has two devices called a"


def test_devices_of_another_node_are_not_offered() -> None:
    assert refused(claim(), within=snapshot(published(gpu("a"), node="node-2"))) == "no devices are published for it"


def test_devices_for_all_nodes_or_for_some_by_label_are_offered_there() -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    everywhere = snapshot(published(gpu("x"), node=None, allNodes=True))
    zone = snapshot(published(gpu("y"), node=None, nodeSelector=selector))
    (anywhere,) = allocated(claim(), within=everywhere)
    assert anywhere.node_selector is None
    (in_zone,) = allocated(claim(), within=zone)
    assert in_zone.node_selector == selector
    assert "no devices" in refused(claim(), within=zone, node=NodeView("node-2", {"zone": "b"}))


def test_an_allocation_of_node_local_devices_is_bound_to_the_node() -> None:
    (allocation,) = allocated(claim(), within=snapshot(gpus("a")))
    requirement = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    assert allocation.node_selector == {"nodeSelectorTerms": [{"matchFields": [requirement]}]}


# -- configs


def config(note: str, *requests: str) -> dict[str, object]:
    opaque = {"driver": DRIVER, "parameters": {"note": note}}
    return {"opaque": opaque, "requests": list(requests)} if requests else {"opaque": opaque}


def test_configs_come_from_the_classes_once_and_then_from_the_claim() -> None:
    classes = [device_class("gpu", config=[config("class")]), device_class("other", config=[config("unused")])]
    wanted = claim(
        exactly("one"),
        exactly("two"),
        first_of("three", alternative("good", "false"), alternative("fair")),
        config=[config("all"), config("one", "one"), config("chosen", "three/fair"), config("not", "three/good")],
    )
    (allocation,) = allocated(wanted, within=snapshot(gpus("a", "b", "c"), classes=classes))
    got = [
        (part.source, part.requests, part.opaque.parameters["note"] if part.opaque else None)
        for part in allocation.devices.config
    ]
    assert got == [
        ("FromClass", ["one", "two", "three/fair"], "class"),
        ("FromClaim", [], "all"),
        ("FromClaim", ["one"], "one"),
        ("FromClaim", ["three/fair"], "chosen"),
    ]


# -- errors that stop the pod


def test_a_run_time_error_of_a_selector_stops_the_pod_and_names_everything() -> None:
    wanted = claim(exactly("gpu", f"device.attributes['{DRIVER}'].model == 'H100'"))
    with pytest.raises(InvalidInput) as raised:
        allocate([wanted], NODE, snapshot(published(gpu("a", model="A100"), gpu("b"))))
    assert str(raised.value) == (
        'claim default/claim, request "gpu": selector 0 on device gpu.nvidia.com/node-1/b: column 1: '
        "no such key: model\ndevice.attributes['gpu.nvidia.com'].model == 'H100'\n" + "^" * 41
    )


def test_devices_in_use_are_not_asked_so_their_errors_stop_nobody() -> None:
    wanted = claim(exactly("gpu", f"device.attributes['{DRIVER}'].model == 'H100'"))
    assert chosen(wanted, within=snapshot(published(gpu("a"), gpu("b", model="H100")), in_use=["a"])) == ["gpu=b"]


def test_a_missing_class_stops_the_pod() -> None:
    with pytest.raises(InvalidInput, match='request "gpu": there is no DeviceClass nope'):
        allocate([claim(exactly(class_name="nope"))], NODE, snapshot(gpus("a")))


# -- reasons


def test_the_reason_counts_refusals_of_the_request_that_failed() -> None:
    within = snapshot(
        published(gpu("a"), gpu("b"), gpu("c", kind="odd"), gpu("d", taints=[{"key": "xid", "effect": "NoSchedule"}])),
        in_use=["a", "b"],
    )
    wanted = claim(exactly("gpu", f"!has(device.attributes['{DRIVER}'].kind)"), name="train")
    assert refused(wanted, within=within) == (
        'request "gpu" of claim train needs 1 device; of 4 on the node: 2 in use, 1 not selected by the request, '
        "1 tainted xid"
    )


def test_the_reason_says_when_there_are_simply_too_few() -> None:
    assert refused(claim(exactly(count=3)), within=snapshot(gpus("a", "b"))) == (
        'request "gpu" of claim claim needs 3 devices; the node has 2'
    )


def test_the_reason_is_about_the_request_that_the_search_could_not_get_past() -> None:
    wanted = claim(exactly("fits"), exactly("not", "false"))
    assert refused(wanted, within=snapshot(gpus("a"))) == (
        'request "not" of claim claim needs 1 device; of 1 on the node: 1 not selected by the request'
    )


def test_no_claims_need_no_devices() -> None:
    assert allocate([], NODE, snapshot()) == Allocated(())


# -- gates of the scheduler


def test_a_request_with_alternatives_is_an_error_where_the_gate_is_off() -> None:
    within = snapshot(gpus("a"), behavior=Behavior.of(36, prioritized=False))
    with pytest.raises(InvalidInput, match="has alternatives; kube-scheduler has DRAPrioritizedList switched off"):
        allocate([claim(first_of("gpu", alternative("one")))], NODE, within)


def test_a_request_for_admin_access_is_an_error_where_the_gate_is_off() -> None:
    within = snapshot(gpus("a"), behavior=Behavior.of(36, admin_access=False))
    with pytest.raises(InvalidInput, match="admin access; kube-scheduler has DRAAdminAccess switched off"):
        allocate([claim(exactly(adminAccess=True))], NODE, within)


# -- attributes that are lists

_LISTS = Behavior.of(36, list_attributes=True)


def linked(name: str, *links: str) -> dict[str, object]:
    device = gpu(name)
    device["attributes"] |= {"links": {"strings": list(links)}}
    return device


def together(*devices: dict[str, object], count: int, behavior: Behavior = _LISTS, **constraint: str) -> list[str]:
    wanted = [exactly(f"r{index}") for index in range(count)]
    return chosen(claim(*wanted, constraints=[constraint]), within=snapshot(published(*devices), behavior=behavior))


def test_lists_match_where_all_devices_have_a_value_in_common() -> None:
    devices = linked("a", "x", "y"), linked("b", "y", "z"), linked("c", "z", "x"), linked("d", "y")
    assert together(*devices, count=3, matchAttribute=f"{DRIVER}/links") == ["r0=a", "r1=b", "r2=d"]


def test_what_devices_have_in_common_is_found_again_after_one_is_taken_back() -> None:
    """a and b have y in common; once b is taken back, x counts again."""
    devices = linked("a", "x", "y"), linked("b", "y"), linked("c", "x"), linked("d", "x")
    assert together(*devices, count=3, matchAttribute=f"{DRIVER}/links") == ["r0=a", "r1=c", "r2=d"]


def test_lists_are_distinct_where_no_two_devices_have_a_value_in_common() -> None:
    devices = linked("a", "x", "y"), linked("b", "y", "z"), linked("c", "z")
    assert together(*devices, count=2, distinctAttribute=f"{DRIVER}/links") == ["r0=a", "r1=c"]


def test_a_list_beside_a_plain_value_is_a_list_of_one() -> None:
    plain = gpu("b", links="y")
    assert together(linked("a", "x", "y"), plain, count=2, matchAttribute=f"{DRIVER}/links") == ["r0=a", "r1=b"]


def test_a_list_stops_the_pod_where_the_gate_is_off() -> None:
    with pytest.raises(InvalidInput, match="links: unsupported attribute value"):
        together(linked("a", "x"), count=1, behavior=Behavior.of(36), matchAttribute=f"{DRIVER}/links")


def test_a_selector_that_is_not_judged_is_called_so() -> None:
    wanted = exactly("gpu", "google.protobuf.Any{} == null")
    with pytest.raises(InvalidInput, match="not judged: `google"):
        allocate([claim(wanted)], NODE, snapshot(gpus("a")))


# -- limits


def many(count: int, attribute: str, values: int, requests: int, **limit: Any) -> Allocated | NotAllocatable:
    """`requests` of one device each, with different values of which there are `values`."""
    devices = [gpu(f"gpu-{index:02}", **{attribute: f"z{index % values}"}) for index in range(count)]
    wanted = [exactly(f"r{index}") for index in range(requests)]
    constraints = [{"distinctAttribute": f"{DRIVER}/{attribute}"}]
    return allocate([claim(*wanted, constraints=constraints)], NODE, snapshot(published(*devices)), **limit)


def test_more_requests_than_values_are_refused_without_a_search() -> None:
    result = many(48, "zone", 15, 16, limit=Limit(steps=300))
    assert isinstance(result, NotAllocatable) and not isinstance(result, Undecided)
    assert "16 requests need devices with different gpu.nvidia.com/zone; their devices have 15 values" in result.reason


def test_values_that_cannot_be_given_to_all_requests_are_found_without_a_search() -> None:
    """Each request alone has enough, and all values together are enough; three requests share two of them."""
    devices = [gpu(f"gpu-{index:02}", zone=f"z{index % 12}") for index in range(48)]
    own = f"device.attributes['{DRIVER}']"
    few = [exactly(f"few{index}", f"{own}.zone in ['z0', 'z1']") for index in range(3)]
    wanted = [*(exactly(f"r{index}") for index in range(8)), *few]
    asked = claim(*wanted, constraints=[{"distinctAttribute": f"{DRIVER}/zone"}])
    result = allocate([asked], NODE, snapshot(published(*devices)), limit=Limit(steps=100))
    assert isinstance(result, NotAllocatable) and not isinstance(result, Undecided)


def test_a_request_for_several_devices_needs_two_values_beside_those_before_it() -> None:
    constraints = [{"distinctAttribute": f"{DRIVER}/zone"}]
    devices = [gpu(f"gpu-{index:02}", zone=f"z{index % 3}") for index in range(24)]
    asked = claim(exactly("one"), exactly("two"), exactly("three", count=4), constraints=constraints)
    result = allocate([asked], NODE, snapshot(published(*devices)), limit=Limit(steps=100))
    assert isinstance(result, NotAllocatable) and not isinstance(result, Undecided)


def test_devices_of_one_request_differ_from_those_before_them_in_their_order() -> None:
    """15 + 8 + 2 devices of 48 with 6 values, those with one value side by side."""
    devices = [gpu(f"gpu-{index:02}", zone=f"z{index // 8}") for index in range(48)]
    wanted = [exactly("a", count=15), exactly("b", count=8), exactly("c", count=2)]
    asked = claim(*wanted, constraints=[{"distinctAttribute": f"{DRIVER}/zone"}])
    result = allocate([asked], NODE, snapshot(published(*devices)), limit=Limit(steps=500))
    assert isinstance(result, NotAllocatable) and not isinstance(result, Undecided)
    assert "in their order there are 6" in result.reason


def test_as_many_values_as_requests_are_enough() -> None:
    assert isinstance(many(15, "zone", 15, 15), Allocated)


def test_a_search_ends_at_its_limit_of_steps_and_says_so() -> None:
    result = many(15, "zone", 15, 15, limit=Limit(steps=14))
    assert isinstance(result, Undecided)
    assert result.reason.startswith("not decided: the search was ended after 14 steps")


def hard() -> Snapshot:
    """Every 10 of 20 devices draw one unit too much of two counters together, which no bound sees."""
    left = {"c": {"value": str(10 * 1000 + 95)}, "d": {"value": str(10 * 1000 + 94)}}
    draws = [{"c": {"value": str(1000 + index)}, "d": {"value": str(1019 - index)}} for index in range(20)]
    devices = [
        gpu(f"gpu-{index:02}") | {"consumesCounters": [{"counterSet": "card", "counters": counters}]}
        for index, counters in enumerate(draws)
    ]
    sets = published(name="counters", count=2, sharedCounters=[{"name": "card", "counters": left}])
    return snapshot(sets, published(*devices, count=2))


def test_a_search_ends_when_its_time_is_over_and_says_so() -> None:
    at = hard()
    allocate([claim()], NODE, at)  # what selectors say is known then, and needs no time
    result = allocate([claim(exactly(count=10))], NODE, at, limit=Limit(enough=lambda: True))
    assert isinstance(result, Undecided) and "ran out of time after 1000 steps" in result.reason


def test_the_same_search_ends_with_the_same_step() -> None:
    reasons = {allocate([claim(exactly(count=10))], NODE, hard(), limit=Limit(steps=2_000)).reason for _ in range(2)}
    assert len(reasons) == 1 and "after 2000 steps" in reasons.pop()


def test_what_a_later_request_finds_does_not_depend_on_devices_that_are_given_back() -> None:
    """Whether `b` has counters is asked while `a` is chosen for the first request, which gives it back then."""
    draws = {"consumesCounters": [{"counterSet": "card", "counters": {"c": {"value": "1"}}}]}
    sets = published(name="counters", count=2, sharedCounters=[{"name": "card", "counters": {"c": {"value": "1"}}}])
    devices = published(gpu("a", kind="x") | draws, gpu("b", kind="y") | draws, gpu("c", kind="x"), count=2)
    only_b = f"device.attributes['{DRIVER}'].kind == 'y'"
    result = allocate([claim(exactly("any"), exactly("b", only_b))], NODE, snapshot(sets, devices))
    assert isinstance(result, Allocated)
    assert [device.device for device in result.allocations[0].devices.results] == ["c", "b"]
