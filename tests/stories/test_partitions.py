"""Pods that wait for MIG partitions: no room, no room in one piece, no such profile."""

from support.allocation import exactly
from support.stories import Cluster, profile

from dra_driver.allocation.behavior import Behavior

MIG = "mig"


def test_the_gpu_is_full_of_partitions() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.holding("left", "node-1", "gpu-0-mig-3g40gb-0")
    cluster.holding("right", "node-1", "gpu-0-mig-3g40gb-4")
    cluster.pod(exactly("gpu", profile("1g.10gb"), class_name=MIG))
    assert cluster.why() == (
        "1 node: 7 devices without room left beside team-a/left (pod left) and team-a/right (pod right)"
    )
    assert cluster.would_fit() == ["It fits when team-a/left (pod left) ends."]


def test_the_partition_itself_is_in_use_and_its_place_is_too() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.holding("all", "node-1", "gpu-0-mig-7g80gb-0")
    cluster.pod(exactly("gpu", profile("7g.80gb"), class_name=MIG))
    assert cluster.why() == "1 node: device in use by team-a/all (pod all)"


def test_half_of_the_gpu_is_free_but_not_in_one_piece() -> None:
    """Fragmentation: slices 0 and 4 are taken, so 3g.40gb has no place, and 2g.20gb still has."""
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.holding("a", "node-1", "gpu-0-mig-1g10gb-0")
    cluster.holding("b", "node-1", "gpu-0-mig-1g10gb-4")
    cluster.pod(exactly("gpu", profile("3g.40gb"), class_name=MIG))
    assert cluster.why() == "1 node: 2 devices without room left beside team-a/a (pod a) and team-a/b (pod b)"
    assert cluster.would_fit() == [
        "It fits when team-a/a (pod a) ends.",
        'It fits with profile 2g.20gb instead of 3g.40gb in request "gpu".',
    ]


def test_one_of_two_gpus_is_full_and_the_other_one_is_needed_too() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0", "gpu-1")
    cluster.holding("all", "node-1", "gpu-0-mig-7g80gb-0")
    cluster.pod(exactly("gpu", profile("7g.80gb"), class_name=MIG, count=2))
    assert cluster.why() == (
        '1 node: request "gpu" needs 2 of 2 that match, 1 free; device in use by team-a/all (pod all)'
    )
    assert cluster.would_fit()[1] == 'It fits with 1 device instead of 2 in request "gpu".'


def test_more_partitions_than_a_gpu_can_have_together() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.pod(exactly("gpu", profile("3g.40gb"), class_name=MIG), exactly("more", profile("7g.80gb"), class_name=MIG))
    assert cluster.why().startswith("1 node: ")
    assert "memory-slice" in cluster.why()


def test_three_halves_of_one_gpu() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.pod(exactly("gpu", profile("3g.40gb"), class_name=MIG, count=3))
    assert cluster.why() == '1 node: request "gpu" needs 3 devices, and only 2 match it'
    assert cluster.would_fit() == [
        'It fits with 2 devices instead of 3 in request "gpu".',
        'It fits with profile 2g.20gb instead of 3g.40gb in request "gpu".',
    ]


def test_a_profile_that_this_gpu_does_not_have() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.pod(exactly("gpu", profile("4g.40gb"), class_name=MIG))
    assert cluster.why() == (
        '1 node: no device matches request "gpu": profile is "1g.10gb", "2g.20gb", "3g.40gb" or 1 other, not "4g.40gb"'
    )
    assert cluster.would_fit() == ['It fits with profile 3g.40gb instead of 4g.40gb in request "gpu".']


def test_a_gpu_was_taken_whole_while_a_slice_changed_and_its_counter_is_overdrawn() -> None:
    cluster = Cluster()
    cluster.mig_node("node-1", "gpu-0")
    cluster.holding("a", "node-1", "gpu-0-mig-3g40gb-0")
    cluster.holding("b", "node-1", "gpu-0-mig-2g20gb-0")
    cluster.pod(exactly("gpu", profile("1g.10gb"), class_name=MIG))
    devices = [report for _, report in cluster.explained(devices_of=None).devices]
    assert "overdrawn" in next(report.text for report in devices if report.code == "counters")


def test_a_scheduler_without_partitions_passes_over_them() -> None:
    cluster = Cluster(behavior=Behavior.of(36, partitionable=False))
    cluster.mig_node("node-1", "gpu-0")
    cluster.pod(exactly("gpu", profile("1g.10gb"), class_name=MIG))
    by_code = {finding.code: finding.text for finding in cluster.explained().findings}
    assert by_code["gate-off"] == "skips 13 devices that draw on counters, and 1 slice"
