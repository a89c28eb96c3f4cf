"""Checks of nodes as the cluster sees them: kubelet, runtime, plugin, registration, inventory. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from dra_driver.allocation.nodes import unfit_for
from dra_driver.api.inventory import NodeInventory, confirmation_annotation
from dra_driver.doctor.cluster import SIMULATED_RUNTIME, ClusterView, gpu_label
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, listed, ok
from dra_driver.doctor.objects import KUBELET_PLUGIN, PodObject, moment
from dra_driver.kubernetes import GATES, OLDEST, minor_of

_CLOCK = timedelta(seconds=15)
"""The difference of clocks that the publisher puts up with (`dra_driver.publish.inventories`)."""

_MANY_RESTARTS = 3


def _about(node: str) -> str:
    return f"Node {node}"


# -- kubelet and runtime

_KUBELET_OLD = Trouble(
    "too-old",
    Verdict.PROBLEM,
    f"the kubelet has version {{version}}; DRA with resource.k8s.io/v1 needs 1.{OLDEST}",
    "upgrade the kubelet on {node}, or keep the plugin off the node (`kubeletPlugin.nodeSelector`)",
)
_KUBELET_NEW = Trouble(
    "newer-than-server",
    Verdict.PROBLEM,
    "the kubelet has version {version}, newer than the API server ({server}); Kubernetes does not support this",
    "upgrade the control plane first, or downgrade the kubelet on {node} to the version of the API server",
)


def _kubelets(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine, versions = True, set[str]()
    for node in cluster.gpu_nodes:
        version = node.status.node_info.kubelet_version
        minor = minor_of(version)
        versions.add(version)
        if minor and minor < OLDEST:
            fine = False
            yield _KUBELET_OLD.at(_about(node.name), version=version, node=node.name)
        elif minor > cluster.server.minor > 0:
            fine = False
            server = cluster.server.version
            yield _KUBELET_NEW.at(_about(node.name), version=version, server=server, node=node.name)
    if fine:
        yield ok(f"kubelet versions on GPU nodes: {', '.join(sorted(versions - {''})) or 'no version reported'}")


_GATE_OFF = Trouble(
    "gate-off",
    Verdict.WARNING,
    "feature gate {gate} is on in the API server but off in the kubelets on {nodes}: {loss}",
    "set `featureGates: {{{gate}: true}}` in the configuration of these kubelets, then restart them",
)
_DRA_OFF = Trouble(
    "dra-off",
    Verdict.PROBLEM,
    "feature gate DynamicResourceAllocation is off in the kubelets on {nodes}: no claim can be prepared there",
    "remove `DynamicResourceAllocation: false` from the configuration of these kubelets, then restart them",
)
_GATES_UNREAD = Trouble(
    "not-looked-at",
    Verdict.SKIPPED,
    "the feature gates of the kubelets were not checked: {why}",
    "optional check: ignore this if pods run and show GPU health in their status. Otherwise check `featureGates`"
    " in the kubelet configuration on the node. Do not grant get nodes/proxy just for this check",
)
_DRA_GATE = "DynamicResourceAllocation"


_LOSSES = {
    "DRAExtendedResource": "pods that request nvidia.com/gpu get no GPU there",
    "KubeletPodResourcesDynamicResources": "the DCGM exporter cannot report which pod uses a GPU there",
    "ResourceHealthStatus": "pod status does not show GPU health there",
}
"""Of gates that kubelets have, too."""


def _kubelet_gates(cluster: ClusterView) -> Iterator[Diagnosis]:
    if cluster.kubelets.unread is not None and not cluster.kubelets.items:
        yield _GATES_UNREAD.at(why=cluster.kubelets.unread.sentence)
        return
    without = sorted(kubelet.node for kubelet in cluster.kubelets.items if kubelet.gates.get(_DRA_GATE) is False)
    if without:
        yield _DRA_OFF.at(nodes=listed(without))
    fine, on_server = not without, dict(cluster.gates.items)
    minors = {node.name: minor_of(node.status.node_info.kubelet_version) for node in cluster.nodes.items}
    for gate, loss in _LOSSES.items():
        known = GATES[gate]
        off = sorted(
            kubelet.node
            for kubelet in cluster.kubelets.items
            if not known.is_on(gate, minors.get(kubelet.node, 0), kubelet.gates)
        )
        # Off on both sides is what the check `features` is about.
        if off and on_server.get(gate, known.default(cluster.server.minor)):
            fine = False
            yield _GATE_OFF.at(gate=gate, nodes=listed(off), loss=loss)
    if fine:
        yield ok(f"{len(cluster.kubelets.items)} kubelet(s) have the required feature gates")


_RUNTIME_OLD = Trouble(
    "no-cdi",
    Verdict.PROBLEM,
    "the container runtime is {runtime}, which has no CDI support: containers with GPUs do not start",
    "upgrade it to containerd 1.7 or newer (2.x is better), or to CRI-O 1.23 or newer",
)
_CDI_BY_DEFAULT_OFF = Trouble(
    "cdi-off-by-default",
    Verdict.WARNING,
    "the container runtime is {runtime}, in which CDI is off by default: containers with GPUs may not start",
    'in /etc/containerd/config.toml set `enable_cdi = true` under `[plugins."io.containerd.grpc.v1.cri"]`, then'
    " restart containerd; to verify, run `dractl doctor --node` on {node}",
)
_RUNTIME_STRANGE = Trouble(
    "unknown-runtime",
    Verdict.UNKNOWN,
    "the container runtime is {runtime}; this check does not know whether it reads CDI files",
    "check in its documentation that it supports the Container Device Interface and reads the folder set by"
    " `kubeletPlugin.cdiRoot`",
)


def _runtimes(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine, seen = True, set()
    for node in cluster.gpu_nodes:
        runtime = node.status.node_info.container_runtime_version
        seen.add(runtime)
        trouble = _runtime_trouble(runtime)
        if trouble is not None:
            fine = False
            yield trouble.at(_about(node.name), runtime=runtime or "not reported", node=node.name)
    if fine:
        yield ok(f"container runtimes on GPU nodes support CDI: {', '.join(sorted(seen)) or 'no such node'}")


def _runtime_trouble(runtime: str) -> Trouble | None:
    """Source: containerd and CRI-O release notes; CDI in CRI came with containerd 1.7 and CRI-O 1.23."""
    name, _, version = runtime.partition("://")
    if name == SIMULATED_RUNTIME:
        return None
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdecimal())
    if name not in ("containerd", "cri-o") or len(numbers) < 2:
        return _RUNTIME_STRANGE
    if name == "cri-o":
        return None if numbers >= (1, 23) else _RUNTIME_OLD
    return None if numbers >= (2, 0) else _CDI_BY_DEFAULT_OFF if numbers >= (1, 7) else _RUNTIME_OLD


# -- where the plugin runs

_NOT_INSTALLED = Trouble(
    "not-installed",
    Verdict.PROBLEM,
    "the node plugin has no DaemonSet, and no node has reported GPUs, but other parts of the driver exist (see the"
    " check installation)",
    "to restore it, run helm upgrade --install gpu-dra-driver charts/gpu-dra-driver in the namespace of the"
    " release (helm list -A); to uninstall, remove the remaining objects (kubectl delete)",
)
_NO_NODE = Trouble(
    "no-node",
    Verdict.PROBLEM,
    "its node selector matches none of the {nodes} nodes",
    "kubectl label node NODE nvidia.com/gpu.present=true, for each node with GPUs; or install Node Feature Discovery",
)
_NOT_COVERED = Trouble(
    "not-selected",
    Verdict.WARNING,
    "label {label} says the node has GPUs, but the plugin does not run there: {why}",
    "change `kubeletPlugin.nodeSelector`, `kubeletPlugin.affinity` or `kubeletPlugin.tolerations` in the chart's"
    " values; if the node has no GPUs, run `kubectl label node {node} {label}-`",
)


def _covered(cluster: ClusterView) -> Iterator[Diagnosis]:
    if not cluster.plugins:
        if not cluster.inventories.items:
            yield _NOT_INSTALLED.at()
        else:
            names = len(cluster.inventories.items)
            yield ok(f"the plugin has no DaemonSet, but {names} node(s) report GPUs: it was not installed by the chart")
        return
    selected = [node for node in cluster.nodes.items if cluster.selected_by(node.view) is not None]
    if not selected:
        for plugin in cluster.plugins:
            yield _NO_NODE.at(f"DaemonSet {plugin.key}", nodes=len(cluster.nodes.items))
    left = [node for node in cluster.nodes.items if node not in selected and (gpu_label(node) is not None)]
    for node in left:
        why = unfit_for({"spec": cluster.plugins[0].spec.template.spec}, node.view) or "reason unknown"
        yield _NOT_COVERED.at(_about(node.name), label=gpu_label(node), why=why, node=node.name)
    if selected and not left:
        yield ok(f"the plugin's DaemonSet selects {len(selected)} of {len(cluster.nodes.items)} nodes")


_POD_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "no plugin pod exists on this node",
    "kubectl -n {namespace} describe daemonset {name}, and look in its events for the reason it has no pod on {node}",
)
_POD_NOT_READY = Trouble(
    "not-ready",
    Verdict.PROBLEM,
    "plugin pod {pod} is not ready: {why}",
    "kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name} --previous",
)
_POD_RESTARTS = Trouble(
    "restarts",
    Verdict.WARNING,
    "plugin pod {pod} has restarted {restarts} times",
    "kubectl -n {namespace} logs {name} --previous",
)
_RESTRICTED = Trouble(
    "pod-security",
    Verdict.PROBLEM,
    "enforces Pod Security Standard {level}, which does not allow the plugin's pods: they cannot be created",
    "kubectl label namespace {namespace} --overwrite pod-security.kubernetes.io/enforce=privileged",
)
_ENFORCE = "pod-security.kubernetes.io/enforce"


def _pods(cluster: ClusterView) -> Iterator[Diagnosis]:
    if not cluster.plugins:
        yield ok("the plugin has no DaemonSet, so no pods to check")
        return
    fine = True
    for finding in (*_restricted(cluster), *_pods_on_nodes(cluster)):
        fine = False
        yield finding
    if fine:
        yield ok(f"{len(cluster.our_pods(KUBELET_PLUGIN))} plugin pod(s), all ready")


def _restricted(cluster: ClusterView) -> Iterator[Diagnosis]:
    namespaces = {
        namespace_seen.metadata.name: namespace_seen.metadata.labels for namespace_seen in cluster.namespaces.items
    }
    for plugin in cluster.plugins:
        level = namespaces.get(plugin.metadata.namespace or "", {}).get(_ENFORCE, "privileged")
        if level != "privileged" and cluster.plugin_setting("--simulate") is None:
            namespace = plugin.metadata.namespace
            yield _RESTRICTED.at(f"Namespace {namespace}", level=level, namespace=namespace)


def _pods_on_nodes(cluster: ClusterView) -> Iterator[Diagnosis]:
    by_node: dict[str | None, list[PodObject]] = {}
    for pod in cluster.our_pods(KUBELET_PLUGIN):
        by_node.setdefault(pod.spec.node_name, []).append(pod)
    for node in cluster.nodes.items:
        plugin = cluster.selected_by(node.view)
        if plugin is None:
            continue
        # Two of them during a rolling update; one that serves is enough.
        pods = by_node.get(node.name, [])
        ready = [pod for pod in pods if pod.ready]
        where = {"namespace": plugin.metadata.namespace, "node": node.name}
        if not pods:
            yield _POD_MISSING.at(_about(node.name), name=plugin.metadata.name, **where)
        elif not ready:
            pod = pods[0]
            why = pod.why_not_ready()
            yield _POD_NOT_READY.at(_about(node.name), pod=pod.key, name=pod.metadata.name, why=why, **where)
        elif ready[0].restarts >= _MANY_RESTARTS:
            pod = ready[0]
            restarts = pod.restarts
            yield _POD_RESTARTS.at(_about(node.name), pod=pod.key, name=pod.metadata.name, restarts=restarts, **where)


# -- registration

_NEVER = Trouble(
    "not-registered",
    Verdict.PROBLEM,
    "the kubelet has not registered the plugin for {driver}: claims on this node are not prepared",
    "read the log of the plugin's pod on {node} (kubectl -n {namespace} logs); set `kubeletPlugin.kubeletRoot` to"
    " the kubelet's --root-dir; then restart the kubelet",
)
_SILENT = Trouble(
    "silent",
    Verdict.PROBLEM,
    "the plugin has not answered a liveness request since {since}",
    "restart the plugin: kubectl delete pod, for its pod on {node}; its log shows what it waits for",
)
_OTHER_BOOT = Trouble(
    "before-boot",
    Verdict.PROBLEM,
    "the node has rebooted since the plugin last reported: the inventory has boot ID {reported}, the node {boot}",
    "check why the plugin does not run there: see the check plugin-pods, and kubectl describe node {node}",
)
_FUTURE = Trouble(
    "clock",
    Verdict.WARNING,
    "the plugin registered {ahead} in the future: the clock of the node or of this machine is wrong",
    "compare `date -u` on {node}, on the control plane and on this machine; fix time synchronization (chrony)",
)


def _registered(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for inventory in cluster.inventories.items:
        finding = _registration_trouble(cluster, inventory)
        if finding is not None:
            fine = False
            yield finding
    if fine:
        yield ok(f"the kubelet has registered the plugin on {len(cluster.inventories.items)} node(s)")


def _registration_trouble(cluster: ClusterView, inventory: NodeInventory) -> Diagnosis | None:
    name = inventory.spec.node_name
    about = _about(name)
    registration = cluster.registration(inventory)
    if registration is None:
        return _NEVER.at(about, driver=cluster.driver, node=name, namespace=cluster.namespace)
    time = moment(registration.time)
    node = next((item for item in cluster.nodes.items if item.name == name), None)
    if node is not None and node.status.node_info.boot_id != inventory.spec.boot_id:
        # A simulated host has a boot id of its own; but a node that booted became ready after its plugin registered.
        since = node.ready_since
        if time is not None and since is not None and since > time:
            boot = node.status.node_info.boot_id
            return _OTHER_BOOT.at(about, reported=inventory.spec.boot_id, boot=boot, node=name)
    if inventory.metadata.annotations.get(confirmation_annotation(cluster.driver)) == registration.time:
        return _SILENT.at(about, since=registration.time, node=name)
    if time is not None and time > cluster.time + _CLOCK:
        return _FUTURE.at(about, ahead=f"{(time - cluster.time).total_seconds():.0f} s", node=name)
    return None


# -- inventories

_NO_INVENTORY = Trouble(
    "missing",
    Verdict.PROBLEM,
    "the plugin should run on this node but has not reported its GPUs",
    "read the log of the plugin's pod on {node} (kubectl -n {namespace} logs): it shows why it cannot write its"
    " NodeInventory",
)
_ORPHAN = Trouble(
    "node-gone",
    Verdict.WARNING,
    "belongs to a node that is no longer in the cluster",
    "kubectl delete nodeinventory {name}",
)
_UNOWNED = Trouble(
    "not-owned",
    Verdict.WARNING,
    "is not owned by the current Node of that name: it is not published, and would remain after the node is deleted",
    "kubectl delete nodeinventory {name}; the plugin writes it again",
)


def _inventories(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    reported = {node_inventory.spec.node_name for node_inventory in cluster.inventories.items}
    for node in cluster.nodes.items:
        plugin = cluster.selected_by(node.view)
        if plugin is not None and node.name not in reported:
            fine = False
            yield _NO_INVENTORY.at(_about(node.name), namespace=plugin.metadata.namespace, node=node.name)
    uids = {item.name: item.metadata.uid for item in cluster.nodes.items}
    for inventory in cluster.inventories.items:
        name = inventory.metadata.name
        owners = {
            (owner_reference.kind, owner_reference.name, owner_reference.uid)
            for owner_reference in inventory.metadata.owner_references
        }
        if name not in uids:
            fine = False
            yield _ORPHAN.at(f"NodeInventory {name}", name=name)
        elif ("Node", name, uids[name]) not in owners:
            fine = False
            yield _UNOWNED.at(f"NodeInventory {name}", name=name)
    if fine:
        gpus = sum(len(node_inventory.spec.gpus) for node_inventory in cluster.inventories.items)
        yield ok(f"{len(reported)} node(s) report {gpus} GPUs")


KUBELETS = Check(
    "kubelets",
    "the versions of the kubelets on GPU nodes.",
    _kubelets,
    (_KUBELET_OLD, _KUBELET_NEW),
    ("nodes", "inventories", "daemon_sets"),
)
KUBELET_GATES = Check(
    "kubelet-gates",
    "the feature gates of these kubelets, read from their configuration if you may get nodes/proxy.",
    _kubelet_gates,
    (_DRA_OFF, _GATE_OFF, _GATES_UNREAD),
    ("nodes", "inventories", "daemon_sets"),
)
RUNTIMES = Check(
    "container-runtime",
    "whether the container runtimes on GPU nodes support CDI, based on the version in the node status.",
    _runtimes,
    (_RUNTIME_OLD, _CDI_BY_DEFAULT_OFF, _RUNTIME_STRANGE),
    ("nodes", "inventories", "daemon_sets"),
)
COVERED = Check(
    "plugin-nodes",
    "whether the plugin's DaemonSet exists and selects all nodes that have a GPU label.",
    _covered,
    (_NOT_INSTALLED, _NO_NODE, _NOT_COVERED),
    ("nodes", "daemon_sets", "inventories"),
)
PODS = Check(
    "plugin-pods",
    "whether each of these nodes has a ready plugin pod, and Pod Security allows it.",
    _pods,
    (_POD_MISSING, _POD_NOT_READY, _POD_RESTARTS, _RESTRICTED),
    ("nodes", "daemon_sets", "pods"),
)
REGISTERED = Check(
    "plugin-registered",
    "whether the kubelet has registered the plugin on each node since it booted, and the plugin answers.",
    _registered,
    (_NEVER, _SILENT, _OTHER_BOOT, _FUTURE),
    ("inventories", "nodes"),
)
INVENTORIES = Check(
    "inventories",
    "whether each node with a plugin has reported its GPUs, and each report belongs to a node.",
    _inventories,
    (_NO_INVENTORY, _ORPHAN, _UNOWNED),
    ("inventories", "nodes", "daemon_sets"),
)
