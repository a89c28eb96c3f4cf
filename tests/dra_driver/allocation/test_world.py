"""A world that was made from another one knows what one that is made anew would find out."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.objects import allocation, claim, pod, result
from support.rows import examples

from dra_driver.allocation.world import World, claim_key
from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import ResourceClaim

NODES = ("node-1", "node-2")
NAMES = ("a", "b", "c")


def claims() -> st.SearchStrategy[ResourceClaim]:
    """With devices of no pool, one or two, alone or shared, also those that another claim has."""
    devices = st.builds(
        lambda node, device, share: result(f"gpu-{device}", pool=node, **({} if share is None else shared(share))),
        st.sampled_from(NODES),
        st.integers(0, 1),
        st.sampled_from([None, "1", "2"]),
    )
    return st.builds(
        lambda name, results: ResourceClaim.of(
            {**claim(name), "status": {"allocation": allocation(*results)} if results else {}}
        ),
        st.sampled_from(NAMES),
        st.lists(devices, max_size=3),
    )


def shared(share: str) -> JsonObject:
    return {"shareID": f"00000000-0000-4000-8000-00000000000{share}", "consumedCapacity": {"memory": f"{share}Gi"}}


def pods() -> st.SearchStrategy[Pod]:
    return st.builds(
        lambda name, node: Pod.of(pod(name, node_name=node)), st.sampled_from(NAMES), st.sampled_from([None, *NODES])
    )


@settings(max_examples=examples(200))
@given(st.lists(claims(), max_size=3), st.lists(st.one_of(claims(), pods(), st.sampled_from(NAMES)), max_size=5))
def test_it_knows_what_a_new_one_finds_out(
    first: list[ResourceClaim], changes: list[ResourceClaim | Pod | str]
) -> None:
    world = World(claims={claim_key(item): item for item in first})
    for change in changes:
        if isinstance(change, ResourceClaim):
            world = world.with_claim(change)
        elif isinstance(change, Pod):
            world = world.with_pod(change)
        else:
            world = world.without_allocations([("default", change)])
        anew = replace(world)
        assert world.usage == anew.usage
        assert {node: set(map(id, on_node)) for node, on_node in world.pods_by_node.items() if on_node} == {
            node: set(map(id, on_node)) for node, on_node in anew.pods_by_node.items()
        }
