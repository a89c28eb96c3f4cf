"""Checks of what runs for the whole cluster: controller, leader, versions. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from dra_driver.doctor.cluster import Cluster
from dra_driver.doctor.findings import Check, Finding, Trouble, Verdict, ok
from dra_driver.doctor.objects import CONTROLLER, KUBELET_PLUGIN, Workload, moment

LEASE_NAME = "gpu-dra-controller"
"""Default of the controller's `--lease-name`."""

_NO_CONTROLLER = Trouble(
    "none",
    Verdict.PROBLEM,
    "plugins leave publishing to a controller (`publisher: controller`), and there is none: no slice is written",
    "helm upgrade of the release puts its Deployment back; or set `publisher: node`",
)
_DOWN = Trouble(
    "down",
    Verdict.PROBLEM,
    "has no ready pod: slices are not kept true{why}",
    "kubectl -n {namespace} describe deployment {name}; kubectl -n {namespace} logs deployment/{name}",
)
_FEWER = Trouble(
    "fewer",
    Verdict.WARNING,
    "has {ready} ready pods of {wanted}: nobody takes over should the leader end{why}",
    "kubectl -n {namespace} describe deployment {name}",
)


def _controller(cluster: Cluster) -> Iterator[Finding]:
    if not cluster.controllers:
        if cluster.plugins and cluster.plugin_setting("--publisher") != "node":
            yield _NO_CONTROLLER.at()
        elif cluster.plugins:
            yield ok("plugins publish for themselves (publisher: node)")
        else:
            yield ok(
                "no Deployment of the controller and no DaemonSet of the plugin: they run by other means, if at all"
            )
        return
    fine = True
    for one in cluster.controllers:
        ready, wanted = one.status.ready_replicas, 1 if one.spec.replicas is None else one.spec.replicas
        if ready < wanted or not wanted:
            fine = False
            trouble = _FEWER if ready else _DOWN
            yield trouble.at(
                f"Deployment {one.key}",
                ready=ready,
                wanted=wanted,
                why=_why(cluster, one),
                namespace=one.metadata.namespace,
                name=one.metadata.name,
            )
    if fine:
        yield ok("all pods of the controller are ready")


def _why(cluster: Cluster, controller: Workload) -> str:
    namespace = controller.metadata.namespace
    pods = [one for one in cluster.our_pods(CONTROLLER) if one.metadata.namespace == namespace and not one.ready]
    return f" ({pods[0].key}: {pods[0].why_not_ready()})" if pods else ""


_NO_LEASE = Trouble(
    "no-lease",
    Verdict.PROBLEM,
    "there is no Lease {lease}: no controller has ever led",
    "kubectl -n {namespace} logs deployment/{name}: it says why it cannot make the Lease",
)
_NOBODY = Trouble(
    "nobody",
    Verdict.PROBLEM,
    "is held by nobody: slices are not kept true",
    "kubectl -n {namespace} logs deployment/{name}",
)
_EXPIRED = Trouble(
    "expired",
    Verdict.PROBLEM,
    "was last renewed {age} ago by {holder}, and is good for {duration} s",
    "kubectl -n {namespace} get pods; when {holder} runs, its log says why it cannot renew",
)
_GRACE = timedelta(seconds=15)
"""For clocks that differ, and for the time that reading takes."""


def lease_key(controller: Workload) -> tuple[str, str]:
    """Namespace and name of its Lease."""
    container = controller.ours
    assert container is not None, "a controller has a container of ours"
    place = container.setting("--lease-namespace") or controller.metadata.namespace or "default"
    return place, container.setting("--lease-name") or LEASE_NAME


def _leader(cluster: Cluster) -> Iterator[Finding]:
    if not cluster.controllers:
        yield ok("no controller, so no leader")
        return
    for one in cluster.controllers:
        yield _leader_of(cluster, one)


