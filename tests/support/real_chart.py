"""Our chart as a release of a real cluster, with an image of the tree that is tested; see tests/e2e.

GPU_DRA_TEST_IMPORT_IMAGE   a command that gives every node's runtime the image archive whose path is appended
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

from support.helm import NAMESPACE, Helm
from support.image import installed
from support.image_archive import write_image
from support.real_cluster import IS_THERE, KUBECONFIG, WHY_NOT, get, kubectl, until
from support.real_nodes import kubelet_root, names

IMPORT_IMAGE = os.environ.get("GPU_DRA_TEST_IMPORT_IMAGE", "")

CHART_IS_THERE = IS_THERE and bool(IMPORT_IMAGE)
CHART_WHY_NOT = "no way to bring an image: set GPU_DRA_TEST_IMPORT_IMAGE" if IS_THERE else WHY_NOT

ROOT = Path(__file__).parents[2]
OURS = "localhost/gpu-dra-driver:test"
VALUES: Mapping[str, Any] = {
    "image": {"repository": "localhost/gpu-dra-driver", "tag": "test", "pullPolicy": "Never"},
    "kubeletPlugin": {"simulate": "dgx-h100", "affinity": {"nodeAffinity": None}},
}


def bring_image(folder: Path) -> None:
    """What the Dockerfile installs, on every node."""
    archive = write_image(installed(ROOT, folder), OURS, folder / "image.tar")
    subprocess.run([*shlex.split(IMPORT_IMAGE), str(archive)], check=True, timeout=300)


@contextmanager
def room_for_a_release() -> Iterator[Helm]:
    """An empty namespace for the block to install into. Nothing of a release may be left at the end."""
    # Whatever was installed without Helm: it takes over nothing that is not its own.
    kubectl("delete", "customresourcedefinitions,deviceclasses", "--all")
    kubectl("create", "namespace", NAMESPACE)
    until(
        lambda: kubectl("get", "serviceaccount", "-n", NAMESPACE, "default", check=False), "the namespace is complete"
    )
    before = everything()
    try:
        yield Helm(Path(KUBECONFIG))
    finally:
        left = _take_down(before)
    assert not left, left


def _take_down(before: set[str]) -> set[str]:
    try:
        kubectl("delete", "pods", "--all", "--ignore-not-found")
        if kubectl("get", "secrets", "-n", NAMESPACE, "-o", "name").strip():
            Helm(Path(KUBECONFIG)).uninstall(timeout_s=180)
        with suppress(AssertionError):
            until(lambda: everything() <= before, "what belonged to what was removed goes, too", 60)
        return everything() - before
    finally:
        kubectl("delete", "namespace", NAMESPACE)
        for node, driver in product(names(), ("gpu.nvidia.com", "compute-domain.nvidia.com")):
            shutil.rmtree(kubelet_root(node) / "plugins" / driver, ignore_errors=True)


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
    obj = get(kind, "-n", NAMESPACE, name)
    spec, status = obj["spec"], obj.get("status", {})
    if status.get("observedGeneration") != obj["metadata"]["generation"]:
        return False
    if kind == "daemonset":
        wanted = status["desiredNumberScheduled"]
        return bool(wanted) and wanted == status.get("updatedNumberScheduled") == status.get("numberAvailable")
    replicas = spec["replicas"], status.get("updatedReplicas"), status.get("availableReplicas"), status.get("replicas")
    return len(set(replicas)) == 1


def wait_ready(*, controller: bool = True) -> None:
    def all_ready() -> bool:
        plugin = ready("daemonset", "gpu-dra-driver-kubelet-plugin")
        return plugin and (not controller or ready("deployment", "gpu-dra-driver-controller"))

    try:
        until(all_ready, "plugin and controller are ready", 120)
    except AssertionError:
        raise AssertionError(report()) from None


def report() -> str:
    pods = [pod["metadata"]["name"] for pod in get("pods", "-n", NAMESPACE)["items"]]
    logs = [kubectl("logs", "-n", NAMESPACE, name, "--tail=20", check=False) for name in pods]
    return "\n".join([kubectl("describe", "pods", "-n", NAMESPACE)[-6000:], *logs])
