"""Device metadata in containers of a real kubelet and runtime. Needs what test_real_cluster.py needs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.real_cluster import (
    IMAGE,
    IS_THERE,
    KUBELET_ROOT,
    WHY_NOT,
    Services,
    allocated,
    apply,
    devices,
    get,
    inside,
    install,
    kubectl,
    nothing_left,
    remove,
    services_of,
    until,
    wait_running,
)

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

ON_HOST = KUBELET_ROOT / "plugins" / "gpu.nvidia.com" / "dra-device-metadata"
IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
NAMED = ("default", "named")
PART = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: a-part}
spec:
  devices:
    requests:
    - name: part
      firstAvailable:
      - {name: none, deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: "false"}}]}
      - name: small
        deviceClassName: mig.nvidia.com
        selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]
---
apiVersion: v1
kind: Pod
metadata: {name: named}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Always
  resourceClaims: [{name: any, resourceClaimName: a-part}]
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, "trap 'exit 1' TERM; while true; do sleep 0.1; done"]
    resources: {claims: [{name: any}]}
  - name: beside
    image: IMAGE
    imagePullPolicy: Never
    command: [sh, -c, exec sleep 3600]
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    policy = tmp_path / "policy.yaml"
    rule = {"mode": "Dynamic", "gpus": {"products": ["*H100*"]}}
    rules = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": [rule]}
    policy.write_text(yaml.safe_dump(rules))
    with services_of(tmp_path, "controller", install(), policy=policy) as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: devices() > 8, "devices are published")
        try:
            yield services
        finally:
            remove("device-metadata")
            kubectl("delete", "--ignore-not-found", "-f", "-", content=PART)


def described(pod: tuple[str, str], path: str) -> dict[str, Any]:
    """The only device in a file of a container."""
    document = json.loads(inside(pod, "main", f"cat {IN_CONTAINER}/{path}/gpu.nvidia.com-metadata.json"))
    assert document["apiVersion"] == "metadata.resource.k8s.io/v1alpha1"
    (request,) = document["requests"]
    (device,) = request["devices"]
    return {**device, "request": request["name"]}


def published(name: str) -> dict[str, Any]:
    all_devices = [device for item in get("resourceslices")["items"] for device in item["spec"].get("devices", ())]
    (attributes,) = (device["attributes"] for device in all_devices if device["name"] == name)
    return dict(attributes)


def restarts(pod: tuple[str, str]) -> int:
    statuses = get("pod", "-n", *pod)["status"]["containerStatuses"]
    return sum(status["restartCount"] for status in statuses if status["name"] == "main" and status["ready"])


def test_a_container_reads_what_is_published_of_its_device(services: Services) -> None:
    (pod,) = apply("device-metadata")
    wait_running([pod])
    device = described(pod, "resourceclaimtemplates/mine/gpu")
    assert {device["name"]} == allocated(pod)
    assert device["attributes"] == published(device["name"])
    until(lambda: device["name"] in kubectl("logs", "-n", *pod), "the example prints it")
    path = f"{IN_CONTAINER}/resourceclaimtemplates/mine/gpu/gpu.nvidia.com-metadata.json"
    assert inside(pod, "main", f"echo x 2>&1 >>{path} || echo refused").strip().endswith("refused")
    remove("device-metadata")
    nothing_left(services)


def test_a_container_that_starts_again_finds_its_file_also_if_it_was_lost(services: Services) -> None:
    """A MIG device that is made for the claim, of an alternative, in a claim with a name of its own."""
    kubectl("apply", "-f", "-", content=PART.replace("IMAGE", IMAGE))
    wait_running([NAMED])
    device = described(NAMED, "resourceclaims/a-part/part")
    assert device["request"] == "part/small"
    uuid = device["attributes"].pop("uuid")["string"]
    assert f"={uuid}" in inside(NAMED, "main", "env"), "the MIG device that the container has"
    assert device["attributes"] == published(device["name"])
    assert "No such file" in inside(NAMED, "beside", f"ls {IN_CONTAINER} 2>&1 || true"), "it uses no claim"

    for file in ON_HOST.iterdir():
        file.unlink()
    services.stop("plugin")
    services.start("plugin")
    until(lambda: services.registered("plugin"), "the plugin is back")
    inside(NAMED, "main", "kill 1 || true")
    until(lambda: restarts(NAMED) == 1, "the container was started again")
    again = described(NAMED, "resourceclaims/a-part/part")
    assert again["attributes"].pop("uuid") == {"string": uuid}
    assert again == device

    kubectl("delete", "-f", "-", content=PART)
    nothing_left(services)
    assert list(ON_HOST.iterdir()) == []
