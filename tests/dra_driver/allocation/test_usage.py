"""Counters, shares and their policies, as kube-scheduler has them."""

from typing import Any

import pytest
from support.allocation import (
    DRIVER,
    NODE,
    claim,
    device_class,
    exactly,
    gpu,
    held,
    published,
    snapshot,
)
from support.rows import rows

from dra_driver.allocation.amounts import consumed
from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, NotAllocatable, allocate
from dra_driver.allocation.snapshot import PublishedSlice, Snapshot
from dra_driver.api.resource import Allocation, Capacity, DeviceTaintRule, ResourceClaim
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.quantity import Quantity

type Obj = dict[str, Any]


def partition(name: str, set_: str = "card", **counters: int) -> Obj:
    device = gpu(name)
    amounts = {counter: {"value": str(amount)} for counter, amount in counters.items()}
    device["consumesCounters"] = [{"counterSet": set_, "counters": amounts}]
    return device


def counters(name: str = "card", **amounts: int) -> Obj:
    return {"name": name, "counters": {counter: {"value": str(amount)} for counter, amount in amounts.items()}}


def shareable(name: str, policy: Obj | None = None, value: str = "80Gi") -> Obj:
    device = gpu(name)
    device |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": value}}}
    if policy is not None:
        device["capacity"]["memory"]["requestPolicy"] = policy
    return device


def card(*devices: Obj, **amounts: int) -> tuple[PublishedSlice, PublishedSlice]:
    """A pool of one counter set and devices that draw on it."""
    return (
        published(name="a-counters", count=2, sharedCounters=[counters(**amounts)]),
        published(*devices, name="b-devices", count=2),
    )


def result(*claims: ResourceClaim, within: Snapshot, node: NodeView = NODE) -> tuple[Allocation, ...]:
    outcome = allocate(claims, node, within)
    assert isinstance(outcome, Allocated), outcome
    return outcome.allocations


def names(*claims: ResourceClaim, within: Snapshot, node: NodeView = NODE) -> list[str]:
    return [device.device for each in result(*claims, within=within, node=node) for device in each.devices.results]


def refusal(*claims: ResourceClaim, within: Snapshot) -> str:
    outcome = allocate(claims, NODE, within)
    assert isinstance(outcome, NotAllocatable), outcome
    return outcome.reason


# -- counters


def test_partitions_that_overlap_exclude_each_other() -> None:
    slices = card(partition("whole", m=2), partition("half-0", m=1), partition("half-1", m=1), m=2)
    assert names(claim(), within=snapshot(*slices)) == ["whole"]
    assert names(claim(), within=snapshot(*slices, in_use=["half-1"])) == ["half-0"]
    assert names(claim(exactly(count=2)), within=snapshot(*slices)) == ["half-0", "half-1"]
    assert refusal(claim(), within=snapshot(*slices, in_use=["whole"])).endswith(
        "of 3 on the node: 2 short of counter m, 1 in use"
    )


def test_devices_in_use_on_other_nodes_draw_on_the_same_counters() -> None:
    slices = (
        published(name="c", node=None, allNodes=True, pool="far", count=3, sharedCounters=[counters(m=2)]),
        published(partition("here", m=1), name="h", pool="far", count=3),
        published(partition("there", m=2), name="t", node="node-2", pool="far", count=3),
    )
    assert names(claim(), within=snapshot(*slices)) == ["here"]
    within = snapshot(*slices, held=[held("there", pool="far")])
    assert "1 short of counter m" in refusal(claim(), within=within)


def test_an_overdrawn_counter_blocks_every_device_that_draws_on_any_counter_of_the_pool() -> None:
    slices = (
        published(name="c", count=2, sharedCounters=[counters("one", m=1), counters("two", m=1)]),
        published(partition("a", "one", m=2), partition("b", "two", m=1), gpu("plain"), name="d", count=2),
    )
    within = snapshot(*slices, in_use=["a"])
    assert names(claim(), within=within) == ["plain"]
    assert "1 of a pool whose counter m is overdrawn" in refusal(claim(exactly(count=2)), within=within)


