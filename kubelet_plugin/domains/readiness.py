"""Waits until a ComputeDomain is ready on this node, or says what is missing.

Asked by the preparation of a channel, outside any lock: the domain is looked for in the claim's own namespace, so that
nobody gets into another namespace's domain, and then followed by one watch until the node's entry says Ready.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Protocol

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import COMPUTE_DOMAINS, Resource
from dra_driver.domains.status import READY
from dra_driver.errors import DomainNotReady, Gone, InvalidInput, Unreachable
from dra_driver.kube.client import Listing, WatchEvent
from dra_driver.names import ClaimRef

PATIENCE_S = 30.0
"""kubelet's deadline for a call is 45 s; its next attempt comes about 90 s later."""

_PAUSE_S = 0.5


class DomainApi(Protocol):
    """What is needed of `dra_driver.kube.client.Kube`."""

    async def list(
        self, resource: Resource, *, namespace: str | None = None, field_selector: str | None = None
    ) -> Listing: ...

    def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        field_selector: str | None = None,
        resource_version: str,
    ) -> AsyncGenerator[WatchEvent, None]: ...


class DomainReader:
    """Of one node. `patience_s` is how long a channel may wait."""

    def __init__(self, api: DomainApi, node_name: str, *, patience_s: float = PATIENCE_S) -> None:
        self._api = api
        self._node = node_name
        self._patience_s = patience_s

    async def find(self, uid: str, claim: ClaimRef, namespace: str | None) -> ComputeDomain:
        """The domain, whatever its state; None for `namespace` looks in all. Raises InvalidInput when there is none."""
        domain, _ = await self._look(uid, claim, namespace)
        return domain

    async def ready(self, uid: str, claim: ClaimRef) -> ComputeDomain:
        """The domain of the claim's namespace, once it is ready on this node.

        Raises DomainNotReady that says what is missing when the patience is over, InvalidInput when there is no such
        domain or it is being deleted, ClusterError when the API server cannot be asked.
        """
        state = "its ComputeDomain has not been read yet"
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                while True:
                    domain, version = await self._look(uid, claim, claim.namespace)
                    async for seen in self._states(domain, version):
                        missing = self.missing(seen, claim)
                        if missing is None:
                            return seen
                        state = missing
                    await asyncio.sleep(_PAUSE_S)
        raise DomainNotReady(f"{state}; kubelet tries again", about=str(claim))

    def missing(self, domain: ComputeDomain, claim: ClaimRef) -> str | None:
        """What keeps this node's containers of the domain from starting; None when nothing does."""
        metadata, status = domain.metadata, domain.status
        name = f"ComputeDomain {metadata.namespace}/{metadata.name}"
        if metadata.deletion_timestamp is not None:
            raise InvalidInput(f"{name} is being deleted; delete the pod, too", about=str(claim))
        entry = next((node for node in status.nodes if node.name == self._node), None)
        ready = next((one for one in status.conditions if one.type == READY), None)
        why = ready.message or ready.reason if ready is not None else "the controller has not looked at it yet"
        if entry is None:
            return f"node {self._node} is not in {name} yet: {why}"
        if entry.status != "Ready":
            return f"{name} is not ready on node {self._node}: {entry.message or why}"
        if domain.spec.num_nodes > 0 and status.status != "Ready":
            return f"{name} waits for {domain.spec.num_nodes} nodes: {why}"
        return None

    async def _look(self, uid: str, claim: ClaimRef, namespace: str | None) -> tuple[ComputeDomain, str]:
        listing = await self._api.list(COMPUTE_DOMAINS, namespace=namespace)
        for item in listing.items:
            if item["metadata"]["uid"] == uid:
                return ComputeDomain.of(item), listing.resource_version
        where = f"in namespace {namespace}" if namespace is not None else "in the cluster"
        raise InvalidInput(
            f"there is no ComputeDomain with UID {uid} {where}; a claim for one is made from the template that the"
            " domain names, in its own namespace",
            about=str(claim),
        )

    async def _states(self, domain: ComputeDomain, version: str) -> AsyncGenerator[ComputeDomain, None]:
        """The domain as it is, and after each change until the watch ends."""
        yield domain
        metadata = domain.metadata
        events = self._api.watch(
            COMPUTE_DOMAINS,
            namespace=metadata.namespace,
            field_selector=f"metadata.name={metadata.name}",
            resource_version=version,
        )
        with suppress(Gone, Unreachable):
            async with aclosing(events):
                async for event in events:
                    if event.type == "DELETED":
                        return
                    if event.type != "BOOKMARK":
                        yield ComputeDomain.of(event.object)
