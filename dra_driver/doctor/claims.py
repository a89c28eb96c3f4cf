"""Checks of claims with our devices, of the plugins' Events, and of ComputeDomains. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Event, InvolvedObject, moment
from dra_driver.api.meta import condition_of
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Judgment, Wrong, wrong
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.status import READY
from dra_driver.features import Feature
from dra_driver.phrases import and_more

_DELETION = timedelta(minutes=5)
"""How long the kubelet, the claim controller and the plugin may take to release a claim."""
_BINDING = timedelta(minutes=3)
"""A node gives a claim up sooner, and the scheduler after ten minutes."""
_RECENT = timedelta(minutes=30)
_DOMAIN_UNSEEN, _DOMAIN_UNREADY = timedelta(minutes=2), timedelta(minutes=10)
_NO_PODS = "NoNodes"
"""The reason of a domain that no pod uses, so that nothing waits for it."""


def claims(cluster: ClusterView) -> Judgment:
    pods = {pod.metadata.uid for pod in cluster.pods.items}
    ours = [slice_ for slice_ in cluster.slices.items if slice_.driver == cluster.driver]
    published = {f"{slice_.pool}/{device}" for slice_ in ours for device in slice_.devices}
    held = 0
    # Claims that nodes must prepare before a pod is bound.
    waiting = {claim.uid for inventory in cluster.inventories.items for claim in inventory.status.binding_claims}
    for claim in cluster.claims.items:
        devices, allocation = claim.results_of(cluster.driver), claim.status.allocation
        if not devices or allocation is None:
            continue
        since = allocation.allocation_timestamp if claim.metadata.uid in waiting else None
        held += 1
        names = [f"{device.pool}/{device.device}" for device in devices]
        where = {"namespace": claim.metadata.namespace, "name": claim.metadata.name}
        users = [user.name for user in claim.status.reserved_for if user.resource == "pods" and user.uid not in pods]
        if nodes := sorted({device.pool for device in devices} - cluster.nodes_by_name.keys()):
            yield wrong("node-gone", f"ResourceClaim {claim}", node=and_more(nodes, 5), **where)
        elif (age := _age(cluster, since)) > _BINDING:
            yield wrong("not-prepared", f"ResourceClaim {claim}", node=devices[0].pool, age=_minutes(age), **where)
        elif users:
            facts = {"pods": and_more(users, 5), "devices": and_more(names, 5)}
            yield wrong("users-gone", f"ResourceClaim {claim}", **facts, **where)
        elif gone := [name for name in names if name not in published]:
            yield wrong("device-gone", f"ResourceClaim {claim}", devices=and_more(gone, 5), **where)
    return f"{held} claim(s) hold devices of {cluster.driver}; all their pods, nodes and devices exist"


def claim_deletions(cluster: ClusterView) -> Judgment:
    for claim in cluster.claims.items:
        since = moment(claim.metadata.deletion_timestamp)
        devices = claim.results_of(cluster.driver)
        if since is not None and devices and cluster.time - since >= _DELETION:
            users = and_more([user.name for user in claim.status.reserved_for], 5)
            yield wrong(
                "stuck",
                f"ResourceClaim {claim}",
                since=claim.metadata.deletion_timestamp,
                finalizers=", ".join(claim.metadata.finalizers) or "nothing",
                users=f", reserved for {users}" if users else "",
                node=devices[0].pool,
                namespace=claim.metadata.namespace,
                name=claim.metadata.name,
            )
    return "no claim with devices of this driver is stuck in deletion"


# -- Events


def plugin_events(driver: str) -> str:
    """The `reportingComponent` of the plugin's Events."""
    return f"{driver}/kubelet-plugin"


_ENDED_BY: Mapping[tuple[str, str], str] = {
    ("ResourceClaim", "PrepareFailed"): "Prepared",
    ("Pod", "GpuUnhealthy"): "GpuHealthy",
    ("Pod", "GpuDegraded"): "GpuHealthy",
    ("Pod", "ImexDaemonNotReady"): "ImexDaemonReady",
}
"""The reason of the Event about the same object that ends a Warning."""
_OF_A_GPU = ("GpuUnhealthy", "GpuValidationFailed")
"""Events about nodes. The inventory says whether they are over: a plugin that restarted reports no recovery."""
_OF_A_CLAIM = ("PrepareFailed", "PrepareWaits")
"""Events about pods that repeat what the Event of their claim says, after `Claim NAME: `."""


