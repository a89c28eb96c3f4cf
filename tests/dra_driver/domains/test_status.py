"""What a domain's status says: each reason is provoked, and what is wrong is named."""

from dataclasses import replace

import pytest
from support.domain_values import NOW, OTHER, daemon, domain, member, node, observed, use
from support.rows import rows

from docs.from_code.lists import OF_PARTS
from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.api.meta import Condition
from dra_driver.domains.names import DomainReason
from dra_driver.domains.observed import ObjectState, ObservedDaemon, ObservedDomain
from dra_driver.domains.status import FABRIC_COMPLETE, NODES_JOINED, READY, TEMPLATE_READY, domain_status, membership

MAX = 3


def of(seen: ObservedDomain, *, host_imex: bool = False) -> ComputeDomainStatus:
    return domain_status(seen, membership(seen, MAX), NOW, host_imex=host_imex)


def condition(status: ComputeDomainStatus, type_: str) -> Condition:
    return next(each for each in status.conditions if each.type == type_)


TWO = observed(uses=[use("a"), use("b")], nodes=[member("a"), member("b")], daemons=[daemon("a"), daemon("b")])


def test_a_domain_is_ready_when_every_node_that_its_pods_are_on_has_a_daemon_that_is() -> None:
    status = of(TWO)
    assert (status.status, status.ready_nodes, status.observed_generation) == ("Ready", "2/2", 3)
    assert condition(status, READY).reason == "AllNodesReady"
    assert [
        (node_status.name, node_status.index, node_status.ip_address, node_status.status, node_status.message)
        for node_status in status.nodes
    ] == [
        ("a", 0, "10.0.0.a", "Ready", None),
        ("b", 1, "10.0.0.b", "Ready", None),
    ]
    assert {each.type for each in status.conditions} == {READY, TEMPLATE_READY, NODES_JOINED, FABRIC_COMPLETE}
    assert {each.status for each in status.conditions} == {"True"}


def seen(**changes: object) -> ObservedDomain:
    base: dict[str, object] = {
        "uses": [use("a"), use("b")],
        "nodes": [member("a"), member("b")],
        "daemons": [daemon("a"), daemon("b")],
    }
    return observed(**{**base, **changes})


NOT_READY = {
    "NoNodes": (observed(), "no pod of the domain"),
    "NodesMissing": (seen(subject=domain(num_nodes=3)), "on 2 nodes, numNodes is 3"),
    "DaemonsNotReady": (seen(daemons=[daemon("a")]), "1 of 2 nodes: b (its daemon's pod does not exist yet)"),
    "NodesJoining": (seen(nodes=[member("a"), node("b")]), "joining: b"),
    "NodeInOtherDomain": (seen(nodes=[member("a"), node("b", OTHER)]), f"node b is in the domain with UID {OTHER}"),
    "NodeGone": (seen(nodes=[member("a")], daemons=[daemon("a")]), "node b has left the cluster"),
    "FabricIncomplete": (seen(nodes=[member("a"), node("b", problem="GPU x is InProgress")]), "GPU x is InProgress"),
    "CliqueFull": (
        observed(uses=[use(name) for name in "abcd"], nodes=[*(member(name) for name in "abc"), node("d")]),
        "node d cannot join",
    ),
    "TemplateNameTaken": (seen(standing={"template": ObjectState.FOREIGN}), "train-channel is not this domain's"),
    "TemplateMissing": (seen(standing={"template": ObjectState.MISSING}), "does not exist yet"),
    "Terminating": (seen(subject=domain(deleting=True)), "still in use; delete the pods of"),
}


@rows("reason, case", NOT_READY.items())
def test_a_domain_that_is_not_ready_says_why(reason: str, case: tuple[ObservedDomain, str]) -> None:
    status = of(case[0])
    ready = condition(status, READY)
    assert (status.status, ready.status, ready.reason) == ("NotReady", "False", reason)
    assert case[1] in ready.message


INFORMATION = {
    "AllNodesReady": (TWO, READY),
    "NodesJoined": (TWO, NODES_JOINED),
    "FabricComplete": (TWO, FABRIC_COMPLETE),
    "TemplateMade": (TWO, TEMPLATE_READY),
    "SeveralCliques": (seen(nodes=[member("a", "r.0"), member("b", "r.1")]), NODES_JOINED),
}


@pytest.mark.parametrize(("reason", "case"), INFORMATION.items())
def test_what_is_as_it_should_be_has_a_reason_too(reason: str, case: tuple[ObservedDomain, str]) -> None:
    assert condition(of(case[0]), case[1]).reason == reason
    assert of(case[0]).status == "Ready"


def test_every_reason_is_provoked_here() -> None:
    assert set(DomainReason) == NOT_READY.keys() | INFORMATION.keys()
    assert {DomainReason(word) for word, (_, type_) in INFORMATION.items() if type_ != READY} == OF_PARTS


def test_another_domain_is_named_where_its_name_is_known() -> None:
    other = replace(node("b", OTHER), domain="rivals/eval")
    ready = condition(of(seen(nodes=[member("a"), other])), READY)
    assert ready.message == "node b is in ComputeDomain rivals/eval until its pods end"


