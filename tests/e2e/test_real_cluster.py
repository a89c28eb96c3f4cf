"""Every example as real pods on a real cluster, with simulated GPUs: devices and environment seen inside containers.

Needs a cluster with one node, whose kubelet runs on this machine with containerd and CDI:

    GPU_DRA_TEST_KUBECONFIG   kubeconfig of an administrator
    GPU_DRA_TEST_IMAGE        an image on that node with sh, env, ls, cat and sleep
    GPU_DRA_TEST_RESTART_KUBELET   optional: a command that restarts that kubelet

Controller and node plugin run as processes here, as root, on kubelet's real folder and the runtime's real CDI folder.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver import bundled

KUBECONFIG = os.environ.get("GPU_DRA_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("GPU_DRA_TEST_IMAGE", "")
RESTART_KUBELET = os.environ.get("GPU_DRA_TEST_RESTART_KUBELET", "")

pytestmark = pytest.mark.skipif(
    not (KUBECONFIG and IMAGE and shutil.which("kubectl")),
    reason="no real cluster: set GPU_DRA_TEST_KUBECONFIG and GPU_DRA_TEST_IMAGE, and have kubectl on the PATH",
)

KUBELET_ROOT = Path("/var/lib/kubelet")
CDI_ROOT = Path("/var/run/cdi")
EXAMPLES = sorted(path.name for path in bundled.EXAMPLES_FOLDER.iterdir() if path.is_dir())


def kubectl(*arguments: str, content: str | None = None, check: bool = True) -> str:
    command = ["kubectl", "--kubeconfig", KUBECONFIG, *arguments]
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def get(*arguments: str) -> Any:
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@dataclass
class Services:
    """The controller and the node plugin, as processes that can be killed and started again."""

    folder: Path
    publisher: str
    node: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """`controller`, `plugin`, or `newer plugin`, a second instance beside the first."""
        commands = {
            "controller": ["controller.main", "--kubeconfig", KUBECONFIG],
            "plugin": [
                *("kubelet_plugin.main", "--node-name", self.node, "--kubeconfig", KUBECONFIG),
                *("--kubelet-root", str(KUBELET_ROOT), "--cdi-root", str(CDI_ROOT)),
                *("--host-root", str(self.folder / "host"), "--simulate", "dgx-h100"),
                *("--publisher", self.publisher, "--log-format", "console"),
            ],
        }
        commands["newer plugin"] = [*commands["plugin"], "--pod-uid", "newer"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.logged[name] = log.tell()
            self.running[name] = subprocess.Popen([sys.executable, "-m", *commands[name]], stdout=log, stderr=log)

    def registered(self, name: str) -> bool:
        """Whether the last process of that name has registered with kubelet."""
        return "registered with kubelet" in (self.folder / f"{name}.log").read_text()[self.logged.get(name, 0) :]

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(60)

    def journal(self) -> str:
        found = [path for path in (KUBELET_ROOT / "plugins" / "gpu.nvidia.com").glob("*journal*") if path.is_file()]
        return "\n".join(path.read_text() for path in found)


@pytest.fixture(scope="module", params=["controller", "node"])
def services(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    node = get("nodes")["items"][0]["metadata"]["name"]
    for path in [*sorted(bundled.CRDS_FOLDER.glob("*.yaml")), *sorted(bundled.DEVICE_CLASSES_FOLDER.glob("*.yaml"))]:
        kubectl("apply", "-f", str(path))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    services = Services(tmp_path_factory.mktemp("services"), request.param, node)
    if services.publisher == "controller":
        services.start("controller")
    services.start("plugin")
    until(lambda: devices() == 8, "eight devices are published")
    yield services
    for example in EXAMPLES:
        remove(example)
    for name in list(services.running):
        services.stop(name)
    kubectl("delete", "nodeinventories", "--all")
    kubectl("delete", "resourceslices", "--all")


def devices() -> int:
    return sum(len(item["spec"].get("devices") or ()) for item in get("resourceslices")["items"])


def slice_versions() -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in get("resourceslices")["items"]}


def manifests(example: str) -> list[dict[str, Any]]:
    """The example's documents, with an image that this node has."""
    documents = []
    for path in sorted((bundled.EXAMPLES_FOLDER / example).glob("*.yaml")):
        documents += [document for document in yaml.safe_load_all(path.read_text()) if document]
    for document in documents:
        if document["kind"] == "Pod":
            spec = document["spec"]
            spec["terminationGracePeriodSeconds"] = 0
            for container in [*spec["containers"], *spec.get("initContainers", [])]:
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return documents


def apply(example: str) -> list[tuple[str, str]]:
    """Create an example's objects; answers namespace and name of its pods."""
    documents = manifests(example)
    kubectl("apply", "-f", "-", content=yaml.safe_dump_all(documents))
    return [
        (document["metadata"].get("namespace", "default"), document["metadata"]["name"])
        for document in documents
        if document["kind"] == "Pod"
    ]


def remove(example: str) -> None:
    documents = [document for document in manifests(example) if document["kind"] != "DeviceClass"]
    kubectl("delete", "--ignore-not-found", "-f", "-", content=yaml.safe_dump_all(documents))


def wait_running(pods: list[tuple[str, str]]) -> None:
    def all_run() -> bool:
        return all(get("pod", "-n", space, name).get("status", {}).get("phase") == "Running" for space, name in pods)

    try:
        until(all_run, "pods run", 90)
    except AssertionError:
        reports = [kubectl("describe", "pod", "-n", space, name)[-1500:] for space, name in pods]
        raise AssertionError("\n".join(reports)) from None


