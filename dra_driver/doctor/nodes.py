"""Checks of nodes as the cluster sees them: kubelet, runtime, plugin, registration, inventory; and what a node reports
of its driver and GPUs. Pure.
"""

from collections.abc import Iterator, Mapping

from dra_driver.allocation.nodes import NodeView, unfit_for
from dra_driver.api.core import KUBELET_PLUGIN, Pod, moment
from dra_driver.api.gpupolicy import GATE_OFF
from dra_driver.api.inventory import NO_HOOK_PROGRAM, GpuFacts, HealthCondition, NodeInventory, confirmation_annotation
from dra_driver.devices.health import remedy
from dra_driver.devices.limitations import LimitationCause
from dra_driver.doctor.cluster import SIMULATED_RUNTIME, ClusterView, gpu_label
from dra_driver.doctor.findings import Judgment, Wrong, wrong
from dra_driver.grouping import grouped
from dra_driver.kubernetes import GATES, OLDEST, minor_of
from dra_driver.phrases import and_more
from dra_driver.publish.inventories import FRESH

_MANY_RESTARTS = 3
_DRA_GATE = "DynamicResourceAllocation"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_GATE_LOSSES = {
    "DRAExtendedResource": "pods that request nvidia.com/gpu get no GPU there",
    "KubeletPodResourcesDynamicResources": "the DCGM exporter cannot report which pod uses a GPU there",
    "ResourceHealthStatus": "pod status does not show GPU health there",
}
"""What is lost on a node whose kubelet has a gate off."""


def kubelets(cluster: ClusterView) -> Judgment:
    versions = set[str]()
    for node in cluster.gpu_nodes:
        version = node.status.node_info.kubelet_version
        minor = minor_of(version)
        versions.add(version)
        if 0 < minor < OLDEST:
            yield wrong("too-old", f"Node {node.name}", version=version, node=node.name)
        elif minor > cluster.server.minor > 0:
            server = cluster.server.version
            yield wrong("newer-than-server", f"Node {node.name}", version=version, server=server, node=node.name)
    return f"kubelet versions on GPU nodes: {', '.join(sorted(versions - {''})) or 'no version reported'}"


def kubelet_gates(cluster: ClusterView) -> Judgment:
    kubelets, unread = cluster.kubelets.items, cluster.kubelets.unread
    if unread is not None and not kubelets:
        yield wrong("not-looked-at", why=unread.sentence)
        return ""
    without = sorted(kubelet.node for kubelet in kubelets if kubelet.gates.get(_DRA_GATE) is False)
    if without:
        yield wrong("dra-off", nodes=and_more(without, 5))
    on_server = dict(cluster.gates.items)
    minors = {node.name: minor_of(node.status.node_info.kubelet_version) for node in cluster.nodes.items}
    for gate, loss in _GATE_LOSSES.items():
        known = GATES[gate]
        off = sorted(item.node for item in kubelets if not known.is_on(gate, minors.get(item.node, 0), item.gates))
        # The check `features` reports gates that are off on both sides.
        if off and on_server.get(gate, known.default(cluster.server.minor)):
            yield wrong("gate-off", gate=gate, nodes=and_more(off, 5), loss=loss)
    return f"{len(kubelets)} kubelet(s) have the required feature gates"


def container_runtime(cluster: ClusterView) -> Judgment:
    runtimes = set[str]()
    for node in cluster.gpu_nodes:
        runtime = node.status.node_info.container_runtime_version
        runtimes.add(runtime)
        code = _runtime_trouble(runtime)
        if code is not None:
            yield wrong(code, f"Node {node.name}", runtime=runtime or "not reported", node=node.name)
    return f"container runtimes on GPU nodes support CDI: {', '.join(sorted(runtimes)) or 'no such node'}"


def _runtime_trouble(runtime: str) -> str | None:
    """Source: containerd and CRI-O release notes; CDI in CRI came with containerd 1.7 and CRI-O 1.23."""
    name, _, version = runtime.partition("://")
    if name == SIMULATED_RUNTIME:
        return None
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdecimal())
    if name not in ("containerd", "cri-o") or len(numbers) < 2:
        return "unknown-runtime"
    if name == "cri-o":
        return None if numbers >= (1, 23) else "no-cdi"
    return None if numbers >= (2, 0) else "cdi-off-by-default" if numbers >= (1, 7) else "no-cdi"