def test_pods_that_no_node_fits_are_told_from_pods_that_there_are_not() -> None:
    assert "pods are those that name ResourceClaimTemplate train-channel" in condition(of(observed()), READY).message
    for number, subject in ((1, "a pod"), (3, "3 pods")):
        ready = condition(of(replace(observed(), unplaced=number)), READY)
        assert (ready.reason, ready.message.partition(" of the domain")[0]) == ("NoNodes", f"no node fits: {subject}")


DAEMONS = {
    "does not exist": None,
    "is ending": daemon("b", deleting=True),
    "has no address yet": daemon("b", ip=""),
    "is not ready yet": daemon("b", ready=False),
    "ImagePullBackOff": ObservedDaemon("b", "daemon-b", problem="its daemon's container waits: ImagePullBackOff"),
}


@pytest.mark.parametrize(("message", "pod"), DAEMONS.items())
def test_a_node_says_what_its_daemon_lacks(message: str, pod: ObservedDaemon | None) -> None:
    status = of(seen(daemons=[daemon("a"), *([pod] if pod is not None else [])]))
    assert (status.ready_nodes, status.nodes[1].status) == ("1/2", "NotReady")
    assert message in str(status.nodes[1].message)


@pytest.mark.parametrize("pod", DAEMONS.values(), ids=DAEMONS)
def test_what_the_node_knows_of_its_daemons_trouble_is_told_while_it_is_not_ready(pod: ObservedDaemon | None) -> None:
    busy = replace(member("b"), imex_problem="nvidia-imex (812, nvidia-imex.service) manages the node's fabric")
    status = of(seen(nodes=[member("a"), busy], daemons=[daemon("a"), *([pod] if pod is not None else [])]))
    assert str(status.nodes[1].message).endswith(": nvidia-imex (812, nvidia-imex.service) manages the node's fabric")
    assert "nvidia-imex (812" in condition(status, READY).message
    well = of(seen(nodes=[member("a"), busy], daemons=[daemon("a"), daemon("b")]))
    assert well.nodes[1].message is None


def test_a_member_that_is_leaving_is_shown_and_is_missed_by_nobody() -> None:
    status = of(observed(uses=[use("a")], nodes=[member("a"), node("b")], daemons=[daemon("a"), daemon("b")]))
    assert (status.status, status.ready_nodes) == ("Ready", "1/1")
    assert [(node_status.name, node_status.message) for node_status in status.nodes] == [
        ("a", None),
        ("b", "it is leaving the domain"),
    ]


def test_a_member_whose_fabric_breaks_is_not_ready_and_keeps_its_place() -> None:
    status = of(seen(nodes=[member("a"), member("b", problem="GPU x is InProgress")]))
    assert condition(status, READY).reason == "DaemonsNotReady"
    assert condition(status, FABRIC_COMPLETE).reason == "FabricIncomplete"
    assert "node b: GPU x is InProgress" in condition(status, FABRIC_COMPLETE).message


def test_the_worst_reason_comes_first_and_messages_name_three_and_count_the_rest() -> None:
    names = "abcdefg"
    nodes = [node(name, OTHER) for name in names[:5]]
    status = of(observed(uses=[use(name) for name in names], nodes=[*nodes, node("f", problem="broken")]))
    ready = condition(status, READY)
    assert ready.reason == "NodeGone", "g: somebody has to delete its pods"
    assert ready.message.count("node ") == 3
    assert ready.message.endswith("and 4 more")


def test_host_imex_counts_what_nodes_say_instead_of_pods() -> None:
    says = {"a": True, "b": False, "c": None}
    nodes = [replace(member(name), imex_ready=ready, address=f"192.0.2.{name}") for name, ready in says.items()]
    status = of(observed(uses=[use(name) for name in says], nodes=nodes), host_imex=True)
    assert [(node_status.name, node_status.status, node_status.ip_address) for node_status in status.nodes] == [
        ("a", "Ready", "192.0.2.a"),
        ("b", "NotReady", "192.0.2.b"),
        ("c", "NotReady", ""),
    ]
    assert status.ready_nodes == "1/3"


def test_a_condition_keeps_the_time_since_when_it_is_so() -> None:
    before = of(TWO).model_copy(
        update={
            "conditions": [
                each.model_copy(update={"last_transition_time": "2025-01-01T00:00:00Z"}) for each in of(TWO).conditions
            ]
        }
    )
    same = of(seen(subject=domain(status=before)))
    assert {each.last_transition_time for each in same.conditions} == {"2025-01-01T00:00:00Z"}
    changed = of(seen(subject=domain(status=before), daemons=[daemon("a")]))
    assert condition(changed, READY).last_transition_time == NOW
    assert condition(changed, NODES_JOINED).last_transition_time == "2025-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (observed(domain(deleting=True), uses=[use("a", None, "worker-0")]), "team/claim-a on node a (pod worker-0)"),
        (observed(domain(deleting=True), nodes=[member("a")], daemons=[daemon("a")]), "daemons' pods to end on a"),
        (observed(domain(deleting=True)), "its objects are being deleted"),
    ],
)
def test_a_domain_that_goes_says_what_it_waits_for(left: ObservedDomain, message: str) -> None:
    assert message in condition(of(left), READY).message
