"""NVIDIA's device plugin as pods of a real cluster, on GPUs of the mock NVML, and who holds which GPU there.

GPU_DRA_TEST_DEVICE_PLUGIN   the program `nvidia-device-plugin`, built of NVIDIA/k8s-device-plugin
"""

import json
import os
import shlex
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from support.image_archive import write_program
from support.mock_nvml import MOCK_IS_THERE, MOCK_WHY_NOT, profile, write_driver_root
from support.real_chart import CHART_IS_THERE, CHART_WHY_NOT, IMPORT_IMAGE
from support.real_cluster import KUBELET_ROOT, get, kubectl, until
from support.real_nodes import kubelet_root, names, root

from dra_driver.names import GPU_DRIVER, gpu_device_names

PROGRAM = os.environ.get("GPU_DRA_TEST_DEVICE_PLUGIN", "")
DRIVER_ROOT = Path("/run/nvidia/driver")
"""Where the GPU Operator puts a driver: ours finds it there by itself."""
RESOURCE = "nvidia.com/gpu"
GPUS = "l40s"
GPUS_OF_A_NODE = 8
_IMAGE = "localhost/nvidia/k8s-device-plugin:test"
_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"

PLUGIN_IS_THERE = CHART_IS_THERE and MOCK_IS_THERE and bool(PROGRAM) and not DRIVER_ROOT.exists()


def why_not() -> str:
    if not CHART_IS_THERE:
        return CHART_WHY_NOT
    if not MOCK_IS_THERE:
        return MOCK_WHY_NOT
    if not PROGRAM:
        return "no device plugin: set GPU_DRA_TEST_DEVICE_PLUGIN"
    return f"{DRIVER_ROOT} is there already"


def bring_device_plugin(folder: Path) -> None:
    """Its image, on the node."""
    archive = write_program(Path(PROGRAM), _IMAGE, folder / "device-plugin.tar")
    subprocess.run([*shlex.split(IMPORT_IMAGE), str(archive)], check=True, timeout=120)


DAEMON_SET = f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: nvidia-device-plugin-daemonset, namespace: kube-system}}
spec:
  selector: {{matchLabels: {{name: nvidia-device-plugin-ds}}}}
  template:
    metadata: {{labels: {{name: nvidia-device-plugin-ds}}}}
    spec:
      priorityClassName: system-node-critical
      tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
      containers:
      - name: nvidia-device-plugin-ctr
        image: {_IMAGE}
        imagePullPolicy: Never
        env:
        - {{name: DEVICE_DISCOVERY_STRATEGY, value: nvml}}
        - {{name: NVIDIA_DRIVER_ROOT, value: {DRIVER_ROOT}}}
        - {{name: PASS_DEVICE_SPECS, value: "true"}}
        - {{name: LD_LIBRARY_PATH, value: /driver-root/usr/lib64}}
        - {{name: NVIDIA_DEV_ROOT, value: {DRIVER_ROOT}}}
        - {{name: DRIVER_ROOT_CTR_PATH, value: /driver-root}}
        securityContext: {{privileged: true}}
        volumeMounts:
        - {{name: kubelet, mountPath: /var/lib/kubelet/device-plugins}}
        - {{name: driver, mountPath: /driver-root}}
      volumes:
      - {{name: kubelet, hostPath: {{path: {KUBELET_ROOT}/device-plugins}}}}
      - {{name: driver, hostPath: {{path: {DRIVER_ROOT}}}}}
"""


@contextmanager
def gpus_with_a_device_plugin() -> Iterator[tuple[str, ...]]:
    """The nodes' names. They have GPUs of the mock, and the device plugin gives them."""
    nodes = names()
    try:
        for name in nodes:
            put_gpus(name)
        kubectl("apply", "-f", "-", content=DAEMON_SET)
        until(lambda: all_offered(nodes), "the device plugin gives GPUs", 90)
        yield nodes
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", content=DAEMON_SET)
        for name in names():
            shutil.rmtree(_driver_root(name))


def put_gpus(node: str) -> None:
    """Into a machine that has none."""
    write_driver_root(_driver_root(node), GPUS, machine=_machine(node))
    kubectl("label", "node", node, "nvidia.com/gpu.present=true", "--overwrite")


def _driver_root(node: str) -> Path:
    return root(node) / DRIVER_ROOT.relative_to("/")


def _machine(node: str) -> int:
    """Its number, out of the name; that of a name without one is 0."""
    return int("".join(character for character in node if character.isdigit())[-4:] or "0") % 2**16


def gpus(node: str) -> Mapping[str, str]:
    """UUIDs by the names of published devices."""
    names = gpu_device_names([device["uuid"] for device in profile(GPUS, _machine(node))["devices"]])
    return {name: uuid for uuid, name in names.items()}


def all_offered(nodes: Iterable[str]) -> bool:
    return all(offered_by_plugin(node) == len(gpus(node)) for node in nodes)


def offered_by_plugin(node: str) -> int:
    return int(get("node", node)["status"]["allocatable"].get(RESOURCE, "0"))


# -- who has what


@dataclass(frozen=True)
class Held:
    """Pods, as `namespace/name`, by the UUIDs of their GPUs; and nodes where each of the two has some to give."""

    by_plugin: Mapping[str, frozenset[str]]
    by_claims: Mapping[str, frozenset[str]]
    plugin_offers: frozenset[str]
    driver_offers: frozenset[str]

    @property
    def twice(self) -> set[str]:
        return set(self.by_plugin) & set(self.by_claims)


