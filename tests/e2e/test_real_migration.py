"""The plan of `dractl migrate`, followed to the letter on a real cluster from NVIDIA's device plugin to us, and back.

Needs what test_real_chart.py needs, GPU_DRA_TEST_MOCK_NVML (see tests/support/mock_nvml.py), and

    GPU_DRA_TEST_DEVICE_PLUGIN     the program `nvidia-device-plugin`, built of NVIDIA/k8s-device-plugin
    GPU_DRA_TEST_RESTART_KUBELET   a command that kills kubelet and starts it again; without it kubelet runs on

Device plugin, kubelet, scheduler and controllers are the real ones; GPUs are those of the mock NVML, which both drivers
load. The commands are taken out of the report and given to bash. `helm` is Helm's library behind the words of its
command line.
"""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart_values import merged
from support.dractl import run
from support.helm import Helm, HelmError
from support.real_chart import ROOT, VALUES
from support.real_cluster import IMAGE, KUBECONFIG, get, kubectl, until
from support.real_device_plugin import (
    PLUGIN_IS_THERE,
    Watch,
    bring_device_plugin,
    gpus,
    gpus_with_a_device_plugin,
    held,
    manifests,
    offered_by_plugin,
    why_not,
)

pytestmark = pytest.mark.skipif(not PLUGIN_IS_THERE, reason=why_not())

OURS = {"image": VALUES["image"]}
CLAIMS = ("--strategy", "claims", "--strategy", "StatefulSet/default/search=extended")
PODS = {"web": 2, "search": 1, "train": 1, "shell": 1}
"""How many pods of each workload run, but for those of the CronJob."""


