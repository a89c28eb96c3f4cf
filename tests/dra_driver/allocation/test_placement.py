"""A pod is placed on one node, with devices for those of its claims that have none, or is told why it cannot be."""

from typing import Any

import pytest
from support.allocation import alternative, claim, device_class, exactly, first_of, gpu, gpus, published, snapshot

from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.placement import Placement, highest_score, place_on, score
from dra_driver.api.core import Pod
from dra_driver.api.resource import Allocation, ResourceClaim

NODE = NodeView("node-1", {"zone": "a"})
RESOURCE = "nvidia.com/gpu"


def pod(**spec: Any) -> Pod:
    metadata = {"name": "p", "namespace": "default", "uid": "uid-p"}
    return Pod.of({"metadata": metadata, "spec": {"containers": [], **spec}})


def wanting(amount: str) -> Pod:
    return pod(containers=[{"name": "c", "resources": {"limits": {RESOURCE: amount}}}])


def allocated(zone: str, device: str = "a") -> ResourceClaim:
    """To devices that nodes of a zone can use."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device}]
    allocation = {"nodeSelector": {"nodeSelectorTerms": terms}, "devices": {"results": results}}
    wire = claim(name="has").to_wire()
    return ResourceClaim.of({**wire, "status": {"allocation": allocation}})


def devices(placed: Placement | str) -> list[list[str]]:
    assert isinstance(placed, Placement), placed
    return [[result.device for result in allocation.devices.results] for allocation in placed.allocations]


def test_claims_without_devices_get_some_and_the_others_keep_theirs() -> None:
    wanting = [allocated("a"), claim(name="mine")]
    placed = place_on(pod(), wanting, NODE, snapshot(gpus("a", "b"), in_use=["a"]))
    assert devices(placed) == [["b"]]


def test_a_claim_with_devices_of_another_node_keeps_the_pod_away() -> None:
    placed = place_on(pod(), [allocated("b")], NODE, snapshot(gpus("a")))
    assert placed == "claim has is allocated to devices of another node"


def test_a_pod_that_may_not_run_there_gets_no_devices() -> None:
    placed = place_on(pod(nodeSelector={"zone": "b"}), [claim()], NODE, snapshot(gpus("a")))
    assert placed == "not selected by nodeSelector zone=b"


def test_what_does_not_fit_is_told() -> None:
    placed = place_on(pod(), [claim(exactly(count=2))], NODE, snapshot(gpus("a")))
    assert placed == 'request "gpu" of claim claim needs 2 devices; the node has 1'


@pytest.mark.parametrize(
    ("offered", "amount", "reason"),
    [("2", "2", None), ("1", "2", f"too little {RESOURCE}"), ("0", "1", f"no {RESOURCE}")],
)
def test_a_device_plugins_resource_is_the_device_plugins(offered: str, amount: str, reason: str | None) -> None:
    node = NodeView("node-1", allocatable={RESOURCE: offered})
    placed = place_on(wanting(amount), [], node, snapshot(gpus("a"), classes=[device_class("other")]))
    if reason is None:
        assert devices(placed) == []
    else:
        assert placed == reason


def test_a_class_serves_a_resource_where_no_device_plugin_does() -> None:
    placed = place_on(
        wanting("2"), [], NODE, snapshot(gpus("a", "b"), classes=[device_class(extendedResourceName=RESOURCE)])
    )
    assert devices(placed) == [["a", "b"]]
    assert isinstance(placed, Placement)
    assert placed.extended is not None


def chosen(*names: str) -> Allocation:
    results = [{"request": name, "driver": "d", "pool": "p", "device": f"d{index}"} for index, name in enumerate(names)]
    return Allocation.of({"devices": {"results": results}})


def test_the_earlier_an_alternative_the_higher_the_score() -> None:
    wanted = [claim(first_of("one", alternative("x"), alternative("y"), alternative("z")), exactly("two"))]
    scores = [score(wanted, [chosen(f"one/{name}", "two")]) for name in "xyz"]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    assert scores[0] == highest_score(wanted)


def test_who_has_no_preferences_has_the_same_score_everywhere() -> None:
    assert score([claim(exactly("two"))], [chosen("two")]) == highest_score([claim(exactly("two"))]) == 0


def test_the_best_alternative_that_fits_is_taken() -> None:
    within = snapshot(published(gpu("small", memory="40Gi")))
    large = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('80Gi')) >= 0"
    wanted = [claim(first_of("one", alternative("large", large), alternative("any")))]
    placed = place_on(pod(), wanted, NODE, within)
    assert devices(placed) == [["small"]]
    assert isinstance(placed, Placement)
    assert 0 < placed.score < highest_score(wanted)
