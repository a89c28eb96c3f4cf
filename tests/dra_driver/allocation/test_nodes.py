from typing import Any

from support.rows import rows

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for, provides, selector_matches, unfit_for
from dra_driver.api.core import Node, PodSpec
from dra_driver.api.resource import Taint

NODE = NodeView("n1", {"zone": "a", "gpus": "8"}, allocatable={"nvidia.com/gpu": "4"})


def unfit(spec: dict[str, Any], node: NodeView) -> str | None:
    reason = unfit_for(PodSpec.of({"containers": [], **spec}), node)
    return None if reason is None else str(reason)


def term(key: str, operator: str, *values: str, kind: str = "matchExpressions") -> dict[str, Any]:
    return {kind: [{"key": key, "operator": operator, "values": list(values)}]}


@rows(
    "node_term, selected",
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("rack", "In", "a"), False),
        (term("zone", "NotIn", "b"), True),
        (term("rack", "NotIn", "b"), True),
        (term("zone", "NotIn", "a"), False),
        (term("zone", "Exists"), True),
        (term("rack", "Exists"), False),
        (term("rack", "DoesNotExist"), True),
        (term("gpus", "Gt", "7"), True),
        (term("gpus", "Gt", "8"), False),
        (term("gpus", "Lt", "9"), True),
        (term("zone", "Gt", "1"), False),
        (term("rack", "Lt", "1"), False),
        (term("metadata.name", "In", "n1", kind="matchFields"), True),
        (term("metadata.name", "In", "n2", kind="matchFields"), False),
        (term("zone", "In", "a") | term("metadata.name", "In", "n2", kind="matchFields"), False),
        ({}, False),
    ],
)
def test_a_term_selects_when_all_its_requirements_hold(node_term: dict[str, Any], selected: bool) -> None:
    assert selector_matches({"nodeSelectorTerms": [node_term]}, NODE) == selected


def test_terms_are_alternatives() -> None:
    both = {"nodeSelectorTerms": [term("zone", "In", "b"), term("zone", "In", "a")]}
    assert selector_matches(both, NODE)
    assert not selector_matches({"nodeSelectorTerms": []}, NODE)


def test_a_node_is_read_from_its_object() -> None:
    node = NodeView.of(
        Node.of(
            {
                "metadata": {"name": "n", "labels": {"a": "b"}},
                "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
                "status": {"allocatable": {"cpu": "4"}},
            }
        )
    )
    assert (node.name, node.labels, node.unschedulable) == ("n", {"a": "b"}, True)
    assert [taint.key for taint in node.taints] == ["k"]
    assert unfit({}, node) == "cordoned"
    assert str(daemon_unfit_for(PodSpec(containers=[]), node)) == "tainted k"


def test_a_device_plugin_s_resources_are_those_that_the_node_can_allocate() -> None:
    assert provides(NODE, "nvidia.com/gpu") == 4
    assert provides(NODE, "nvidia.com/other") == 0


def test_a_pod_goes_where_its_selector_and_affinity_say() -> None:
    assert unfit({"nodeSelector": {"zone": "a"}}, NODE) is None
    assert unfit({"nodeSelector": {"zone": "b"}}, NODE) == "not selected by nodeSelector zone=b"
    for zone, reason in (("a", None), ("b", "not selected by the pod's node affinity")):
        terms = {"nodeSelectorTerms": [term("zone", "In", zone)]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        assert unfit({"affinity": {"nodeAffinity": required}}, NODE) == reason


@rows(
    "toleration, tolerated",
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k"}, False),
        ({"value": "v", "operator": "Equal"}, False),
    ],
)
def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(toleration: dict[str, Any], tolerated: bool) -> None:
    node = NodeView("n", taints=(Taint(key="k", value="v", effect="NoSchedule"),))
    assert unfit({}, node) == "tainted k=v"
    assert unfit({"tolerations": [toleration]}, node) == (None if tolerated else "tainted k=v")


def test_a_taint_that_only_prefers_keeps_nobody_away() -> None:
    assert unfit({}, NodeView("n", taints=(Taint(key="k", effect="PreferNoSchedule"),))) is None
