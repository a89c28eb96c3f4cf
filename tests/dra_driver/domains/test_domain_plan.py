"""What is done for a domain: in which order, what never, and how many writes that takes."""

import pytest
from support.domain_values import NOW, OTHER, daemon, domain, member, node, observed, use
from support.domain_world import MAX_NODES, DomainObject, NodeObject, World
from support.rows import rows

from dra_driver.domains.domain_plan import Action, DomainStep, LabelNode, decide
from dra_driver.domains.observed import ObjectState, ObservedDomain

OURS, MISSING, DELETING, FOREIGN = ObjectState.OURS, ObjectState.MISSING, ObjectState.DELETING, ObjectState.FOREIGN
NOTHING = {"template": MISSING, "daemon_template": MISSING, "daemon_set": MISSING}
ENDING = domain(deleting=True)


def actions(seen: ObservedDomain, *, host_imex: bool = False) -> tuple[Action, ...]:
    return decide(seen, NOW, max_nodes=18, host_imex=host_imex).actions


BUILDING = {
    "before anything else the finalizer": (
        observed(domain(finalizer=False), standing=NOTHING),
        (DomainStep.ADD_FINALIZER,),
    ),
    "what is missing, the workload's template last": (
        observed(standing=NOTHING),
        (DomainStep.MAKE_DAEMON_TEMPLATE, DomainStep.MAKE_DAEMON_SET, DomainStep.MAKE_TEMPLATE),
    ),
    "only what is missing": (observed(standing={"daemon_set": MISSING}), (DomainStep.MAKE_DAEMON_SET,)),
    "nothing in place of what is on its way out, or somebody else's": (
        observed(standing={"template": FOREIGN, "daemon_set": DELETING}),
        (),
    ),
    "nodes leave before others join": (
        observed(uses=[use("b"), use("c")], nodes=[member("a"), node("b"), node("c", OTHER)]),
        (LabelNode("a", joins=False), LabelNode("b")),
    ),
    "what stands is left alone": (observed(uses=[use("a")], nodes=[member("a")], daemons=[daemon("a")]), ()),
}

TAKING_DOWN = {
    "the template first, so that no pod comes any more": (observed(ENDING), (DomainStep.DELETE_TEMPLATE,)),
    "nothing from under a program": (
        observed(ENDING, uses=[use("a")], nodes=[member("a")], standing={"template": MISSING}),
        (),
    ),
    "a pod that came at the last moment gets its node": (
        observed(ENDING, uses=[use("a")], nodes=[node("a")], standing={"template": DELETING}),
        (LabelNode("a"),),
    ),
    "labels, when nobody uses it": (
        observed(ENDING, nodes=[member("a"), member("b")], standing={"template": MISSING}),
        (LabelNode("a", joins=False), LabelNode("b", joins=False)),
    ),
    "then the daemons end by themselves": (
        observed(ENDING, nodes=[node("a")], daemons=[daemon("a", deleting=True)], standing={"template": MISSING}),
        (),
    ),
    "then what made them": (
        observed(ENDING, standing={"template": MISSING}),
        (DomainStep.DELETE_DAEMON_SET, DomainStep.DELETE_DAEMON_TEMPLATE),
    ),
    "and the finalizer when all is gone": (observed(ENDING, standing=NOTHING), (DomainStep.REMOVE_FINALIZER,)),
    "what is somebody else's stays": (
        observed(ENDING, standing={**NOTHING, "template": FOREIGN}),
        (DomainStep.REMOVE_FINALIZER,),
    ),
    "not while something is on its way out": (observed(ENDING, standing={**NOTHING, "daemon_set": DELETING}), ()),
    "a domain that is not ours any more is let go": (observed(domain(deleting=True, finalizer=False)), ()),
    "a daemon without its DaemonSet is waited for": (
        observed(ENDING, daemons=[daemon("a", deleting=True)], standing=NOTHING),
        (),
    ),
}


