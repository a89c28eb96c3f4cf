"""Observes, decides and writes for each domain that changed, and sweeps leftovers. A status is written at most every
quarter of a second, and a large one less often, because every daemon receives all of it. Therefore a domain whose nodes
start together costs a few writes rather than one per node.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric

from controller.computedomains.cluster import FOREIGN_AGAIN_S, DomainsInCluster, KeptNode, KeptObject
from dra_driver.api.computedomain import ComputeDomain, ComputeDomainStatus
from dra_driver.api.meta import COMPUTE_DOMAINS, DAEMON_SETS, NODES, RESOURCE_CLAIM_TEMPLATES, Resource, wire_time
from dra_driver.domains.domain_plan import Action, DomainStep, LabelNode, decide
from dra_driver.domains.names import DOMAIN_LABEL, FINALIZER, DomainReason, daemon_object_name
from dra_driver.domains.objects import DaemonSettings, daemon_set, daemon_template, made_as, workload_template
from dra_driver.domains.observed import ObjectState
from dra_driver.domains.status import READY
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, InvalidInput, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.events import EventRecorder, News, Regarding
from dra_driver.kube.watch import Key, Watches
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.names import CONFIG_API_VERSION
from dra_driver.runtime.tracing import NAMESPACE, OFF, Tracer

_log = structlog.get_logger(__name__)

_SOMEBODY_HAS_TO_ACT = frozenset(
    {
        DomainReason.TEMPLATE_NAME_TAKEN,
        DomainReason.CLIQUE_FULL,
        DomainReason.FABRIC_INCOMPLETE,
        DomainReason.NODE_GONE,
    }
)

_GATHER_S = 0.05
"""Changes within this time are handled together."""
_BETWEEN_STATUSES_S = 0.25
_BETWEEN_STATUSES_PER_NODE_S = 0.004
"""Added for each of its nodes: 0.3 s for a rack of 18, 1.3 s for 256 nodes."""
_SWEEP_EVERY_S = 600.0
_WORKERS = 8


class DomainKeeper:
    """All domains of the cluster. It follows them with the watches, and writes only while `run` runs."""

    def __init__(
        self,
        watches: Watches,
        settings: DaemonSettings,
        *,
        several_channels: Callable[[], Awaitable[bool]] | None = None,
        host_imex: bool = False,
        events: EventRecorder | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        self._kube = watches.kube
        self._settings = settings
        self._host_imex = host_imex
        self._events = events
        self._tracer = tracer
        self._queue = WorkQueue()
        self._cluster = DomainsInCluster(
            watches,
            namespace=settings.namespace,
            made_as=lambda domain: made_as(domain, settings),
            changed=self._changed,
            look_after=self._queue.add_after,
        )
        self._actions = Actions(watches.kube, self._cluster, settings, several_channels=several_channels)
        self._leads = False
        self._rests_until: dict[str, float] = {}
        """By UID, on the loop's clock: the earliest time of the next status write."""

    async def run(self) -> None:
        """Writes until cancelled; the watches must run."""
        for mirror in self._cluster.mirrors:
            await mirror.synced.wait()
        self._leads = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for uid in self._cluster.uids():
                    self._queue.add(uid)
                tasks.create_task(self._sweep_again_and_again())
                await self._queue.work(self._handle, _WORKERS)
        finally:
            self._leads = False

    def described(self) -> Iterator[str]:
        """Watch errors and a line for each domain, for the debug page; empty while another replica leads."""
        if self._leads:
            yield from (f"not watched: {failure}" for failure in self._cluster.failures)
            for (namespace, name), domain in sorted(self._cluster.domains.objects.items()):
                if isinstance(domain, ComputeDomain):
                    yield f"{namespace}/{name}: {domain.status.status} {domain.status.ready_nodes}"
                else:
                    yield f"{namespace}/{name}: {domain}"

    def statuses(self) -> Mapping[Key, ComputeDomainStatus]:
        """All domains by namespace and name, for metrics; empty while another replica leads."""
        objects = self._cluster.domains.objects if self._leads else {}
        return {key: obj.status for key, obj in objects.items() if isinstance(obj, ComputeDomain)}

    def _changed(self, uid: str) -> None:
        rest_s = self._rests_until.get(uid, 0.0) - asyncio.get_running_loop().time()
        self._queue.add_after(uid, max(_GATHER_S, rest_s))

    async def _handle(self, uid: str) -> None:
        try:
            await self._reconcile(uid)
        except (Conflict, NotFound) as error:
            # The watch will report the change; if it does not, another owner has the object.
            _log.info("domain changed meanwhile", uid=uid, error=str(error))
            self._queue.retry(uid)
        except ClusterError as error:
            retry_s = self._queue.retry(uid, error.retry_after_s or 0.0)
            _log.warning("cannot update the ComputeDomain", uid=uid, error=str(error), retry_s=round(retry_s, 1))
        except InvalidInput as error:
            _log.error("the ComputeDomain is invalid and stays unchanged", uid=uid, error=str(error))
        else:
            self._queue.succeeded(uid)

    async def _reconcile(self, uid: str) -> None:
        observed = self._cluster.seen(uid)
        if observed is None:
            self._rests_until.pop(uid, None)
            return
        metadata = observed.domain.metadata
        with self._tracer.span(
            "reconcile domain", {NAMESPACE: metadata.namespace or "", "gpu_dra.domain": metadata.name}
        ):
            now = wire_time(datetime.now(UTC))
            decision = decide(observed, now, max_nodes=self._settings.max_nodes, host_imex=self._host_imex)
            await self._actions.run(observed.domain, decision.actions)
            if decision.status is not None:
                await self._actions.write_status(observed.domain, decision.status)
                pause_s = _BETWEEN_STATUSES_S + _BETWEEN_STATUSES_PER_NODE_S * len(decision.status.nodes)
                self._rests_until[uid] = asyncio.get_running_loop().time() + pause_s
                self._tell(observed.domain, decision.status)
        if observed.template is ObjectState.FOREIGN:
            self._queue.add_after(uid, FOREIGN_AGAIN_S)

    def _tell(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        """An Event when the domain becomes ready, and when the reason why it is not ready changes."""
        if self._events is None:
            return
        before = {condition.type: condition.reason for condition in domain.status.conditions}
        ready = next(condition for condition in status.conditions if condition.type == READY)
        if before.get(READY) == ready.reason:
            return
        metadata = domain.metadata
        regarding = Regarding(CONFIG_API_VERSION, "ComputeDomain", metadata.name, metadata.uid, metadata.namespace)
        note = ready.message or ready.reason
        kind: Literal["Normal", "Warning"] = "Warning" if ready.reason in _SOMEBODY_HAS_TO_ACT else "Normal"
        self._events.tell(News(regarding, kind, f"Domain{ready.reason}", "Reconciling", note))

    async def _sweep_again_and_again(self) -> None:
        while True:
            try:
                await self._sweep()
            except ClusterError as error:
                _log.warning("cannot remove leftovers of deleted ComputeDomains yet", error=str(error))
            await asyncio.sleep(_SWEEP_EVERY_S)

    async def _sweep(self) -> None:
        """Removes objects of domains that do not exist. Reads the domains from the API server again, because the copy
        may be stale."""
        orphans = self._cluster.orphans()
        if not orphans:
            return
        living = {item["metadata"]["uid"] for item in (await self._kube.list(COMPUTE_DOMAINS)).items}
        for plural, key, orphan in orphans:
            if orphan.label not in living:
                try:
                    await self._remove(plural, key, orphan)
                except (Conflict, NotFound):
                    continue
                except Rejected as error:  # of the others perhaps not
                    _log.warning("cannot remove a leftover of a deleted ComputeDomain", error=str(error))

    async def _remove(self, plural: str, key: Key, orphan: KeptNode | KeptObject) -> None:
        namespace, name = key
        _log.info("removing a leftover of a deleted ComputeDomain", kind=plural, namespace=namespace, name=name)
        if isinstance(orphan, KeptNode):
            metadata = {"resourceVersion": orphan.resource_version, "labels": {DOMAIN_LABEL: None}}
            await self._kube.merge_patch(NODES, name, {"metadata": metadata})
            return
        resource = DAEMON_SETS if plural == "daemonsets" else RESOURCE_CLAIM_TEMPLATES
        await self._kube.delete(resource, name, namespace=namespace, uid=orphan.uid)


# -- actions

_NODES_AT_ONCE = 16


class Actions:
    """Writes for domains. Every method raises ClusterError; Conflict if an object has changed since it was seen."""

    def __init__(
        self,
        kube: Kube,
        cluster: DomainsInCluster,
        settings: DaemonSettings,
        *,
        several_channels: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._settings = settings
        self._several_channels = several_channels
        self._labelling = asyncio.Semaphore(_NODES_AT_ONCE)

    async def write_status(self, domain: ComputeDomain, status: ComputeDomainStatus) -> None:
        """A merge patch replaces whole lists; the resourceVersion ensures that they have not changed."""
        metadata = domain.metadata
        body = {"metadata": {"resourceVersion": metadata.resource_version}, "status": status.to_wire()}
        await self._kube.merge_patch(
            COMPUTE_DOMAINS, metadata.name, body, namespace=metadata.namespace, subresource="status"
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
        _log.info("node joins" if action.joins else "node leaves", node=action.node, domain=str(domain))

    async def _do(self, domain: ComputeDomain, action: Action) -> None:
        uid, ours = domain.metadata.uid, self._settings.namespace
        match action:
            case DomainStep.ADD_FINALIZER:
                await self._finalizers(domain, [*domain.metadata.finalizers, FINALIZER])
            case DomainStep.REMOVE_FINALIZER:
                await self._finalizers(domain, [name for name in domain.metadata.finalizers if name != FINALIZER])
                _log.info("ComputeDomain removed", domain=str(domain))
            case DomainStep.MAKE_DAEMON_TEMPLATE:
                await self._make(RESOURCE_CLAIM_TEMPLATES, daemon_template(domain, self._settings))
            case DomainStep.MAKE_DAEMON_SET:
                await self._make(DAEMON_SETS, daemon_set(domain, self._settings))
            case DomainStep.MAKE_TEMPLATE:
                several = self._several_channels is not None and await self._several_channels()
                await self._make(RESOURCE_CLAIM_TEMPLATES, workload_template(domain, several_channels=several))
            case DomainStep.DELETE_TEMPLATE:
                name = domain.spec.channel.resource_claim_template.name
                await self._delete(RESOURCE_CLAIM_TEMPLATES, domain.metadata.namespace or "", name)
            case DomainStep.DELETE_DAEMON_SET:
                await self._delete(DAEMON_SETS, ours, daemon_object_name(uid))
            case DomainStep.DELETE_DAEMON_TEMPLATE:
                await self._delete(RESOURCE_CLAIM_TEMPLATES, ours, daemon_object_name(uid))

    async def _finalizers(self, domain: ComputeDomain, finalizers: list[str]) -> None:
        metadata = {"resourceVersion": domain.metadata.resource_version, "finalizers": finalizers}
        with suppress(NotFound):
            await self._kube.merge_patch(
                COMPUTE_DOMAINS, domain.metadata.name, {"metadata": metadata}, namespace=domain.metadata.namespace
            )

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
        cached = self._cluster.templates if resource is RESOURCE_CLAIM_TEMPLATES else self._cluster.daemon_sets
        obj = cached.objects.get((namespace, name))
        if obj is None:
            return
        try:
            await self._kube.delete(resource, name, namespace=namespace, uid=obj.uid)
        except NotFound:
            return
        _log.info("deleted", kind=resource.kind, namespace=namespace, name=name)


# -- metrics

_STATES: tuple[Literal["Ready", "NotReady"], ...] = ("Ready", "NotReady")


class DomainCollector:
    """Reads the statuses, by namespace and name, at each scrape; empty if another replica leads."""

    def __init__(self, statuses: Callable[[], Mapping[tuple[str, str], ComputeDomainStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        info = GaugeMetricFamily("nvidia_dra_compute_domain_info", "ComputeDomains by status.", labels=["status"])
        counts = Counter(status.status for status in statuses.values())
        for state in _STATES:
            info.add_metric([state], counts[state])
        yield info
        nodes = GaugeMetricFamily(
            "gpu_dra_compute_domain_nodes", "Nodes of ComputeDomains.", labels=["namespace", "domain", "status"]
        )
        reasons = GaugeMetricFamily(
            "gpu_dra_compute_domain_reason",
            "1 for the reason why a ComputeDomain is ready or not.",
            labels=["namespace", "domain", "reason"],
        )
        for (namespace, name), status in sorted(statuses.items()):
            of_nodes = Counter(node.status for node in status.nodes)
            for state in _STATES:
                nodes.add_metric([namespace, name, state], of_nodes[state])
            for condition in status.conditions:
                if condition.type == READY:
                    reasons.add_metric([namespace, name, condition.reason], 1)
        yield nodes
        yield reasons
