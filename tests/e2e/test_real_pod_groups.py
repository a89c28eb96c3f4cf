"""Claims of PodGroups on a real cluster: their pods hear of their GPU, though the claim names the group alone.

Needs what test_real_cluster.py needs, and Kubernetes 1.36 or newer with the feature gates GenericWorkload and
DRAWorkloadResourceClaims and PodGroups served (`--runtime-config scheduling.k8s.io/v1alpha2=true`).
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
    get,
    install,
    kubectl,
    nothing_left,
    services_of,
    until,
    wait_running,
)

from kubelet_plugin.commands.simulate import act

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

CLAIM = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
PODS = ("gang-0", "gang-1")


def pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "schedulingGroup": {"podGroupName": "gang"},
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [CLAIM],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def objects(version: str) -> str:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    group = {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [CLAIM]},
    }
    return yaml.safe_dump_all([template, group, *map(pod, PODS)])


@pytest.fixture
def version() -> str:
    served = kubectl("api-resources", "--api-group", "scheduling.k8s.io", "--no-headers").splitlines()
    versions = [line.split()[-3] for line in served if line.split()[-1] == "PodGroup"]
    if not versions:
        pytest.skip("this cluster serves no PodGroups")
    return versions[0].partition("/")[2]


@pytest.fixture
def services(version: str, tmp_path: Path) -> Iterator[Services]:
    with services_of(tmp_path, "controller", install()) as services:
        services.start("controller")
        services.start("plugin")
        until(devices, "devices are published")
        try:
            yield services
        finally:
            kubectl("delete", "--ignore-not-found", "-f", "-", content=objects(version))


def pods_with_the_event() -> set[tuple[str, str]]:
    """Pods, by name and UID, that heard that their GPU is ill."""
    items = get("events.events.k8s.io", "--field-selector", "reason=GpuUnhealthy")["items"]
    about = [event["regarding"] for event in items if event["regarding"]["kind"] == "Pod"]
    return {(regarding["name"], regarding["uid"]) for regarding in about}


def test_all_pods_of_a_group_hear_that_the_groups_gpu_is_ill(services: Services, version: str) -> None:
    kubectl("apply", "-f", "-", content=objects(version))
    wait_running([("default", name) for name in PODS])
    (claim,) = get("resourceclaims")["items"]
    assert [user["resource"] for user in claim["status"]["reservedFor"]] == ["podgroups"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    gpus = get("nodeinventories")["items"][0]["spec"]["gpus"]
    index = next(number for number, gpu in enumerate(gpus) if gpu["name"] == result["device"])
    act(services.folder / "host", "xid", [str(index), "79"], None)
    uids = {(name, get("pod", name)["metadata"]["uid"]) for name in PODS}
    until(lambda: pods_with_the_event() == uids, "both pods hear of it", 90)
    assert all("GpuUnhealthy" in kubectl("describe", "pod", name) for name in PODS)
    kubectl("delete", "-f", "-", content=objects(version))
    nothing_left(services)
