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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    namespace = settings.lease_namespace
    async with Kube(endpoint_from(settings.kubeconfig), user_agent="gpu-dra-cleanup") as kube:
        removal = _Removal(kube)
        await removal.of_each(meta.DEVICE_CLASSES, only=lambda item: is_profile_class(item, settings.driver_name))
        await removal.of_each(meta.RESOURCE_SLICES, field_selector=f"spec.driver={settings.driver_name}")
        # NVIDIA's own driver uses the same name for its domains.
        domains, ours = f"spec.driver={COMPUTE_DOMAIN_DRIVER}", f"{MANAGED_BY}={MANAGER}"
        await removal.of_each(meta.RESOURCE_SLICES, field_selector=domains, label_selector=ours)
        await removal.of(meta.LEASES, settings.lease_name, namespace)
        if settings.compute_domains:
            # In the order in which the controller removes a domain. Kubernetes deletes what the domain owns in its
            # namespace.
            await removal.of_each(meta.NODES, remove=_free, label_selector=DOMAIN_LABEL)
            await removal.of_each(meta.DAEMON_SETS, namespace, label_selector=DOMAIN_LABEL)
            await removal.of_each(meta.RESOURCE_CLAIM_TEMPLATES, namespace, label_selector=DOMAIN_LABEL)
            await removal.of_each(meta.COMPUTE_DOMAINS, remove=_let_go)
        for resource, names_of_objects in ((meta.SECRETS, settings.secrets), (meta.PODS, settings.pods)):
            for name in names_of_objects:
                await removal.of(resource, name, namespace)
    if removal.failures:
        raise removal.failures[0]


class _Removal:
    """After a failure, which is kept, everything else is still tried."""

    def __init__(self, kube: Kube) -> None:
        self.failures: list[ClusterError] = []
        self._kube = kube

    @contextmanager
    def _trying(self) -> Iterator[None]:
        try:
            yield
        except NotFound:
            pass  # The object is gone, or with its definition all objects of the kind.
        except ClusterError as error:
            _log.error("could not be removed", error=str(error))
            self.failures.append(error)

    async def of(self, resource: meta.Resource, name: str, namespace: str | None = None) -> None:
        with self._trying():
            await self._kube.delete(resource, name, namespace=namespace)
            _log.info("removed", kind=resource.kind, name=name)

    async def of_each(
        self,
        resource: meta.Resource,
        namespace: str | None = None,
        *,
        only: Callable[[meta.JsonObject], bool] = lambda item: True,
        remove: Callable[[Kube, meta.JsonObject], Awaitable[None]] | None = None,
        **selectors: str,
    ) -> None:
        """Of the objects that the selectors select, those that `only` accepts; with `remove` instead of a deletion."""
        items: list[meta.JsonObject] = []
        with self._trying():
            items = (await self._kube.list(resource, namespace=namespace, **selectors)).items
        for metadata in (item["metadata"] for item in items if only(item)):
            if remove is None:
                await self.of(resource, metadata["name"], namespace)
                continue
            with self._trying():
                await remove(self._kube, metadata)


async def _free(kube: Kube, node: meta.JsonObject) -> None:
    await kube.merge_patch(meta.NODES, node["name"], {"metadata": {"labels": {DOMAIN_LABEL: None}}})
    _log.info("free of its domain", kind=meta.NODES.kind, name=node["name"])


async def _let_go(kube: Kube, domain: meta.JsonObject) -> None:
    """Helm has deleted the definition and does not wait for the domains. Raises Conflict if one was changed
    meanwhile."""
    finalizers = [item for item in domain.get("finalizers") or () if item != FINALIZER]
    body = {"metadata": {"resourceVersion": domain["resourceVersion"], "finalizers": finalizers}}
    await kube.merge_patch(meta.COMPUTE_DOMAINS, domain["name"], body, namespace=domain["namespace"])
    _log.info("let go", kind=meta.COMPUTE_DOMAINS.kind, namespace=domain["namespace"], name=domain["name"])


if __name__ == "__main__":
    main()
