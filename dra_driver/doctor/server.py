"""Checks of the API server: its version, what it serves, what it keeps of our slices. Pure."""

from collections.abc import Iterator

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.cluster import Cluster
from dra_driver.doctor.findings import Check, Finding, Trouble, Unread, Verdict, listed, ok, unknown
from dra_driver.doctor.objects import contains, differences
from dra_driver.kubernetes import CURRENT, OLDEST

_TOO_OLD = Trouble(
    "too-old",
    Verdict.PROBLEM,
    f"Kubernetes {{version}} is older than 1.{OLDEST}, which first had resource.k8s.io/v1",
    f"upgrade the control plane to Kubernetes 1.{OLDEST} or newer, then the nodes",
)
_TOO_NEW = Trouble(
    "too-new",
    Verdict.WARNING,
    f"Kubernetes {{version}} is newer than 1.{CURRENT}, the newest that release {{release}} was tested with",
    "see whether a newer release of the driver names this version",
)


def _version(cluster: Cluster) -> Iterator[Finding]:
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
    "resource.k8s.io/v1 is not served, only {versions}: there are no claims and no slices for this driver",
    "start kube-apiserver without `--runtime-config=resource.k8s.io/v1=false`, and with its default feature gate"
    " DynamicResourceAllocation",
)


def _api(cluster: Cluster) -> Iterator[Finding]:
    versions = cluster.server.groups.get("resource.k8s.io", ())
    if "v1" in versions:
        yield ok(f"resource.k8s.io is served as {', '.join(versions)}")
    else:
        yield _NOT_SERVED.at(versions=", ".join(versions) or "nothing of the group")


_DEFINITION_MISSING = Trouble(
    "missing",
    Verdict.PROBLEM,
    "there is no CustomResourceDefinition {name}: {loss}",
    "helm upgrade with `crds.install=true`, or `kubectl apply -f dra_driver/api/crds`",
)
_DEFINITION_DIFFERS = Trouble(
    "differs",
    Verdict.WARNING,
    "is not that of release {release}: it differs at {paths}",
    "upgrade the chart to the release of the driver (`crds.install=true`), or `kubectl apply -f dra_driver/api/crds`",
)
_NOT_ESTABLISHED = Trouble(
    "not-established",
    Verdict.PROBLEM,
    "is not served: {reason}",
    "see its conditions: `kubectl get crd {name} -o yaml`; another definition may have its names",
)
_LOSSES = {"nodeinventories.dra.gpu": "nodes cannot report their GPUs"}


def definitions_check(wanted: tuple[JsonObject, ...]) -> Check[Cluster]:
    """`wanted` are the definitions that ship with this release."""

    def judge(cluster: Cluster) -> Iterator[Finding]:
        there = {one.metadata.name: one for one in cluster.definitions.items}
        fine = []
        for definition in wanted:
            name = definition["metadata"]["name"]
            found = there.get(name)
            about = f"CustomResourceDefinition {name}"
            if found is None:
                yield _DEFINITION_MISSING.at(name=name, loss=_LOSSES.get(name, "what it defines cannot be used"))
            elif (reason := found.why_not_established) is not None:
                yield _NOT_ESTABLISHED.at(about, reason=reason, name=name)
            elif not contains(found.spec, definition["spec"]):
                paths = listed(sorted(differences(found.spec, definition["spec"])), 3)
                yield _DEFINITION_DIFFERS.at(about, release=cluster.release, paths=paths)
            else:
                fine.append(name)
        if len(fine) == len(wanted):
            yield ok(f"{', '.join(fine)}: as in this release")

    return Check(
        "crds",
        "whether our CustomResourceDefinitions are there, served, and those of this release.",
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
    "`--feature-gates={gate}=true` for kube-apiserver, kube-scheduler, kube-controller-manager and kubelets; Kubernetes"
    " 1.36 has it on by default",
)
_FIELDS_DROPPED = Trouble(
    "fields-dropped",
    Verdict.WARNING,
    "the API server drops {what} from slices (feature gate {gate} is off): {loss}",
    "`--feature-gates={gate}=true` for kube-apiserver, kube-scheduler, kube-controller-manager and kubelets; Kubernetes"
    " 1.36 has it on by default",
)
_KEPT = {
    "DRAPartitionableDevices": (
        "partitionable",
        "counters",
        "MIG devices are not made on demand, GPUs are published whole",
    ),
    "DRAConsumableCapacity": (
        "consumable",
        "what several claims may share",
        "shares are devices of their own, by number only",
    ),
    "DRADeviceTaints": ("taints", "taints", "a GPU that is not healthy vanishes instead of being tainted"),
}
_OTHER_LOSSES = {
    "DRAExtendedResource": "pods cannot ask for nvidia.com/gpu and get it by DRA",
    "DRAAdminAccess": "nobody can watch GPUs that others use (adminAccess)",
    "DRAResourceClaimDeviceStatus": "status.devices of claims stays empty",
    "ResourceHealthStatus": "pods do not show the health of their GPUs",
}
LOSSES = {gate: loss for gate, (_, _, loss) in _KEPT.items()} | _OTHER_LOSSES
"""What this driver cannot do where a gate is off."""


def _features(cluster: Cluster) -> Iterator[Finding]:
    gates = dict(cluster.gates.items)
    kept = cluster.features.items[0] if cluster.features.items else None
    if kept is None and not any(gate in gates for gate in _KEPT):
        unread = [one for one in (cluster.features.unread, cluster.gates.unread) if one is not None]
        yield unknown(unread or [Unread("what the API server keeps of slices", "it does not say")])
        return
    fine = True
    for gate, (name, what, loss) in _KEPT.items():
        if kept is not None and not getattr(kept, name):
            fine = False
            yield _FIELDS_DROPPED.at(what=what, gate=gate, loss=loss)
        elif kept is None and gates.get(gate) is False:
            fine = False
            yield _GATE_OFF.at(gate=gate, loss=loss)
    for gate, loss in _OTHER_LOSSES.items():
        if gates.get(gate) is False:
            fine = False
            yield _GATE_OFF.at(gate=gate, loss=loss)
    if fine:
        yield ok(f"the API server keeps {kept}" if kept is not None else "all feature gates that matter are on")


VERSION = Check("server-version", "the version of the API server.", _version, (_TOO_OLD, _TOO_NEW))
API = Check("dra-api", "whether the API of claims and slices is served.", _api, (_NOT_SERVED,))
FEATURES = Check(
    "features",
    "what the API server keeps of a ResourceSlice (a dry run tells), and its feature gates, where its metrics are"
    " readable.",
    _features,
    (_FIELDS_DROPPED, _GATE_OFF),
)
