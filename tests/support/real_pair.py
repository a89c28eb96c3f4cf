"""Workloads for two real nodes that they fill, and what one of them sees of the other's troubles; see tests/e2e."""

import threading
from typing import Any

import yaml
from support.real_cutover import pods
from support.real_device_plugin import GPUS_OF_A_NODE, RESOURCE
from support.real_nodes import start_kubelet, stop_kubelet

HOST = "kubernetes.io/hostname"
MANY = 2 * GPUS_OF_A_NODE - 4
WANTED = {"spread": 2, "at-first": 1, "at-second": 1, "many": MANY}
"""Together as many as there are GPUs."""


def manifests(image: str, first: str, second: str) -> dict[str, str]:
    """By file name: one that wants a node for each of its pods, one bound to each node, and one for all other GPUs.

    There is no GPU to spare, so none but the last takes one more while it changes, and that has to wait behind the
    others.
    """
    apart = {"labelSelector": {"matchLabels": {"app": "spread"}}, "topologyKey": HOST}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    before_others = {"priorityClassName": "system-cluster-critical"}
    settings: dict[str, dict[str, Any]] = {
        "spread": {"affinity": affinity, **before_others},
        "at-first": {"nodeSelector": {HOST: first}, **before_others},
        "at-second": {"nodeSelector": {HOST: second}, **before_others},
        "many": {},
    }
    return {f"{app}.yaml": yaml.safe_dump(_deployment(app, image, more)) for app, more in settings.items()}


def _deployment(app: str, image: str, settings: dict[str, Any]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000000"],
        "resources": {"limits": {RESOURCE: 1}},
    }
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **settings}
    labels = {"app": app}
    strategy = {} if app == "many" else {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {
            "replicas": WANTED[app],
            "strategy": strategy,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def life(app: str) -> tuple[str, ...]:
    """Of the only pod of a workload: the same as before, unless it was disturbed."""
    (pod,) = pods()[app]
    (status,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], pod["spec"]["nodeName"], status["containerID"]


def nodes_of(app: str) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in pods().get(app, ()))


class Outages:
    """Kubelets that are dead for a while, which a person does not know of who waits for a command to end."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def of(self, node: str, seconds: float) -> None:
        stop_kubelet(node)
        self._timers.append(threading.Timer(seconds, start_kubelet, [node]))
        self._timers[-1].start()

    def over(self) -> None:
        """Waits until all kubelets run again."""
        for timer in self._timers:
            timer.join()
