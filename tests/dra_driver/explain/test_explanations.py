"""What an explanation says, and what to do: by values, for what was said wrongly or weakly once."""

from dataclasses import replace
from itertools import count
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
    published,
    snapshot,
)
from support.rows import rows
from support.stories import GPU_DRIVER, MEMORY, Cluster, at_least

from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.constraints import constraints_of
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.requests import Cause
from dra_driver.allocation.search import Limit, NotAllocatable, Undecided, allocate
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Answer, Explanation, explain_claim, explain_pod
from dra_driver.explain.verdicts import ReasonCode
from dra_driver.explain.wording import headline

type Obj = dict[str, Any]


def shareable(value: str, policy: Obj) -> Obj:
    capacity = {"units": {"value": value, "requestPolicy": policy}}
    return gpu("gpu-0") | {"allowMultipleAllocations": True, "capacity": capacity}


@pytest.mark.parametrize(
    ("device", "wanted", "reason"),
    [
        (
            shareable("10", {"default": "2", "validRange": {"min": "2", "max": "4", "step": "2"}}),
            "6",
            "with at most 4 of units for one claim",
        ),
        (shareable("1", {"default": "0", "validValues": ["0"]}), "1", "with at most 0 of units for one claim"),
        (shareable("5", {"default": "1"}), "6", "with at most 5 of units for one claim"),
        (gpu("gpu-0", memory="5"), "6", "without capacity units"),
    ],
)
def test_what_a_policy_gives_is_not_what_the_device_has(device: Obj, wanted: str, reason: str) -> None:
    asked = claim(exactly(capacity={"requests": {"units": wanted}}))
    result = allocate([asked], NODE, snapshot(published(device)))
    assert isinstance(result, NotAllocatable) and reason in result.reason


def test_a_missing_attribute_is_called_missing() -> None:
    constraints = [{"matchAttribute": f"{DRIVER}/link"}]
    asked = claim(exactly("a"), exactly("b"), constraints=constraints)
    within = snapshot(published(gpu("gpu-0", link="x"), gpu("gpu-1"), gpu("gpu-2", link="y")))
    result = allocate([asked], NODE, within)
    assert isinstance(result, NotAllocatable) and result.causes == {Cause.CONSTRAINT}
    # A device that may end the attempt forbids bounds, so that the search itself gives the reason.
    asked = claim(exactly("a"), exactly("b", allocationMode="All"), constraints=constraints)
    with pytest.raises(InvalidInput, match="against matchAttribute"):
        allocate([asked], NODE, within)
    without = snapshot(published(gpu("gpu-0"), gpu("gpu-1")))
    with pytest.raises(InvalidInput, match=f"gpu-0 is without attribute {DRIVER}/link, which matchAttribute"):
        allocate([claim(exactly(allocationMode="All"), constraints=constraints)], NODE, without)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("matchAttribute", f'request "gpu" of claim claim needs 1 device with one {DRIVER}/link; no device has it'),
        (
            "distinctAttribute",
            f'request "gpu" of claim claim needs 1 device with attribute {DRIVER}/link; no device has it',
        ),
    ],
)
def test_a_constraint_on_an_attribute_that_no_device_has_says_so(kind: str, reason: str) -> None:
    asked = claim(exactly(), constraints=[{kind: f"{DRIVER}/link"}])
    result = allocate([asked], NODE, snapshot(published(gpu("gpu-0"))))
    assert isinstance(result, NotAllocatable) and result.reason == reason


def test_values_are_counted_in_plain_english() -> None:
    asked = claim(exactly("a"), exactly("b"), constraints=[{"distinctAttribute": f"{DRIVER}/link"}])
    result = allocate([asked], NODE, snapshot(published(gpu("gpu-0", link="x"), gpu("gpu-1", link="x"))))
    assert isinstance(result, NotAllocatable)
    assert result.reason == f"2 requests need devices with different {DRIVER}/link; their devices have 1 value"


def test_a_device_without_the_attribute_of_a_constraint_is_refused_because_of_it() -> None:
    (constraint,) = constraints_of(claim(constraints=[{"matchAttribute": f"{DRIVER}/link"}]), CURRENT)
    with_it, without = published(gpu("gpu-0", link="x"), gpu("gpu-1")).candidates
    assert constraint.refusal(with_it).text == f"against matchAttribute {DRIVER}/link"
    assert constraint.refusal(without).text == (
        f"without attribute {DRIVER}/link, which matchAttribute {DRIVER}/link needs"
    )


