"""All checks of a cluster: `checks.yaml` has their order, what each can find, and the words. The check of whether the
driver is installed at all decides which others make sense. Pure.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dra_driver.api.core import KUBELET_PLUGIN, CustomResource
from dra_driver.api.meta import JsonObject, ObjectMeta
from dra_driver.doctor import api_server, claims, configuration, conflicts, nodes, publishing
from dra_driver.doctor.cluster import ClusterView, gpu_label
from dra_driver.doctor.findings import Check, Judgment, Unread, checks_of, wrong
from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP
from dra_driver.phrases import and_more
from dra_driver.slices.diff import MANAGED_BY, MANAGER

_OUR_CLASSES = frozenset(("isolated.gpu.nvidia.com", "shared.gpu.nvidia.com"))
"""Names that NVIDIA's own driver does not use; it has the other classes, too."""
_NAME_LABEL = "app.kubernetes.io/name"
_PLURALS = {"NodeInventory": "NodeInventories", "ValidatingAdmissionPolicy": "ValidatingAdmissionPolicies"}


def why_moot(cluster: ClusterView) -> str | None:
    """Why a check of an installation has nothing to check. None if there is an installation, or that is not known."""
    if _undecided(cluster):
        return None
    if not any(names for _, names in _our_objects(cluster)):
        return "not installed"
    return None if _runs(cluster) else "no program of this driver runs"


def _runs(cluster: ClusterView) -> bool:
    if cluster.plugins or cluster.controllers or cluster.program_pods or cluster.unread("pods") is not None:
        return True
    # The programs of a simulated cluster have no pods, but they report and publish; those of the chart have pods.
    by_the_chart = any(item.metadata.labels.get(MANAGED_BY) == "Helm" for item in cluster.definitions.items)
    published = any(slice_.ours for slice_ in cluster.slices.items)
    registered = any(cluster.registration(inventory) is not None for inventory in cluster.inventories.items)
    return published and registered and not by_the_chart


def _undecided(cluster: ClusterView) -> list[Unread]:
    """The kinds that could not be read and that may prove an installation."""
    served = not cluster.server.groups or INVENTORY_GROUP in cluster.server.groups
    parts = ("daemon_sets", "deployments", *["definitions"] * served)
    return [unread for part in parts if (unread := cluster.unread(part)) is not None]


def _our_objects(cluster: ClusterView) -> Iterator[tuple[str, list[str]]]:
    """Names of the driver's objects by kind, without those that NVIDIA's own driver may have left. One kind after the
    other, because there may be thousands of objects, and the first kind may be enough."""
    yield "DaemonSet", [str(plugin) for plugin in cluster.plugins]
    yield "Deployment", [str(controller) for controller in cluster.controllers]
    yield "CustomResourceDefinition", [item.metadata.name for item in cluster.definitions.items if _is_our_crd(item)]
    yield "NodeInventory", [inventory.metadata.name for inventory in cluster.inventories.items]
    yield "Pod", list(map(str, cluster.program_pods))
    yield "DeviceClass", [item.metadata.name for item in cluster.classes.items if _is_our_class(item.metadata)]
    yield "ResourceSlice", [slice_.name for slice_ in cluster.slices.items if slice_.ours]
    yield "ValidatingWebhookConfiguration", [webhook.metadata.name for webhook in cluster.webhooks.items]
    policies = [item for item in cluster.admission_policies.items if INVENTORY_GROUP in dict(item.resources)]
    yield "ValidatingAdmissionPolicy", [policy.metadata.name for policy in policies]


def _is_our_crd(definition: CustomResource) -> bool:
    group, name = definition.spec.get("group"), definition.metadata.labels.get(_NAME_LABEL)
    return group == INVENTORY_GROUP or (group == CONFIG_GROUP and name == MANAGER)


def _is_our_class(metadata: ObjectMeta) -> bool:
    labels = (metadata.labels.get(MANAGED_BY), metadata.labels.get(_NAME_LABEL))
    return metadata.name in _OUR_CLASSES or MANAGER in labels