def test_admin_access_holds_no_counters_afterwards_and_needs_free_ones_now() -> None:
    slices = card(partition("whole", m=2), partition("half", m=1), m=2)
    assert names(claim(), within=snapshot(*slices, held=[held("whole", admin=True)])) == ["whole"]
    admin = claim(exactly(adminAccess=True))
    assert names(admin, within=snapshot(*slices)) == ["whole"]
    assert "short of counter m" in refusal(admin, within=snapshot(*slices, in_use=["whole"]))


def test_a_pool_with_an_unknown_counter_is_invalid() -> None:
    slices = card(partition("a", other=1), m=1)
    assert refusal(claim(), within=snapshot(*slices)) == (
        "pool gpu.nvidia.com/node-1 is invalid: device a draws on counter other of card, which does not exist"
    )


def test_a_pool_with_two_counter_sets_of_one_name_is_invalid() -> None:
    twice = published(name="c", count=2, sharedCounters=[counters(m=1), counters(m=1)])
    slices = (twice, published(partition("a", m=1), name="d", count=2))
    assert "invalid: it has two counter sets called card" in refusal(claim(), within=snapshot(*slices))


def test_every_node_sees_counters_so_an_incomplete_pool_elsewhere_stops_a_request_for_all() -> None:
    there = published(name="c", node="node-2", count=2, sharedCounters=[counters(m=1)])
    within = snapshot(published(gpu("a")), there)
    assert names(claim(), within=within) == ["a"]
    with pytest.raises(NodeNotReady, match="node-2: is being updated: it has 1 of 2 slices"):
        allocate([claim(exactly(allocationMode="All"))], NODE, within)


def test_up_to_1_34_counters_stand_beside_their_devices_and_belong_to_the_slice() -> None:
    old = Behavior.of(34, partitionable=True)
    slices = (
        published(partition("a", m=1), name="s-0", count=2, sharedCounters=[counters(m=1)]),
        published(partition("b", m=1), name="s-1", count=2, sharedCounters=[counters(m=1)]),
    )
    assert names(claim(exactly(count=2)), within=snapshot(*slices, behavior=old)) == ["a", "b"]


def test_a_scheduler_without_partitionable_devices_takes_no_partition() -> None:
    old = Behavior.of(35)
    lonely = published(partition("a", m=1), gpu("b"))
    assert names(claim(), within=snapshot(lonely, behavior=old)) == ["b"]
    assert "1 of 2 slices" not in refusal(claim(), within=snapshot(*card(partition("a", m=1), m=1), behavior=old))


# -- shares


