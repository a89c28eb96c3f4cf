"""Binding conditions and the real kube-scheduler: a node that cannot make a MIG device is given up for another.

Needs what test_real_cluster.py needs. The node that fails is a Node object with a plugin and without a kubelet: no pod
gets that far.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml
import pytest
import yaml
from support.real_cluster import (
    IMAGE,
    IS_THERE,
    KUBECONFIG,
    WHY_NOT,
    Services,
    get,
    install,
    kubectl,
    nothing_left,
    server_minor,
    services_of,
    until,
    wait_running,
)

from dra_driver.names import GPU_DRIVER
from kubelet_plugin.simulation.host import SimulatedHost

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

FAILING = "failing-node"
PROFILE = "h100-nvl"
MAKE = "nvmlDeviceCreateGpuInstanceWithPlacement"
GATES = "BindingConditions=true"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    node = install()
    if server_minor() < 36:
        pytest.skip("binding conditions are on from Kubernetes 1.36")
    policy = tmp_path / "policy.yaml"
    spec = {"mig": {"mode": "Dynamic", "profiles": ["1g.12gb"]}}
    kind = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "mig"}}
    policy.write_text(yaml.safe_dump({**kind, "spec": spec}))
    with services_of(tmp_path, "controller", node, PROFILE, policy, GATES) as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: binding_devices(node), "MIG devices with binding conditions are published")
        try:
            yield services
        finally:
            kubectl("delete", "gpupolicies", "--all")
            kubectl("delete", "pod,resourceclaims,resourceclaimtemplates", "--all", "--grace-period=0", "--force")


def binding_devices(node: str) -> list[dict[str, Any]]:
    return [
        device
        for item in get("resourceslices")["items"]
        if item["spec"].get("nodeName") == node
        for device in item["spec"].get("devices") or ()
        if device.get("bindingConditions")
    ]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@contextmanager
def a_failing_node(folder: Path) -> Iterator[None]:
    """Its GPUs make no MIG device. What a kubelet would write, heartbeat and registration, is written here."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": FAILING, "labels": {"kubernetes.io/hostname": FAILING}},
    }
    kubectl("apply", "-f", "-", content=yaml.safe_dump(node))
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
            ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": "2026-01-01T00:00:00Z"}
            room = {"cpu": "8", "memory": "32Gi", "pods": "50"}
            status = {"status": {"conditions": [ready], "capacity": room, "allocatable": room}}
            kubectl("patch", "node", FAILING, "--subresource=status", "--type=merge", "-p", json.dumps(status))
            over.wait(5)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        until(lambda: not get("node", FAILING)["spec"].get("taints"), "the node is ready")
        with a_plugin(folder):
            yield
    finally:
        over.set()
        thread.join()
        kubectl("delete", "node", FAILING)


@contextmanager
def a_plugin(folder: Path) -> Iterator[None]:
    folder.mkdir()
    command = [sys.executable, "-m", "kubelet_plugin.main", "--node-name", FAILING, "--kubeconfig", KUBECONFIG]
    command += ["--kubelet-root", str(folder / "kubelet"), "--cdi-root", str(folder / "cdi")]
    command += ["--host-root", str(folder / "host"), "--simulate", PROFILE, f"--feature-gates={GATES}"]
    with (folder / "plugin.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: kubectl("get", "nodeinventory", FAILING, check=False), "the plugin reports its node")
            host = SimulatedHost(folder / "host")
            for index in range(len(host.state.gpus)):
                host.fail_call(index, MAKE, pynvml.NVML_ERROR_IN_USE)
            registration = [{"driver": GPU_DRIVER, "time": now()}]
            patch = json.dumps({"spec": {"registrations": registration}})
            kubectl("patch", "nodeinventory", FAILING, "--type=merge", "-p", patch)
            until(lambda: binding_devices(FAILING), "its MIG devices are published")
            yield
        finally:
            process.terminate()
            process.wait(60)


def a_pod(name: str, *, prefers: str | None = None) -> str:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}}
        },
    }
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    if prefers is not None:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefers]}]}
        preference = [{"weight": 100, "preference": term}]
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump_all([template, pod])


def claims() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get("resourceclaims")["items"]
    return found


def pool() -> str | None:
    """Of the only allocated claim."""
    for claim in claims():
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is not None:
            return str(allocation["devices"]["results"][0]["pool"])
    return None


def has(condition: str) -> bool:
    devices = [device for claim in claims() for device in (claim.get("status") or {}).get("devices") or ()]
    return any(item["type"] == condition and item["status"] == "True" for one in devices for item in one["conditions"])


def test_a_pod_is_bound_when_its_mig_device_is_made(services: Services) -> None:
    kubectl("apply", "-f", "-", content=a_pod("small"))
    began = time.monotonic()
    wait_running([("default", "small")])
    print(f"runs after {time.monotonic() - began:.1f} s")
    assert has("BindingReady")
    assert "BindingConditionsPending" in kubectl("get", "events")
    kubectl("delete", "pod", "small")
    nothing_left(services)


def test_a_node_that_cannot_make_the_mig_device_is_given_up_for_another(services: Services) -> None:
    with a_failing_node(services.folder / FAILING):
        kubectl("apply", "-f", "-", content=a_pod("small", prefers=FAILING))
        until(lambda: pool() == FAILING, "the scheduler chooses the node that the pod prefers")
        began = time.monotonic()
        until(lambda: has("BindingFailed"), "the node gives up", 60)
        failed = time.monotonic()
        until(lambda: pool() in (None, services.node), "the scheduler takes the allocation back", 60)
        back = time.monotonic()
        until(lambda: pool() == services.node, "the scheduler chooses the other node", 120)
        again = time.monotonic()
        wait_running([("default", "small")])
        ends = time.monotonic()
        print(
            f"given up after {failed - began:.1f} s, taken back {back - failed:.1f} s later, allocated again"
            f" {again - failed:.1f} s after the failure, runs {ends - failed:.1f} s after it"
        )
        tainted = [device for device in binding_devices(FAILING) if device.get("taints")]
        assert tainted and all(taint["key"].endswith("prepare-failed") for one in tainted for taint in one["taints"])
        kubectl("delete", "pod", "small")
        nothing_left(services)