def installation(cluster: ClusterView) -> Judgment:
    names = {kind: of_kind for kind, of_kind in _our_objects(cluster) if of_kind}
    undecided = _undecided(cluster)
    if names and (undecided or _runs(cluster)):
        # If no node has reported, the check `plugin-nodes` says so.
        unread = cluster.unread("daemon_sets") or cluster.unread("pods")
        if not (cluster.plugins or cluster.our_pods(KUBELET_PLUGIN) or unread) and cluster.inventories.items:
            for controller in cluster.controllers:
                yield wrong("no-plugins", f"Deployment {controller}")
    elif names:
        objects = [f"{kind} {name}" for kind, of_kind in names.items() for name in of_kind]
        yield wrong("left-over", what=and_more(objects, 5), commands=_commands(names, cluster.driver))
    elif undecided:
        yield from undecided
    else:
        labeled = sum(gpu_label(node) is not None for node in cluster.nodes.items)
        labels = f"; {labeled} of {len(cluster.nodes.items)} nodes have a GPU label"
        yield wrong("not-installed", labels=labels if cluster.nodes.unread is None else "")
    plurals = {kind: _PLURALS.get(kind, f"{kind}{'es' if kind.endswith('s') else 's'}") for kind in names}
    counted = (f"{len(of_kind)} {plurals[kind] if len(of_kind) > 1 else kind}" for kind, of_kind in names.items())
    return f"found {', '.join(counted)}"


def _commands(names: dict[str, list[str]], driver: str) -> str:
    """One for each kind, except inventories, which are deleted with their definition."""
    arguments = {kind: " ".join(of_kind) for kind, of_kind in names.items() if kind != "NodeInventory"}
    if "ResourceSlice" in arguments:
        arguments["ResourceSlice"] = f"--field-selector spec.driver={driver}"
    words = {"CustomResourceDefinition": "crd"}
    return "; ".join(f"kubectl delete {words.get(kind, kind.lower())} {text}" for kind, text in arguments.items())


# -- all checks

_JUDGES: dict[str, Callable[[ClusterView], Judgment]] = {
    "server-version": api_server.server_version,
    "dra-api": api_server.dra_api,
    "features": api_server.features,
    "your-permissions": api_server.your_permissions,
    "installation": installation,
    "plugin-nodes": nodes.plugin_nodes,
    "kubelets": nodes.kubelets,
    "kubelet-gates": nodes.kubelet_gates,
    "container-runtime": nodes.container_runtime,
    "plugin-pods": nodes.plugin_pods,
    "plugin-registered": nodes.plugin_registered,
    "inventories": nodes.inventories,
    "nvidia-driver": nodes.nvidia_driver,
    "gpu-health": nodes.gpu_health,
    "containers": nodes.containers,
    "leftovers": nodes.leftovers,
    "policy-followed": nodes.policy_followed,
    "gpu-policies": nodes.gpu_policies,
    "controller": publishing.controller,
    "leader": publishing.leader,
    "versions": publishing.versions,
    "account-permissions": api_server.account_permissions,
    "slices-published": publishing.slices_published,
    "slices-complete": publishing.slices_complete,
    "slices-alive": publishing.slices_alive,
    "slices-ours": publishing.slices_ours,
    "counter-sets": publishing.counter_sets,
    "policy": configuration.policy,
    "webhook": configuration.webhook,
    "admission-policies": configuration.admission_policies,
    "device-plugin": conflicts.device_plugin,
    "other-software": conflicts.other_software,
    "gpu-operator": conflicts.gpu_operator,
    "claims": claims.claims,
    "claim-deletions": claims.claim_deletions,
    "events": claims.events,
    "compute-domains": claims.compute_domains,
    "compute-domain-nodes": claims.compute_domain_nodes,
}


def cluster_checks(
    definitions: tuple[JsonObject, ...], classes: tuple[JsonObject, ...], class_errors: configuration.JudgeClass
) -> tuple[Check[ClusterView], ...]:
    """`definitions` are the CustomResourceDefinitions, `classes` the DeviceClasses that ship with this release;
    `class_errors` returns what is wrong with a class."""
    judges: dict[str, Callable[[ClusterView], Judgment]] = {
        **_JUDGES,
        "crds": partial(api_server.definitions, shipped=definitions),
        "device-classes": partial(configuration.device_classes, shipped=classes, errors=class_errors),
    }
    return checks_of(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"), judges, why_moot)
