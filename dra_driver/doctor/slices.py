"""Checks of published slices: there, complete, of living plugins, ours. Pure."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

from dra_driver.api.inventory import NodeInventory
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok
from dra_driver.doctor.objects import SliceSeen
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


def _ours(cluster: ClusterView) -> frozenset[str]:
    return frozenset((cluster.driver, COMPUTE_DOMAIN_DRIVER))


def _pools(slices: tuple[SliceSeen, ...]) -> dict[tuple[str, str], list[SliceSeen]]:
    """By driver and pool, both in order."""
    key = attrgetter("driver", "pool")
    return {pool: list(group) for pool, group in groupby(sorted(slices, key=key), key)}


_UNPUBLISHED = Trouble(
    "not-published",
    Verdict.PROBLEM,
    "has {gpus} GPUs that the policy publishes, but no slice of {driver}",
    "check the publisher and its log (checks `controller` and `leader`); with `publisher: node`, the log of the plugin",
)


def _published(cluster: ClusterView) -> Iterator[Diagnosis]:
    there = {slice_.pool for slice_ in cluster.slices.items if slice_.driver == cluster.driver}
    missing = 0
    for inventory in cluster.inventories.items:
        gpus = _wanted_gpus(cluster, inventory)
        if gpus and inventory.spec.node_name not in there:
            missing += 1
            yield _UNPUBLISHED.at(f"Node {inventory.spec.node_name}", gpus=gpus, driver=cluster.driver)
    if not missing:
        devices = sum(len(slice_.devices) for slice_ in cluster.slices.items if slice_.driver == cluster.driver)
        yield ok(f"{len(there)} node(s) have slices of {cluster.driver}, with {devices} devices")


def _wanted_gpus(cluster: ClusterView, inventory: NodeInventory) -> int:
    """GPUs that the policy publishes; 0 where that cannot be known, or the node's plugin is not registered."""
    policy, name = cluster.policy, inventory.spec.node_name
    if policy is None or cluster.registration(inventory) is None:
        return 0
    labels = next((node.metadata.labels for node in cluster.nodes.items if node.name == name), {})
    return sum(policy.publishes(name, labels, gpu) for gpu in inventory.spec.gpus)


_INCOMPLETE = Trouble(
    "incomplete",
    Verdict.PROBLEM,
    "only {there} of {count} slices of generation {generation} exist: the scheduler ignores the pool",
    "wait a minute; if this persists, read the publisher's log, and look for other writers: kubectl get"
    " resourceslices --field-selector spec.driver={driver},spec.nodeName={node}",
)
_LEFT = Trouble(
    "old-generation",
    Verdict.WARNING,
    "slices of older generations remain: {names}",
    "kubectl delete resourceslice {names}; they are not used",
)
_TWICE = Trouble(
    "device-twice",
    Verdict.PROBLEM,
    "device {device} is in two of its slices: the scheduler treats the pool as invalid",
    "kubectl delete resourceslices --field-selector spec.driver={driver},spec.nodeName={node}; the driver"
    " publishes them again",
)


def _complete(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine, count = True, 0
    for (driver, pool), slices in _pools(cluster.slices.items).items():
        if driver not in _ours(cluster):
            continue
        count += 1
        for finding in _pool_troubles(driver, pool, slices):
            fine = False
            yield finding
    if fine:
        yield ok(f"{count} pool(s) of this driver, all complete")


def _pool_troubles(driver: str, pool: str, slices: list[SliceSeen]) -> Iterator[Diagnosis]:
    about = f"pool {driver}/{pool}"
    newest = max(slice_.generation for slice_ in slices)
    current = [slice_ for slice_ in slices if slice_.generation == newest]
    counts = {slice_seen.count for slice_seen in current}
    where = {"driver": driver, "node": current[0].node_name or pool}
    if counts != {len(current)}:
        yield _INCOMPLETE.at(about, there=len(current), count=max(counts), generation=newest, **where)
    elif len(current) < len(slices):
        old = sorted(slice_.name for slice_ in slices if slice_.generation != newest)
        yield _LEFT.at(about, names=" ".join(old))
    names = [name for slice_seen in current for name in slice_seen.devices]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        yield _TWICE.at(about, device=twice[0], **where)


_NODE_GONE = Trouble(
    "node-gone",
    Verdict.PROBLEM,
    "has slices of node {node}, which is not in the cluster: claims may be allocated devices that do not exist",
    "kubectl delete resourceslices --field-selector spec.driver={driver},spec.nodeName={node}",
)
_PLUGIN_GONE = Trouble(
    "plugin-gone",
    Verdict.PROBLEM,
    "has slices of node {node}, where no plugin of {driver} is registered: pods with claims would stay pending there",
    "repair the plugin on {node} (checks plugin-pods and plugin-registered), or kubectl delete resourceslices"
    " --field-selector spec.driver={driver},spec.nodeName={node}",
)


def _stale(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    registered = {
        inventory.spec.node_name
        for inventory in cluster.inventories.items
        if cluster.registration(inventory) is not None
    }
    for (driver, pool), slices in _pools(cluster.slices.items).items():
        node = next((slice_.node_name for slice_ in slices if slice_.node_name is not None), None)
        if node is None:
            continue
        about, where = f"pool {driver}/{pool}", {"driver": driver, "node": node}
        if node not in cluster.node_names:
            fine = False
            yield _NODE_GONE.at(about, **where)
        elif driver == cluster.driver and node not in registered and any(slice_.ours for slice_ in slices):
            fine = False
            yield _PLUGIN_GONE.at(about, **where)
    if fine:
        yield ok("every slice belongs to an existing node, and those of this driver to a registered plugin")


_FOREIGN = Trouble(
    "foreign",
    Verdict.PROBLEM,
    "another program publishes as {driver}: {names}",
    "uninstall the other driver (NVIDIA's: helm uninstall nvidia-dra-driver-gpu), or set another `driverName` for"
    " this driver; two drivers with one name allocate one GPU to two pods",
)


def _writers(cluster: ClusterView) -> Iterator[Diagnosis]:
    foreign = sorted(
        slice_.name for slice_ in cluster.slices.items if slice_.driver == cluster.driver and not slice_.ours
    )
    if foreign:
        yield _FOREIGN.at(driver=cluster.driver, names=", ".join(foreign[:3]))
    else:
        yield ok(f"only this driver writes slices of {cluster.driver}")


PUBLISHED = Check(
    "slices-published",
    "whether each node whose GPUs the policy publishes has slices.",
    _published,
    (_UNPUBLISHED,),
    ("slices", "inventories", "nodes", "config_maps"),
)
COMPLETE = Check(
    "slices-complete",
    "whether each pool is complete, has one generation, and contains each device once.",
    _complete,
    (_INCOMPLETE, _LEFT, _TWICE),
    ("slices",),
)
STALE = Check(
    "slices-alive",
    "whether the node of each slice exists (all drivers), and its plugin is registered (this driver).",
    _stale,
    (_NODE_GONE, _PLUGIN_GONE),
    ("slices", "nodes", "inventories"),
)
WRITERS = Check(
    "slices-ours",
    "whether another program publishes under the name of this driver.",
    _writers,
    (_FOREIGN,),
    ("slices",),
)
