"""Checks of claims that have our devices: users that are gone, devices that are gone, deletions that hang. Pure."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta

from dra_driver.api.resource import AllocatedDevice, ResourceClaim
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, listed, ok
from dra_driver.doctor.objects import EventSeen, Regarded, moment

_PATIENCE = timedelta(minutes=5)
"""What kubelet, the claim controller and the plugin may take to release a claim."""


def _devices(cluster: ClusterView, claim: ResourceClaim) -> list[AllocatedDevice]:
    """Of ours."""
    allocation = claim.status.allocation
    return (
        []
        if allocation is None
        else [result for result in allocation.devices.results if result.driver == cluster.driver]
    )


def _about(claim: ResourceClaim) -> str:
    return f"ResourceClaim {claim.metadata.namespace}/{claim.metadata.name}"


_USERS_GONE = Trouble(
    "users-gone",
    Verdict.WARNING,
    "is reserved for pods that no longer exist ({pods}), and still holds {devices}",
    "kube-controller-manager should remove such reservations; if this persists, read its log. To remove them by"
    " hand: kubectl -n {namespace} patch resourceclaim {name} --subresource status --type merge -p"
    ' \'{{"status":{{"reservedFor":null}}}}\'',
)
_DEVICE_GONE = Trouble(
    "device-gone",
    Verdict.WARNING,
    "holds {devices}, which are no longer published",
    "its pods may still run; when they have ended, or if they never started: kubectl -n {namespace} delete pod,"
    " for the pods of the claim",
)
_POOL_GONE = Trouble(
    "node-gone",
    Verdict.PROBLEM,
    "is allocated on {node}, which is not in the cluster: its pods cannot run",
    "delete the pods of the claim, so that new ones are scheduled (kubectl -n {namespace} delete pod); if no"
    " template made the claim, also kubectl -n {namespace} delete resourceclaim {name}",
)


def _allocated(cluster: ClusterView) -> Iterator[Diagnosis]:
    pods = {pod.metadata.uid for pod in cluster.pods.items}
    published = {
        (slice_.pool, device)
        for slice_ in cluster.slices.items
        if slice_.driver == cluster.driver
        for device in slice_.devices
    }
    fine, held = True, 0
    for claim in cluster.claims.items:
        devices = _devices(cluster, claim)
        held += bool(devices)
        finding = _wrong(cluster, claim, devices, pods, published) if devices else None
        if finding is not None:
            fine = False
            yield finding
    if fine:
        yield ok(f"{held} claim(s) hold devices of {cluster.driver}; all their pods, nodes and devices exist")


def _wrong(
    cluster: ClusterView,
    claim: ResourceClaim,
    devices: list[AllocatedDevice],
    pods: set[str],
    published: set[tuple[str, str]],
) -> Diagnosis | None:
    names = {"namespace": claim.metadata.namespace, "name": claim.metadata.name}
    gone = [
        consumer for consumer in claim.status.reserved_for if consumer.resource == "pods" and consumer.uid not in pods
    ]
    away = sorted({device.pool for device in devices} - cluster.node_names)
    unpublished = [
        f"{device.pool}/{device.device}" for device in devices if (device.pool, device.device) not in published
    ]
    if away:
        return _POOL_GONE.at(_about(claim), node=listed(away), **names)
    if gone:
        kept = listed([f"{device.pool}/{device.device}" for device in devices])
        return _USERS_GONE.at(_about(claim), pods=listed([consumer.name for consumer in gone]), devices=kept, **names)
    if unpublished:
        return _DEVICE_GONE.at(_about(claim), devices=listed(unpublished), **names)
    return None


_STUCK = Trouble(
    "stuck",
    Verdict.PROBLEM,
    "has been in deletion since {since}; held by {finalizers}{users}",
    "check that its pods are gone (kubectl -n {namespace} get pods) and read the log of the plugin on {node}; only"
    " when nothing uses the claim: kubectl -n {namespace} patch resourceclaim {name} --type merge -p"
    ' \'{{"metadata":{{"finalizers":null}}}}\'',
)


def _deleted(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for claim in cluster.claims.items:
        since = moment(claim.metadata.deletion_timestamp)
        devices = _devices(cluster, claim)
        if since is None or not devices or cluster.time - since < _PATIENCE:
            continue
        fine = False
        users = listed([consumer.name for consumer in claim.status.reserved_for])
        yield _STUCK.at(
            _about(claim),
            since=claim.metadata.deletion_timestamp,
            finalizers=", ".join(claim.metadata.finalizers) or "nothing",
            users=f", reserved for {users}" if users else "",
            node=devices[0].pool,
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
        )
    if fine:
        yield ok("no claim with devices of this driver is stuck in deletion")


_TOLD = Trouble(
    "told",
    Verdict.WARNING,
    "{reason}, {age} ago: {note}",
    "look up {reason} in docs/events.md; for other events of the object, run kubectl describe",
)
_LATELY = timedelta(minutes=30)


def plugin_events(driver: str) -> str:
    """Who tells the plugin's Events."""
    return f"{driver}/kubelet-plugin"


