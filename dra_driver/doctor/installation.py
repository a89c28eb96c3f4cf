"""Whether anything of the driver is in a cluster: where nothing is, or nothing runs any more, that is said once, and
most checks are moot. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.api.meta import ObjectMeta
from dra_driver.doctor.cluster import ClusterView, gpu_label
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Unread, Verdict, listed, ok, unknown
from dra_driver.doctor.objects import KUBELET_PLUGIN, CustomResource
from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP
from dra_driver.slices.diff import MANAGED_BY, MANAGER

_ABSENT = Trouble(
    "not-installed",
    Verdict.PROBLEM,
    "the driver is not installed: the cluster has no CustomResourceDefinition, DaemonSet, Deployment or other"
    " object of this driver{labels}",
    "helm install gpu-dra-driver charts/gpu-dra-driver --namespace gpu-dra --create-namespace --set"
    " image.repository=REGISTRY/gpu-dra-driver (docs/install.md)",
)
_LEFT = Trouble(
    "left-over",
    Verdict.PROBLEM,
    "no program of this driver runs, but objects of an earlier installation remain: {what}",
    "install it again with helm (docs/install.md); or, when no pod has a claim, delete the objects: {commands}",
)
_NO_PLUGINS = Trouble(
    "no-plugins",
    Verdict.PROBLEM,
    "runs, but the node plugin has no DaemonSet and no pod: no claim is prepared",
    "restore the DaemonSet with helm upgrade of the release",
)
MOOT, HALF_GONE = "not installed", "no program of this driver runs"
_OUR_CLASSES = frozenset(("isolated.gpu.nvidia.com", "shared.gpu.nvidia.com"))
"""Names that NVIDIA's own driver does not give; the others it shares with us."""
_NAME_LABEL = "app.kubernetes.io/name"


@dataclass(frozen=True, slots=True)
class _Remains:
    """Something of the driver: the word by which kubectl deletes its kind."""

    kind: str
    resource: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def why_moot(cluster: ClusterView) -> str | None:
    """Of a check that is about an installation; None where there is one, and where that is not known."""
    if _undecided(cluster):
        return None
    if next(_remains(cluster), None) is None:
        return MOOT
    return None if _runs(cluster) else HALF_GONE


def _runs(cluster: ClusterView) -> bool:
    """Where its programs are no pods, as in a simulated cluster, they still report and publish."""
    if cluster.plugins or cluster.controllers or cluster.unread("pods") is not None:
        return True
    if any(pod.program is not None for pod in cluster.pods.items):
        return True
    published = any(slice_.ours for slice_ in cluster.slices.items)
    registered = any(cluster.registration(inventory) is not None for inventory in cluster.inventories.items)
    return published and registered and not _by_the_chart(cluster)


def _by_the_chart(cluster: ClusterView) -> bool:
    """Whether a definition is the chart's, which has its programs in pods."""
    return any(definition.metadata.labels.get(MANAGED_BY) == "Helm" for definition in cluster.definitions.items)


def _undecided(cluster: ClusterView) -> list[Unread]:
    """What could not be read of that without which there is no installation."""
    unreads = [cluster.unread(part) for part in ("daemon_sets", "deployments")]
    served = not cluster.server.groups or INVENTORY_GROUP in cluster.server.groups
    return [unread for unread in (*unreads, cluster.unread("definitions") if served else None) if unread is not None]