@pytest.fixture(scope="module")
def node(image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bring_device_plugin(tmp_path_factory.mktemp("device-plugin"))
    with gpus_with_a_device_plugin() as name:
        yield name


@dataclass
class Operator:
    """A person with a shell in the folder that `dractl migrate -o` wrote, who types what the report says."""

    folder: Path
    after: dict[str, Callable[[], None]]
    """What happens to them just after a step of this kind, once."""

    def __post_init__(self) -> None:
        (self.folder / "charts").symlink_to(ROOT / "charts")
        (self.folder / "bin").mkdir()
        for name, module in (("helm", "support.helm_words"), ("dractl", "dra_driver.cli.__main__")):
            words = self.folder / "bin" / name
            words.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
            words.chmod(words.stat().st_mode | stat.S_IXUSR)
        for name in ("values.yaml", "values-cutover.yaml"):
            file = self.folder / name
            file.write_text(yaml.safe_dump(merged(yaml.safe_load(file.read_text()), OURS)))

    def follow(self, way: str, *, until_act: str | None = None, since_act: str | None = None) -> None:
        waits = since_act is not None
        for stage in json.loads((self.folder / "report.json").read_text())["cutover"][way]:
            for step in stage["steps"]:
                waits = waits and step["act"] != since_act
                if step["act"] == until_act:
                    return
                if not waits:
                    self.do(step)

    def do(self, step: dict[str, Any]) -> None:
        for command in step["commands"]:
            with (self.folder / "typed.log").open("a") as log:
                log.write(f"{time.strftime('%T')} {command}\n")
            environment = {
                **os.environ,
                "KUBECONFIG": KUBECONFIG,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            }
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
            assert done.returncode == 0, f"{step['what']}\n{command}\n{done.stdout}\n{done.stderr}"
        happens = self.after.pop(step["act"], None)
        if happens is not None:
            happens()


def migrated(
    folder: Path, after: dict[str, Callable[[], None]], *sources: str, strategy: tuple[str, ...] = CLAIMS
) -> Operator:
    """Reads the cluster, and the manifests or the workloads of the cluster, and writes into `folder`."""
    done = run("migrate", *sources, "--cluster", "--kubeconfig", KUBECONFIG, *strategy, "-o", str(folder))
    assert (folder / "report.json").exists(), done.output
    return Operator(folder, after)


def pods() -> dict[str, list[dict[str, Any]]]:
    """Those that run, by workload."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in get("pods")["items"]:
        if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]:
            found.setdefault(one["metadata"].get("labels", {}).get("app", one["metadata"]["name"]), []).append(one)
    return found


def run_all() -> bool:
    found = pods()
    return all(len(found.get(name, ())) == number for name, number in PODS.items())


def have_gpus(by: str) -> bool:
    """Whether each pod that is to run has one, by that way."""
    holders = {pod for users in getattr(held(), by).values() for pod in users}
    found = pods()
    wanted = {f"default/{one['metadata']['name']}" for name in PODS for one in found.get(name, ())}
    return len(wanted) == sum(PODS.values()) and wanted <= holders


def settled(by: str) -> None:
    try:
        until(lambda: have_gpus(by), f"every workload has its GPU {by}", 150)
    except AssertionError:
        raise AssertionError(f"{held()}\n{kubectl('get', 'pods,resourceclaims', '-A', '-o', 'wide')}") from None


def kill(program: str) -> Callable[[], None]:
    """SIGKILL to every process of a container whose command line has a word that ends like this."""

    def act() -> None:
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = line.read_bytes().split(b"\0")
                confined = (line.parent / "ns" / "mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
            except OSError:
                continue
            if confined and any(word.endswith(program.encode()) for word in words):
                os.kill(int(line.parent.name), signal.SIGKILL)

    return act


def restart_kubelet() -> None:
    command = os.environ.get("GPU_DRA_TEST_RESTART_KUBELET")
    if command:
        subprocess.run(shlex.split(command), check=True, timeout=60)


def has_run_with_a_claim(app: str) -> bool:
    """Whether a pod that a CronJob started came to run, or to its end, with a device by a claim."""
    return any(
        one["status"]["phase"] in ("Running", "Succeeded") and one["status"].get("resourceClaimStatuses")
        for one in get("pods", "-l", f"app={app}")["items"]
    )


def bystanders() -> set[str]:
    """UIDs of the pods that have nothing to do with GPUs."""
    return {one["metadata"]["uid"] for one in get("pods", "-l", "app=bystander")["items"]}


def asks_for_the_old_resource(deployment: str) -> bool:
    containers = get("deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return any("nvidia.com/gpu" in one["resources"].get("limits", {}) for one in containers)


def doctor() -> set[str]:
    found = json.loads(run("doctor", "--kubeconfig", KUBECONFIG, "-o", "json").stdout)["findings"]
    return {f"{one['check']}/{one['trouble']}" for one in found if one["verdict"] not in ("ok", "skipped")}


def test_the_plan_is_followed_there_and_back_and_there_to_the_end(node: str, helm: Helm, tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    for name, text in manifests(IMAGE).items():
        (tmp_path / "manifests" / name).write_text(text)
    # Not all that there is was made with `kubectl apply`.
    for name in manifests(IMAGE):
        kubectl("create" if name == "web.yaml" else "apply", "-f", str(tmp_path / "manifests" / name))
    kubectl("create", "deployment", "bystander", f"--image={IMAGE}", "--", "sleep", "1000000")
    try:
        settled("by_plugin")
        stays = bystanders()
        with pytest.raises(HelmError, match=r"hands out nvidia\.com/gpu"):
            helm.install(OURS)

        seen: set[str] = set()
        with Watch() as watch:
            there = migrated(
                tmp_path / "new",
                {
                    "fence-plugin": kill("nvidia-device-plugin"),
                    "stop-plugin": restart_kubelet,
                    "start-driver": kill("gpu-dra-kubelet-plugin"),
                    "await-driver": kill("gpu-dra-controller"),
                    "uncordon": lambda: seen.update(doctor()),
                },
                str(tmp_path / "manifests"),
            )
            there.follow("forward", until_act="remove-plugin")
            settled("by_claims")
            assert offered_by_plugin(node) == 0
            # Both are installed, each for other nodes: nothing to be said of that.
            assert not {one for one in seen if one.startswith("device-plugin/")}
            until(lambda: has_run_with_a_claim("index"), "a Job of the CronJob has its GPU by a claim", 150)
            # The way back, with the report that was made before.
            there.after |= {"stop-offering": kill("gpu-dra-kubelet-plugin"), "start-plugin": restart_kubelet}
            there.follow("back")
            settled("by_plugin")
            # Its DaemonSet has just lost the node selector of the plan, so its pod was made anew.
            until(lambda: offered_by_plugin(node) == len(gpus()), "the device plugin gives GPUs again")

            # The workloads as the cluster has them, of which there are no files; and all of them get claims.
            once_more = migrated(
                tmp_path / "once-more",
                {"cordon": kill("nvidia-device-plugin")},
                strategy=("--strategy", "claims"),
            )
            once_more.follow("forward")
            settled("by_claims")
            assert not {one for one in doctor() if one.startswith("device-plugin/")}
            assert bystanders() == stays, "who has no GPU is left alone"
            assert not asks_for_the_old_resource("web"), "no limit is left beside a claim"
            kubectl("delete", "-f", str(tmp_path / "manifests"))
        assert watch.looks > 20
        assert watch.most["by_plugin"] >= 5
        assert watch.most["by_claims"] >= 5
    finally:
        kubectl("delete", "--ignore-not-found", "-f", str(tmp_path / "manifests"))
        kubectl("delete", "resourceclaimtemplates", "--all", "-n", "default")
        kubectl("delete", "--ignore-not-found", "deployment", "bystander")
        kubectl("uncordon", node)
        kubectl("label", "node", node, "dra.gpu/driver-", "dra.gpu/offered-by-")
