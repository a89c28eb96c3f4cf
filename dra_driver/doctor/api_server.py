"""Checks of the API server: its version, what it serves, which fields of our slices it keeps. Pure."""

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import lacking
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Judgment, Unread, wrong
from dra_driver.kubernetes import CURRENT, OLDEST
from dra_driver.phrases import and_more


def server_version(cluster: ClusterView) -> Judgment:
    version, minor = cluster.server.version, cluster.server.minor
    if minor < OLDEST:
        yield wrong("too-old", version=version)
    elif minor > CURRENT:
        yield wrong("too-new", version=version, release=cluster.release)
    return f"Kubernetes {version}"


def dra_api(cluster: ClusterView) -> Judgment:
    versions = cluster.server.groups.get("resource.k8s.io", ())
    if "v1" not in versions:
        yield wrong("not-served", versions=", ".join(versions) or "no version of the group")
    return f"the API server serves resource.k8s.io {', '.join(versions)}"


_DEFINITION_LOSSES = {"nodeinventories.dra.gpu": "nodes cannot report their GPUs"}


def definitions(cluster: ClusterView, shipped: tuple[JsonObject, ...]) -> Judgment:
    """`shipped` are the definitions of this release."""
    existing = {definition.metadata.name: definition for definition in cluster.definitions.items}
    names = [definition["metadata"]["name"] for definition in shipped]
    for name, wanted in zip(names, shipped, strict=True):
        definition = existing.get(name)
        about = f"CustomResourceDefinition {name}"
        if definition is None:
            yield wrong("missing", name=name, loss=_DEFINITION_LOSSES.get(name, "its objects cannot be used"))
        elif (reason := definition.why_not_established) is not None:
            yield wrong("not-established", about, reason=reason, name=name)
        elif paths := sorted(lacking(definition.spec, wanted["spec"])):
            yield wrong("differs", about, release=cluster.release, paths=and_more(paths, 3))
    return f"{', '.join(names)} match this release"


_FIELDS = {
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
    "DRADeviceBindingConditions": (
        "binding",
        "binding conditions",
        "a pod stays on a node that cannot make its MIG device or start its IMEX daemon",
    ),
}
"""By feature gate: the field of `ServerFeatures`, what it means, and what is lost without it."""
_OTHER_LOSSES = {
    "DRAExtendedResource": "pods cannot request nvidia.com/gpu and get it through DRA",
    "DRAAdminAccess": "monitoring pods cannot access GPUs that other pods use (adminAccess)",
    "DRAResourceClaimDeviceStatus": "status.devices of claims stays empty",
    "ResourceHealthStatus": "pod status does not show GPU health",
}
LOSSES = {gate: loss for gate, (_, _, loss) in _FIELDS.items()} | _OTHER_LOSSES
"""What this driver cannot do if a gate is off."""


def features(cluster: ClusterView) -> Judgment:
    gates = dict(cluster.gates.items)
    server = cluster.features.items[0] if cluster.features.items else None
    if server is None and not any(gate in gates for gate in _FIELDS):
        unread = [item for item in (cluster.features.unread, cluster.gates.unread) if item is not None]
        yield from unread or [Unread("the slice fields that the API server keeps", "it did not report them")]
        return ""
    for gate, (name, what, loss) in _FIELDS.items():
        if server is not None and not getattr(server, name):
            yield wrong("fields-dropped", what=what, gate=gate, loss=loss)
        elif server is None and gates.get(gate) is False:
            yield wrong("gate-off", gate=gate, loss=loss)
    for gate, loss in _OTHER_LOSSES.items():
        if gates.get(gate) is False:
            yield wrong("gate-off", gate=gate, loss=loss)
    return f"the API server keeps {server}" if server is not None else "all required feature gates are on"