def held() -> Held:
    """Now. Kubelets' own records say which GPUs the device plugin's pods have; allocations say it of claims.

    The API server is asked for pods first: a GPU that seems to be held twice may have changed hands in between.
    """
    listed = get("pods,resourceclaims,resourceslices,nodes", "-A")["items"]
    pods = {
        obj["metadata"]["uid"]: f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        for obj in listed
        if obj["kind"] == "Pod" and obj.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    }
    nodes = [obj for obj in listed if obj["kind"] == "Node"]
    here = [node["metadata"]["name"] for node in nodes]
    by_plugin: dict[str, set[str]] = defaultdict(set)
    for entry in (entry for name in here for entry in _entries(name)):
        if entry["ResourceName"] == RESOURCE and entry["PodUID"] in pods:
            for devices in entry["DeviceIDs"].values():
                for uuid in devices:
                    by_plugin[uuid].add(pods[entry["PodUID"]])
    by_claims: dict[str, set[str]] = defaultdict(set)
    uuids = {(node, name): uuid for node in here for name, uuid in gpus(node).items()}
    for claim in (obj for obj in listed if obj["kind"] == "ResourceClaim"):
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        for result in results:
            if result["driver"] == GPU_DRIVER and result["pool"] in here and not result.get("adminAccess"):
                users = claim["status"].get("reservedFor", ())
                by_claims[uuids[result["pool"], result["device"]]] |= {
                    f"{claim['metadata']['namespace']}/{user['name']}" for user in users
                }
    slices = [obj for obj in listed if obj["kind"] == "ResourceSlice" and obj["spec"]["driver"] == GPU_DRIVER]
    return Held(
        {uuid: frozenset(users) for uuid, users in by_plugin.items()},
        {uuid: frozenset(users) for uuid, users in by_claims.items()},
        frozenset(
            node["metadata"]["name"] for node in nodes if int(node["status"]["allocatable"].get(RESOURCE, "0")) > 0
        ),
        frozenset(slice_["spec"]["nodeName"] for slice_ in slices if slice_["spec"].get("devices")),
    )


def _entries(node: str) -> list[dict[str, Any]]:
    try:
        record = (kubelet_root(node) / _CHECKPOINT).read_text()
    except FileNotFoundError:
        return []
    entries: list[dict[str, Any]] = json.loads(record)["Data"]["PodDeviceEntries"] or []
    return entries


class Watch:
    """Looks again and again for GPUs that both have given away, or that both offer; leaving fails when it saw one."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.looks = 0
        self.most: dict[str, int] = {"by_plugin": 0, "by_claims": 0}
        self.trouble: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self.trouble, self.trouble

    def _work(self) -> None:
        while not self._over.wait(0.2):
            try:
                now = held()
            except AssertionError as error:
                self.trouble.append(f"cannot look: {error}")
                return
            self.looks += 1
            self.most["by_plugin"] = max(self.most["by_plugin"], len(now.by_plugin))
            self.most["by_claims"] = max(self.most["by_claims"], len(now.by_claims))
            if both := now.plugin_offers & now.driver_offers:
                self.trouble.append(f"look {self.looks}: both offer on {sorted(both)}")
            if now.twice:
                again = held()
                still = {uuid for uuid in now.twice & again.twice if now.by_plugin[uuid] & again.by_plugin[uuid]}
                self.trouble += [
                    f"look {self.looks}: {uuid} by {now.by_plugin[uuid]} and {now.by_claims[uuid]}" for uuid in still
                ]


# -- workloads


def manifests(image: str) -> dict[str, str]:
    """Workloads of every kind that may come and go meanwhile, by file name."""

    def pod(seconds: str, restart: str = "Always") -> dict[str, Any]:
        container = {
            "name": "main",
            "image": image,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", f"env | grep NVIDIA; sleep {seconds}"],
            "resources": {"limits": {RESOURCE: 1}},
        }
        return {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": [container]}

    def template(app: str, spec: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"labels": {"app": app}}, "spec": spec}

    forever, selector = "1000000", lambda app: {"matchLabels": {"app": app}}
    job = {"template": template("train", pod(forever, "Never")), "podFailurePolicy": _EVICTION_IS_NO_FAILURE}
    short = pod("15", "Never")
    documents: dict[str, dict[str, Any]] = {
        "web": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": {"replicas": 2, "selector": selector("web"), "template": template("web", pod(forever))},
        },
        "search": {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "spec": {
                "replicas": 1,
                "serviceName": "search",
                "selector": selector("search"),
                "template": template("search", pod(forever)),
            },
        },
        "train": {"apiVersion": "batch/v1", "kind": "Job", "spec": job},
        "index": {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "spec": {
                "schedule": "* * * * *",
                "jobTemplate": {"spec": {"template": template("index", short)}},
            },
        },
        "shell": {"apiVersion": "v1", "kind": "Pod", "spec": pod(forever)},
    }
    return {
        f"{name}.yaml": yaml.safe_dump(
            {**document, "metadata": {"name": name, "namespace": "default"}}, sort_keys=False
        )
        for name, document in documents.items()
    }


_EVICTION_IS_NO_FAILURE = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