def _remains(cluster: ClusterView) -> Iterator[_Remains]:
    """What is there of the driver, however little. Objects that NVIDIA's own driver may have left do not count."""
    yield from (_Remains("DaemonSet", "daemonset", plugin.key) for plugin in cluster.plugins)
    yield from (_Remains("Deployment", "deployment", controller.key) for controller in cluster.controllers)
    yield from (
        _definition(definition)
        for definition in cluster.definitions.items
        if definition.spec.get("group") == INVENTORY_GROUP
    )
    yield from (
        _Remains("NodeInventory", "nodeinventory", inventory.metadata.name) for inventory in cluster.inventories.items
    )
    yield from (_Remains("Pod", "pod", pod.key) for pod in cluster.pods.items if pod.program is not None)
    yield from (
        _Remains("DeviceClass", "deviceclass", class_.metadata.name)
        for class_ in cluster.classes.items
        if _is_ours(class_.metadata)
    )
    yield from (
        _Remains("ResourceSlice", "resourceslice", slice_.name) for slice_ in cluster.slices.items if slice_.ours
    )
    yield from (
        _Remains("ValidatingWebhookConfiguration", "validatingwebhookconfiguration", webhook.metadata.name)
        for webhook in cluster.webhooks.items
    )
    yield from (
        _Remains("ValidatingAdmissionPolicy", "validatingadmissionpolicy", admission_policy.metadata.name)
        for admission_policy in cluster.admission_policies.items
        if INVENTORY_GROUP in {group for group, _ in admission_policy.resources}
    )
    yield from (
        _definition(definition)
        for definition in cluster.definitions.items
        if definition.spec.get("group") == CONFIG_GROUP and definition.metadata.labels.get(_NAME_LABEL) == MANAGER
    )


def _definition(definition: CustomResource) -> _Remains:
    return _Remains("CustomResourceDefinition", "crd", definition.metadata.name)


def _is_ours(metadata: ObjectMeta) -> bool:
    marks = (metadata.labels.get(MANAGED_BY), metadata.labels.get(_NAME_LABEL))
    return metadata.name in _OUR_CLASSES or MANAGER in marks


def _installed(cluster: ClusterView) -> Iterator[Diagnosis]:
    there, undecided = list(_remains(cluster)), _undecided(cluster)
    if there and (undecided or _runs(cluster)):
        yield from _without_plugins(cluster) or [ok(f"found {_counted(there)}")]
    elif there:
        yield _LEFT.at(what=listed(list(map(str, there)), 5), commands=_commands(there, cluster.driver))
    elif undecided:
        yield unknown(undecided)
    else:
        yield _ABSENT.at(labels=_labels(cluster))


def _without_plugins(cluster: ClusterView) -> list[Diagnosis]:
    """Where no node has reported, `plugin-nodes` says it."""
    unread = cluster.unread("daemon_sets") or cluster.unread("pods")
    if cluster.plugins or cluster.our_pods(KUBELET_PLUGIN) or unread is not None or not cluster.inventories.items:
        return []
    return [_NO_PLUGINS.at(f"Deployment {controller.key}") for controller in cluster.controllers]


def _counted(there: list[_Remains]) -> str:
    """`2 CustomResourceDefinitions, 1 DaemonSet`"""
    kinds = Counter(remains.kind for remains in there)
    plurals = {kind: f"{kind}{'es' if kind.endswith('s') else 's'}" for kind in kinds}
    plurals |= {"NodeInventory": "NodeInventories", "ValidatingAdmissionPolicy": "ValidatingAdmissionPolicies"}
    return ", ".join(f"{count} {kind if count == 1 else plurals[kind]}" for kind, count in kinds.items())


def _commands(there: list[_Remains], driver: str) -> str:
    """One for each kind. Inventories go with their definition."""
    by_kind: dict[str, list[str]] = {}
    for remains in there:
        by_kind.setdefault(remains.resource, []).append(remains.name)
    by_kind.pop("nodeinventory", None)
    if "resourceslice" in by_kind:
        by_kind["resourceslice"] = [f"--field-selector spec.driver={driver}"]
    return "; ".join(f"kubectl delete {resource} {' '.join(names)}" for resource, names in by_kind.items())


def _labels(cluster: ClusterView) -> str:
    """Where it would run, as far as that is known."""
    if cluster.nodes.unread is not None:
        return ""
    labelled = sum(gpu_label(node) is not None for node in cluster.nodes.items)
    return f"; {labelled} of {len(cluster.nodes.items)} nodes have a GPU label"


INSTALLED = Check(
    "installation",
    "whether the driver is installed and runs; if not, the checks of an installation are skipped.",
    _installed,
    (_ABSENT, _LEFT, _NO_PLUGINS),
    ("daemon_sets", "deployments"),
)
