"""GpuPolicies on a real cluster, with kubectl alone: what they change, when, and what people see of it.

Needs what test_real_cluster.py needs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.real_cluster import (
    IMAGE,
    IS_THERE,
    WHY_NOT,
    Services,
    devices,
    install,
    kubectl,
    nothing_left,
    published,
    services_of,
    until,
    wait_running,
)

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

SHARED = {"sharing": [{"strategy": "TimeSlicing", "unlimited": True}]}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    node = install()
    with services_of(tmp_path, "controller", node, "t4") as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: devices() == 4, "four GPUs are published")
        try:
            yield services
        finally:
            kubectl("delete", "gpupolicies", "--all")
            kubectl("delete", "pod,resourceclaims", "--all", "--grace-period=0", "--force")


def policy(name: str, **spec: Any) -> str:
    return yaml.safe_dump(
        {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}
    )


def pod_with_claim(name: str) -> str:
    """A pod that has one GPU as long as it runs."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        },
    }
    return yaml.safe_dump_all([claim, pod])


def sharable() -> int:
    return sum(bool(device.get("allowMultipleAllocations")) for device in published())


def tainted() -> list[str]:
    return [
        device["name"]
        for device in published()
        if "gpu.nvidia.com/policy" in [taint["key"] for taint in device.get("taints") or ()]
    ]


def columns(name: str) -> dict[str, str]:
    """What `kubectl get gpupolicies` shows of one policy."""
    text = kubectl("get", "gpupolicies", name)
    head, row = (line for line in text.splitlines())
    starts = [head.index(word) for word in head.split()]
    ends = [*starts[1:], None]
    return {head[start:end].strip(): row[start:end].strip() for start, end in zip(starts, ends, strict=True)}


def test_a_policy_waits_for_the_pod_that_uses_a_gpu_and_then_holds(services: Services) -> None:
    kubectl("apply", "-f", "-", content=pod_with_claim("user"))
    wait_running([("default", "user")])
    kubectl("apply", "-f", "-", content=policy("shared", priority=1, **SHARED))
    until(lambda: sharable() == 3, "three free GPUs are shared")
    (waiting,) = tainted()
    until(lambda: columns("shared")["WAITING"] == "1", "the policy shows that a GPU waits")
    shown = columns("shared")
    assert (shown["PRIORITY"], shown["NODES"], shown["GPUS"], shown["FOLLOWED"]) == ("1", "1", "4", "Waiting")
    described = kubectl("describe", "gpupolicies", "shared")
    assert waiting in described and "default/user" in described
    kubectl("apply", "-f", "-", content=pod_with_claim("beside"))
    wait_running([("default", "beside")])
    assert "-share" not in waiting
    kubectl("delete", "pod", "user")
    kubectl("delete", "resourceclaim", "user")
    until(lambda: sharable() == 4 and not tainted(), "the GPU changes when its claim is gone")
    until(lambda: columns("shared")["FOLLOWED"] == "Followed", "the policy shows that it is followed")
    assert columns("shared")["OFFERED"] == "4 gpu-share"
    kubectl("delete", "pod,resourceclaim", "beside")
    kubectl("delete", "gpupolicies", "shared")
    until(lambda: sharable() == 0, "without the policy nothing is shared")
    nothing_left(services)


@pytest.mark.parametrize(
    ("spec", "mistake"),
    [
        ({"mig": {"mode": "Sideways"}}, "spec.mig.mode"),
        ({"mig": {"mode": "Static", "profiles": ["1g.*"]}}, "wholeGpu and modeChange are for mode Dynamic"),
        ({"mig": {"mode": "Static", "wholeGpu": False}}, "wholeGpu and modeChange are for mode Dynamic"),
        ({"mig": {"mode": "Static", "modeChange": "WhenIdle"}}, "modeChange are for mode Dynamic"),
        ({"mig": {"mode": "Dynamic", "modeChange": "Always"}}, "spec.mig.modeChange"),
        ({"sharing": [{"strategy": "MPS"}]}, "exactly one of replicas, capacity and unlimited"),
        ({"sharing": [{"strategy": "Exclusive", "replicas": 2}]}, "exactly one of replicas, capacity and unlimited"),
        ({"sharing": [{"strategy": "MPS", "replicas": 2, "interval": "Long"}]}, "interval is for strategy TimeSlicing"),
        ({"sharing": [{"strategy": "MPS", "replicas": 2, "profiles": ["1g.*"]}]}, "profiles are for devices: mig"),
        ({"gpus": {"names": ["gpu-1"]}, "health": {"evict": True}}, "whole nodes"),
        ({"attributes": {"rack": {"string": "r1", "int": 1}}}, "exactly one of int, bool, string and version"),
        ({"publsh": True}, "publsh"),
        ({"priority": "high"}, "spec.priority"),
    ],
)
def test_kubectl_refuses_what_makes_no_sense(spec: dict[str, Any], mistake: str) -> None:
    install()
    with pytest.raises(AssertionError, match=mistake):
        kubectl("apply", "-f", "-", content=policy("wrong", **spec))
