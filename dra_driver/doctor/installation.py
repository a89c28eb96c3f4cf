"""Whether anything of the driver is in a cluster: where nothing is, that is said once; most checks are moot. Pure."""

from collections.abc import Iterator

from dra_driver.api.meta import ObjectMeta
from dra_driver.doctor.cluster import Cluster, gpu_label
from dra_driver.doctor.findings import Check, Finding, Trouble, Unread, Verdict, listed, ok, unknown
from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP
from dra_driver.slices.diff import MANAGED_BY, MANAGER

_ABSENT = Trouble(
    "not-installed",
    Verdict.PROBLEM,
    "the driver is not installed: it has no CustomResourceDefinition, DaemonSet or Deployment here, and nothing else of"
    " it is seen{labels}",
    "helm install gpu-dra-driver charts/gpu-dra-driver --namespace gpu-dra --create-namespace --set"
    " image.repository=REGISTRY/gpu-dra-driver (docs/install.md)",
)
MOOT = "not installed"
_OUR_CLASSES = frozenset(("isolated.gpu.nvidia.com", "shared.gpu.nvidia.com"))
"""Names that NVIDIA's own driver does not give; the others it shares with us."""
_NAME_LABEL = "app.kubernetes.io/name"


def why_moot(cluster: Cluster) -> str | None:
    """Of a check that is about an installation; None where there is one, all of it or a part, or that is not known."""
    absent = not _undecided(cluster) and next(_remains(cluster), None) is None
    return MOOT if absent else None


def _undecided(cluster: Cluster) -> list[Unread]:
    """What could not be read of that without which there is no installation."""
    found = [cluster.unread(part) for part in ("daemon_sets", "deployments")]
    served = not cluster.server.groups or INVENTORY_GROUP in cluster.server.groups
    return [one for one in (*found, cluster.unread("definitions") if served else None) if one is not None]


def _remains(cluster: Cluster) -> Iterator[str]:
    """What is there of the driver, however little. Objects that NVIDIA's own driver may have left do not count."""
    yield from (f"DaemonSet {one.key}" for one in cluster.plugins)
    yield from (f"Deployment {one.key}" for one in cluster.controllers)
    yield from (
        f"CustomResourceDefinition {one.metadata.name}"
        for one in cluster.definitions.items
        if one.spec.get("group") == INVENTORY_GROUP
    )
    yield from (f"NodeInventory {one.metadata.name}" for one in cluster.inventories.items)
    yield from (f"Pod {one.key}" for one in cluster.pods.items if one.program is not None)
    yield from (f"DeviceClass {one.metadata.name}" for one in cluster.classes.items if _is_ours(one.metadata))
    yield from (f"ResourceSlice {one.name}" for one in cluster.slices.items if one.ours)
    yield from (f"ValidatingWebhookConfiguration {one.metadata.name}" for one in cluster.webhooks.items)
    yield from (
        f"ValidatingAdmissionPolicy {one.metadata.name}"
        for one in cluster.admission_policies.items
        if INVENTORY_GROUP in {group for group, _ in one.resources}
    )
    yield from (
        f"CustomResourceDefinition {one.metadata.name}"
        for one in cluster.definitions.items
        if one.spec.get("group") == CONFIG_GROUP and one.metadata.labels.get(_NAME_LABEL) == MANAGER
    )


def _is_ours(metadata: ObjectMeta) -> bool:
    marks = (metadata.labels.get(MANAGED_BY), metadata.labels.get(_NAME_LABEL))
    return metadata.name in _OUR_CLASSES or MANAGER in marks


def _installed(cluster: Cluster) -> Iterator[Finding]:
    there = list(_remains(cluster))
    if there:
        yield ok(f"of the driver there is {listed(there, 3)}")
    elif undecided := _undecided(cluster):
        yield unknown(undecided)
    else:
        yield _ABSENT.at(labels=_labels(cluster))


def _labels(cluster: Cluster) -> str:
    """Where it would run, as far as that is known."""
    if cluster.nodes.unread is not None:
        return ""
    labelled = sum(gpu_label(node) is not None for node in cluster.nodes.items)
    return f"; {labelled} of {len(cluster.nodes.items)} nodes have a label that tells of GPUs"


INSTALLED = Check(
    "installation",
    "whether anything of the driver is there; where nothing is, checks of an installation are skipped.",
    _installed,
    (_ABSENT,),
    ("daemon_sets", "deployments"),
)
