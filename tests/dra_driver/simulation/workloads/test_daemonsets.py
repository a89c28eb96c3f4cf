"""The simulated DaemonSet controller: where pods are, how they are replaced, and what the status counts."""

from typing import Any

import pytest

from dra_driver.allocation.nodes import NodeView
from dra_driver.api.resource import Taint
from dra_driver.simulation.workloads.apps import daemon_pod, daemon_set_plan
from dra_driver.simulation.workloads.workload_plan import WorkloadPlan

NODES = [NodeView(name, {"gpu": "yes"}) for name in ("a", "b", "c")]


def daemon_set(*, image: str = "one", generation: int = 1, strategy: object = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "daemon", "namespace": "default", "uid": "set", "generation": generation},
        "spec": {
            "selector": {"matchLabels": {"app": "daemon"}},
            "updateStrategy": strategy or {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"app": "daemon"}},
                "spec": {"nodeSelector": {"gpu": "yes"}, "containers": [{"name": "main", "image": image}], **spec},
            },
        },
    }


def pod(
    node: str,
    *,
    of: dict[str, Any] | None = None,
    name: str = "",
    ready: bool = True,
    bound: bool = True,
    **metadata: str,
) -> dict[str, Any]:
    made = daemon_pod(of or daemon_set(), node)
    made["metadata"] |= {"name": name or f"daemon-{node}", "uid": name or f"uid-{node}", **metadata}
    if bound:
        made["spec"]["nodeName"] = node
    made["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return made


def names(decision: WorkloadPlan) -> list[str]:
    return [deleted["metadata"]["name"] for deleted in decision.delete]


def counts(decision: WorkloadPlan) -> dict[str, int]:
    status = decision.status or {}
    return {name: count for name, count in status.items() if name != "observedGeneration" and count is not None}


def created_on(decision: WorkloadPlan) -> list[str]:
    """The nodes that pods are made for."""
    affinities = [pod["spec"]["affinity"]["nodeAffinity"] for pod in decision.create]
    terms = [item["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] for item in affinities]
    return [term["matchFields"][0]["values"][0] for (term,) in terms]


def test_each_selected_node_gets_one_pod() -> None:
    nodes = [*NODES, NodeView("other")]
    decision = daemon_set_plan(daemon_set(), nodes, [pod("b", bound=False)])
    assert created_on(decision) == ["a", "c"]
    assert not decision.delete


def test_a_pod_that_was_made_for_a_node_runs_nowhere_else_and_tolerates_what_daemons_tolerate() -> None:
    made = daemon_pod(daemon_set(hostNetwork=True), "b")
    (term,) = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}
    keys = {toleration["key"] for toleration in made["spec"]["tolerations"]}
    assert {"node.kubernetes.io/unschedulable", "node.kubernetes.io/network-unavailable"} <= keys
    assert made["metadata"]["ownerReferences"][0]["uid"] == "set"


@pytest.mark.parametrize(
    ("node", "tolerations", "wanted"),
    [
        (NodeView("a", {"gpu": "yes"}, (Taint(key="mine", effect="NoSchedule"),)), [], False),
        (NodeView("a", {"gpu": "yes"}, (Taint(key="mine", effect="NoSchedule"),)), [{"operator": "Exists"}], True),
        (NodeView("a", {"gpu": "yes"}, (), True), [], True),
        (NodeView("a", {"gpu": "no"}), [{"operator": "Exists"}], False),
    ],
)
def test_taints_keep_daemons_away_and_a_cordon_does_not(
    node: NodeView, tolerations: list[dict[str, str]], wanted: bool
) -> None:
    assert bool(daemon_set_plan(daemon_set(tolerations=tolerations), [node], []).create) is wanted


def test_pods_go_from_nodes_that_are_not_selected_any_more_and_when_they_have_ended() -> None:
    ended = pod("b")
    ended["status"]["phase"] = "Failed"
    decision = daemon_set_plan(daemon_set(), NODES, [pod("a"), ended, pod("gone")])
    assert names(decision) == ["daemon-b", "daemon-gone"]
    assert created_on(decision) == ["c"]
    assert counts(decision)["numberMisscheduled"] == 1


def test_a_successor_waits_until_its_predecessor_is_gone() -> None:
    leaving = pod("a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not daemon_set_plan(daemon_set(), NODES[:1], [leaving]).create
    assert names(daemon_set_plan(daemon_set(), NODES[:1], [leaving])) == []


def test_of_two_pods_on_a_node_the_older_stays() -> None:
    pods = [pod("a", name=name, creationTimestamp=when) for name, when in (("new", "2026-02"), ("old", "2026-01"))]
    assert names(daemon_set_plan(daemon_set(), NODES[:1], pods)) == ["new"]


def test_a_changed_template_replaces_pods_that_serve_nobody_at_once_and_others_one_by_one() -> None:
    after = daemon_set(image="two", generation=2)
    assert names(daemon_set_plan(after, NODES, [pod("a"), pod("b"), pod("c")])) == ["daemon-a"]
    assert names(daemon_set_plan(after, NODES, [pod("a", of=after, ready=False), pod("b"), pod("c")])) == []
    assert names(daemon_set_plan(after, NODES, [pod("a"), pod("b", ready=False), pod("c")])) == ["daemon-b"]
    half = daemon_set(image="two", strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}})
    assert names(daemon_set_plan(half, NODES, [pod("a"), pod("b"), pod("c")])) == ["daemon-a", "daemon-b"]
    never = daemon_set(image="two", strategy={"type": "OnDelete"})
    assert names(daemon_set_plan(never, NODES, [pod("a"), pod("b"), pod("c")])) == []


def test_the_status_counts() -> None:
    after = daemon_set(image="two", generation=2)
    decision = daemon_set_plan(after, NODES, [pod("a", of=after), pod("b", ready=False)])
    assert counts(decision) == {
        "currentNumberScheduled": 2,
        "desiredNumberScheduled": 3,
        "numberMisscheduled": 0,
        "numberReady": 1,
        "numberAvailable": 1,
        "numberUnavailable": 2,
        "updatedNumberScheduled": 1,
    }
    assert (decision.status or {})["observedGeneration"] == 2
    assert counts(daemon_set_plan(after, [], [])) == {
        "currentNumberScheduled": 0,
        "desiredNumberScheduled": 0,
        "numberMisscheduled": 0,
        "numberReady": 0,
    }
