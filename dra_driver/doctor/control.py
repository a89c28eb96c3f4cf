"""Checks of what runs for the whole cluster: controller, leader, versions. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok
from dra_driver.doctor.objects import CONTROLLER, KUBELET_PLUGIN, WorkloadObject, moment

LEASE_NAME = "gpu-dra-controller"
"""Default of the controller's `--lease-name`."""

_NO_CONTROLLER = Trouble(
    "none",
    Verdict.PROBLEM,
    "the plugins leave publishing to a controller (`publisher: controller`), but no controller exists: no slice is"
    " written",
    "restore its Deployment with helm upgrade of the release; or set `publisher: node`",
)
_DOWN = Trouble(
    "down",
    Verdict.PROBLEM,
    "has no ready pod: slices are not updated{why}",
    "kubectl -n {namespace} describe deployment {name}; kubectl -n {namespace} logs deployment/{name}",
)
_FEWER = Trouble(
    "fewer",
    Verdict.WARNING,
    "has {ready} of {wanted} pods ready: no standby takes over if the leader fails{why}",
    "kubectl -n {namespace} describe deployment {name}",
)


def _controller(cluster: ClusterView) -> Iterator[Diagnosis]:
    if not cluster.controllers:
        if cluster.plugins and cluster.plugin_setting("--publisher") != "node":
            yield _NO_CONTROLLER.at()
        elif cluster.plugins:
            yield ok("each plugin publishes its own node (publisher: node)")
        else:
            yield ok("not installed by the chart: no controller Deployment, no plugin DaemonSet")
        return
    fine = True
    for controller in cluster.controllers:
        ready, wanted = (
            controller.status.ready_replicas,
            1 if controller.spec.replicas is None else controller.spec.replicas,
        )
        if ready < wanted or not wanted:
            fine = False
            trouble = _FEWER if ready else _DOWN
            yield trouble.at(
                f"Deployment {controller.key}",
                ready=ready,
                wanted=wanted,
                why=_why(cluster, controller),
                namespace=controller.metadata.namespace,
                name=controller.metadata.name,
            )
    if fine:
        yield ok("all pods of the controller are ready")


def _why(cluster: ClusterView, controller: WorkloadObject) -> str:
    namespace = controller.metadata.namespace
    pods = [pod for pod in cluster.our_pods(CONTROLLER) if pod.metadata.namespace == namespace and not pod.ready]
    return f" ({pods[0].key}: {pods[0].why_not_ready()})" if pods else ""


_NO_LEASE = Trouble(
    "no-lease",
    Verdict.PROBLEM,
    "Lease {lease} does not exist: no controller has ever led",
    "read why the controller cannot create the Lease: kubectl -n {namespace} logs deployment/{name}",
)
_NOBODY = Trouble(
    "nobody",
    Verdict.PROBLEM,
    "has no holder: slices are not updated",
    "kubectl -n {namespace} logs deployment/{name}",
)
_EXPIRED = Trouble(
    "expired",
    Verdict.PROBLEM,
    "{holder} last renewed it {age} ago, and it expires after {duration} s",
    "kubectl -n {namespace} get pods; if {holder} runs, read in its log why it cannot renew the Lease",
)
_GRACE = timedelta(seconds=15)
"""For clocks that differ, and for the time that reading takes."""


def lease_key(controller: WorkloadObject) -> tuple[str, str]:
    """Namespace and name of its Lease."""
    container = controller.ours
    assert container is not None, "a controller has a container of ours"
    place = container.setting("--lease-namespace") or controller.metadata.namespace or "default"
    return place, container.setting("--lease-name") or LEASE_NAME


def _leader(cluster: ClusterView) -> Iterator[Diagnosis]:
    if not cluster.controllers:
        yield ok("no controller, so no leader election")
        return
    for controller in cluster.controllers:
        yield _leader_of(cluster, controller)