@rows("seen, wanted", BUILDING.values())
def test_building(seen: ObservedDomain, wanted: tuple[Action, ...]) -> None:
    assert actions(seen) == wanted


@rows("seen, wanted", TAKING_DOWN.values())
def test_taking_down(seen: ObservedDomain, wanted: tuple[Action, ...]) -> None:
    assert actions(seen) == wanted


def test_where_nodes_run_imex_themselves_no_daemons_are_made() -> None:
    assert actions(observed(standing=NOTHING), host_imex=True) == (DomainStep.MAKE_TEMPLATE,)


def test_a_status_that_is_as_it_should_be_is_not_written_again() -> None:
    seen = observed(uses=[use("a")], nodes=[member("a")], daemons=[daemon("a")])
    first = decide(seen, NOW, max_nodes=18).status
    assert first is not None
    later = observed(domain(status=first), uses=[use("a")], nodes=[member("a")], daemons=[daemon("a")])
    assert decide(later, "2027-01-01T00:00:00Z", max_nodes=18).status is None


def test_nothing_is_written_of_a_domain_that_does_not_wait_for_us() -> None:
    """Before the finalizer stands, and with the last step, the domain may be gone any moment."""
    assert decide(observed(domain(finalizer=False)), NOW, max_nodes=18).status is None
    assert decide(observed(ENDING, standing=NOTHING), NOW, max_nodes=18).status is None


# -- writes


def world_with(nodes: int) -> World:
    """A domain that is used on so many nodes, as many in each clique as it takes; nothing has been done yet."""
    world = World()
    world.domains["train"] = DomainObject("train", nodes)
    for number in range(nodes):
        world.nodes[f"node-{number:03d}"] = NodeObject(f"rack.{number // MAX_NODES}")
    world.settle()
    world.writes = 0
    for number, name in enumerate(world.nodes):
        assert world.schedule(f"pod-{number}", "train", name, attribute_known=False)
    return world


def writes_until_ready(nodes: int) -> tuple[World, int]:
    world = world_with(nodes)
    world.settle()
    assert world.domains["train"].status.ready_nodes == f"{nodes}/{nodes}"
    assert world.domains["train"].status.status == "Ready"
    return world, world.writes


@pytest.mark.parametrize("nodes", [2, 18, 64, 256])
def test_the_controller_writes_once_a_node_and_a_few_statuses_until_a_domain_is_ready(nodes: int) -> None:
    """All nodes come up at the same time here: what happens together is one status."""
    _, writes = writes_until_ready(nodes)
    assert writes - nodes == writes_until_ready(2)[1] - 2 <= 5


@pytest.mark.parametrize("nodes", [2, 18, 64])
def test_one_pods_loss_costs_the_same_in_a_domain_of_any_size(nodes: int) -> None:
    world, _ = writes_until_ready(nodes)
    world.writes = 0
    world.daemons[0].deleting, world.daemons[0].ready = True, False
    world.settle()
    assert world.domains["train"].status.status == "Ready"
    assert world.writes <= 4


@pytest.mark.parametrize("nodes", [2, 18, 64])
def test_a_nodes_replacement_costs_the_same_in_a_domain_of_any_size(nodes: int) -> None:
    world, _ = writes_until_ready(nodes)
    before = {node_status.name: node_status.index for node_status in world.domains["train"].status.nodes}
    world.writes = 0
    del world.nodes["node-000"], world.pods["pod-0"]
    world.nodes["node-new"] = NodeObject("rack.0")
    assert world.schedule("pod-new", "train", "node-new", attribute_known=False)
    world.settle()
    after = {node_status.name: node_status.index for node_status in world.domains["train"].status.nodes}
    assert world.domains["train"].status.status == "Ready"
    place, clique_mates = after.pop("node-new"), {"node-001": after.get("node-001"), "node-002": after.get("node-002")}
    assert place not in clique_mates.values()
    before.pop("node-000")
    assert after == before, "nobody else's place changed"
    assert world.writes <= 6