def events(cluster: ClusterView) -> Judgment:
    recent = [
        (event.last, event)
        for event in cluster.events.items
        if event.reporting_component == plugin_events(cluster.driver)
        and event.last is not None
        and cluster.time - event.last < _RECENT
    ]
    recent.sort(key=lambda pair: pair[0], reverse=True)
    last = {(event.involved_object, event.reason): time for time, event in reversed(recent)}
    failed = {
        (ref.namespace, ref.name) for ref, reason in last if (ref.kind, reason) == ("ResourceClaim", "PrepareFailed")
    }
    healthy = {gpu.uuid for node in cluster.inventories.items for gpu in node.spec.gpus if gpu.health.healthy}
    for time, event in recent:
        if event.type == "Warning" and not (_repeats(event, failed) or _is_over(event, time, last, healthy)):
            regarding = event.involved_object
            place = f"{regarding.namespace}/" if regarding.namespace else ""
            age, command = _minutes(max(timedelta(), cluster.time - time)), _what_to_run(regarding)
            about = f"{regarding.kind} {place}{regarding.name}"
            yield wrong("told", about, reason=event.reason, age=age, note=event.message, command=command)
    return "no unresolved Warning event of a plugin in the last 30 minutes"


def _repeats(event: Event, failed: Collection[tuple[str | None, str]]) -> bool:
    """Whether it is about a pod, and the Event of the pod's claim says the same."""
    pod, claim = event.involved_object, event.message.partition(": ")[0].removeprefix("Claim ")
    return pod.kind == "Pod" and event.reason in _OF_A_CLAIM and (pod.namespace, claim) in failed


_EXPLAINED = {"Pod": "pod", "ResourceClaim": "claim", "Node": "node"}


def _what_to_run(regarding: InvolvedObject) -> str:
    namespace = f" -n {regarding.namespace}" if regarding.namespace else ""
    if regarding.kind in _EXPLAINED:
        # Events of nodes are in the namespace default.
        namespace = "" if regarding.kind == "Node" else namespace
        return f"dractl explain {_EXPLAINED[regarding.kind]} {regarding.name}{namespace}"
    return f"kubectl describe {regarding.kind.lower()} {regarding.name}{namespace}"


def _is_over(
    warning: Event, time: datetime, last: Mapping[tuple[InvolvedObject, str], datetime], healthy: Collection[str]
) -> bool:
    regarding = warning.involved_object
    if regarding.kind == "Node" and warning.reason in _OF_A_GPU:
        return any(f"({uuid})" in warning.message for uuid in healthy)
    end = _ENDED_BY.get((regarding.kind, warning.reason))
    return end is not None and last.get((regarding, end), time) > time


# -- ComputeDomains


def compute_domains(cluster: ClusterView) -> Judgment:
    for domain in cluster.domains.items:
        yield from _domain_trouble(cluster, domain)
    number = len(cluster.domains.items)
    return f"{number} ComputeDomain(s), none stuck" if number else "no ComputeDomain"


def _domain_trouble(cluster: ClusterView, domain: ComputeDomain) -> list[Wrong]:
    metadata = domain.metadata
    about = f"ComputeDomain {domain}"
    if not _are_managed(cluster):
        return [wrong("nobody", about)]
    ready = condition_of(domain.status.conditions, READY)
    if ready is None:
        age = _age(cluster, metadata.creation_timestamp)
        return [wrong("not-looked-at", about, age=_minutes(age))] if age > _DOMAIN_UNSEEN else []
    age = _age(cluster, ready.last_transition_time)
    if ready.status == "True" or ready.reason == _NO_PODS or age <= _DOMAIN_UNREADY:
        return []
    why = f"{ready.reason}, {ready.message}" if ready.message else ready.reason
    return [wrong("not-ready", about, age=_minutes(age), why=why, namespace=metadata.namespace, name=metadata.name)]


def _are_managed(cluster: ClusterView) -> bool:
    """Also true if controllers run without a Deployment, because nothing is known of those."""
    if not cluster.controllers and not cluster.plugins:
        return True
    return any(Feature.COMPUTE_DOMAINS in controller.feature_gates for controller in cluster.controllers)


def _age(cluster: ClusterView, since: str | None) -> timedelta:
    time = moment(since)
    return cluster.time - time if time is not None else timedelta()


def _minutes(age: timedelta) -> str:
    return f"{age.total_seconds() / 60:.0f} min"


def compute_domain_nodes(cluster: ClusterView) -> Judgment:
    uids = {domain.metadata.uid for domain in cluster.domains.items}
    labeled = [(node.name, uid) for node in cluster.nodes.items if (uid := node.metadata.labels.get(DOMAIN_LABEL))]
    for name, uid in labeled:
        if uid not in uids:
            yield wrong("domain-gone", f"Node {name}", uid=uid, node=name)
    if not labeled:
        return "no node belongs to a ComputeDomain"
    return f"{len(labeled)} node(s) belong to existing ComputeDomains"
