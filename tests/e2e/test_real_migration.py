"""The plan of `dractl migrate`, followed to the letter on a real cluster from NVIDIA's device plugin to us, and back.

Needs what test_real_chart.py needs, GPU_DRA_TEST_MOCK_NVML (see tests/support/mock_nvml.py), and

    GPU_DRA_TEST_DEVICE_PLUGIN     the program `nvidia-device-plugin`, built of NVIDIA/k8s-device-plugin
    GPU_DRA_TEST_RESTART_KUBELET   a command that kills kubelet and starts it again; without it kubelet runs on
    GPU_DRA_TEST_NODE              for a cluster of two nodes, see tests/support/real_nodes.py

Device plugin, kubelet, scheduler and controllers are the real ones; GPUs are those of the mock NVML, which both drivers
load. The commands are taken out of the report and given to bash. `helm` is Helm's library behind the words of its
command line.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support import real_nodes, real_pair
from support.dractl import decided, run, troubles
from support.helm import Helm, HelmError
from support.real_cluster import IMAGE, KUBECONFIG, get, kubectl, until
from support.real_cutover import OURS, migrated, pods, settled
from support.real_device_plugin import (
    PLUGIN_IS_THERE,
    Watch,
    all_offered,
    bring_device_plugin,
    gpus_with_a_device_plugin,
    held,
    manifests,
    offered_by_plugin,
    put_gpus,
    why_not,
)

pytestmark = pytest.mark.skipif(not PLUGIN_IS_THERE, reason=why_not())

ALL_CLAIMS = ("--strategy", "claims")
DECISIONS = "strategy: claims\nworkloads: [{name: StatefulSet/default/search, strategy: extended}]"
PODS = {"web": 2, "search": 1, "train": 1, "shell": 1}
"""How many pods of each workload run, but for those of the CronJob."""


@pytest.fixture(scope="module")
def device_plugin(image: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    bring_device_plugin(tmp_path_factory.mktemp("device-plugin"))


@pytest.fixture
def nodes(device_plugin: None) -> Iterator[tuple[str, ...]]:
    """All that there are, be it one or several."""
    with gpus_with_a_device_plugin() as names:
        yield names


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
        pod["status"]["phase"] in ("Running", "Succeeded") and pod["status"].get("resourceClaimStatuses")
        for pod in get("pods", "-l", f"app={app}")["items"]
    )


def bystanders() -> set[str]:
    """UIDs of the pods that have nothing to do with GPUs."""
    return {pod["metadata"]["uid"] for pod in get("pods", "-l", "app=bystander")["items"]}


def asks_for_the_old_resource(deployment: str) -> bool:
    containers = get("deployment", deployment)["spec"]["template"]["spec"]["containers"]
    return any("nvidia.com/gpu" in container["resources"].get("limits", {}) for container in containers)


def doctor() -> set[str]:
    return troubles(run("doctor", "--kubeconfig", KUBECONFIG, "-o", "json").stdout)


def test_the_plan_is_followed_there_and_back_and_there_to_the_end(
    nodes: tuple[str, ...], helm: Helm, tmp_path: Path
) -> None:
    (tmp_path / "manifests").mkdir()
    for name, text in manifests(IMAGE).items():
        (tmp_path / "manifests" / name).write_text(text)
    # Not all that there is was made with `kubectl apply`.
    for name in manifests(IMAGE):
        kubectl("create" if name == "web.yaml" else "apply", "-f", str(tmp_path / "manifests" / name))
    kubectl("create", "deployment", "bystander", f"--image={IMAGE}", "--", "sleep", "1000000")
    try:
        settled("by_plugin", PODS)
        stays = bystanders()
        with pytest.raises(HelmError, match=r"offers nvidia\.com/gpu"):
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
                strategy=decided(tmp_path, DECISIONS),
            )
            there.follow("forward", until_act="remove-plugin")
            settled("by_claims", PODS)
            assert not any(map(offered_by_plugin, nodes))
            # Both are installed, each for other nodes: nothing to be said of that.
            assert not {trouble for trouble in seen if trouble.startswith("device-plugin/")}
            until(lambda: has_run_with_a_claim("index"), "a Job of the CronJob has its GPU by a claim", 150)
            # The way back, with the report that was made before.
            there.after |= {"stop-offering": kill("gpu-dra-kubelet-plugin"), "start-plugin": restart_kubelet}
            there.follow("back")
            settled("by_plugin", PODS)
            # Its DaemonSet has just lost the node selector of the plan, so its pod was made anew.
            until(lambda: all_offered(nodes), "the device plugin gives GPUs again")

            # The workloads as the cluster has them, of which there are no files; and all of them get claims.
            once_more = migrated(
                tmp_path / "once-more",
                {"cordon": kill("nvidia-device-plugin")},
                strategy=ALL_CLAIMS,
            )
            once_more.follow("forward")
            settled("by_claims", PODS)
            assert not {trouble for trouble in doctor() if trouble.startswith("device-plugin/")}
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
        kubectl("uncordon", *nodes)
        kubectl("label", "node", *nodes, "dra.gpu/driver-", "dra.gpu/offered-by-")


def test_nodes_fail_and_one_is_replaced_while_two_go_over_one_after_the_other(
    nodes: tuple[str, ...], helm: Helm, tmp_path: Path
) -> None:
    """Kubelets of either are dead while a person waits; and all GPUs of both are in use."""
    pair = real_nodes.two()
    (tmp_path / "manifests").mkdir()
    for name, text in real_pair.manifests(IMAGE, *pair).items():
        (tmp_path / "manifests" / name).write_text(text)
    kubectl("apply", "-f", str(tmp_path / "manifests"))
    outages, wanted = real_pair.Outages(), real_pair.WANTED
    try:
        settled("by_plugin", wanted)
        with Watch() as watch:
            plan = migrated(tmp_path / "new", {}, str(tmp_path / "manifests"), strategy=ALL_CLAIMS)
            first, second = plan.nodes()
            bound = {pair[0]: "at-first", pair[1]: "at-second"}
            plan.after = {
                "fence-plugin": partial(real_nodes.kill, second, "nvidia-device-plugin"),
                f"{first}/cordon": partial(outages.of, second, 20),
                f"{first}/stop-plugin": partial(outages.of, first, 15),
                # Long enough for the cluster to say that the node is not ready.
                f"{first}/await-plugin-gone": partial(outages.of, first, 75),
                f"{second}/stop-plugin": partial(outages.of, second, 15),
                f"{second}/await-free": partial(outages.of, first, 20),
                f"{second}/await-driver": partial(real_nodes.kill, second, "gpu-dra-kubelet-plugin"),
            }
            stays = real_pair.life(bound[second])
            plan.follow("forward", of=slice(2))
            outages.over()
            assert real_pair.life(bound[second]) == stays, "who runs on the other node is left alone"
            # All GPUs of the first are in use again, by pods that waited: no more can run while the second has its.
            until(lambda: len(held().by_claims) == 8, "whoever waited has come to the first node")
            until(lambda: bound[first] in pods(), "also who may run nowhere else")

            moved = real_pair.life(bound[first])
            plan.follow("forward", of=slice(2, None), until_act="remove-plugin")
            outages.over()
            settled("by_claims", wanted)
            assert real_pair.life(bound[first]) == moved, "who runs on the first node is left alone"
            assert real_pair.nodes_of("spread") == sorted(pair)

            replaced(pair[1])
            settled("by_claims", wanted, 240)
            plan.after = {
                f"{second}/stop-offering": partial(outages.of, second, 15),
                f"{second}/await-not-offered": partial(outages.of, first, 20),
                f"{first}/stop-driver": partial(outages.of, first, 15),
            }
            plan.follow("back")
            outages.over()
            until(lambda: all_offered(nodes), "the device plugin gives GPUs again")
            settled("by_plugin", wanted)
        assert watch.looks > 20
        assert watch.most == {"by_plugin": 16, "by_claims": 16}
    finally:
        outages.over()
        kubectl("delete", "--ignore-not-found", "-f", str(tmp_path / "manifests"))
        kubectl("delete", "resourceclaimtemplates", "--all", "-n", "default")
        # While there is a driver that takes back what their claims have.
        until(lambda: not get("pods")["items"], "no pod is left", 90)
        kubectl("uncordon", *nodes)
        kubectl("label", "node", *nodes, "dra.gpu/driver-", "dra.gpu/offered-by-")


def replaced(node: str) -> None:
    """Its power goes, somebody deletes it, and a machine with other files and without labels comes under its name."""
    real_nodes.lose(node)
    kubectl("delete", "node", node)
    real_nodes.join(node)
    put_gpus(node)
    time.sleep(10)
    assert (offered_by_plugin(node), node in held().driver_offers) == (0, False), "nobody has said who may offer"
    kubectl("label", "node", node, "dra.gpu/offered-by=driver", "dra.gpu/driver=yes")
