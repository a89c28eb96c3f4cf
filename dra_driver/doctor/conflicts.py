"""Checks of others who hand out the same GPUs: device plugins, NVIDIA's own driver, the GPU Operator. Pure."""

from collections.abc import Iterator

from dra_driver.allocation.nodes import provides, unfit_for
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, listed, ok
from dra_driver.doctor.objects import KUBELET_PLUGIN, NodeObject, OperatorResource, WorkloadObject
from dra_driver.features import Feature

_VENDOR = "nvidia.com/"
_DEVICE_PLUGIN_OFF = "nvidia.com/gpu.deploy.device-plugin=false"
"""Label by which the GPU Operator keeps its device plugin off a node."""

_BOTH = Trouble(
    "both",
    Verdict.PROBLEM,
    "a device plugin offers {resources}, and {driver} publishes the same GPUs: one GPU may be allocated to two pods",
    f"remove the device plugin from this node: kubectl label node {{node}} {_DEVICE_PLUGIN_OFF} (GPU Operator), or"
    " change the node selector of its DaemonSet; or keep this driver off the node with `kubeletPlugin.nodeSelector`",
)


def _device_plugin(cluster: ClusterView) -> Iterator[Diagnosis]:
    publishing = {slice_.node_name for slice_ in cluster.slices.items if slice_.driver == cluster.driver}
    taken, elsewhere = 0, 0
    for node in cluster.nodes.items:
        resources = _handed_out(node)
        if resources and node.name in publishing:
            taken += 1
            about = f"Node {node.name}"
            yield _BOTH.at(about, resources=", ".join(resources), driver=cluster.driver, node=node.name)
        elif resources:
            elsewhere += 1
    if not taken:
        other = f"; a device plugin offers GPUs on {elsewhere} other node(s)" if elsewhere else ""
        yield ok(f"no device plugin offers GPUs that {cluster.driver} publishes{other}")


def _handed_out(node: NodeObject) -> list[str]:
    """`nvidia.com/gpu: 8`; of resources that device plugins offer, since DRA's are not in a node's allocatable."""
    view = node.view
    names = [name for name in sorted(view.allocatable) if name.startswith((f"{_VENDOR}gpu", f"{_VENDOR}mig-"))]
    return [f"{name}: {amount}" for name in names if (amount := _amount(node, name))]


def _amount(node: NodeObject, name: str) -> int:
    try:
        return provides(node.view, name)
    except ValueError:
        return 0


_NVIDIA_DRA = Trouble(
    "nvidia-dra-driver",
    Verdict.PROBLEM,
    "is NVIDIA's own DRA driver with the same name, {driver}: only one of the two can register on a node",
    "helm uninstall it (nvidia-dra-driver-gpu), or run the two on different nodes and set another `driverName` for"
    " this driver",
)
_NVIDIA_DOMAINS = Trouble(
    "nvidia-domains",
    Verdict.PROBLEM,
    "is NVIDIA's own ComputeDomain driver, but this driver manages ComputeDomains too: the kubelet calls only one"
    " of the two",
    "helm uninstall it (nvidia-dra-driver-gpu), or leave ComputeDomains to it with `featureGates.ComputeDomains=false`",
)
_OURS_TWICE = Trouble(
    "ours-twice",
    Verdict.PROBLEM,
    "is a second plugin of this driver with another name, {other}, on the same nodes ({nodes}): one GPU may be"
    " allocated to two pods",
    "helm uninstall one of the two, or select different nodes with `kubeletPlugin.nodeSelector`",
)
_PLUGIN_THERE = Trouble(
    "device-plugin",
    Verdict.WARNING,
    "is a device plugin that runs on nodes of this driver: {nodes}",
    f"keep it off these nodes: kubectl label node NODE {_DEVICE_PLUGIN_OFF} (GPU Operator), or change its node"
    " selector",
)
_MIG_MANAGER = Trouble(
    "mig-manager",
    Verdict.WARNING,
    "is a MIG manager that runs on {nodes}, where the policy lets this driver create MIG devices: each undoes the"
    " changes of the other",
    "kubectl label node NODE nvidia.com/gpu.deploy.mig-manager=false; or remove `mode: Dynamic` from the policy"
    " for these nodes",
)

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


_GPU_PROGRAM, _DOMAIN_PROGRAM = "gpu-kubelet-plugin", "compute-domain-kubelet-plugin"
"""The programs of NVIDIA's own DRA driver, each in a container of its own. Source: its chart."""


def other_software(workload: WorkloadObject) -> str | None:
    """Which of the known others a DaemonSet is; by its image, its programs, or its name. None: nothing that concerns
    us."""
    if _runs(workload, _GPU_PROGRAM) or _runs(workload, _DOMAIN_PROGRAM):
        return NVIDIA_DRA
    for container in workload.spec.template.pod.containers:
        image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        if image in _IMAGES:
            return _IMAGES[image]
    return _NAMES.get(workload.metadata.name)


def _runs(workload: WorkloadObject, program: str) -> bool:
    return any(
        program in " ".join(container.command + container.args) for container in workload.spec.template.pod.containers
    )