def _leader_of(cluster: ClusterView, controller: WorkloadObject) -> Diagnosis:
    container, namespace = controller.ours, controller.metadata.namespace or ""
    assert container is not None, "a controller has a container of ours"
    if "--no-leader-election" in [*container.command, *container.args]:
        return ok(f"Deployment {controller.key} runs without leader election")
    place, name = lease_key(controller)
    leases = [
        lease for lease in cluster.leases.items if (lease.metadata.namespace, lease.metadata.name) == (place, name)
    ]
    where = {"namespace": namespace, "name": controller.metadata.name}
    if not leases:
        return _NO_LEASE.at(lease=f"{place}/{name}", **where)
    spec, about = leases[0].spec, f"Lease {place}/{name}"
    if not spec.holder_identity:
        return _NOBODY.at(about, **where)
    renewed, duration = moment(spec.renew_time), spec.lease_duration_seconds or 15
    if renewed is None or cluster.time - renewed > timedelta(seconds=duration) + _GRACE:
        age = "never" if renewed is None else f"{(cluster.time - renewed).total_seconds():.0f} s"
        return _EXPIRED.at(about, age=age, holder=spec.holder_identity, duration=duration, **where)
    return ok(f"{spec.holder_identity} is the leader")


_SKEW = Trouble(
    "skew",
    Verdict.WARNING,
    "is release {theirs}, but this dractl is release {release}: their reports may not match",
    "use a dractl of release {theirs}, or helm upgrade to {release}",
)
_MIXED = Trouble(
    "mixed",
    Verdict.WARNING,
    "plugin and controller run different releases: {versions}",
    "wait for the rolling update (kubectl rollout status); if it does not finish, see the checks plugin-pods and"
    " controller",
)
_UNTAGGED = Trouble(
    "no-tag",
    Verdict.UNKNOWN,
    "the release is unknown: image {image} has no release tag, and no pod answered a request for its metrics{why}",
    "wait until one of its pods is ready; the metric gpu_dra_build_info of each pod has the release",
)


def _versions(cluster: ClusterView) -> Iterator[Diagnosis]:
    workloads = [("DaemonSet", plugin) for plugin in cluster.plugins] + [
        ("Deployment", controller) for controller in cluster.controllers
    ]
    told = {release.program: release.release for release in cluster.releases.items if release.release}
    running = {
        (pod.program, version)
        for pod in (*cluster.our_pods(KUBELET_PLUGIN), *cluster.our_pods(CONTROLLER))
        if (ours := pod.spec.ours) is not None and (version := ours.version or told.get(pod.program or "")) is not None
    }
    fine = True
    for kind, workload in workloads:
        container = workload.ours
        assert container is not None, "a workload of ours has a container of ours"
        theirs = container.version or told.get(workload.program or "")
        if theirs is None:
            fine = False
            unread = cluster.releases.unread
            why = f": {unread.sentence}" if unread is not None else ""
            yield _UNTAGGED.at(f"{kind} {workload.key}", image=container.image, why=why)
        elif theirs.removeprefix("v") != cluster.release:
            fine = False
            yield _SKEW.at(f"{kind} {workload.key}", theirs=theirs, release=cluster.release)
    if len({version for _, version in running}) > 1:
        fine = False
        yield _MIXED.at(versions=", ".join(sorted(f"{program} {version}" for program, version in running)))
    if fine:
        yield ok(f"dractl is release {cluster.release}{', and so are plugin and controller' if workloads else ''}")


CONTROLLER_RUNS = Check(
    "controller",
    "whether the controller exists and is ready, if the installation needs one.",
    _controller,
    (_NO_CONTROLLER, _DOWN, _FEWER),
    ("deployments", "daemon_sets", "pods"),
)
LEADER = Check(
    "leader",
    "whether a controller holds the Lease and renews it.",
    _leader,
    (_NO_LEASE, _NOBODY, _EXPIRED),
    ("deployments", "leases"),
)
VERSIONS = Check(
    "versions",
    "whether dractl, plugin and controller have the same release, based on image tags or the metrics of a pod.",
    _versions,
    (_SKEW, _MIXED, _UNTAGGED),
    ("daemon_sets", "deployments", "pods"),
)