def test_all_taints_are_named() -> None:
    taints = [{"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "b", "effect": "NoExecute"}]
    result = allocate([claim()], NODE, snapshot(published(gpu("gpu-0", taints=taints))))
    assert isinstance(result, NotAllocatable) and "tainted a=1 and b" in result.reason


def test_slices_that_do_not_agree_on_their_number_are_called_so() -> None:
    slices = published(gpu("gpu-0"), name="s-0", count=1), published(gpu("gpu-1"), name="s-1", count=1)
    result = allocate([claim()], NODE, snapshot(*slices))
    assert isinstance(result, NotAllocatable)
    assert "it has 2 slices, and some of them state another number" in result.reason


# -- of whole worlds


def explained(*objects: Obj, claim_of: str | None = None, slices: int = 1) -> Explanation:
    """Of the pod `pod`, or of the claim. `slices` is how many the pool of node-1 says it has."""
    given = [device_class().to_wire() | {"kind": "DeviceClass"}, _slice(slices), *objects]
    world = world_of(given).world
    return explain_claim(world, ("default", claim_of)) if claim_of else explain_pod(world, ("default", "pod"))


def _slice(count: int = 1) -> Obj:
    devices = [gpu("gpu-0"), gpu("gpu-1")]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": count}
    spec = {"driver": DRIVER, "nodeName": "node-1", "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": "slice"}, "spec": spec}


def _claim(*requests: Obj, **devices: Any) -> Obj:
    return claim(*requests, **devices).to_wire() | {"kind": "ResourceClaim"}


_POD = {
    "kind": "Pod",
    "metadata": {"name": "pod"},
    "spec": {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]},
}


def test_a_claim_that_is_not_valid_is_not_called_missing() -> None:
    wrong = _claim()
    wrong["spec"]["devices"]["requests"] = "none"
    (finding,) = explained(_POD, wrong).findings
    assert finding.code == "invalid-claim" and finding.fix.startswith("Correct it")


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        (f"device.attributes['{DRIVER}'].none == 'a'", "Guard the lookup"),
        (f"device.attributes['{DRIVER}'].tpye == 'a'", "Correct the name. If only some devices have"),
        ("device.nothing == 'a'", "Correct the expression"),
        ("1 / 0 == 1", "has a value for every device"),
        ("google.protobuf.Any{} == null", "Ask an API server"),
    ],
)
def test_the_advice_is_for_what_is_wrong_with_the_selector(expression: str, advice: str) -> None:
    finding = next(each for each in explained(_claim(exactly("gpu", expression)), claim_of="claim").findings)
    assert finding.code == "selector-error" and advice in finding.fix


def test_a_selector_that_fails_alike_on_each_node_is_one_finding() -> None:
    nodes = [published(gpu(f"gpu-of-{node}"), node=node) for node in ("node-1", "node-2", "node-3")]
    world = world_of(
        [
            device_class().to_wire() | {"kind": "DeviceClass"},
            _claim(exactly("gpu", f"device.attributes['{DRIVER}'].tpye == 'a'")),
        ]
        + [
            {"kind": "ResourceSlice", "metadata": {"name": f"s{number}"}, "spec": item.spec.to_wire()}
            for number, item in enumerate(nodes)
        ]
    ).world
    (finding,) = explain_claim(world, ("default", "claim")).findings
    assert "not only on node-1, node-2, node-3." in finding.fix


def test_an_attribute_that_the_scheduler_cannot_read_is_not_called_a_fault_of_the_selector() -> None:
    slice_ = _slice()
    slice_["spec"]["devices"][0]["attributes"]["links"] = {"strings": ["a", "b"]}
    asked = _claim(exactly("gpu", "device.driver == 'other'"))
    world = world_of([device_class().to_wire() | {"kind": "DeviceClass"}, slice_, asked]).world
    finding = next(iter(explain_claim(world, ("default", "claim")).findings))
    assert finding.code == "selector-error" and "attribute links: unsupported" in finding.text
    assert "The expression is not the cause" in finding.fix and "DRAListTypeAttributes" in finding.fix


