"""Pods that wait for a share of a GPU: too much asked for, too little left."""

from support.allocation import exactly
from support.stories import Cluster, shared

from dra_driver.allocation.behavior import Behavior


def _share(memory: str) -> dict[str, object]:
    return exactly(capacity={"requests": {"memory": memory}})


def test_too_little_memory_is_left_on_the_gpu() -> None:
    cluster = Cluster()
    cluster.node("node-1", shared("gpu-0"))
    cluster.holding("a", "node-1", "gpu-0", memory="60Gi")
    cluster.pod(_share("40Gi"))
    assert cluster.why() == "1 node: device has 20Gi of memory left, 40Gi wanted, beside team-a/a (pod a)"
    assert cluster.would_fit() == [
        "It fits when team-a/a (pod a) ends.",
        'It fits with memory 20Gi in request "gpu".',
    ]


def test_the_smaller_amount_that_would_fit_keeps_to_the_steps_of_the_gpu() -> None:
    cluster = Cluster()
    cluster.node("node-1", shared("gpu-0", step="4Gi"))
    cluster.holding("a", "node-1", "gpu-0", memory="61Gi")
    cluster.pod(_share("40Gi"))
    assert cluster.would_fit()[1] == 'It fits with memory 17Gi in request "gpu".'


def test_more_memory_than_the_gpu_has() -> None:
    cluster = Cluster()
    cluster.node("node-1", shared("gpu-0"))
    cluster.pod(_share("100Gi"))
    assert cluster.why() == '1 node: no device matches request "gpu": memory 80Gi < 100Gi'
    assert cluster.would_fit() == ['It fits with memory 80Gi in request "gpu".']


def test_an_amount_of_something_that_the_gpu_does_not_have() -> None:
    cluster = Cluster()
    cluster.node("node-1", shared("gpu-0"))
    cluster.pod(exactly(capacity={"requests": {"cores": "50"}}))
    assert cluster.why() == '1 node: no device matches request "gpu": has no capacity cores'


def test_many_shares_are_named_up_to_three() -> None:
    cluster = Cluster()
    cluster.node("node-1", shared("gpu-0"))
    for name in "abcde":
        cluster.holding(name, "node-1", "gpu-0", memory="16Gi")
    cluster.pod(_share("10Gi"))
    assert cluster.why() == (
        "1 node: device has 0 of memory left, 10Gi wanted, beside "
        "team-a/a (pod a), team-a/b (pod b), team-a/c (pod c) and 2 others"
    )


def test_a_cluster_that_drops_amounts() -> None:
    cluster = Cluster(behavior=Behavior.of(35))
    cluster.node("node-1", shared("gpu-0"))
    cluster.pod(_share("10Gi"))
    by_code = {finding.code: finding.text for finding in cluster.explained().findings}
    assert by_code["dropped-field"] == "Kubernetes 1.35 drops `capacity` with these feature gates"
