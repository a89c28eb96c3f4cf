"""Binding conditions and the real kube-scheduler: a node that cannot prepare a device is given up for another.

Needs what test_real_cluster.py needs. The node that fails is a Node object with a plugin and without a kubelet: no pod
gets that far.
"""

import json
import shutil
import subprocess
import sys
import tempfile
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
from support.mishaps import fail_call
from support.places import SHORT
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
from support.real_domains import make_domain

from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from kubelet_plugin.simulation.host import SimulatedHost

pytestmark = pytest.mark.skipif(not IS_THERE, reason=WHY_NOT)

FAILING = "failing-node"
PROFILE = "h100-nvl"
GATES = "MigBindingConditions=true"
MAKE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with running(tmp_path, PROFILE, GATES) as services:
        yield services


@contextmanager
def running(tmp_path: Path, profile: str, gates: str) -> Iterator[Services]:
    node = install()
    if server_minor() < 36:
        pytest.skip("binding conditions are on from Kubernetes 1.36")
    policy = tmp_path / "policy.yaml"
    spec = {"mig": {"mode": "Dynamic", "profiles": ["1g.12gb"]}}
    kind = {"apiVersion": "dra.gpu/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "mig"}}
    policy.write_text(yaml.safe_dump({**kind, "spec": spec}))
    with services_of(tmp_path, "controller", node, profile, policy, gates) as services:
        services.start("controller")
        services.start("plugin")
        until(lambda: binding_devices(node), "devices with binding conditions are published")
        try:
            yield services
        finally:
            kubectl("delete", "gpupolicies", "--all")
            kubectl("delete", "pod,resourceclaims", "--all", "--grace-period=0", "--force")
            kubectl("delete", "computedomains,resourceclaimtemplates", "--all")


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
def a_failing_node(folder: Path, profile: str = PROFILE, gates: str = GATES) -> Iterator[None]:
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
        with a_plugin(folder, profile, gates):
            yield
    finally:
        over.set()
        thread.join()
        kubectl("delete", "node", FAILING)


def register() -> None:
    """As the plugin reports it when its kubelet registers its drivers."""
    registrations = [{"driver": driver, "time": now()} for driver in (COMPUTE_DOMAIN_DRIVER, GPU_DRIVER)]
    patch = json.dumps({"spec": {"registrations": registrations}})
    kubectl("patch", "nodeinventory", FAILING, "--type=merge", "-p", patch)
    time.sleep(2)


@contextmanager
def a_plugin(folder: Path, profile: str, gates: str) -> Iterator[None]:
    folder.mkdir()
    sockets = tempfile.mkdtemp(dir=SHORT)
    command = [sys.executable, "-m", "kubelet_plugin.main", "--node-name", FAILING, "--kubeconfig", KUBECONFIG]
    command += ["--kubelet-root", sockets, "--cdi-root", str(folder / "cdi")]
    command += ["--host-root", str(folder / "host"), "--simulate", profile, f"--feature-gates={gates}"]
    with (folder / "plugin.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(lambda: kubectl("get", "nodeinventory", FAILING, check=False), "the plugin reports its node")
            host = SimulatedHost(folder / "host")
            for index in range(len(host.state.gpus)):
                fail_call(host, index, MAKE, pynvml.NVML_ERROR_IN_USE)
            until(lambda: binding_devices(FAILING) or register(), "its devices are published")
            yield
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(sockets)


def a_template(name: str) -> str:
    request = {"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return yaml.safe_dump({**kind, "spec": {"spec": {"devices": {"requests": [request]}}}})


def a_pod(name: str, template: str, *, prefers: str | None = None) -> str:
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
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }
    if prefers is not None:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [prefers]}]}
        preference = [{"weight": 100, "preference": term}]
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(pod)


def claims() -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = get("resourceclaims")["items"]
    return items


def device() -> str | None:
    """Of the only allocated claim."""
    results = [item for claim in claims() for item in _results(claim)]
    return str(results[0]["device"]) if results else None