def plugin_nodes(cluster: ClusterView) -> Judgment:
    reporting, nodes = len(cluster.inventories.items), cluster.nodes.items
    if not cluster.plugins:
        if not reporting:
            yield wrong("not-installed")
        return f"the plugin has no DaemonSet, but {reporting} node(s) report GPUs: it was not installed by the chart"
    selected = [node for node in nodes if cluster.selected_by(node) is not None]
    if not selected:
        for plugin in cluster.plugins:
            yield wrong("no-node", f"DaemonSet {plugin}", nodes=len(nodes))
    for node in nodes:
        label = gpu_label(node)
        if label is not None and cluster.selected_by(node) is None:
            unfit = unfit_for(cluster.plugins[0].pod, NodeView.of(node)) or "reason unknown"
            yield wrong("not-selected", f"Node {node.name}", label=label, why=str(unfit), node=node.name)
    return f"the plugin's DaemonSet selects {len(selected)} of {len(nodes)} nodes"


def plugin_pods(cluster: ClusterView) -> Judgment:
    if not cluster.plugins:
        return "the plugin has no DaemonSet, so no pods to check"
    labels = {namespace.metadata.name: namespace.metadata.labels for namespace in cluster.namespaces.items}
    for plugin in cluster.plugins:
        namespace = plugin.metadata.namespace or ""
        level = labels.get(namespace, {}).get(_ENFORCE, "privileged")
        if level != "privileged" and cluster.plugin_setting("--simulate") is None:
            yield wrong("pod-security", f"Namespace {namespace}", level=level, namespace=namespace)
    pods = cluster.our_pods(KUBELET_PLUGIN)
    by_node = grouped(pods, lambda pod: pod.spec.node_name)
    for node in cluster.nodes.items:
        selecting = cluster.selected_by(node)
        if selecting is not None:
            about, where = f"Node {node.name}", {"namespace": selecting.metadata.namespace, "node": node.name}
            if node.name in by_node:
                yield from _pod_trouble(about, by_node[node.name], where)
            else:
                yield wrong("missing", about, name=selecting.metadata.name, **where)
    return f"{len(pods)} plugin pod(s), all ready"


def _pod_trouble(about: str, pods: list[Pod], where: Mapping[str, object]) -> list[Wrong]:
    """During a rolling update a node has two pods; one that is ready is enough."""
    pod = next((pod for pod in pods if pod.ready), pods[0])
    where = {"pod": pod, "name": pod.metadata.name, **where}
    if not pod.ready:
        return [wrong("not-ready", about, why=pod.why_not_ready(), **where)]
    return [wrong("restarts", about, restarts=pod.restarts, **where)] if pod.restarts >= _MANY_RESTARTS else []


