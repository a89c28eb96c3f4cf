"""Deletes what the driver created while it ran and no Helm release owns: `python -m controller.uninstall`. The chart
runs it as the last step of `helm uninstall`, when no controller or plugin is left to create these objects again:
DeviceClasses of MIG profiles, ResourceSlices (which the kubelet would delete later, on running nodes) and the leader's
Lease. Claims and their hardware are not changed, so running pods keep their GPUs. ComputeDomains belong to users, but
are deleted with their definition. Then no controller is left to remove them, and the finalizer of a single one would
block the deletion of the definition.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from controller.classes import is_profile_class
from dra_driver.api import meta
from dra_driver.domains.names import DOMAIN_LABEL, FINALIZER
from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.endpoint import pod_namespace
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.settings import SettingsParser, driver_name, filled, names, path
from dra_driver.slices.diff import MANAGED_BY, MANAGER

_log = structlog.get_logger(__name__)

type Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallSettings:
    """What to delete."""

    kubeconfig: Path | None
    driver_name: str
    lease_namespace: str
    lease_name: str
    secrets: tuple[str, ...]
    """In the namespace of the lease: Secrets that cert-manager created for the webhook and leaves behind."""
    pods: tuple[str, ...]
    """In the same namespace: Helm keeps the pod of a failed test for inspection, and never deletes it."""
    compute_domains: bool
    """The definition of ComputeDomains is deleted, and with it all domains and the objects for them."""


def main() -> None:
    configure_logging("info", "console")
    try:
        asyncio.run(run(read_settings(sys.argv[1:], os.environ)))
    except ClusterError as error:
        sys.exit(f"not everything could be removed: {error}")


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> UninstallSettings:
    options = _parser().parse(arguments, environment)
    return filled(UninstallSettings, options, lease_namespace=options.lease_namespace or pod_namespace() or "default")


def _parser() -> SettingsParser:
    parser = SettingsParser("controller.uninstall", "Deletes what the driver created in the cluster while it ran.")
    parser.setting("--kubeconfig", "", "kubeconfig file; without one, the pod's service account is used", type=path)
    parser.setting("--driver-name", GPU_DRIVER, "name of the DRA driver to remove", type=driver_name)
    parser.setting("--lease-namespace", "", "namespace of the controller's lease; default: that of the pod")
    parser.setting("--lease-name", "gpu-dra-controller", "name of the controller's lease")
    parser.setting("--secrets", "", "names of Secrets in that namespace to delete, separated by commas", type=names)
    parser.setting("--pods", "", "names of Pods in that namespace to delete, separated by commas", type=names)
    parser.switch("--compute-domains", False, "also delete ComputeDomains, and their daemons in that namespace")
    return parser


async def run(settings: UninstallSettings) -> None:
    """Tries everything, then raises the first ClusterError."""
    async with Kube(endpoint_from(settings.kubeconfig), user_agent="gpu-dra-cleanup") as kube:
        steps: tuple[Step, ...] = (
            lambda: _remove_classes(kube, settings.driver_name),
            lambda: _remove_slices(kube, settings.driver_name),
            # NVIDIA's own driver uses the same name for its domains.
            lambda: _remove_slices(kube, COMPUTE_DOMAIN_DRIVER, label_selector=f"{MANAGED_BY}={MANAGER}"),
            lambda: _remove(kube, meta.LEASES, settings.lease_name, settings.lease_namespace),
            *(_domain_steps(kube, settings.lease_namespace) if settings.compute_domains else ()),
            *(partial(_remove, kube, meta.SECRETS, name, settings.lease_namespace) for name in settings.secrets),
            *(partial(_remove, kube, meta.PODS, name, settings.lease_namespace) for name in settings.pods),
        )
        await _all(steps)


async def _all(steps: Iterable[Step]) -> None:
    """Takes each step, also after one that failed; then raises the first ClusterError."""
    failures = [failure for step in steps if (failure := await _failure(step)) is not None]
    if failures:
        raise failures[0]


async def _failure(step: Step) -> ClusterError | None:
    try:
        await step()
    except ClusterError as error:
        _log.error("could not be removed", error=str(error))
        return error
    return None


async def _remove_classes(kube: Kube, driver: str) -> None:
    classes = [item for item in (await kube.list(meta.DEVICE_CLASSES)).items if is_profile_class(item, driver)]
    await _remove_each(kube, meta.DEVICE_CLASSES, classes)


async def _remove_slices(kube: Kube, driver: str, label_selector: str | None = None) -> None:
    selected = await kube.list(
        meta.RESOURCE_SLICES, field_selector=f"spec.driver={driver}", label_selector=label_selector
    )
    await _remove_each(kube, meta.RESOURCE_SLICES, selected.items)


def _domain_steps(kube: Kube, namespace: str) -> tuple[Step, ...]:
    """In the order in which the controller removes a domain. Kubernetes deletes what the domain owns in its
    namespace."""
    return (
        lambda: _free_nodes(kube),
        lambda: _remove_labeled(kube, meta.DAEMON_SETS, namespace),
        lambda: _remove_labeled(kube, meta.RESOURCE_CLAIM_TEMPLATES, namespace),
        lambda: _let_domains_go(kube),
    )


async def _free_nodes(kube: Kube) -> None:
    nodes = await kube.list(meta.NODES, label_selector=DOMAIN_LABEL)
    await _all(partial(_free, kube, item["metadata"]["name"]) for item in nodes.items)


async def _free(kube: Kube, node: str) -> None:
    await kube.merge_patch(meta.NODES, node, {"metadata": {"labels": {DOMAIN_LABEL: None}}})
    _log.info("free of its domain", kind=meta.NODES.kind, name=node)


async def _remove_labeled(kube: Kube, resource: meta.Resource, namespace: str) -> None:
    labeled = await kube.list(resource, namespace=namespace, label_selector=DOMAIN_LABEL)
    await _remove_each(kube, resource, labeled.items, namespace)


async def _let_domains_go(kube: Kube) -> None:
    """Helm has deleted the definition and does not wait for the domains. Raises Conflict if one was changed
    meanwhile."""
    try:
        domains = (await kube.list(meta.COMPUTE_DOMAINS)).items
    except NotFound:
        return  # the definition is gone
    await _all(partial(_let_go, kube, domain["metadata"]) for domain in domains)


async def _let_go(kube: Kube, metadata: meta.JsonObject) -> None:
    finalizers = [item for item in metadata.get("finalizers") or () if item != FINALIZER]
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
    try:
        await kube.merge_patch(meta.COMPUTE_DOMAINS, metadata["name"], body, namespace=metadata["namespace"])
    except NotFound:
        return
    _log.info("let go", kind=meta.COMPUTE_DOMAINS.kind, namespace=metadata["namespace"], name=metadata["name"])


async def _remove_each(
    kube: Kube, resource: meta.Resource, items: Iterable[meta.JsonObject], namespace: str | None = None
) -> None:
    await _all(partial(_remove, kube, resource, item["metadata"]["name"], namespace) for item in items)


async def _remove(kube: Kube, resource: meta.Resource, name: str, namespace: str | None = None) -> None:
    try:
        await kube.delete(resource, name, namespace=namespace)
    except NotFound:
        return
    _log.info("removed", kind=resource.kind, name=name)


if __name__ == "__main__":
    main()
