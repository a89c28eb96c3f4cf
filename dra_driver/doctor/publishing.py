"""Checks of the programs that publish for the cluster, and of what they publish: controller, versions, slices. Pure."""

from collections.abc import Iterator
from datetime import timedelta
from operator import attrgetter

from dra_driver.api.core import CONTROLLER, KUBELET_PLUGIN, AppsWorkload, moment
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.policy import rules_of
from dra_driver.doctor.cluster import ClusterView, SliceSeen
from dra_driver.doctor.findings import Judgment, Wrong, wrong
from dra_driver.grouping import grouped
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

LEASE_NAME = "gpu-dra-controller"
"""Default of the controller's `--lease-name`."""
_CLOCK = timedelta(seconds=15)
"""Allows for clocks that differ, and for the time that reading takes."""


def controller(cluster: ClusterView) -> Judgment:
    if not cluster.controllers:
        if not cluster.plugins:
            return "not installed by the chart: no controller Deployment, no plugin DaemonSet"
        if cluster.plugin_setting("--publisher") != "node":
            yield wrong("none")
        return "each plugin publishes its own node (publisher: node)"
    for deployment in cluster.controllers:
        namespace, name = deployment.metadata.namespace, deployment.metadata.name
        ready = deployment.status.ready_replicas
        wanted = deployment.spec.replicas
        if ready < wanted or not wanted:
            pods = [pod for pod in cluster.our_pods(CONTROLLER) if pod.metadata.namespace == namespace]
            unready = next((pod for pod in pods if not pod.ready), None)
            why = f" ({unready}: {unready.why_not_ready()})" if unready is not None else ""
            facts = {"ready": ready, "wanted": wanted, "why": why, "namespace": namespace, "name": name}
            yield wrong("fewer" if ready else "down", f"Deployment {deployment}", **facts)
    return "all pods of the controller are ready"


def lease_key(deployment: AppsWorkload) -> tuple[str, str]:
    """Namespace and name of the controller's Lease."""
    container = deployment.ours
    assert container is not None, "a controller has a container with its program"
    namespace = container.setting("--lease-namespace") or deployment.metadata.namespace or "default"
    return namespace, container.setting("--lease-name") or LEASE_NAME


def leader(cluster: ClusterView) -> Judgment:
    leases = {(lease.metadata.namespace, lease.metadata.name): lease.spec for lease in cluster.leases.items}
    fine = []
    for deployment in cluster.controllers:
        container = deployment.ours
        if container is not None and "--no-leader-election" in [*container.command, *container.args]:
            fine.append(f"Deployment {deployment} runs without leader election")
            continue
        key = lease_key(deployment)
        lease = "/".join(key)
        where = {"namespace": deployment.metadata.namespace or "", "name": deployment.metadata.name}
        spec = leases.get(key)
        if spec is None:
            yield wrong("no-lease", lease=lease, **where)
        elif not spec.holder_identity:
            yield wrong("nobody", f"Lease {lease}", **where)
        else:
            renewed, duration = moment(spec.renew_time), spec.lease_duration_seconds
            fine.append(f"{spec.holder_identity} is the leader")
            if renewed is None or cluster.time - renewed > timedelta(seconds=duration) + _CLOCK:
                age = "never" if renewed is None else f"{(cluster.time - renewed).total_seconds():.0f} s"
                facts = {"age": age, "holder": spec.holder_identity, "duration": duration, **where}
                yield wrong("expired", f"Lease {lease}", **facts)
    return "; ".join(fine) or "no controller, so no leader election"


def versions(cluster: ClusterView) -> Judgment:
    reported = {release.program: release.release for release in cluster.releases.items if release.release}
    workloads = [("DaemonSet", plugin) for plugin in cluster.plugins]
    workloads += [("Deployment", deployment) for deployment in cluster.controllers]
    for kind, workload in workloads:
        container, about = workload.ours, f"{kind} {workload}"
        assert container is not None, "it has a container with its program"
        theirs = container.version or reported.get(workload.program or "")
        if theirs is None:
            unread = cluster.releases.unread
            why = f": {unread.sentence}" if unread is not None else ""
            yield wrong("no-tag", about, image=container.image, why=why)
        elif theirs.removeprefix("v") != cluster.release:
            yield wrong("skew", about, theirs=theirs, release=cluster.release)
    running = set()
    for pod in (*cluster.our_pods(KUBELET_PLUGIN), *cluster.our_pods(CONTROLLER)):
        program = pod.program or ""
        version = (pod.spec.ours.version if pod.spec.ours is not None else None) or reported.get(program)
        running |= {(program, version)} if version is not None else set()
    if len({version for _, version in running}) > 1:
        yield wrong("mixed", versions=", ".join(sorted(f"{program} {version}" for program, version in running)))
    return f"dractl is release {cluster.release}{', and so are plugin and controller' if workloads else ''}"