def inside(pod: tuple[str, str], container: str, command: str) -> str:
    return kubectl("exec", "-n", pod[0], pod[1], "-c", container, "--", "sh", "-c", command)


def answers(pod: tuple[str, str]) -> bool:
    """Whether kubelet lets us into the pod; just after its start it does not know its pods yet."""
    return kubectl("exec", "-n", pod[0], pod[1], "--", "sh", "-c", "echo yes", check=False).strip() == "yes"


def allocated(pod: tuple[str, str]) -> set[str]:
    """Device names of all claims that are reserved for a pod."""
    uid = get("pod", "-n", pod[0], pod[1])["metadata"]["uid"]
    names = set()
    for claim in get("resourceclaims", "-n", pod[0])["items"]:
        status = claim.get("status", {})
        if uid in {user["uid"] for user in status.get("reservedFor", [])}:
            names |= {result["device"] for result in status["allocation"]["devices"]["results"]}
    return names


def minors_and_uuids() -> dict[str, tuple[int, str]]:
    """Device name to minor number and UUID, as the node reported them."""
    (inventory,) = get("nodeinventories")["items"]
    return {gpu["name"]: (gpu["minor"], gpu["uuid"]) for gpu in inventory["spec"]["gpus"]}


def check_inside(pod: tuple[str, str]) -> None:
    """Every container has exactly the device nodes and UUIDs of GPUs of its pod's claims, and together all of them."""
    hardware = minors_and_uuids()
    seen: set[str] = set()
    for container in get("pod", "-n", pod[0], pod[1])["spec"]["containers"]:
        listing = inside(pod, container["name"], "ls /dev")
        if not asks_for_gpus(container):
            assert "nvidia" not in listing
            continue
        environment = inside(pod, container["name"], "env")
        minors = {int(one) for one in re.findall(r"^nvidia(\d+)$", listing, re.MULTILINE)}
        here = {name for name, (minor, _) in hardware.items() if minor in minors}
        assert here, listing
        assert here <= allocated(pod)
        assert {"nvidiactl", "nvidia-uvm"} <= set(listing.split())
        assert "NVIDIA_VISIBLE_DEVICES=void" in environment
        assert {uuid for name, (_, uuid) in hardware.items() if name in here} == set(
            re.findall(r"GPU-[0-9a-f-]{36}", environment)
        )
        assert "libcuda.so" in inside(pod, container["name"], "cat /proc/self/mountinfo")
        seen |= here
    assert seen == allocated(pod)


def asks_for_gpus(container: dict[str, Any]) -> bool:
    resources = container.get("resources", {})
    return bool(resources.get("claims")) or "nvidia.com/gpu" in resources.get("limits", {})


def nothing_left(services: Services) -> None:
    until(lambda: not get("resourceclaims", "-A")["items"], "claims are gone")
    until(lambda: not list(CDI_ROOT.glob("k8s.gpu.nvidia.com*")), "CDI files are gone")
    assert '"claim' not in services.journal().replace('"claims"', "")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs_with_its_devices_inside_and_leaves_nothing(services: Services, example: str) -> None:
    pods = apply(example)
    try:
        wait_running(pods)
        for pod in pods:
            check_inside(pod)
    finally:
        remove(example)
    nothing_left(services)


def test_a_killed_plugin_comes_back_and_releases_what_it_had_prepared(services: Services) -> None:
    before = slice_versions()
    pods = apply("one-gpu")
    wait_running(pods)
    services.stop("plugin", signal.SIGKILL)
    services.start("plugin")
    until(lambda: services.registered("plugin"), "registered again")
    assert slice_versions() == before
    check_inside(pods[0])
    remove("one-gpu")
    nothing_left(services)


def test_a_rolling_update_serves_all_the_time_and_leaves_slices_as_they_are(services: Services) -> None:
    before = slice_versions()
    pods = apply("one-gpu")
    wait_running(pods)
    services.start("newer plugin")
    until(lambda: services.registered("newer plugin"), "the newer instance is registered")
    second = apply("two-containers-one-claim")
    wait_running(second)
    services.stop("plugin")
    remove("one-gpu")
    until(
        lambda: len(list(CDI_ROOT.glob("k8s.gpu.nvidia.com*"))) == 1,
        "the newer instance releases what the old one made",
    )
    check_inside(second[0])
    remove("two-containers-one-claim")
    nothing_left(services)
    services.start("plugin")
    until(lambda: services.registered("plugin"), "an instance without a pod UID is registered again")
    services.stop("newer plugin")
    assert slice_versions() == before


@pytest.mark.skipif(not RESTART_KUBELET, reason="no way to restart kubelet: set GPU_DRA_TEST_RESTART_KUBELET")
def test_after_a_kubelet_restart_slices_come_back_and_pods_keep_their_devices(services: Services) -> None:
    pods = apply("one-gpu")
    wait_running(pods)
    old = {item["metadata"]["uid"] for item in get("resourceslices")["items"]}
    subprocess.run(shlex.split(RESTART_KUBELET), check=True, timeout=120)
    until(
        lambda: devices() == 8 and not old & {item["metadata"]["uid"] for item in get("resourceslices")["items"]},
        "new slices",
        120,
    )
    until(lambda: answers(pods[0]), "kubelet answers", 60)
    check_inside(pods[0])
    remove("one-gpu")
    nothing_left(services)