def test_a_share_has_an_id_and_what_it_consumes_of_every_capacity() -> None:
    device = shareable("a", {"default": "10Gi", "validRange": {"min": "1Gi", "step": "1Gi"}})
    device["capacity"]["shares"] = {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1", "2"]}}
    wanted = claim(exactly(capacity={"requests": {"memory": "7500Mi"}}))
    given = allocate([wanted], NODE, snapshot(published(device)), share_ids=lambda *_: "the-id")
    assert isinstance(given, Allocated)
    (share,) = given.allocations[0].devices.results
    assert (share.share_id, share.consumed_capacity) == ("the-id", {"memory": "8Gi", "shares": "1"})


def test_shares_fill_a_device_and_then_the_next() -> None:
    slices = published(*(shareable(name, {"default": "40Gi"}) for name in "ab"))
    claims = [claim(name=f"c{number}") for number in range(4)]
    assert names(*claims, within=snapshot(slices)) == ["a", "a", "b", "b"]
    assert names(claim(), within=snapshot(slices, held=[held("a", memory="41Gi")])) == ["b"]
    full = [held("a", memory="80Gi"), held("b", memory="60Gi")]
    assert "2 without enough memory left" in refusal(claim(), within=snapshot(slices, held=full))


def test_within_a_request_every_share_is_of_another_device() -> None:
    slices = published(*(shareable(name, {"default": "1Gi"}) for name in "ab"))
    assert names(claim(exactly(count=2)), within=snapshot(slices)) == ["a", "b"]
    assert names(claim(exactly("one"), exactly("two")), within=snapshot(slices)) == ["a", "a"]
    apart = claim(exactly("one"), exactly("two"), constraints=[{"distinctAttribute": f"{DRIVER}/uuid"}])
    different = published(*(shareable(name, {"default": "1Gi"}) for name in "ab"))
    for index, device in enumerate(different.spec.devices or ()):
        device.attributes["uuid"] = type(device.attributes["type"])(string=str(index))
    assert names(apart, within=snapshot(different)) == ["a", "b"]


def test_up_to_1_35_a_request_may_get_several_shares_of_one_device() -> None:
    old = Behavior.of(35, consumable=True)
    slices = published(*(shareable(name, {"default": "30Gi"}) for name in "ab"))
    wanted = claim(exactly(count=3))
    given = allocate([wanted], NODE, snapshot(slices, behavior=old))
    assert isinstance(given, Allocated)
    results = given.allocations[0].devices.results
    assert [share.device for share in results] == ["a", "a", "b"]
    assert len({share.share_id for share in results}) == 3
    assert "needs 3 devices" in refusal(wanted, within=snapshot(slices))
    without = snapshot(slices, behavior=Behavior.of(35))
    assert names(claim(exactly(count=2)), within=without) == ["a", "b"]


def test_up_to_1_35_shares_that_other_claims_hold_leave_counters_as_they_are() -> None:
    part = shareable("part", {"default": "20Gi"}) | {"consumesCounters": partition("x", m=2)["consumesCounters"]}
    slices, taken = card(partition("whole", m=2), part, m=2), [held("part", memory="20Gi")]
    whole = claim(exactly("gpu", "!device.allowMultipleAllocations"))
    old = Behavior.of(35, partitionable=True, consumable=True)
    assert names(whole, within=snapshot(*slices, held=taken, behavior=old)) == ["whole"]
    assert "short of counter m" in refusal(whole, within=snapshot(*slices, held=taken))


def test_in_1_34_each_share_draws_on_counters() -> None:
    part = shareable("part", {"default": "20Gi"}) | {"consumesCounters": partition("x", m=1)["consumesCounters"]}
    shares = claim(exactly("one"), exactly("two"))
    for minor, given in ((34, False), (35, True)):
        behavior = Behavior.of(minor, partitionable=True, consumable=True)
        beside = (published(part, sharedCounters=[counters(m=1)]),) if minor == 34 else card(part, m=1)
        fits = isinstance(allocate([shares], NODE, snapshot(*beside, behavior=behavior)), Allocated)
        assert fits == given


def test_in_1_34_an_allocation_does_not_say_what_its_request_tolerates() -> None:
    wanted = claim(exactly(tolerations=[{"operator": "Exists"}]))
    for minor, given in ((34, None), (35, [{"operator": "Exists"}])):
        behavior = Behavior.of(minor, taints=True)
        result = allocate([wanted], NODE, snapshot(published(gpu("a")), behavior=behavior))
        assert isinstance(result, Allocated)
        (device,) = result.allocations[0].to_wire()["devices"]["results"]
        assert device.get("tolerations") == given


def test_up_to_1_35_a_later_alternative_for_all_devices_goes_on_as_the_first_one() -> None:
    none = {"name": "none", "deviceClassName": "gpu", "selectors": [{"cel": {"expression": "false"}}]}
    every = {"name": "every", "deviceClassName": "gpu", "allocationMode": "All"}
    wanted = claim({"name": "any", "firstAvailable": [none, every]})
    for minor, given in ((35, ["a"]), (36, ["a", "b"])):
        assert names(wanted, within=snapshot(published(gpu("a"), gpu("b")), behavior=Behavior.of(minor))) == given


def test_a_claim_that_names_no_capacity_of_a_device_without_policy_takes_all_of_it() -> None:
    within = snapshot(published(shareable("a"), gpu("b")))
    assert names(claim(), claim(name="other"), within=within) == ["a", "b"]


def test_a_device_that_was_given_whole_is_not_shared_afterwards() -> None:
    assert names(claim(), within=snapshot(published(shareable("a", {"default": "1"}), gpu("b")), in_use=["a"])) == ["b"]


def test_a_shared_partition_draws_on_its_counters_once() -> None:
    part = shareable("part", {"default": "20Gi"}) | {"consumesCounters": partition("x", m=1)["consumesCounters"]}
    slices = card(partition("whole", m=2), part, m=2)
    within = snapshot(*slices, held=[held("part", memory="20Gi")])
    assert names(claim(exactly("one"), exactly("two")), within=within) == ["part", "part"]
    share = claim(exactly("gpu", "device.allowMultipleAllocations"), name="share")
    assert names(share, claim(exactly("a", "device.allowMultipleAllocations")), within=snapshot(*slices)) == [
        "part",
        "part",
    ]
    assert "1 short of counter m" in refusal(claim(exactly("gpu", "!device.allowMultipleAllocations")), within=within)


def test_a_capacity_that_the_device_has_not_is_not_found_by_its_full_name_either() -> None:
    wanted = claim(exactly(capacity={"requests": {f"{DRIVER}/memory": "1Gi"}}))
    assert refusal(wanted, within=snapshot(published(shareable("a")))).endswith(
        "1 without capacity gpu.nvidia.com/memory"
    )


def test_a_scheduler_without_consumable_capacity_refuses_claims_that_name_one() -> None:
    wanted = claim(exactly(capacity={"requests": {"memory": "1Gi"}}))
    old = snapshot(published(gpu("a")), behavior=Behavior.of(35))
    with pytest.raises(InvalidInput, match="DRAConsumableCapacity switched off"):
        allocate([wanted], NODE, old)


RANGE = {"default": "4", "validRange": {"min": "2", "max": "10", "step": "4"}}
VALUES = {"default": "4", "validValues": ["2", "4", "8"]}


@rows(
    "policy, requested, taken",
    [
        (None, None, "16"),
        (None, "5", "5"),
        ({"default": "4"}, None, "4"),
        ({"default": "4"}, "5", "5"),
        (RANGE, None, "4"),
        (RANGE, "1", "2"),
        (RANGE, "2", "2"),
        (RANGE, "3", "6"),
        (RANGE, "7", "10"),
        (RANGE, "11", None),
        ({"default": "4", "validRange": {"min": "2"}}, "11", "11"),
        (VALUES, "3", "4"),
        (VALUES, "9", None),
    ],
)
def test_a_request_policy_rounds_up_to_what_is_allowed(
    policy: Obj | None, requested: str | None, taken: str | None
) -> None:
    amount = consumed(requested, Capacity(value="16", request_policy=policy), CURRENT)
    assert amount == (None if taken is None else Quantity.parse(taken))


def test_parts_of_one_are_steps_since_1_37() -> None:
    capacity = Capacity(value="4", request_policy={"default": "1", "validRange": {"min": "500m", "step": "500m"}})
    assert consumed("600m", capacity, Behavior.of(37)) == Quantity.parse("1")
    assert consumed("1100m", capacity, Behavior.of(37)) == Quantity.parse("1500m")
    assert consumed("1100m", capacity, Behavior.of(36)) == Quantity.parse("2")


# -- where devices can be used, and taint rules


def test_devices_may_say_themselves_which_nodes_they_are_for() -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    devices = [
        gpu("other") | {"nodeName": "node-2"},
        gpu("mine") | {"nodeName": "node-1"},
        gpu("zone") | {"nodeSelector": zone},
        gpu("all") | {"allNodes": True},
    ]
    slices = published(*devices, node=None, perDeviceNodeSelection=True)
    within = snapshot(slices)
    assert names(claim(exactly(count=3)), within=within) == ["mine", "zone", "all"]
    (anywhere,) = result(claim(), within=within, node=NodeView("node-3", {"zone": "b"}))
    assert anywhere.node_selector is None
    (in_zone,) = result(claim(), within=within, node=NodeView("node-3", {"zone": "a"}))
    assert in_zone.node_selector == zone
    assert "3 for other nodes" in refusal(
        claim(exactly(count=2)),
        within=snapshot(
            published(*devices[:1], *(gpu(f"x{n}") | {"nodeName": "n"} for n in range(2)), devices[1], node=None,
                      perDeviceNodeSelection=True)
        ),
    )  # fmt: skip


def test_a_device_that_binds_to_its_node_binds_the_claim() -> None:
    slices = published(gpu("a") | {"bindsToNode": True}, node=None, allNodes=True)
    (allocation,) = result(claim(), within=snapshot(slices))
    assert allocation.node_selector is not None
    assert "matchFields" in allocation.node_selector["nodeSelectorTerms"][0]


def test_pools_with_devices_that_are_attached_later_come_last_and_their_conditions_are_copied() -> None:
    conditions = {"bindingConditions": ["example.com/ready"], "bindingFailureConditions": ["example.com/failed"]}
    slices = (published(gpu("late") | conditions, name="a", pool="a"), published(gpu("plain"), name="b", pool="b"))
    assert names(claim(), within=snapshot(*slices)) == ["plain"]
    (allocation,) = result(claim(exactly(count=2)), within=snapshot(*slices))
    late = allocation.devices.results[1]
    assert (late.binding_conditions, late.binding_failure_conditions) == tuple(conditions.values())
    without = snapshot(*slices, behavior=Behavior.of(36, binding_conditions=False))
    assert names(claim(), within=without) == ["plain"]
    assert "with binding conditions" in refusal(claim(exactly(count=2)), within=without)


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ({}, []),
        ({"driver": DRIVER, "device": "a"}, ["b"]),
        ({"pool": "node-1", "device": "b"}, ["a"]),
        ({"pool": "node-2"}, ["a", "b"]),
        (None, ["a", "b"]),
    ],
)
def test_a_taint_rule_is_about_the_devices_that_all_its_fields_agree_with(
    selector: Obj | None, left: list[str]
) -> None:
    spec: Obj = {"taint": {"key": "repair", "effect": "NoSchedule"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    rule = DeviceTaintRule.of({"metadata": {"name": "rule"}, "spec": spec})
    within = snapshot(published(gpu("a"), gpu("b")), taint_rules=[rule])
    devices = [] if not left else names(claim(exactly(count=len(left))), within=within)
    assert devices == left
    assert names(claim(exactly(count=2, tolerations=[{"key": "repair", "operator": "Exists"}])), within=within) == [
        "a",
        "b",
    ]


def test_a_scheduler_without_device_taints_ignores_them() -> None:
    tainted = published(gpu("a", taints=[{"key": "xid", "effect": "NoSchedule"}]))
    assert names(claim(), within=snapshot(tainted, behavior=Behavior.of(35))) == ["a"]


def test_a_config_of_the_only_class_names_no_requests_since_1_37() -> None:
    classes = [device_class("gpu", config=[{"opaque": {"driver": DRIVER, "parameters": {}}}])]
    slices = published(gpu("a"), gpu("b"))
    wanted = claim(exactly("one"), exactly("two"))
    for minor, expected in ((36, ["one", "two"]), (37, [])):
        (allocation,) = result(wanted, within=snapshot(slices, classes=classes, behavior=Behavior.of(minor)))
        assert [config.requests for config in allocation.devices.config] == [expected]