def test_a_request_without_a_class_has_advice_of_its_own() -> None:
    (finding,) = explained(_claim(exactly("gpu", class_name="")), claim_of="claim").findings
    assert (finding.code, finding.text) == ("missing-class", "names no DeviceClass")
    assert finding.fix.startswith("Set deviceClassName to one of these: ")


def test_the_code_of_a_combination_does_not_depend_on_names() -> None:
    """A request may be called counter, and its reason has its name."""
    both = _claim(
        first_of("a", alternative("one", count=2), alternative("two", count=2)),
        first_of("counter", alternative("one"), alternative("two")),
    )
    (group,) = explained(both, claim_of="claim").groups
    assert "counter/one" in group.text and group.code is ReasonCode.COMBINATION


def test_a_missing_class_is_found_once() -> None:
    given = explained(_claim(exactly("gpu", class_name="none")), claim_of="claim")
    assert [finding.code for finding in given.findings] == ["missing-class"]


def test_a_class_that_nvidias_driver_had_is_not_to_be_created() -> None:
    (finding,) = explained(_claim(exactly("channel", class_name="imex.nvidia.com")), claim_of="claim").findings
    assert finding.code == "missing-class" and finding.fix.startswith("Create a ComputeDomain,")


def test_what_ends_an_attempt_keeps_its_cause() -> None:
    with pytest.raises(InvalidInput) as raised:
        allocate([claim(exactly("gpu", "1 / 0 == 1"))], NODE, snapshot(published(gpu("gpu-0"))))
    assert raised.value.__cause__ is not None


def test_slices_that_were_replaced_are_called_so() -> None:
    """A newer slice of the same pool is for another node."""
    newer = _slice()
    newer["metadata"]["name"], newer["spec"]["nodeName"] = "newer", "node-2"
    newer["spec"]["pool"] = {**newer["spec"]["pool"], "generation": 2}
    given = explained(newer, _claim(exactly(count=3)), claim_of="claim", slices=2)
    group = next(each for each in given.groups if each.nodes == ("node-1",))
    assert group.code is ReasonCode.POOL
    assert group.text == f"pool {DRIVER}/node-1 has a newer generation of slices, and none of them is for this node"


def test_what_the_pod_takes_itself_is_named() -> None:
    device = shareable("3", {"default": "1"})
    both = [exactly(name, capacity={"requests": {"units": "2"}}) for name in ("a", "b")]
    result = allocate([claim(*both)], NODE, snapshot(published(device)))
    assert isinstance(result, NotAllocatable)
    assert "without enough units left beside the pod's other requests" in result.reason


def test_a_selector_is_explained_by_the_cel_of_the_scheduler_in_question() -> None:
    """Attributes can be looped over where they may be lists; by default they cannot."""
    expression = f"device.driver == 'other' && device.attributes['{DRIVER}'].links.exists(link, link == 'a')"
    given = [device_class().to_wire() | {"kind": "DeviceClass"}, _slice(), _claim(exactly("gpu", expression))]
    lists = replace(world_of(given).world, behavior=Behavior.of(36, list_attributes=True))
    codes = [finding.code for finding in explain_claim(lists, ("default", "claim")).findings]
    assert "invalid-claim" not in codes, "it is valid for this scheduler"


@rows(
    "key, labels, text, fix",
    [
        ("pool", {}, "no node has the label pool", "Correct the pod, or label its nodes."),
        ("pool", {"pool": "b"}, "nodes have pool=b", "Correct the pod, or label its nodes."),
        ("nvidia.com/gpu.product", {}, "no node has the label nvidia.com/gpu.product", "dractl migrate converts"),
        ("pool", {"pool": "a"}, None, None),
    ],
)
def test_a_label_that_no_node_has_is_named(key: str, labels: dict[str, str], text: str | None, fix: str | None) -> None:
    user = {**_POD, "spec": {**_POD["spec"], "nodeSelector": {key: "a"}}}
    node = {"kind": "Node", "metadata": {"name": "node-1", "labels": labels}}
    given = [device_class().to_wire() | {"kind": "DeviceClass"}, _slice(1), _claim(), user, node]
    findings = [
        item
        for item in explain_pod(world_of(given, live=True).world, ("default", "pod")).findings
        if item.code == "label-of-no-node"
    ]
    assert len(findings) == (text is not None)
    assert all(text in item.text and fix in item.fix for item in findings if text is not None and fix is not None)


