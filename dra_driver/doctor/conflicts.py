"""Checks of other software that offers the same GPUs: device plugins, NVIDIA's own driver, the GPU Operator. Pure."""

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for, provides
from dra_driver.api.core import KUBELET_PLUGIN, AppsWorkload, Node
from dra_driver.doctor.cluster import ClusterView, OperatorResource
from dra_driver.doctor.findings import Judgment, wrong
from dra_driver.features import Feature
from dra_driver.phrases import and_more

_DEVICE_PLUGIN_LABEL = "nvidia.com/gpu.deploy.device-plugin"
"""With `false`, the GPU Operator keeps its device plugin off a node."""


def device_plugin(cluster: ClusterView) -> Judgment:
    publishing = {slice_.node_name for slice_ in cluster.slices.items if slice_.driver == cluster.driver}
    elsewhere = 0
    for node in cluster.nodes.items:
        resources = _offered(node)
        if resources and node.name in publishing:
            facts = {"resources": ", ".join(resources), "driver": cluster.driver, "node": node.name}
            yield wrong("both", f"Node {node.name}", **facts)
        elif resources:
            elsewhere += 1
    other = f"; a device plugin offers GPUs on {elsewhere} other node(s)" if elsewhere else ""
    return f"no device plugin offers GPUs that {cluster.driver} publishes{other}"


def _offered(node: Node) -> list[str]:
    """`nvidia.com/gpu: 8`. Only device plugins add to a node's allocatable; DRA does not."""
    view = NodeView.of(node)
    names = [name for name in view.allocatable if name.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))]
    return [f"{name}: {amount}" for name in sorted(names) if (amount := provides(view, name))]


NVIDIA_DRA, DEVICE_PLUGIN, MIG_MANAGER = "nvidia-dra-driver", "device-plugin", "mig-manager"
_IMAGES = {
    "dra-driver": NVIDIA_DRA,
    "k8s-dra-driver-gpu": NVIDIA_DRA,
    "dra-driver-nvidia-gpu": NVIDIA_DRA,
    "k8s-device-plugin": DEVICE_PLUGIN,
    "nvidia-gpu-device-plugin": DEVICE_PLUGIN,
    "k8s-mig-manager": MIG_MANAGER,
}
_NAMES = {
    "nvidia-dra-driver-gpu-kubelet-plugin": NVIDIA_DRA,
    "nvidia-device-plugin-daemonset": DEVICE_PLUGIN,
    "nvidia-device-plugin-ds": DEVICE_PLUGIN,
    "nvidia-gpu-device-plugin": DEVICE_PLUGIN,
    "nvidia-mig-manager": MIG_MANAGER,
}
"""Of the charts of NVIDIA and of GKE, EKS and AKS. Source: their manifests."""
_OFFER_NOTHING = ("gpu-feature-discovery", "config-manager")
"""Programs in the device plugin's own image. Source: its chart."""
_GPU_PROGRAM, _DOMAIN_PROGRAM = "gpu-kubelet-plugin", "compute-domain-kubelet-plugin"
"""The programs of NVIDIA's own DRA driver, each in a container of its own. Source: its chart."""


def software_of(workload: AppsWorkload) -> str | None:
    """Which known software a DaemonSet is, by its programs, image or name. None: none that concerns this driver."""
    if _runs(workload, _GPU_PROGRAM) or _runs(workload, _DOMAIN_PROGRAM):
        return NVIDIA_DRA
    for container in workload.pod.containers:
        image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        words = " ".join(container.command + container.args)
        if image in _IMAGES and not any(program in words for program in _OFFER_NOTHING):
            return _IMAGES[image]
    return _NAMES.get(workload.metadata.name)


def _runs(workload: AppsWorkload, program: str) -> bool:
    containers = workload.pod.containers
    return any(program in " ".join(container.command + container.args) for container in containers)


def other_software(cluster: ClusterView) -> Judgment:
    for workload in cluster.daemon_sets.items:
        software = "ours" if workload.program is not None else software_of(workload)
        nodes = cluster.gpu_nodes if software else ()
        shared = [node for node in nodes if daemon_unfit_for(workload.pod, NodeView.of(node)) is None]
        code = _conflict(cluster, workload, software, shared) if shared else None
        if code is not None:
            container = workload.ours
            other = container.setting("--driver-name") if container is not None else None
            names = and_more([node.name for node in shared], 5)
            yield wrong(code, f"DaemonSet {workload}", driver=cluster.driver, other=other, nodes=names)
    return "no device plugin, MIG manager or other DRA driver runs on nodes of this driver"


def _conflict(cluster: ClusterView, workload: AppsWorkload, software: str | None, shared: list[Node]) -> str | None:
    """The code of what is wrong if the workload runs on these nodes with this driver; None: nothing."""
    if software == "ours":
        container = workload.ours
        if container is None or container.program != KUBELET_PLUGIN:
            return None
        return None if container.setting("--driver-name") in (None, cluster.driver) else "ours-twice"
    if software == NVIDIA_DRA:
        if _runs(workload, _GPU_PROGRAM) or not _runs(workload, _DOMAIN_PROGRAM):
            return "nvidia-dra-driver"
        ours = any(Feature.COMPUTE_DOMAINS in controller.feature_gates for controller in cluster.controllers)
        return "nvidia-domains" if ours else None
    if software == MIG_MANAGER:
        return "mig-manager" if _makes_partitions(cluster, shared) else None
    return "device-plugin"


def _makes_partitions(cluster: ClusterView, nodes: list[Node]) -> bool:
    names = {node.name for node in nodes}
    policies = [inventory.status.policy for inventory in cluster.inventories.items if inventory.spec.node_name in names]
    return any(
        group.mig is not None and group.mig.mode == "Dynamic"
        for policy in policies
        if policy is not None
        for group in policy.gpus
    )


def gpu_operator(cluster: ClusterView) -> Judgment:
    for operator in cluster.operators.items:
        about = f"{operator.kind} {operator.metadata.name}"
        if operator.kind == "GPUCluster" and _offers_gpus(operator):
            yield wrong("dra-driver", about, driver=cluster.driver)
        elif operator.kind == "ClusterPolicy" and operator.enabled("devicePlugin") and not _all_opted_out(cluster):
            yield wrong("device-plugin", about, name=operator.metadata.name)
    names = ", ".join(f"{operator.kind} {operator.metadata.name}" for operator in cluster.operators.items)
    return f"{names}: no conflict on nodes of this driver" if names else "no GPU Operator"


def _offers_gpus(operator: OperatorResource) -> bool:
    """Some versions can switch off the part for GPUs and keep the one for ComputeDomains."""
    gpus = (operator.spec.get("draDriver") or {}).get("gpus") or {}
    return operator.enabled("draDriver") and gpus.get("enabled") is not False


def _all_opted_out(cluster: ClusterView) -> bool:
    nodes = cluster.gpu_nodes
    return bool(nodes) and all(node.metadata.labels.get(_DEVICE_PLUGIN_LABEL) == "false" for node in nodes)
