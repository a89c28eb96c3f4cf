"""Nodes that are alike are judged once; each gets the verdict that it would get alone."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.alike import TAINT, VALID, slice_of, slices
from support.allocation import DRIVER, alternative, cel, claim, exactly, first_of
from support.objects import allocation, result
from support.objects import claim as claim_object
from support.rows import examples

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.search import Limit
from dra_driver.allocation.world import World
from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.explain.judge import NodeJudge
from dra_driver.explain.verdicts import NodeVerdict

GPU = {
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {
        "selectors": [cel(f"device.attributes['{DRIVER}'].type == 'gpu'")],
        "extendedResourceName": "example.com/gpu",
    },
}
SELECTORS = (
    f"device.attributes['{DRIVER}'].product == 'A'",
    f"device.attributes['{DRIVER}'].uuid == 'same'",
    f"device.attributes['{DRIVER}'].uuid.endsWith('0')",
    f"device.attributes['{DRIVER}'].numa == 0 && device.attributes['{DRIVER}'].ready",
    f"device.attributes['{DRIVER}'].added == 'x'",
    f"device.capacity['{DRIVER}'].memory.compareTo(quantity('60Gi')) > 0",
    f"device.attributes['{DRIVER}'].exists(name, name == 'added')",
    f"device.driver == '{DRIVER}' && device.allowMultipleAllocations",
    "device.none",
)
FIELDS: tuple[dict[str, Any], ...] = (
    {"allocationMode": "All"},
    {"adminAccess": True},
    {"tolerations": [{"operator": "Exists"}]},
    {"capacity": {"requests": {"memory": "20Gi"}}},
    {"capacity": {"requests": {"memory": "60Gi"}}},
)
RULE: dict[str, Any] = {"kind": "DeviceTaintRule", "metadata": {"name": "rule"}, "spec": {"taint": TAINT}}


@st.composite
def requests(draw: st.DrawFn) -> JsonObject:
    name = draw(st.sampled_from(("a", "b")))
    expressions = draw(st.lists(st.sampled_from(SELECTORS), max_size=2))
    fields = draw(st.one_of(st.builds(lambda count: {"count": count}, st.integers(1, 4)), st.sampled_from(FIELDS)))
    if draw(st.integers(0, 4)) == 0:
        return first_of(name, alternative("large", *expressions, count=4), alternative("small", count=1))
    return exactly(name, *expressions, **fields)


@st.composite
def claims(draw: st.DrawFn) -> ResourceClaim:
    asked = draw(st.lists(requests(), min_size=1, max_size=2, unique_by=lambda request: request["name"]))
    kind = draw(st.sampled_from(("matchAttribute", "distinctAttribute")))
    attribute = draw(st.sampled_from(("uuid", "product", "numa", "added")))
    constraints = [{kind: f"{DRIVER}/{attribute}"}] if draw(st.booleans()) else []
    return claim(*asked, constraints=constraints)


@st.composite
def clusters(draw: st.DrawFn) -> World:
    objects: list[JsonObject] = [GPU, *draw(slices(*VALID))]
    if draw(st.booleans()):
        node, device = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        share = draw(st.sampled_from(({}, {"shareID": "s", "consumedCapacity": {"memory": "40Gi"}})))
        holding = allocation(result(f"gpu-{node}-{device}", pool=f"node-{node}", **share))
        objects.append({**claim_object("holder"), "kind": "ResourceClaim", "status": {"allocation": holding}})
    if draw(st.integers(0, 4)) == 0:
        objects.append({**RULE, "spec": {**RULE["spec"], "deviceSelector": {"pool": "node-1"}}})
    for number in range(6) if draw(st.booleans()) else ():
        offered = {"example.com/gpu": draw(st.sampled_from(("0", "1")))}
        node_object = {"kind": "Node", "metadata": {"name": f"node-{number}"}, "status": {"allocatable": offered}}
        objects.append(node_object)
    loaded = world_of(objects, behavior=Behavior.of(draw(st.integers(34, 37))))
    assert not loaded.problems
    return loaded.world


def waiting_pod(count: int) -> Pod:
    limits = {"limits": {"example.com/gpu": str(count)}}
    return Pod.of({"metadata": {"name": "waits"}, "spec": {"containers": [{"name": "main", "resources": limits}]}})


@settings(max_examples=examples(150), deadline=None)
@given(clusters(), claims(), st.sampled_from((0, 0, 1, 4)))
def test_nodes_together_get_the_verdicts_that_each_gets_alone(world: World, wanted: ResourceClaim, more: int) -> None:
    """`more` is what the pod asks for as an extended resource."""
    asking = waiting_pod(more) if more else None
    limit = Limit(steps=2_000)
    together = NodeJudge(world, asking, [wanted], limit)
    for node in world.nodes.values():
        alone = NodeJudge(world, asking, [wanted], limit).node(node)
        assert _content(together.node(node)) == _content(alone)


def _content(verdict: NodeVerdict) -> object:
    """All but which node's devices the verdicts on devices are about."""
    return (
        *(verdict.node, verdict.code, verdict.sentence, verdict.claim, verdict.request, str(verdict.error)),
        [
            (item.code, item.text, item.holders, item.parts, item.selector, item.scarce, str(item.error))
            for item in verdict.devices
        ],
        [str(item.wanted) for item in verdict.devices],
    )


def test_a_cluster_of_equal_nodes_is_searched_once() -> None:
    world = world_of([GPU, *map(slice_of, range(4))]).world
    judge = NodeJudge(world, None, [claim(exactly(count=4))], Limit())
    verdicts = [judge.node(node) for node in world.nodes.values()]
    assert [verdict.node for verdict in verdicts] == [f"node-{number}" for number in range(4)]
    assert len({id(verdict.devices) for verdict in verdicts}) == 1


def test_nodes_that_have_devices_in_one_slice_are_judged_for_themselves() -> None:
    shared = slice_of(0)
    del shared["spec"]["nodeName"]
    shared["spec"]["perDeviceNodeSelection"] = True
    for number, device in zip((0, 0, 1), shared["spec"]["devices"], strict=True):
        device["nodeName"] = f"node-{number}"
    world = world_of([GPU, shared]).world
    judge = NodeJudge(world, None, [claim(exactly(count=2))], Limit())
    assert [judge.node(node).fits for node in world.nodes.values()] == [True, False]