def plugin_registered(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        yield from _registration_trouble(cluster, inventory)
    return f"the kubelet has registered the plugin on {len(cluster.inventories.items)} node(s)"


def _registration_trouble(cluster: ClusterView, inventory: NodeInventory) -> list[Wrong]:
    name, boot_id = inventory.spec.node_name, inventory.spec.boot_id
    about, registration = f"Node {name}", cluster.registration(inventory)
    if registration is None:
        return [wrong("not-registered", about, driver=cluster.driver, node=name, namespace=cluster.namespace)]
    time = moment(registration.time)
    node = cluster.nodes_by_name.get(name)
    if node is not None and node.status.node_info.boot_id != boot_id:
        # A simulated host has its own boot ID. But a node that booted became ready after its plugin registered.
        since = node.ready_since
        if time is not None and since is not None and since > time:
            return [wrong("before-boot", about, reported=boot_id, boot=node.status.node_info.boot_id, node=name)]
    if inventory.metadata.annotations.get(confirmation_annotation(cluster.driver)) == registration.time:
        return [wrong("silent", about, since=registration.time, node=name)]
    if time is not None and time > cluster.time + FRESH:
        return [wrong("clock", about, ahead=f"{(time - cluster.time).total_seconds():.0f} s", node=name)]
    return []


def inventories(cluster: ClusterView) -> Judgment:
    reported = {inventory.spec.node_name for inventory in cluster.inventories.items}
    for node in cluster.nodes.items:
        plugin = cluster.selected_by(node)
        if plugin is not None and node.name not in reported:
            yield wrong("missing", f"Node {node.name}", namespace=plugin.metadata.namespace, node=node.name)
    uids = {node.name: node.metadata.uid for node in cluster.nodes.items}
    for inventory in cluster.inventories.items:
        name = inventory.metadata.name
        owners = {(owner.kind, owner.name, owner.uid) for owner in inventory.metadata.owner_references}
        if name not in uids:
            yield wrong("node-gone", f"NodeInventory {name}", name=name)
        elif ("Node", name, uids[name]) not in owners:
            yield wrong("not-owned", f"NodeInventory {name}", name=name)
    gpus = sum(len(inventory.spec.gpus) for inventory in cluster.inventories.items)
    return f"{len(reported)} node(s) report {gpus} GPUs"


# -- GPUs


def nvidia_driver(cluster: ClusterView) -> Judgment:
    versions = set()
    for inventory in cluster.inventories.items:
        node, driver = inventory.spec.node_name, inventory.spec.driver
        if driver is not None:
            versions.add(driver.version)
            continue
        reasons = [f"{item.reason}: {item.message}" for item in inventory.spec.problems if item.subject == "driver"]
        yield wrong("no-driver", f"Node {node}", why="; ".join(reasons) or "the plugin reported no reason", node=node)
    return f"NVIDIA driver {', '.join(sorted(versions)) or '(no node has reported)'}"


_LEFTOVERS = {"MpsDaemon": "mps-daemon", "InstanceLost": "mig-lost"}
"""Conditions that the check `leftovers` reports."""


def gpu_health(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for gpu in inventory.spec.gpus:
            for condition in gpu.health.conditions:
                if condition.type not in _LEFTOVERS and condition.severity != "Info":
                    yield _condition(node, gpu, condition)
        for problem in inventory.spec.problems:
            if problem.subject != "driver":
                facts = {"subject": problem.subject, "reason": problem.reason, "message": problem.message}
                yield wrong("not-offered", f"Node {node}", node=node, **facts)
    return f"all {sum(len(inventory.spec.gpus) for inventory in cluster.inventories.items)} GPUs are healthy"


def _condition(node: str, gpu: GpuFacts, condition: HealthCondition) -> Wrong:
    name = f"{condition.type} {condition.value}" if condition.value else condition.type
    return wrong(
        "unhealthy" if condition.severity == "Critical" else "noticed",
        f"Node {node}",
        gpu=gpu.name,
        pci=gpu.pci_bus_id,
        what=condition.message if condition.message.startswith(name) else f"{name}: {condition.message}",
        advice=remedy(condition, node, gpu.pci_bus_id),
    )


def containers(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for warning in inventory.spec.warnings:
            code = "no-hook" if warning.reason == NO_HOOK_PROGRAM else "lacking"
            facts = {"subject": warning.subject, "reason": warning.reason, "message": warning.message}
            yield wrong(code, f"Node {node}", node=node, **facts)
    return "hook programs and container runtimes provide everything that containers need"


def leftovers(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        for gpu in inventory.spec.gpus:
            yield from _leftovers_of(inventory, gpu)
    return "no leftover MIG device or MPS daemon"


def _leftovers_of(inventory: NodeInventory, gpu: GpuFacts) -> Iterator[Wrong]:
    node = inventory.spec.node_name
    about, where = f"Node {node}", {"gpu": gpu.name, "pci": gpu.pci_bus_id, "node": node}
    for condition in gpu.health.conditions:
        if condition.type in _LEFTOVERS:
            yield wrong(_LEFTOVERS[condition.type], about, message=condition.message, **where)
    if gpu.mig is None:
        return
    if gpu.mig.pending != gpu.mig.enabled:
        now, later = ("on" if on else "off" for on in (gpu.mig.enabled, gpu.mig.pending))
        yield wrong("mig-pending", about, enabled=now, pending=later, **where)
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            which = {"profile": instance.profile, "start": instance.start, "id": instance.id}
            yield wrong("mig-unused", about, **which, **where)


_IN_OTHER_CHECKS = frozenset(
    cause.reason
    for cause in (LimitationCause.UNHEALTHY, LimitationCause.FABRIC_INCOMPLETE, LimitationCause.NO_ROOM_FOR_ATTRIBUTE)
)
"""Other checks report these, unless a rule of the policy is not followed."""


def policy_followed(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        for limitation in inventory.status.limitations:
            if limitation.rule is not None or limitation.reason not in _IN_OTHER_CHECKS:
                code = "not-published" if limitation.rule is None else "policy-not-followed"
                about = f"Node {inventory.spec.node_name}"
                yield wrong(code, about, limitation=limitation, fix=limitation.fix)
    return "the nodes follow all rules of the policy"


def gpu_policies(cluster: ClusterView) -> Judgment:
    for policy in cluster.gpu_policies.items:
        about = f"GpuPolicy {policy.metadata.name}"
        if policy.refused is not None:
            yield wrong("refused", about, why=policy.refused)
        if policy.selects_nothing:
            yield wrong("selects-nothing", about)
        for problem in policy.status.problems:
            if problem.reason == GATE_OFF:  # The check policy-followed reports others, by node.
                yield wrong("gate-off", about, rule=problem.rule, message=problem.message, fix=problem.fix)
        if policy.status.waiting:
            first = policy.status.waiting[0]
            code = "waits" if first.claims else "switches"
            yield wrong(code, about, gpus=policy.status.waiting_gpus, wait=first, node=first.node)
    return f"{len(cluster.gpu_policies.items)} GpuPolicies are accepted, and none waits for claims"