# -- slices


def _pools(cluster: ClusterView) -> dict[tuple[str, str], list[SliceSeen]]:
    """By driver and pool, both in order."""
    key = attrgetter("driver", "pool")
    return grouped(sorted(cluster.slices.items, key=key), key)


def slices_published(cluster: ClusterView) -> Judgment:
    published = {slice_.pool for slice_ in cluster.slices.items if slice_.driver == cluster.driver}
    for inventory in cluster.inventories.items:
        node, gpus = inventory.spec.node_name, _wanted_gpus(cluster, inventory)
        if gpus and node not in published:
            yield wrong("not-published", f"Node {node}", gpus=gpus, driver=cluster.driver)
    devices = sum(len(slice_.devices) for slice_ in cluster.slices.items if slice_.driver == cluster.driver)
    return f"{len(published)} node(s) have slices of {cluster.driver}, with {devices} devices"


def _wanted_gpus(cluster: ClusterView, inventory: NodeInventory) -> int:
    """GPUs that the policy publishes; 0 if that is not known, or the node's plugin is not registered."""
    policy = inventory.status.policy
    if policy is None or cluster.registration(inventory) is None:
        return 0
    rules = rules_of(policy)
    return sum(rules.publishes(inventory.spec.node_name, {}, gpu) for gpu in inventory.spec.gpus)


def slices_complete(cluster: ClusterView) -> Judgment:
    ours = {
        pool: slices for pool, slices in _pools(cluster).items() if pool[0] in (cluster.driver, COMPUTE_DOMAIN_DRIVER)
    }
    for (driver, pool), slices in ours.items():
        yield from _pool_troubles(driver, pool, slices)
    return f"{len(ours)} pool(s) of this driver, all complete"


def _pool_troubles(driver: str, pool: str, slices: list[SliceSeen]) -> Iterator[Wrong]:
    about = f"pool {driver}/{pool}"
    newest = max(slice_.generation for slice_ in slices)
    current = [slice_ for slice_ in slices if slice_.generation == newest]
    counts = {slice_.count for slice_ in current}
    where = {"driver": driver, "node": current[0].node_name or pool}
    if counts != {len(current)}:
        yield wrong("incomplete", about, there=len(current), count=max(counts), generation=newest, **where)
    elif len(current) < len(slices):
        names = " ".join(sorted(slice_.name for slice_ in slices if slice_.generation != newest))
        yield wrong("old-generation", about, names=names)
    devices = set[str]()
    for name in (name for slice_ in current for name in slice_.devices):
        if name in devices:
            yield wrong("device-twice", about, device=name, **where)
            return
        devices.add(name)


def slices_alive(cluster: ClusterView) -> Judgment:
    registered = {
        inventory.spec.node_name
        for inventory in cluster.inventories.items
        if cluster.registration(inventory) is not None
    }
    for (driver, pool), slices in _pools(cluster).items():
        node = next((slice_.node_name for slice_ in slices if slice_.node_name is not None), None)
        if node is None:
            continue
        if node not in cluster.nodes_by_name:
            yield wrong("node-gone", f"pool {driver}/{pool}", driver=driver, node=node)
        elif driver == cluster.driver and node not in registered and any(slice_.ours for slice_ in slices):
            yield wrong("plugin-gone", f"pool {driver}/{pool}", driver=driver, node=node)
    return "every slice belongs to an existing node, and those of this driver to a registered plugin"


_SLOWED_MINORS = (35, 36)
"""Their kube-scheduler reads the counter sets of all nodes for each node that it looks at, and searches all slices for
the rest of each of these pools. Source: kubernetes/kubernetes#138917, which ends this, in 1.37."""
_MANY_NODES_WITH_COUNTERS = 30


def counter_sets(cluster: ClusterView) -> Judgment:
    nodes = {item.node_name for item in cluster.slices.items if item.has_counter_sets and item.node_name is not None}
    if len(nodes) >= _MANY_NODES_WITH_COUNTERS and cluster.server.minor in _SLOWED_MINORS:
        yield wrong("slow", nodes=len(nodes), version=cluster.server.version)
    return f"{len(nodes)} node(s) have counter sets"


def slices_ours(cluster: ClusterView) -> Judgment:
    theirs = (slice_ for slice_ in cluster.slices.items if slice_.driver == cluster.driver and not slice_.ours)
    names = sorted(slice_.name for slice_ in theirs)
    if names:
        yield wrong("foreign", driver=cluster.driver, names=", ".join(names[:3]))
    return f"only this driver writes slices of {cluster.driver}"