def _leader_of(cluster: Cluster, controller: Workload) -> Finding:
    container, namespace = controller.ours, controller.metadata.namespace or ""
    assert container is not None, "a controller has a container of ours"
    if "--no-leader-election" in [*container.command, *container.args]:
        return ok(f"Deployment {controller.key} works without leader election")
    place, name = lease_key(controller)
    found = [one for one in cluster.leases.items if (one.metadata.namespace, one.metadata.name) == (place, name)]
    where = {"namespace": namespace, "name": controller.metadata.name}
    if not found:
        return _NO_LEASE.at(lease=f"{place}/{name}", **where)
    spec, about = found[0].spec, f"Lease {place}/{name}"
    if not spec.holder_identity:
        return _NOBODY.at(about, **where)
    renewed, duration = moment(spec.renew_time), spec.lease_duration_seconds or 15
    if renewed is None or cluster.time - renewed > timedelta(seconds=duration) + _GRACE:
        age = "never" if renewed is None else f"{(cluster.time - renewed).total_seconds():.0f} s"
        return _EXPIRED.at(about, age=age, holder=spec.holder_identity, duration=duration, **where)
    return ok(f"{spec.holder_identity} leads")


_SKEW = Trouble(
    "skew",
    Verdict.WARNING,
    "is release {theirs}, and this dractl {release}: what they say of each other may not fit",
    "use a dractl of release {theirs}, or helm upgrade to {release}",
)
_MIXED = Trouble(
    "mixed",
    Verdict.WARNING,
    "plugin and controller are not of one release: {versions}",
    "wait for the rolling update to end (kubectl rollout status); when it does not, see the checks plugin-pods and"
    " controller",
)
_UNTAGGED = Trouble(
    "no-tag",
    Verdict.UNKNOWN,
    "is of image {image}, whose name does not tell the release, and no pod of it could be asked{why}",
    "wait until a pod of it is ready; the metric gpu_dra_build_info of each pod has its release",
)


def _versions(cluster: Cluster) -> Iterator[Finding]:
    workloads = [("DaemonSet", one) for one in cluster.plugins] + [("Deployment", one) for one in cluster.controllers]
    told = {one.program: one.release for one in cluster.releases.items if one.release}
    running = {
        (pod.program, version)
        for pod in (*cluster.our_pods(KUBELET_PLUGIN), *cluster.our_pods(CONTROLLER))
        if (ours := pod.spec.ours) is not None and (version := ours.version or told.get(pod.program or "")) is not None
    }
    fine = True
    for kind, one in workloads:
        container = one.ours
        assert container is not None, "a workload of ours has a container of ours"
        theirs = container.version or told.get(one.program or "")
        if theirs is None:
            fine = False
            unread = cluster.releases.unread
            why = f": {unread.sentence}" if unread is not None else ""
            yield _UNTAGGED.at(f"{kind} {one.key}", image=container.image, why=why)
        elif theirs.removeprefix("v") != cluster.release:
            fine = False
            yield _SKEW.at(f"{kind} {one.key}", theirs=theirs, release=cluster.release)
    if len({version for _, version in running}) > 1:
        fine = False
        yield _MIXED.at(versions=", ".join(sorted(f"{program} {version}" for program, version in running)))
    if fine:
        yield ok(f"dractl is release {cluster.release}{', as are plugin and controller' if workloads else ''}")


CONTROLLER_RUNS = Check(
    "controller",
    "whether the controller is there and ready, where it is needed.",
    _controller,
    (_NO_CONTROLLER, _DOWN, _FEWER),
    ("deployments", "daemon_sets", "pods"),
)
LEADER = Check(
    "leader",
    "whether one of the controllers holds the Lease and renews it.",
    _leader,
    (_NO_LEASE, _NOBODY, _EXPIRED),
    ("deployments", "leases"),
)
VERSIONS = Check(
    "versions",
    "whether dractl, plugin and controller are of one release, by the tags of images, or by the metrics of a pod.",
    _versions,
    (_SKEW, _MIXED, _UNTAGGED),
    ("daemon_sets", "deployments", "pods"),
)
