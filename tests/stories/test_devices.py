"""Pods that wait because of devices: too small, in use, tainted, too few. Each with the sentence the user reads."""

from pathlib import Path

import pytest
from support.allocation import alternative, exactly, first_of, gpu
from support.stories import Cluster, at_least, taint

from dra_driver.explain.wording import sentences


def _the_model_story() -> Cluster:
    cluster = Cluster()
    for number in range(14):
        cluster.node(f"small-{number:02}", gpu("gpu-0", memory="80Gi"))
    for number in range(3):
        cluster.node(f"large-{number}", gpu("gpu-0", memory="141Gi"))
        cluster.holding(f"train-{number}", f"large-{number}", "gpu-0")
    for number in range(2):
        cluster.node(f"faulty-{number}", gpu("gpu-0", memory="141Gi", taints=[taint()]))
    cluster.pod(exactly("gpu", at_least("100Gi")))
    return cluster


def test_the_model_story_of_three_kinds_of_nodes() -> None:
    explained = _the_model_story().explained()
    assert [(len(group.nodes), group.text) for group in explained.groups] == [
        (14, 'no device matches request "gpu": memory 80Gi < 100Gi'),
        (
            3,
            "device in use by team-a/train-0 (pod train-0), team-a/train-1 (pod train-1) "
            "and team-a/train-2 (pod train-2)",
        ),
        (2, "tainted gpu.nvidia.com/xid=79"),
    ]
    assert [suggestion.text for suggestion in explained.suggestions] == [
        "It fits when team-a/train-0 (pod train-0) ends.",
        'It fits with memory 80Gi instead of 100Gi in request "gpu".',
        'It fits with a toleration for gpu.nvidia.com/xid=79 in request "gpu", if the taint is acceptable.',
    ]


def test_the_documentation_shows_the_model_story() -> None:
    documentation = Path(__file__).parents[2] / "docs" / "explain.md"
    printed = "\n".join(sentences(_the_model_story().explained(), 100))
    assert f"$ dractl explain pod train -n team-a\n{printed}\n```" in documentation.read_text()


def test_memory_is_compared_in_units_that_people_read() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="81559Mi"))
    cluster.pod(exactly("gpu", at_least("80Gi")))
    assert cluster.why() == '1 node: no device matches request "gpu": memory 79.6Gi < 80Gi'
    assert cluster.would_fit() == ['It fits with memory 79.6Gi instead of 80Gi in request "gpu".']


def test_of_gpus_that_are_all_too_small_the_largest_is_told() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="16Gi"), gpu("gpu-1", memory="24Gi"))
    cluster.pod(exactly("gpu", at_least("40Gi")))
    assert cluster.why() == '1 node: no device matches request "gpu": memory at most 24Gi < 40Gi'
    assert cluster.would_fit() == ['It fits with memory 24Gi instead of 40Gi in request "gpu".']


def test_gpus_that_miss_different_things_are_told_by_the_two_commonest() -> None:
    cluster = Cluster()
    small = [gpu(f"small-{number}", memory="16Gi", architecture="Hopper") for number in range(2)]
    cluster.node("node-1", *small, gpu("old", memory="80Gi", architecture="Volta"))
    hopper = "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"
    cluster.pod(exactly("gpu", hopper, at_least("40Gi")))
    assert cluster.why() == (
        '1 node: no device matches request "gpu": memory 16Gi < 40Gi, or architecture is "Volta", not "Hopper"'
    )


def test_a_claim_that_demands_more_than_rather_than_at_least() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="80Gi"))
    cluster.pod(exactly("gpu", "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity('80Gi'))"))
    assert cluster.why() == '1 node: no device matches request "gpu": memory 80Gi <= 80Gi'
    assert cluster.would_fit() == ['It fits with memory 81919Mi instead of 80Gi in request "gpu".']


def test_a_product_name_that_nobody_has() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", productName="NVIDIA H100 80GB HBM3"))
    cluster.pod(exactly("gpu", "device.attributes['gpu.nvidia.com'].productName == 'H100'"))
    assert cluster.why() == (
        '1 node: no device matches request "gpu": productName is "NVIDIA H100 80GB HBM3", not "H100"'
    )
    assert cluster.would_fit() == ['It fits with productName NVIDIA H100 80GB HBM3 instead of H100 in request "gpu".']


def test_a_driver_that_is_too_old() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", driverVersion="v570.86.15"))
    cluster.pod(exactly("gpu", "device.attributes['gpu.nvidia.com'].driverVersion.compareTo(semver('580.0.0')) >= 0"))
    assert cluster.why() == '1 node: no device matches request "gpu": driverVersion 570.86.15 < 580.0.0'


def test_the_first_condition_that_fails_is_the_one_that_is_told() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="16Gi", architecture="Turing"))
    both = f"device.attributes['gpu.nvidia.com'].architecture == 'Turing' && {at_least('24Gi')}"
    cluster.pod(exactly("gpu", both))
    assert cluster.why() == '1 node: no device matches request "gpu": memory 16Gi < 24Gi'


