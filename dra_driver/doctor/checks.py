"""All checks of a cluster: `checks.yaml` has their order, what each can find, and the words. Pure."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dra_driver.api.meta import JsonObject
from dra_driver.doctor import access, claims, configuration, conflicts, gpus, installation, nodes, publishing, server
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Judgment, checks_of

_JUDGES: dict[str, Callable[[ClusterView], Judgment]] = {
    "server-version": server.server_version,
    "dra-api": server.dra_api,
    "features": server.features,
    "your-permissions": access.your_permissions,
    "installation": installation.installation,
    "plugin-nodes": nodes.plugin_nodes,
    "kubelets": nodes.kubelets,
    "kubelet-gates": nodes.kubelet_gates,
    "container-runtime": nodes.container_runtime,
    "plugin-pods": nodes.plugin_pods,
    "plugin-registered": nodes.plugin_registered,
    "inventories": nodes.inventories,
    "nvidia-driver": gpus.nvidia_driver,
    "gpu-health": gpus.gpu_health,
    "containers": gpus.containers,
    "leftovers": gpus.leftovers,
    "policy-followed": gpus.policy_followed,
    "controller": publishing.controller,
    "leader": publishing.leader,
    "versions": publishing.versions,
    "account-permissions": access.account_permissions,
    "slices-published": publishing.slices_published,
    "slices-complete": publishing.slices_complete,
    "slices-alive": publishing.slices_alive,
    "slices-ours": publishing.slices_ours,
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
        "crds": partial(server.definitions, shipped=definitions),
        "device-classes": partial(configuration.device_classes, shipped=classes, errors=class_errors),
    }
    return checks_of(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8"), judges, installation.why_moot)