@rows(
    "owner, labels, change",
    [
        (None, {}, "Pod default/pod: spec.nodeSelector: remove"),
        (
            {"kind": "ReplicaSet", "name": "web-5d9"},
            {"pod-template-hash": "5d9"},
            "Deployment default/web: spec.template.spec.nodeSelector: remove",
        ),
        ({"kind": "Job", "name": "train"}, {}, "Job default/train: spec.template.spec.nodeSelector: remove"),
        (
            {"kind": "RayCluster", "name": "ray"},
            {},
            "RayCluster default/ray: the pod template's spec.nodeSelector: remove",
        ),
    ],
)
def test_a_change_of_the_pod_is_named_where_it_is_written(
    owner: Obj | None, labels: dict[str, str], change: str
) -> None:
    owners = [{"apiVersion": "v1", "uid": "1", "controller": True, **owner}] if owner is not None else []
    metadata = {"name": "pod", "labels": labels, "ownerReferences": owners}
    user = {**_POD, "metadata": metadata, "spec": {**_POD["spec"], "nodeSelector": {"zone": "z"}}}
    node = {"kind": "Node", "metadata": {"name": "node-1"}}
    given = [device_class().to_wire() | {"kind": "DeviceClass"}, _slice(1), _claim(exactly("gpu")), user, node]
    (suggestion,) = explain_pod(world_of(given).world, ("default", "pod")).suggestions
    assert suggestion.change == change


@pytest.mark.parametrize("enough_after", [0, 1, 2, 3, 4, 5, 6, 8, 10])
def test_selectors_that_take_too_long_end_in_nodes_that_are_not_decided(enough_after: int) -> None:
    """Whatever is evaluated when the time is over: no node is said to fit or not to fit that was not tried."""
    cluster, asked = Cluster(), count()
    for number in range(3):
        cluster.node(f"node-{number}", gpu("gpu-0", memory=f"{number + 1}Gi"))
    cluster.pod(exactly("gpu", at_least("80Gi"), f"{MEMORY}.compareTo(quantity('90Gi')) < 0"))
    limit = Limit(enough=lambda: next(asked) >= enough_after)
    explanation = cluster.explained(limit=limit, enough=limit.enough, devices_of=None)
    assert explanation.answer is Answer.WAITS and len(explanation.nodes) == 3
    undecided = [node for node in explanation.nodes if node.code is ReasonCode.NOT_DECIDED]
    assert {node.code for node in explanation.nodes} <= {ReasonCode.NOT_DECIDED, ReasonCode.SELECTOR, ReasonCode.CLASS}
    assert all("ran out of time" in node.text for node in undecided)
    assert len(undecided) == 3 or enough_after > 0
    ends = f": {3 - len(undecided)} of 3 nodes do not fit, {len(undecided)} not decided."
    assert headline(explanation).endswith(ends) is bool(undecided)


@pytest.mark.parametrize("enough_after", [1, 2, 3, 4, 5, 6, 8])
def test_an_explanation_ends_when_its_time_is_over_also_if_a_selector_fails(enough_after: int) -> None:
    cluster, asked = Cluster(), count()
    for number in range(3):
        cluster.node(f"node-{number}", gpu("gpu-0", memory=f"{number + 1}Gi"))
    cluster.pod(exactly("gpu", f"device.attributes['{GPU_DRIVER}'].missing == 'x' || {MEMORY}.compareTo('x') > 0"))
    enough = Limit(enough=lambda: next(asked) >= enough_after)
    assert cluster.explained(limit=enough, enough=enough.enough).answer is Answer.WAITS


def test_where_the_time_ends_no_device_fits_that_was_not_looked_at() -> None:
    asked = claim(exactly("gpu", "device.driver != 'a'"))
    result = allocate([asked], NODE, snapshot(published(gpu("gpu-0"))), limit=Limit(enough=lambda: True))
    assert isinstance(result, Undecided) and "ran out of time" in result.reason
