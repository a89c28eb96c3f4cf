"""Checks of the API server: its version, what it serves, what it keeps of our slices. Pure."""

from collections.abc import Iterator

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Unread, Verdict, listed, ok, unknown
from dra_driver.doctor.objects import contains, differences
from dra_driver.kubernetes import CURRENT, OLDEST

_TOO_OLD = Trouble(
    "too-old",
    Verdict.PROBLEM,
    f"Kubernetes {{version}} is older than 1.{OLDEST}, the first version with resource.k8s.io/v1",
    f"upgrade the control plane to Kubernetes 1.{OLDEST} or newer, then the nodes",
)
_TOO_NEW = Trouble(
    "too-new",
    Verdict.WARNING,
    f"Kubernetes {{version}} is newer than 1.{CURRENT}, the newest version tested with release {{release}}",
    "check whether a newer release of the driver supports this version, and upgrade to it",
)


def _version(cluster: ClusterView) -> Iterator[Diagnosis]:
    version, minor = cluster.server.version, cluster.server.minor
    if minor < OLDEST:
        yield _TOO_OLD.at(version=version)
    elif minor > CURRENT:
        yield _TOO_NEW.at(version=version, release=cluster.release)
    else:
        yield ok(f"Kubernetes {version}")


_NOT_SERVED = Trouble(
    "not-served",
    Verdict.PROBLEM,
    "the API server does not serve resource.k8s.io/v1, only {versions}: this driver cannot use claims and slices",
    "start kube-apiserver without `--runtime-config=resource.k8s.io/v1=false`, and do not disable feature gate"
    " DynamicResourceAllocation",
)


def _api(cluster: ClusterView) -> Iterator[Diagnosis]:
    versions = cluster.server.groups.get("resource.k8s.io", ())
    if "v1" in versions:
        yield ok(f"the API server serves resource.k8s.io {', '.join(versions)}")
    else:
        yield _NOT_SERVED.at(versions=", ".join(versions) or "no version of the group")


_DEFINITION_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "CustomResourceDefinition {name} does not exist: {loss}",
    "helm upgrade with `crds.install=true`, or run `kubectl apply -f dra_driver/api/crds`",
)
_DEFINITION_DIFFERS = Trouble(
    "differs",
    Verdict.WARNING,
    "is not the one of release {release}: it differs at {paths}",
    "upgrade the chart to the release of the driver (`crds.install=true`), or run `kubectl apply -f"
    " dra_driver/api/crds`",
)
_NOT_ESTABLISHED = Trouble(
    "not-established",
    Verdict.PROBLEM,
    "the API server does not serve it: {reason}",
    "read its conditions: `kubectl get crd {name} -o yaml`; another definition may use the same names",
)
_LOSSES = {"nodeinventories.dra.gpu": "nodes cannot report their GPUs"}


def definitions_check(wanted: tuple[JsonObject, ...]) -> Check[ClusterView]:
    """`wanted` are the definitions that ship with this release."""

    def judge(cluster: ClusterView) -> Iterator[Diagnosis]:
        there = {item.metadata.name: item for item in cluster.definitions.items}
        fine = []
        for definition in wanted:
            name = definition["metadata"]["name"]
            found = there.get(name)
            about = f"CustomResourceDefinition {name}"
            if found is None:
                yield _DEFINITION_MISSING.at(name=name, loss=_LOSSES.get(name, "its objects cannot be used"))
            elif (reason := found.why_not_established) is not None:
                yield _NOT_ESTABLISHED.at(about, reason=reason, name=name)
            elif not contains(found.spec, definition["spec"]):
                paths = listed(sorted(differences(found.spec, definition["spec"])), 3)
                yield _DEFINITION_DIFFERS.at(about, release=cluster.release, paths=paths)
            else:
                fine.append(name)
        if len(fine) == len(wanted):
            yield ok(f"{', '.join(fine)} match this release")

    return Check(
        "crds",
        "whether the CustomResourceDefinitions of this release exist unchanged and are served.",
        judge,
        (_DEFINITION_MISSING, _DEFINITION_DIFFERS, _NOT_ESTABLISHED),
        ("definitions",),
    )


def definitions_in(texts: Iterator[str]) -> tuple[JsonObject, ...]:
    """From the YAML files that ship with this release."""
    return tuple(document for text in texts for document in yaml.safe_load_all(text) if document)


_GATE_OFF = Trouble(
    "gate-off",
    Verdict.WARNING,
    "feature gate {gate} is off: {loss}",
    "set `--feature-gates={gate}=true` for kube-apiserver, kube-scheduler, kube-controller-manager and kubelets;"
    " it is on by default in Kubernetes 1.36",
)
_FIELDS_DROPPED = Trouble(
    "fields-dropped",
    Verdict.WARNING,
    "the API server drops {what} from slices (feature gate {gate} is off): {loss}",
    "set `--feature-gates={gate}=true` for kube-apiserver, kube-scheduler, kube-controller-manager and kubelets;"
    " it is on by default in Kubernetes 1.36",
)
_KEPT = {
    "DRAPartitionableDevices": (
        "partitionable",
        "counters",
        "MIG devices are not created on demand; only whole GPUs are published",
    ),
    "DRAConsumableCapacity": (
        "consumable",
        "the capacity that several claims may share",
        "each share is published as a separate device, and limited by number only",
    ),
    "DRADeviceTaints": ("taints", "taints", "an unhealthy GPU is removed from the slices instead of tainted"),
}
_OTHER_LOSSES = {
    "DRAExtendedResource": "pods cannot request nvidia.com/gpu and get it through DRA",
    "DRAAdminAccess": "monitoring pods cannot access GPUs that other pods use (adminAccess)",
    "DRAResourceClaimDeviceStatus": "status.devices of claims stays empty",
    "ResourceHealthStatus": "pod status does not show GPU health",
}
LOSSES = {gate: loss for gate, (_, _, loss) in _KEPT.items()} | _OTHER_LOSSES
"""What this driver cannot do where a gate is off."""


def _features(cluster: ClusterView) -> Iterator[Diagnosis]:
    gates = dict(cluster.gates.items)
    server_features = cluster.features.items[0] if cluster.features.items else None
    if server_features is None and not any(gate in gates for gate in _KEPT):
        unread = [item for item in (cluster.features.unread, cluster.gates.unread) if item is not None]
        yield unknown(unread or [Unread("the slice fields that the API server keeps", "it did not report them")])
        return
    fine = True
    for gate, (name, what, loss) in _KEPT.items():
        if server_features is not None and not getattr(server_features, name):
            fine = False
            yield _FIELDS_DROPPED.at(what=what, gate=gate, loss=loss)
        elif server_features is None and gates.get(gate) is False:
            fine = False
            yield _GATE_OFF.at(gate=gate, loss=loss)
    for gate, loss in _OTHER_LOSSES.items():
        if gates.get(gate) is False:
            fine = False
            yield _GATE_OFF.at(gate=gate, loss=loss)
    if fine:
        yield ok(
            f"the API server keeps {server_features}"
            if server_features is not None
            else "all required feature gates are on"
        )


VERSION = Check("server-version", "the version of the API server.", _version, (_TOO_OLD, _TOO_NEW))
API = Check("dra-api", "whether the API server serves claims and slices.", _api, (_NOT_SERVED,))
FEATURES = Check(
    "features",
    "which ResourceSlice fields the API server keeps (dry run), and its feature gates, if you may read its metrics.",
    _features,
    (_FIELDS_DROPPED, _GATE_OFF),
)
