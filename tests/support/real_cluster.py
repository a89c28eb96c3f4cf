"""A real cluster with one node, for tests that run our processes on it beside its kubelet; see tests/e2e.

GPU_DRA_TEST_KUBECONFIG   kubeconfig of an administrator
GPU_DRA_TEST_IMAGE        an image on that node with sh, env, ls, cat and sleep
GPU_DRA_TEST_RESTART_KUBELET   optional: a command that restarts that kubelet
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dra_driver import bundled
from dra_driver.api.meta import GPU_POLICIES
from dra_driver.kubernetes import minor_of
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.facts.monitor import HEALTH_FILE
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.store import JournalFile

KUBECONFIG = os.environ.get("GPU_DRA_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("GPU_DRA_TEST_IMAGE", "")
RESTART_KUBELET = os.environ.get("GPU_DRA_TEST_RESTART_KUBELET", "")

IS_THERE = bool(KUBECONFIG and IMAGE and shutil.which("kubectl"))
WHY_NOT = "no real cluster: set GPU_DRA_TEST_KUBECONFIG and GPU_DRA_TEST_IMAGE, and have kubectl on the PATH"

KUBELET_ROOT = Path("/var/lib/kubelet")
CDI_ROOT = Path("/var/run/cdi")


def kubectl(*arguments: str, content: str | None = None, check: bool = True) -> str:
    command = ["kubectl", "--kubeconfig", KUBECONFIG, *arguments]
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


def get(*arguments: str) -> Any:
    return json.loads(kubectl("get", *arguments, "-o", "json"))


def server_minor() -> int:
    return minor_of(json.loads(kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"])


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def install() -> str:
    """What an administrator applies first; answers the name of the node."""
    for path in [*sorted(bundled.CRDS_FOLDER.glob("*.yaml")), *sorted(bundled.DEVICE_CLASSES_FOLDER.glob("*.yaml"))]:
        kubectl("apply", "-f", str(path))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return str(get("nodes")["items"][0]["metadata"]["name"])


@dataclass
class Services:
    """The controller and the node plugin, as processes that can be killed and started again."""

    folder: Path
    publisher: str
    node: str
    profile: str = "dgx-h100"
    policy: Path | None = None
    gates: str = ""
    """Of both, as in `--feature-gates`."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """`controller`, `plugin`, or `newer plugin`, a second instance beside the first."""
        commands = {
            "controller": ["controller.main", "--kubeconfig", KUBECONFIG],
            "plugin": [
                *("kubelet_plugin.main", "--node-name", self.node, "--kubeconfig", KUBECONFIG),
                *("--kubelet-root", str(KUBELET_ROOT), "--cdi-root", str(CDI_ROOT)),
                *("--host-root", str(self.folder / "host"), "--simulate", self.profile),
                *("--publisher", self.publisher, "--log-format", "console"),
            ],
        }
        for command in commands.values():
            command += [f"--feature-gates={self.gates}"] if self.gates else []
            command += ["--policy", str(self.policy)] if self.policy is not None else []
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
        try:
            process.wait(60)
        finally:
            process.kill()

    def journal(self) -> Journal:
        return JournalFile(KUBELET_ROOT / "plugins" / "gpu.nvidia.com").current()


@contextmanager
def services_of(
    folder: Path,
    publisher: str,
    node: str,
    profile: str = "dgx-h100",
    policy: Path | None = None,
    gates: str = "",
) -> Iterator[Services]:
    """None of them runs yet. However the block ends, none does afterwards, nothing is published, and what befell these
    GPUs is forgotten: those of the next are the same in name and boot, but others."""
    services = Services(folder, publisher, node, profile, policy, gates)
    with ExitStack() as last:
        last.callback((KUBELET_ROOT / "plugins" / GPU_DRIVER / HEALTH_FILE).unlink, missing_ok=True)
        last.callback(kubectl, "delete", "nodeinventories,resourceslices", "--all")
        last.callback(lambda: _stop_all(services))
        yield services


def _stop_all(services: Services) -> None:
    """Those that do not end by themselves are killed, and that is the failure of whoever stops them."""
    with ExitStack() as each:
        for name in list(services.running):
            each.callback(services.stop, name)


def forget_warnings(driver: str) -> None:
    """Of what plugins of this driver told before now."""
    selector = f"type=Warning,reportingComponent={driver}/kubelet-plugin"
    kubectl("delete", "events", "-A", "--field-selector", selector)


def published() -> list[dict[str, Any]]:
    """All devices of all slices."""
    return [device for item in get("resourceslices")["items"] for device in item["spec"].get("devices") or ()]


def devices() -> int:
    return len(published())


def slice_versions() -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in get("resourceslices")["items"]}


def manifests(example: str) -> list[dict[str, Any]]:
    """The example's documents, with an image that this node has."""
    documents = []
    for path in sorted((bundled.FEATURES_FOLDER / example).glob("*.yaml")):
        documents += [document for document in yaml.safe_load_all(path.read_text()) if document]
    documents = [document for document in documents if document["kind"] != GPU_POLICIES.kind]
    for document in documents:
        if document["kind"] == "Pod":
            spec = document["spec"]
            spec["terminationGracePeriodSeconds"] = 0
            for container in [*spec["containers"], *spec.get("initContainers", [])]:
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return documents


def apply(example: str, wanted: Callable[[str], bool] = bool) -> list[tuple[str, str]]:
    """Create those of an example's objects whose names are wanted, by default all; answers namespace and name of their
    pods."""
    documents = [document for document in manifests(example) if wanted(document["metadata"]["name"])]
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


def nothing_left(services: Services) -> None:
    until(lambda: not get("resourceclaims", "-A")["items"], "claims are gone")
    until(lambda: not list(CDI_ROOT.glob("*gpu.nvidia.com*")), "CDI files are gone")
    # The journal forgets a claim last, when its settings of the hardware are undone.
    until(lambda: not (services.journal().held or services.journal().domains), "the journal holds no claim")
