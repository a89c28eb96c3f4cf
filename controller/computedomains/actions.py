"""Carries out the decisions for a domain: one write each, guarded by the version of the object that was seen."""

import asyncio
from collections.abc import Sequence

import structlog

from controller.computedomains.cluster import DomainsInCluster
from dra_driver.api.computedomain import ComputeDomain, ComputeDomainStatus
from dra_driver.api.meta import COMPUTE_DOMAINS, DAEMON_SETS, NODES, RESOURCE_CLAIM_TEMPLATES, Resource
from dra_driver.domains.names import DOMAIN_LABEL, FINALIZER, daemon_object_name
from dra_driver.domains.objects import DaemonSettings, daemon_set, daemon_template, workload_template
from dra_driver.domains.plan import Action, DomainStep, LabelNode
from dra_driver.errors import AlreadyExists, Conflict, NotFound
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

_NODES_AT_ONCE = 16


class Actions:
    """Writes for domains. Every method raises ClusterError; Conflict if an object has changed since it was seen."""

    def __init__(
        self, kube: Kube, cluster: DomainsInCluster, settings: DaemonSettings, *, several_channels: bool
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._settings = settings
        self._several_channels = several_channels
        self._labelling = asyncio.Semaphore(_NODES_AT_ONCE)

    async def write_status(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        """A merge patch replaces whole lists; the resourceVersion ensures that they have not changed."""
        body = {
            "metadata": {"resourceVersion": domain.metadata.resource_version},
            "status": status.to_wire(),
        }
        await self._kube.merge_patch(
            COMPUTE_DOMAINS,
            domain.metadata.name,
            body,
            namespace=domain.metadata.namespace,
            subresource="status",
        )

    async def run(self, domain: ComputeDomain, actions: Sequence[Action]) -> None:
        """In order; changes of labels run concurrently, because they affect different nodes."""
        labels = [action for action in actions if isinstance(action, LabelNode)]
        for action in actions:
            if action not in labels:
                await self._do(domain, action)
        results = await asyncio.gather(*(self._label(domain, action) for action in labels), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _label(self, domain: ComputeDomain, action: LabelNode) -> None:
        node = self._cluster.nodes.objects.get(("", action.node))
        if node is None:
            return
        value = domain.metadata.uid if action.joins else None
        metadata = {"resourceVersion": node.resource_version, "labels": {DOMAIN_LABEL: value}}
        async with self._labelling:
            await self._kube.merge_patch(NODES, action.node, {"metadata": metadata})
        word = "node joins" if value is not None else "node leaves"
        _log.info(word, node=action.node, **_named(domain))

    async def _do(self, domain: ComputeDomain, action: Action) -> None:
        uid, ours = domain.metadata.uid, self._settings.namespace
        match action:
            case DomainStep.ADD_FINALIZER:
                await self._finalizers(domain, [*domain.metadata.finalizers, FINALIZER])
            case DomainStep.REMOVE_FINALIZER:
                await self._finalizers(
                    domain, [finalizer for finalizer in domain.metadata.finalizers if finalizer != FINALIZER]
                )
                _log.info("ComputeDomain removed", **_named(domain))
            case DomainStep.MAKE_DAEMON_TEMPLATE:
                template = daemon_template(domain, self._settings)
                await self._make(RESOURCE_CLAIM_TEMPLATES, template)
            case DomainStep.MAKE_DAEMON_SET:
                await self._make(DAEMON_SETS, daemon_set(domain, self._settings))
            case DomainStep.MAKE_TEMPLATE:
                template = workload_template(domain, several_channels=self._several_channels)
                await self._make(RESOURCE_CLAIM_TEMPLATES, template)
            case DomainStep.DELETE_TEMPLATE:
                name = domain.spec.channel.resource_claim_template.name
                await self._delete(RESOURCE_CLAIM_TEMPLATES, domain.metadata.namespace or "", name)
            case DomainStep.DELETE_DAEMON_SET:
                await self._delete(DAEMON_SETS, ours, daemon_object_name(uid))
            case DomainStep.DELETE_DAEMON_TEMPLATE:
                await self._delete(RESOURCE_CLAIM_TEMPLATES, ours, daemon_object_name(uid))

    async def _finalizers(self, domain: ComputeDomain, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": domain.metadata.resource_version, "finalizers": finalizers}
        try:
            await self._kube.merge_patch(
                COMPUTE_DOMAINS, domain.metadata.name, {"metadata": metadata}, namespace=domain.metadata.namespace
            )
        except NotFound:
            return

    async def _make(self, resource: Resource, obj: dict[str, object]) -> None:
        """The name is taken: by this driver, before the watch reported it, or by another owner, whose object is not
        changed."""
        metadata = obj["metadata"]
        assert isinstance(metadata, dict)
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["labels"][DOMAIN_LABEL]
        try:
            await self._kube.create(resource, obj)
        except AlreadyExists:
            if resource is DAEMON_SETS:
                return  # its name is the domain's UID, so no one else has it
            existing = await self._kube.get(resource, name, namespace)
            if (existing["metadata"].get("labels") or {}).get(DOMAIN_LABEL) == uid:
                return
            self._cluster.found_foreign((namespace, name))
            raise Conflict(
                "an object of this name has another owner", about=f"{resource.kind} {namespace}/{name}"
            ) from None
        _log.info("made", kind=resource.kind, namespace=namespace, name=name)

    async def _delete(self, resource: Resource, namespace: str, name: str) -> None:
        kept = self._cluster.templates if resource is RESOURCE_CLAIM_TEMPLATES else self._cluster.daemon_sets
        obj = kept.objects.get((namespace, name))
        if obj is None:
            return
        try:
            await self._kube.delete(resource, name, namespace=namespace, uid=obj.uid)
        except NotFound:
            return
        _log.info("deleted", kind=resource.kind, namespace=namespace, name=name)


def _named(domain: ComputeDomain) -> dict[str, str]:
    return {"domain": f"{domain.metadata.namespace}/{domain.metadata.name}"}