def _other_software(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for workload in cluster.daemon_sets.items:
        kind = other_software(workload) if workload.program is None else None
        finding = _met(cluster, workload, kind) if kind is not None else _ours_twice(cluster, workload)
        if finding is not None:
            fine = False
            yield finding
    if fine:
        yield ok("no device plugin, MIG manager or other DRA driver runs on nodes of this driver")


def _met(cluster: ClusterView, workload: WorkloadObject, kind: str) -> Diagnosis | None:
    shared = _shared_nodes(cluster, workload)
    if not shared:
        return None
    about, nodes = f"DaemonSet {workload.key}", listed([node.name for node in shared])
    if kind == NVIDIA_DRA:
        if _runs(workload, _GPU_PROGRAM) or not _runs(workload, _DOMAIN_PROGRAM):
            return _NVIDIA_DRA.at(about, driver=cluster.driver)
        keeps = any(Feature.COMPUTE_DOMAINS in controller.feature_gates for controller in cluster.controllers)
        return _NVIDIA_DOMAINS.at(about) if keeps else None
    if kind == DEVICE_PLUGIN:
        return _PLUGIN_THERE.at(about, nodes=nodes)
    return _MIG_MANAGER.at(about, nodes=nodes) if _makes_partitions(cluster, shared) else None


def _shared_nodes(cluster: ClusterView, workload: WorkloadObject) -> list[NodeObject]:
    spec = {"spec": workload.spec.template.spec}
    return [node for node in cluster.gpu_nodes if unfit_for(spec, node.view) is None]


def _ours_twice(cluster: ClusterView, workload: WorkloadObject) -> Diagnosis | None:
    container = workload.ours
    other = (
        container.setting("--driver-name") if container is not None and container.program == KUBELET_PLUGIN else None
    )
    shared = _shared_nodes(cluster, workload) if other not in (None, cluster.driver) else []
    nodes = listed([node.name for node in shared])
    return _OURS_TWICE.at(f"DaemonSet {workload.key}", other=other, nodes=nodes) if shared else None


def _makes_partitions(cluster: ClusterView, nodes: list[NodeObject]) -> bool:
    policy = cluster.policy
    labels = {node.name: node.metadata.labels for node in nodes}
    if policy is None:
        return False
    for inventory in cluster.inventories.items:
        name = inventory.spec.node_name
        for gpu in inventory.spec.gpus if name in labels else ():
            rule = policy.mig_rule(name, labels[name], gpu)
            if rule is not None and rule.mode == "Dynamic":
                return True
    return False


_OPERATOR_PLUGIN = Trouble(
    "device-plugin",
    Verdict.WARNING,
    "the GPU Operator runs its device plugin on every GPU node that has not opted out",
    'kubectl patch clusterpolicy {name} --type merge -p \'{{"spec":{{"devicePlugin":{{"enabled":false}}}}}}\', or'
    f" kubectl label node NODE {_DEVICE_PLUGIN_OFF}",
)
_OPERATOR_DRA = Trouble(
    "dra-driver",
    Verdict.PROBLEM,
    "the GPU Operator runs NVIDIA's own DRA driver with the same name, {driver}",
    "delete the GPUCluster (or set `spec.draDriver.gpus.enabled: false` if its version has that field), or"
    " uninstall this driver",
)


def _operator(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for operator in cluster.operators.items:
        about = f"{operator.kind} {operator.metadata.name}"
        if operator.kind == "GPUCluster" and _offers_gpus(operator):
            fine = False
            yield _OPERATOR_DRA.at(about, driver=cluster.driver)
        elif (
            operator.kind == "ClusterPolicy"
            and operator.enabled("devicePlugin", default=True)
            and not _all_opted_out(cluster)
        ):
            fine = False
            yield _OPERATOR_PLUGIN.at(about, name=operator.metadata.name)
    if fine:
        there = ", ".join(
            f"{operator_resource.kind} {operator_resource.metadata.name}"
            for operator_resource in cluster.operators.items
        )
        yield ok(f"{there}: no conflict on nodes of this driver" if there else "no GPU Operator")


def _offers_gpus(operator_resource: OperatorResource) -> bool:
    """It may be there for ComputeDomains alone, in versions that can switch its part for GPUs off."""
    gpus = (operator_resource.spec.get("draDriver") or {}).get("gpus") or {}
    return operator_resource.enabled("draDriver", default=True) and gpus.get("enabled") is not False


def _all_opted_out(cluster: ClusterView) -> bool:
    label, _, value = _DEVICE_PLUGIN_OFF.partition("=")
    nodes = cluster.gpu_nodes
    return bool(nodes) and all(node.metadata.labels.get(label) == value for node in nodes)


DEVICE_PLUGINS = Check(
    "device-plugin",
    "whether a device plugin offers nvidia.com/gpu or nvidia.com/mig-… on nodes where this driver publishes.",
    _device_plugin,
    (_BOTH,),
    ("nodes", "slices", "daemon_sets"),
)
OTHERS = Check(
    "other-software",
    "whether device plugins, MIG managers or other DRA drivers for GPUs run on the same nodes.",
    _other_software,
    (_NVIDIA_DRA, _NVIDIA_DOMAINS, _OURS_TWICE, _PLUGIN_THERE, _MIG_MANAGER),
    ("daemon_sets", "nodes", "inventories", "deployments"),
)
OPERATOR = Check(
    "gpu-operator",
    "which conflicting components a ClusterPolicy or GPUCluster of the GPU Operator enables.",
    _operator,
    (_OPERATOR_PLUGIN, _OPERATOR_DRA),
    ("operators", "nodes", "inventories", "daemon_sets"),
)