def pool() -> str | None:
    """The node that it is allocated on."""
    results = [item for claim in claims() for item in _results(claim)]
    return str(results[0]["pool"]) if results else None


def _results(claim: dict[str, Any]) -> list[dict[str, Any]]:
    allocation = (claim.get("status") or {}).get("allocation") or {"devices": {}}
    results: list[dict[str, Any]] = allocation["devices"].get("results") or []
    return results


def has(condition: str) -> bool:
    devices = [device for claim in claims() for device in (claim.get("status") or {}).get("devices") or ()]
    return any(
        item["type"] == condition and item["status"] == "True" for device in devices for item in device["conditions"]
    )


def test_a_pod_is_bound_when_its_mig_device_is_made(services: Services) -> None:
    kubectl("apply", "-f", "-", content=a_template("small"))
    kubectl("apply", "-f", "-", content=a_pod("small", "small"))
    began = time.monotonic()
    wait_running([("default", "small")])
    print(f"runs after {time.monotonic() - began:.1f} s")
    assert has("BindingReady")
    assert "BindingConditionsPending" in kubectl("get", "events")
    kubectl("delete", "pod", "small")
    nothing_left(services)


def test_a_node_that_cannot_make_the_mig_device_is_given_up_for_another(services: Services) -> None:
    with a_failing_node(services.folder / FAILING):
        kubectl("apply", "-f", "-", content=a_template("small"))
        kubectl("apply", "-f", "-", content=a_pod("small", "small", prefers=FAILING))
        until(lambda: pool() == FAILING, "the scheduler chooses the node that the pod prefers")
        first, began = device(), time.monotonic()
        until(lambda: has("BindingFailed"), "the node gives up", 60)
        failed = time.monotonic()
        until(lambda: device() not in (None, first), "the scheduler chooses another device", 60)
        second = time.monotonic()
        until(lambda: pool() == services.node, "the scheduler chooses the other node", 120)
        other = time.monotonic()
        wait_running([("default", "small")])
        print(
            f"given up after {failed - began:.1f} s; another device {second - failed:.1f} s later, another node"
            f" {other - failed:.1f} s later, and the pod runs {time.monotonic() - failed:.1f} s later"
        )
        tainted = [device for device in binding_devices(FAILING) if device.get("taints")]
        assert tainted and all(
            taint["key"].endswith("prepare-failed") for device in tainted for taint in device["taints"]
        )
        kubectl("delete", "pod", "small")
        nothing_left(services)


def imex_says(folder: Path, answer: str) -> None:
    """From now on, the IMEX daemon of the node whose host is in `folder`, which the node runs itself."""
    program = folder / "host/usr/bin/nvidia-imex-ctl"
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\necho {answer}\n")
    program.chmod(0o755)


def test_a_node_whose_imex_daemon_is_not_ready_is_given_up_for_another(tmp_path: Path) -> None:
    gates = "HostManagedIMEXDaemon=true"
    with running(tmp_path, "gb200", gates) as services:
        imex_says(tmp_path, "READY")
        make_domain("train")
        with a_failing_node(tmp_path / FAILING, "gb200:1", gates):
            imex_says(tmp_path / FAILING, "INITIALIZING")
            kubectl("apply", "-f", "-", content=a_pod("worker", "train-channel", prefers=FAILING))
            until(lambda: pool() == FAILING, "the scheduler chooses the node that the pod prefers")
            began = time.monotonic()
            until(lambda: has("BindingFailed"), "the node gives up", 180)
            failed = time.monotonic()
            until(lambda: pool() == services.node, "the scheduler chooses the other node", 60)
            other = time.monotonic()
            wait_running([("default", "worker")])
            print(
                f"given up after {failed - began:.1f} s; another node {other - failed:.1f} s later, and the pod runs"
                f" {time.monotonic() - failed:.1f} s later"
            )
            (channel,) = binding_devices(FAILING)
            assert [taint["key"] for taint in channel["taints"]] == ["compute-domain.nvidia.com/daemon"]
            kubectl("delete", "pod", "worker")
            nothing_left(services)