_ENDED_BY: Mapping[tuple[str, str], str] = {
    ("ResourceClaim", "PrepareFailed"): "Prepared",
    ("Pod", "GpuUnhealthy"): "GpuHealthy",
    ("Pod", "GpuDegraded"): "GpuHealthy",
    ("Pod", "ImexDaemonNotReady"): "ImexDaemonReady",
}
"""What is told about the same object when it is over."""
_OF_A_GPU = ("GpuUnhealthy", "GpuValidationFailed")
"""About nodes. Whether that is over is asked of the inventory: a plugin that has restarted tells of no recovery."""


def _events(cluster: ClusterView) -> Iterator[Diagnosis]:
    told = [
        (event.last, event)
        for event in cluster.events.items
        if event.reporting_component == plugin_events(cluster.driver)
        and event.last is not None
        and cluster.time - event.last < _LATELY
    ]
    last = {(item.involved_object, item.reason): time for time, item in sorted(told, key=lambda pair: pair[0])}
    well = {gpu.uuid for node in cluster.inventories.items for gpu in node.spec.gpus if gpu.health.healthy}
    lately = [(time, item) for time, item in told if item.type == "Warning" and not _is_over(item, time, last, well)]
    for time, event_seen in sorted(lately, key=lambda pair: pair[0], reverse=True):
        regarding = event_seen.involved_object
        place = f"{regarding.namespace}/" if regarding.namespace else ""
        age = f"{max(0.0, (cluster.time - time).total_seconds()) / 60:.0f} min"
        yield _TOLD.at(
            f"{regarding.kind} {place}{regarding.name}", reason=event_seen.reason, age=age, note=event_seen.message
        )
    if not lately:
        yield ok("no unresolved Warning event of a plugin in the last 30 minutes")


def _is_over(
    warning: EventSeen, time: datetime, last: Mapping[tuple[Regarded, str], datetime], well: Collection[str]
) -> bool:
    regarding = warning.involved_object
    if regarding.kind == "Node" and warning.reason in _OF_A_GPU:
        return any(f"({uuid})" in warning.message for uuid in well)
    end = _ENDED_BY.get((regarding.kind, warning.reason))
    return end is not None and last.get((regarding, end), time) > time


ALLOCATED = Check(
    "claims",
    "whether the pods, nodes and devices of claims still exist.",
    _allocated,
    (_POOL_GONE, _USERS_GONE, _DEVICE_GONE),
    ("claims", "pods", "slices", "nodes", "daemon_sets"),
)
DELETED = Check(
    "claim-deletions",
    "claims with devices of this driver that have been in deletion for more than five minutes.",
    _deleted,
    (_STUCK,),
    ("claims", "daemon_sets"),
)
EVENTS = Check(
    "events",
    "unresolved Events of type Warning that plugins wrote in the last 30 minutes.",
    _events,
    (_TOLD,),
    ("events",),
)
