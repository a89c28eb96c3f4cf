"""Which containers have something beside their GPUs that kubelet put near them, and to whom nothing is said."""

from typing import Any

import pytest
from support.migration import GPU, limits, meaning_of, pod, read

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Finding

PLAIN = "version: v1\nflags: {migStrategy: mixed}\n"
WHOLE: JsonObject = {"cpu": 8, "memory": "64Gi"}


def said(*containers: JsonObject, **more: Any) -> list[Finding]:
    """The same for claims as for extended resources."""
    found = read(pod(*containers, **more), meaning_of(PLAIN))
    by_claims = [one for one in found.claim_findings if one.code.name == "M055"]
    by_extended = [one for one in found.extended_findings if one.code.name == "M055"]
    assert [one.message for one in by_claims] == [one.message for one in by_extended]
    assert not [one for one in found.findings if one.code.name == "M055"]
    return by_claims


@pytest.mark.parametrize(
    ("amounts", "what", "severity"),
    [
        (WHOLE, "8 CPUs to itself", "info"),
        ({"cpu": "1000m", "memory": 1}, "1 CPU to itself", "info"),
        ({**WHOLE, "cpu": "2500m", "hugepages-2Mi": "1Gi"}, "huge pages", "info"),
        ({**WHOLE, "hugepages-1Gi": "4Gi"}, "8 CPUs to itself and huge pages", "info"),
        ({"rdma/hca_shared_devices_a": 1}, "rdma/hca_shared_devices_a", "warning"),
        ({"nvidia.com/hostdev": 2}, "nvidia.com/hostdev", "warning"),
        ({"openshift.io/mlnx_sriov_rdma": 1}, "openshift.io/mlnx_sriov_rdma", "warning"),
        ({"vpc.amazonaws.com/efa": 4}, "vpc.amazonaws.com/efa", "warning"),
        ({**WHOLE, "rdma/a": 1, "rdma/b": 1}, "rdma/a, rdma/b and 8 CPUs to itself", "warning"),
    ],
)
def test_what_kubelet_put_near_the_gpus_is_told(amounts: JsonObject, what: str, severity: str) -> None:
    (found,) = said(limits({GPU: 2, **amounts}))
    assert (found.message, found.severity) == (f"main has {what} beside GPUs", severity)


@pytest.mark.parametrize(
    "container",
    [
        limits({GPU: 1}),
        limits({GPU: 1, "cpu": 4}),
        limits({GPU: 1, "memory": "8Gi", "hugepages-2Mi": "1Gi"}),
        limits({GPU: 1, "cpu": "500m", "memory": "8Gi"}),
        limits({GPU: 1, "cpu": 0, "memory": "8Gi"}),
        limits({GPU: 1, "cpu": "much", "memory": True}),
        limits({GPU: 1, "smarter-devices/fuse": 1, "example.com/channel": 1}),
        {"name": "main", "image": "i", "resources": {"limits": {GPU: 1, **WHOLE}, "requests": {"cpu": 4}}},
        limits({"rdma/hca": 1, **WHOLE}),
    ],
    ids=["nothing", "no memory", "no CPU", "part of a CPU", "no CPUs", "odd", "not a card", "burstable", "no GPU"],
)
def test_to_others_nothing_is_said(container: JsonObject) -> None:
    assert said(container) == []


def test_a_pod_is_guaranteed_only_where_all_its_containers_are() -> None:
    assert said(limits({GPU: 1, **WHOLE}), limits({"cpu": 1}, name="side")) == []
    assert said(limits({GPU: 1, **WHOLE}), initContainers=[limits(None, name="init")]) == []
    spelled = {"name": "main", "image": "i", "resources": {"limits": {GPU: 1, **WHOLE}, "requests": {"cpu": "8000m"}}}
    (found,) = said(spelled, limits({"cpu": "100m", "memory": 1}, name="side"))
    assert found.message == "main has 8 CPUs to itself beside GPUs"


def test_containers_of_one_pod_are_told_together() -> None:
    (found,) = said(limits({GPU: 1, "rdma/a": 1}, name="a"), limits({GPU: 1, "rdma/a": 1}, name="b"))
    assert found.message == "a and b have rdma/a beside GPUs"
    (found,) = said(limits({GPU: 1, "rdma/a": 1}, name="a"), limits({GPU: 1, "rdma/b": 1}, name="b"))
    assert found.message == "a has rdma/a; b has rdma/b beside GPUs"
