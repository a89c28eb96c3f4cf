"""The chart as pods of a real cluster: image, DaemonSet, controller, `helm test`, update, rollback and removal.

Needs what test_real_cluster.py needs, the packages of the dev group, a package index for the image's install, and:

    GPU_DRA_TEST_IMPORT_IMAGE   a command that gives the node's runtime the image archive whose path is appended

The GPUs are simulated by the plugin's pod itself (`kubeletPlugin.simulate`), so it runs without privileges; one test
runs it as on real hardware, on a node that has none.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.chart_values import merged
from support.helm import NAMESPACE, Helm
from support.image import installed
from support.image_archive import write_image
from support.real_cluster import (
    CDI_ROOT,
    IS_THERE,
    KUBECONFIG,
    KUBELET_ROOT,
    WHY_NOT,
    devices,
    get,
    inside,
    kubectl,
    slice_versions,
    until,
)
from support.real_load import CLAIM, Load, phase, pod, refused_prepares

IMPORT_IMAGE = os.environ.get("GPU_DRA_TEST_IMPORT_IMAGE", "")

pytestmark = [
    pytest.mark.skipif(not IS_THERE, reason=WHY_NOT),
    pytest.mark.skipif(not IMPORT_IMAGE, reason="no way to bring an image: set GPU_DRA_TEST_IMPORT_IMAGE"),
]

ROOT = Path(__file__).parents[2]
OURS = "localhost/gpu-dra-driver:test"
VALUES: Mapping[str, Any] = {
    "image": {"repository": "localhost/gpu-dra-driver", "tag": "test", "pullPolicy": "Never"},
    "kubeletPlugin": {"simulate": "dgx-h100", "affinity": {"nodeAffinity": None}},
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the Dockerfile installs, on the node."""
    folder = tmp_path_factory.mktemp("image")
    archive = write_image(installed(ROOT, folder), OURS, folder / "image.tar")
    subprocess.run([*shlex.split(IMPORT_IMAGE), str(archive)], check=True, timeout=300)


@pytest.fixture
def helm(image: None) -> Iterator[Helm]:
    # Whatever was installed without Helm: it takes over nothing that is not its own.
    kubectl("delete", "customresourcedefinitions,deviceclasses", "--all")
    kubectl("create", "namespace", NAMESPACE)
    until(
        lambda: kubectl("get", "serviceaccount", "-n", NAMESPACE, "default", check=False), "the namespace is complete"
    )
    before = everything()
    yield Helm(Path(KUBECONFIG))
    try:
        kubectl("delete", "pods", "--all", "--ignore-not-found")
        if kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name").strip():
            Helm(Path(KUBECONFIG)).uninstall(timeout_s=180)
        with suppress(AssertionError):
            until(lambda: everything() <= before, "what belonged to what was removed goes, too", 60)
        left = everything() - before
    finally:
        kubectl("delete", "namespace", NAMESPACE)
        shutil.rmtree(KUBELET_ROOT / "plugins" / "gpu.nvidia.com", ignore_errors=True)
    assert not left, left


def everything() -> set[str]:
    """What a release may leave behind, but for what the cluster itself makes and removes in its own time."""
    kinds = kubectl("api-resources", "--verbs=list", "-o", "name").split()
    passing = {"events", "events.events.k8s.io", "endpoints", "endpointslices.discovery.k8s.io"}
    wanted = ",".join(kind for kind in kinds if kind not in passing and not kind.startswith("componentstatus"))
    listed = kubectl(
        "get",
        wanted,
        "-A",
        "-o",
        "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{'\\n'}{end}",
    )
    return {line for line in listed.splitlines() if " kube-system/" not in line and " kube-node-lease/" not in line}


def ready(kind: str, name: str) -> bool:
    found = get(kind, "-n", NAMESPACE, name)
    spec, status = found["spec"], found.get("status", {})
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return False
    if kind == "daemonset":
        wanted = status["desiredNumberScheduled"]
        return bool(wanted) and wanted == status.get("updatedNumberScheduled") == status.get("numberAvailable")
    return (
        spec["replicas"] == status.get("updatedReplicas") == status.get("availableReplicas") == status.get("replicas")
    )


def wait_ready(*, controller: bool = True) -> None:
    def all_ready() -> bool:
        plugin = ready("daemonset", "gpu-dra-driver-kubelet-plugin")
        return plugin and (not controller or ready("deployment", "gpu-dra-driver-controller"))

    try:
        until(all_ready, "plugin and controller are ready", 120)
    except AssertionError:
        raise AssertionError(report()) from None


def report() -> str:
    pods = [one["metadata"]["name"] for one in get("pods", "-n", NAMESPACE)["items"]]
    logs = [kubectl("logs", "-n", NAMESPACE, name, "--tail=20", check=False) for name in pods]
    return "\n".join([kubectl("describe", "pods", "-n", NAMESPACE)[-6000:], *logs])


@pytest.mark.parametrize("publisher", ["controller", "node"])
def test_it_runs_tests_itself_updates_under_load_goes_back_and_leaves_nothing(helm: Helm, publisher: str) -> None:
    controller = publisher == "controller"
    # With a controller there are classes of MIG profiles, too, which belong to no release.
    policy = {"mig": [{"mode": "Dynamic", "profiles": ["1g.10gb"]}]} if controller else {}
    published = 8 + 8 * 7 if controller else 8
    values = merged(dict(VALUES), {"publisher": publisher, "policy": policy})
    first = helm.install(values)
    wait_ready(controller=controller)
    until(lambda: devices() == published, "all devices are published")
    if controller:
        until(lambda: "1g.10gb.mig.nvidia.com" in kubectl("get", "deviceclasses", "-o", "name"), "a class of a profile")
    helm.test()
    kubectl("apply", "-f", "-", content=CLAIM)
    kubectl("apply", "-f", "-", content=pod("stays"))
    until(lambda: phase("stays") == "Running", "the pod runs", 90)
    assert "NVIDIA_VISIBLE_DEVICES=void" in inside(("default", "stays"), "main", "env")
    slices, refused = slice_versions(), refused_prepares()

    with Load() as load:
        load.more(2)
        helm.upgrade(merged(values, {"logLevel": "debug", "kubeletPlugin": {"podAnnotations": {"round": "2"}}}))
        wait_ready(controller=controller)
        load.more(2)
    assert refused_prepares() == refused
    assert slice_versions() == slices

    helm.rollback_to(first.revision)
    wait_ready(controller=controller)
    assert slice_versions() == slices
    kubectl("delete", "pod", "stays")
    until(lambda: not list(CDI_ROOT.glob("k8s.gpu.nvidia.com*")), "CDI files are gone")
    kubectl("delete", "resourceclaimtemplate", "one")
    helm.uninstall(timeout_s=180)
    # `helm` looks whether anything is left.


@pytest.mark.parametrize("privileged", [True, False])
def test_on_a_node_without_a_driver_it_runs_and_says_so(helm: Helm, privileged: bool) -> None:
    """As on real hardware: the host's root, processes and devices; with privileges, and with capabilities alone."""
    helm.install(
        merged(dict(VALUES), {"publisher": "node", "kubeletPlugin": {"simulate": "", "privileged": privileged}})
    )
    wait_ready(controller=False)

    def told() -> list[str]:
        return [one["reason"] for item in get("nodeinventories")["items"] for one in item["spec"].get("problems", ())]

    until(told, "the inventory says what is missing")
    assert told() == ["DriverNotFound"]
    helm.uninstall(timeout_s=180)
