"""Deployments, ReplicaSets and StatefulSets: how many pods there are at every step of a change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workloads import Obj, WorkloadWorld


def images(world: WorkloadWorld) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"] for pod in world.pods)


def names(pods: list[Obj]) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in pods)


def test_a_deployment_has_its_pods_through_a_replica_set_and_says_so() -> None:
    world = WorkloadWorld("Deployment", replicas=3)
    world.settle()
    (replica_set,) = world.of("ReplicaSet")
    assert len(world.pods) == 3
    for pod in world.pods:
        assert pod["metadata"]["labels"] == replica_set["spec"]["selector"]["matchLabels"]
        assert pod["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"]
    status = world.owner["status"]
    counts = [status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas", "unavailableReplicas")]
    assert counts == [3, 3, 3, None]
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Available": "True",
        "Progressing": "True",
    }


@given(
    replicas=st.integers(1, 9),
    surge=st.integers(0, 4),
    unavailable=st.integers(0, 4),
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_a_rolling_update_stays_within_its_limits_and_ends(
    replicas: int, surge: int, unavailable: int, changes: list[tuple[int, int]]
) -> None:
    """Also when the template changes while an update is under way."""
    limits = {"maxSurge": surge, "maxUnavailable": unavailable}
    world = WorkloadWorld("Deployment", replicas=replicas, strategy={"type": "RollingUpdate", "rollingUpdate": limits})
    world.settle()
    least = replicas - (unavailable or int(surge == 0))

    def within() -> None:
        assert len(world.pods) <= replicas + surge
        assert len(world.ready()) >= least

    for steps, image in changes:
        world.change_template(f"new-{image}")
        for _ in range(steps):
            world.step()
            within()
    world.settle(within)
    assert images(world) == [f"new-{changes[-1][1]}"] * replicas


def test_pods_that_never_become_ready_stop_an_update() -> None:
    world = WorkloadWorld("Deployment", replicas=4, strategy={"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}})
    world.settle()
    world.sick = lambda pod: pod["spec"]["containers"][0]["image"] == "broken"
    world.change_template("broken")
    world.settle()
    assert len(world.ready()) == 3
    assert world.owner["status"]["updatedReplicas"] == 2


def test_recreate_waits_until_the_pods_before_have_ended() -> None:
    world = WorkloadWorld("Deployment", replicas=2, strategy={"type": "Recreate"})
    world.settle()
    world.change_template("two")

    def apart() -> None:
        before = [pod for pod in (*world.pods, *world.ending) if pod["spec"]["containers"][0]["image"] == "one"]
        assert not before or "two" not in images(world)

    world.settle(apart)
    assert images(world) == ["two"] * 2


def test_an_earlier_template_gets_its_replica_set_again_as_the_newest_revision() -> None:
    world = WorkloadWorld("Deployment", replicas=1)
    for image in ("one", "two", "one"):
        world.change_template(image)
        world.settle()
    assert len(world.of("ReplicaSet")) == 2
    assert world.owner["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"


def test_history_has_a_limit() -> None:
    world = WorkloadWorld("Deployment", replicas=1, revisionHistoryLimit=1)
    for image in "abcd":
        world.change_template(image)
        world.settle()
    assert len(world.of("ReplicaSet")) == 2


def test_a_paused_deployment_scales_and_does_not_update() -> None:
    world = WorkloadWorld("Deployment", replicas=1)
    world.settle()
    world.owner["spec"] |= {"paused": True, "replicas": 2}
    world.change_template("two")
    world.settle()
    assert images(world) == ["one"]
    world.owner["spec"]["paused"] = False
    world.settle()
    assert images(world) == ["two"] * 2


def test_of_surplus_pods_those_go_first_that_serve_least() -> None:
    world = WorkloadWorld("ReplicaSet", replicas=3, sick=lambda pod: pod["metadata"]["name"] == "a-3")
    world.settle()
    for pod in world.pods:
        pod["spec"]["nodeName"] = "n" if pod["metadata"]["name"] != "a-2" else ""
    world.owner["spec"]["replicas"] = 1
    world.settle()
    assert names(world.pods) == ["a-4"]


def test_a_stateful_set_starts_in_order_and_ends_backwards() -> None:
    world = WorkloadWorld("StatefulSet", replicas=3)
    seen: list[list[str]] = []
    world.settle(lambda: seen.append(names(world.pods)))
    assert seen[:3] == [["a-0"], ["a-0", "a-1"], ["a-0", "a-1", "a-2"]]
    world.owner["spec"]["replicas"] = 1
    seen.clear()
    world.settle(lambda: seen.append(names(world.pods)))
    assert seen[:2] == [["a-0", "a-1"], ["a-0"]]


@pytest.mark.parametrize(("policy", "there"), [("OrderedReady", ["a-0"]), ("Parallel", ["a-0", "a-1", "a-2"])])
def test_a_pod_that_is_not_ready_holds_up_the_next_only_in_order(policy: str, there: list[str]) -> None:
    world = WorkloadWorld("StatefulSet", replicas=3, podManagementPolicy=policy, sick=lambda pod: True)
    world.settle()
    assert names(world.pods) == there


def test_a_stateful_set_is_updated_from_the_last_pod_on_one_at_a_time() -> None:
    world = WorkloadWorld("StatefulSet", replicas=3, updateStrategy={"rollingUpdate": {"partition": 1}})
    world.settle()
    world.change_template("two")
    world.settle(lambda: len(world.pods) >= 2 or pytest.fail("several at a time"))
    by_name: dict[str, Any] = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in world.pods}
    assert by_name == {"a-0": "one", "a-1": "two", "a-2": "two"}
    world.owner["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = 0
    world.settle()
    assert images(world) == ["two"] * 3
    assert world.owner["status"]["currentRevision"] == world.owner["status"]["updateRevision"]
