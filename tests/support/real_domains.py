"""ComputeDomains of a real cluster, their pods and daemons, as kubectl shows them; see tests/e2e."""

from typing import Any

import yaml
from support.helm import NAMESPACE
from support.real_cluster import IMAGE, get, inside, kubectl, until
from support.real_nodes import cdi_root, kubelet_root, names

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.names import DOMAIN_LABEL, daemon_object_name
from kubelet_plugin.prepare.turns import LOCK

_RECORDS = "plugins/gpu.nvidia.com/domains"
PATIENCE_S = 150.0
"""kubelet asks again after a refused prepare up to 90 s later."""


def make_domain(name: str, num_nodes: int = 0) -> None:
    """In namespace default; its template is `<name>-channel`. Returns when pods can name that."""
    body = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"numNodes": num_nodes, "channel": {"resourceClaimTemplate": {"name": f"{name}-channel"}}},
    }
    kubectl("apply", "-f", "-", content=yaml.safe_dump(body))
    until(lambda: kubectl("get", "resourceclaimtemplate", f"{name}-channel", check=False), f"{name} has a template")


def use_domain(name: str, *pods: str, node: str | None = None) -> None:
    """Make these pods, each with a channel of the domain, on any node or on this."""
    kubectl("apply", "-f", "-", content=yaml.safe_dump_all([_pod(name, pod, node) for pod in pods]))


def _pod(domain: str, name: str, node: str | None) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "sleep 100000"],
        "resources": {"claims": [{"name": "channel"}]},
    }
    claim = {"name": "channel", "resourceClaimTemplateName": f"{domain}-channel"}
    spec = {
        "restartPolicy": "Never",
        # Not 0: such a pod is gone from the API server before its containers are.
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [claim],
        "containers": [container],
    }
    if node is not None:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def domain(name: str) -> ComputeDomain:
    return ComputeDomain.of(get("computedomain", name))


def exists(name: str) -> bool:
    return bool(kubectl("get", "computedomain", name, "--ignore-not-found", "-o", "name").strip())


def reason(name: str) -> str:
    """Why it is ready, or not; empty before anybody looked at it."""
    return next((condition.reason for condition in domain(name).status.conditions if condition.type == "Ready"), "")


def message(name: str) -> str:
    return next((condition.message for condition in domain(name).status.conditions if condition.type == "Ready"), "")


def becomes(name: str, wanted: str, timeout_s: float = PATIENCE_S) -> None:
    try:
        until(lambda: reason(name) == wanted, wanted, timeout_s)
    except AssertionError:
        raise AssertionError(f"{name} is {reason(name)}, not {wanted}: {message(name)}\n{report()}") from None


def phase(pod: str) -> str:
    return kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}")


def runs(*pods: str) -> None:
    """Waits until they do."""
    try:
        until(lambda: all(phase(pod) == "Running" for pod in pods), "pods run", PATIENCE_S)
    except AssertionError:
        raise AssertionError(
            "\n".join([*(kubectl("describe", "pod", pod)[-2500:] for pod in pods), report()])
        ) from None


def channels(pod: str) -> list[str]:
    """What the container sees: name, kind and numbers of each."""
    listed = inside(("default", pod), "main", "ls -l /dev/nvidia-caps-imex-channels").splitlines()[1:]
    return sorted(f"{words[-1]} {words[0][0]} {words[4]}{words[5]}" for words in (line.split() for line in listed))


def daemons(name: str) -> list[Any]:
    """Their pods that are not on their way out."""
    pods = get("pods", "-n", NAMESPACE, "-l", f"{DOMAIN_LABEL}={domain(name).metadata.uid}")["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def in_daemon(name: str, command: str, node: str | None = None) -> str:
    """In the domain's only daemon, or in that of the node."""
    (pod,) = [candidate for candidate in daemons(name) if node in (None, candidate["spec"].get("nodeName"))]
    return inside((NAMESPACE, pod["metadata"]["name"]), "imex-daemon", command)


def daemon_set(name: str) -> Any:
    return get("daemonset", "-n", NAMESPACE, daemon_object_name(domain(name).metadata.uid))


def node_labels() -> set[str]:
    """UIDs of domains that nodes are in."""
    labels = [node["metadata"].get("labels", {}) for node in get("nodes")["items"]]
    return {labels_[DOMAIN_LABEL] for labels_ in labels if DOMAIN_LABEL in labels_}


def published_domains() -> set[str]:
    """UIDs that devices of the second driver name."""
    slices = [slice_["spec"] for slice_ in get("resourceslices")["items"]]
    devices = [
        device for spec in slices if spec["driver"] == "compute-domain.nvidia.com" for device in spec.get("devices", ())
    ]
    return {device["attributes"]["domain"]["string"] for device in devices if "domain" in device["attributes"]}


def on_node() -> list[str]:
    """CDI files and records of the second driver, of every node; the lock beside these stays, and is empty."""
    entries = []
    for node in names():
        records = {path for path in (kubelet_root(node) / _RECORDS).glob("*") if path.name != LOCK}
        entries += [f"{node} {path.name}" for path in (*cdi_root(node).glob("k8s.compute-domain*"), *records)]
    return sorted(entries)


def nothing_of_domains() -> None:
    """Waits until no domain has left anything, in the cluster or on the node."""

    def left() -> list[str]:
        labelled = kubectl(
            "get", "daemonsets,resourceclaimtemplates,resourceclaims,pods", "-A", "-l", DOMAIN_LABEL, "-o", "name"
        )
        claims = [claim["metadata"]["name"] for claim in get("resourceclaims", "-A")["items"]]
        return [*labelled.split(), *claims, *node_labels(), *published_domains(), *on_node()]

    try:
        until(lambda: not left(), "nothing is left", 60)
    except AssertionError:
        raise AssertionError(f"left: {left()}\n{report()}") from None


def plugin_pods() -> set[str]:
    return _of_component("kubelet-plugin")


def controller_pods() -> set[str]:
    return _of_component("controller")


def _of_component(component: str) -> set[str]:
    pods = get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/component={component}")["items"]
    return {pod["metadata"]["name"] for pod in pods}


def of_node(pods: set[str], node: str) -> set[str]:
    """Those that are there."""
    return {pod for pod in pods if get("pod", "-n", NAMESPACE, pod)["spec"].get("nodeName") == node}


def kill(pods: set[str]) -> None:
    """Their containers are killed, and nobody waits for their end."""
    kubectl("delete", "pod", "-n", NAMESPACE, *sorted(pods), "--grace-period=0", "--force")


def report() -> str:
    """What went on in the driver's namespace, for a failure."""
    names = [pod["metadata"]["name"] for pod in get("pods", "-n", NAMESPACE)["items"]]
    logs = [f"{name}\n{kubectl('logs', '-n', NAMESPACE, name, '--tail=15', check=False)}" for name in names]
    events = kubectl("get", "events", "-A", "--sort-by=.lastTimestamp")[-4000:]
    return "\n".join([kubectl("get", "pods", "-A"), events, *logs])