def test_of_two_conditions_of_which_one_would_do_both_are_told() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="16Gi", architecture="Turing"))
    either = f"device.attributes['gpu.nvidia.com'].architecture == 'Hopper' || {at_least('24Gi')}"
    cluster.pod(exactly("gpu", either))
    assert cluster.why() == (
        '1 node: no device matches request "gpu": architecture is "Turing", not "Hopper" and memory 16Gi < 24Gi'
    )


def test_the_class_has_no_device_here() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod(exactly("gpu", class_name="mig"))
    assert cluster.why() == '1 node: no device of class mig (type is "gpu", not "mig")'
    assert cluster.would_fit() == ['It fits with class gpu instead of mig in request "gpu".']


def test_all_devices_are_in_use_by_one_claim() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"))
    cluster.holding("train-7", "node-1", "gpu-0", "gpu-1")
    cluster.pod()
    assert cluster.why() == "1 node: 2 devices in use by team-a/train-7 (pod train-7)"
    assert cluster.would_fit() == ["It fits when team-a/train-7 (pod train-7) ends."]


def test_some_devices_are_in_use_and_one_is_tainted() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2", taints=[taint()]))
    cluster.holding("a", "node-1", "gpu-0")
    cluster.holding("b", "node-1", "gpu-1")
    cluster.pod()
    assert cluster.why() == (
        "1 node: 2 devices in use by team-a/a (pod a) and team-a/b (pod b), 1 device tainted gpu.nvidia.com/xid=79"
    )
    assert cluster.would_fit()[0] == "It fits when team-a/a (pod a) ends."


def test_eight_are_wanted_and_four_are_free() -> None:
    cluster = Cluster()
    cluster.node("node-1", *(gpu(f"gpu-{number}") for number in range(8)))
    cluster.holding("half", "node-1", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
    cluster.pod(exactly(count=8))
    assert cluster.why() == (
        '1 node: request "gpu" needs 8 of 8 that match, 4 free; 4 devices in use by team-a/half (pod half)'
    )
    assert cluster.would_fit() == [
        "It fits when team-a/half (pod half) ends.",
        'It fits with 4 devices instead of 8 in request "gpu".',
    ]


def test_more_devices_than_any_node_has() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"))
    cluster.pod(exactly(count=4))
    assert cluster.why() == '1 node: request "gpu" needs 4 devices, and only 2 match it'
    assert cluster.would_fit() == ['It fits with 2 devices instead of 4 in request "gpu".']


def test_two_claims_end_together_or_it_does_not_help() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"))
    cluster.holding("a", "node-1", "gpu-0")
    cluster.holding("b", "node-1", "gpu-1")
    cluster.pod(exactly(count=2))
    assert cluster.would_fit()[0] == "It fits when team-a/a and team-a/b end."


def test_all_devices_of_a_node_are_wanted_and_one_is_in_use() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"))
    cluster.holding("one", "node-1", "gpu-1")
    cluster.pod(exactly(allocationMode="All"))
    assert cluster.why() == (
        '1 node: request "gpu" needs all of 2 that match, 1 free; device in use by team-a/one (pod one)'
    )


def test_no_alternative_of_a_preference_list_fits() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="40Gi"))
    cluster.holding("a", "node-1", "gpu-0")
    cluster.pod(first_of("gpu", alternative("large", at_least("80Gi")), alternative("small")))
    assert cluster.why() == (
        '1 node: no alternative of request "gpu" fits: large: no device matches request "gpu/large": '
        "memory 40Gi < 80Gi; small: device in use by team-a/a (pod a)"
    )


def test_a_taint_rule_of_an_administrator() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    rule = {"deviceSelector": {"pool": "node-1"}, "taint": taint("example.com/repair", None)}
    cluster.add("DeviceTaintRule", "repair", spec=rule)
    cluster.pod()
    assert cluster.why() == "1 node: tainted example.com/repair"
    assert cluster.explained().suggestions[0].change == (
        "ResourceClaim team-a/gpu: spec.devices.requests[0].exactly.tolerations: "
        "add [{key: example.com/repair, operator: Exists, effect: NoSchedule}]"
    )


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_either_kind_of_taint_keeps_claims_away(effect: str) -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", taints=[taint(effect=effect)]))
    cluster.pod()
    assert cluster.why() == "1 node: tainted gpu.nvidia.com/xid=79"


def test_no_group_of_gpus_with_one_nvlink_domain_is_large_enough() -> None:
    cluster = Cluster()
    cluster.node("node-1", *(gpu(f"gpu-{number}", nvlinkDomain=f"domain-{number // 4}") for number in range(8)))
    same = {"matchAttribute": "gpu.nvidia.com/nvlinkDomain"}
    cluster.pod(exactly(count=8), constraints=[same])
    assert cluster.why() == (
        '1 node: request "gpu" of claim gpu needs 8 devices with one gpu.nvidia.com/nvlinkDomain; '
        'the largest group has 4 ("domain-0")'
    )
    assert cluster.would_fit() == [
        'It fits with 4 devices instead of 8 in request "gpu".',
        "It fits without the constraint matchAttribute gpu.nvidia.com/nvlinkDomain.",
    ]
