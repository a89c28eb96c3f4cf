"""Reads a cluster for the checks and for a bundle; read only, but for creations in a dry run that tell what is kept.

Entered by the commands `doctor` and `bundle`. What may not be read, or cannot, is noted with the permission that would
be needed, and the rest goes on; only a server that does not answer at all ends it.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from dra_driver.api.meta import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.doctor import proxied
from dra_driver.doctor.access import OF_THE_CONTROLLER, OF_THE_PLUGIN, OF_WHO_ASKS, Need
from dra_driver.doctor.claims import plugin_events
from dra_driver.doctor.cluster import AccessCheck, ClusterView, ServerSeen, WebhookAnswer, permission
from dra_driver.doctor.configuration import CALL_FAILED
from dra_driver.doctor.facts import ClusterFacts, DecodedObjects
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.doctor.keeping import (
    CONFIG_MAP_SOURCE,
    EVENT_SOURCE,
    LEASE_SOURCE,
    NAMESPACE_SOURCE,
    SOURCES,
    ObservedKind,
)
from dra_driver.doctor.publishing import lease_key
from dra_driver.errors import ClusterError, NotFound, Rejected
from dra_driver.kube.client import Listing
from dra_driver.names import CONFIG_API_VERSION
from dra_driver.slices.features import ServerFeatures, kept_features, probe

_FORBIDDEN = (401, 403)
_COUNTERS_APART = 35
"""From Kubernetes 1.N on counter sets have slices of their own."""

_PROBE_DRIVER = "doctor.dra.gpu"
"""Of the slice that is created in a dry run: under our own name, admission policies let nobody but us."""

_MOST_METRICS_BYTES = 64 * 2**20
_GATE = re.compile(rb'kubernetes_feature_enabled\{name="(?P<name>\w+)"[^}]*\}\s+(?P<on>[01])')
_REVIEWS = "/apis/authorization.k8s.io/v1"
_DENIED = "denied the request"


class ClusterReader(Protocol):
    """What is needed of `dra_driver.kube.client.Kube`."""

    def pages(
        self, resource: Resource, *, namespace: str | None = None, field_selector: str | None = None
    ) -> AsyncGenerator[Listing, None]: ...

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject: ...

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False) -> JsonObject: ...

    async def raw(self, method: str, path: str, body: JsonObject | None = None) -> Any: ...

    def lines(self, path: str, *, most_bytes: int, **query: str) -> AsyncGenerator[bytes, None]: ...


type Took = Callable[[ObservedKind, JsonObject], None]
"""Gets every object that is kept, as it comes."""


class Reader:
    """One reading. `took` sees all objects; `reading` and `done` tell what is under way, for whoever waits."""

    def __init__(
        self,
        kube: ClusterReader,
        *,
        release: str,
        driver: str | None = None,
        took: Took = lambda source, obj: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.objects = DecodedObjects()
        self.waiting: list[str] = []
        """What was asked for and has not been answered."""
        self.answered = 0
        self._kube = kube
        self._release = release
        self._driver = driver
        self._took = took
        self._now = now
        self._unread: dict[str, Unread] = {}
        self._event_uids: set[str] = set()

    async def read(self) -> tuple[ClusterView, ClusterFacts]:
        """Everything. Raises ClusterError when the server does not answer, or knows nothing of us."""
        server = await self._server()
        started = self._now()
        features, gates, own, _ = await asyncio.gather(
            self._features(server.minor), self._gates(), self._own_access(), self._collections(server)
        )
        first = self.objects.cluster(ClusterFacts(time=started, release=self._release, server=server))
        accounts, webhook, kubelets, releases, _ = await asyncio.gather(
            self._account_access(first),
            self._webhook_answer(first),
            self.tell("kubelets", proxied.kubelets(self._kube, first)),
            self.tell("releases", proxied.releases(self._kube, first)),
            self._what_follows(first),
        )
        facts = ClusterFacts(
            # Last: what is fresh must not look as if it came from the future.
            time=self._now(),
            release=self._release,
            server=server,
            driver_given=self._driver,
            features=features,
            gates=gates,
            own_access=own,
            account_access=accounts,
            webhook_answer=webhook,
            kubelets=kubelets,
            releases=releases,
            unread=self._unread,
        )
        return self.objects.cluster(facts), facts

    async def _server(self) -> ServerSeen:
        version = await self.tell("the version", self._kube.raw("GET", "/version"))
        try:
            groups = await self.tell("the API groups", self._kube.raw("GET", "/apis"))
        except ClusterError:
            return ServerSeen(str(version.get("gitVersion", "")))
        served = {
            str(group["name"]): tuple(str(item["version"]) for item in group.get("versions") or ())
            for group in groups.get("groups") or ()
        }
        return ServerSeen(str(version.get("gitVersion", "")), served)

    async def tell[T](self, what: str, work: Awaitable[T]) -> T:
        """The result of `work`, which is among what is waited for until then."""
        self.waiting.append(what)
        try:
            return await work
        finally:
            self.waiting.remove(what)
            self.answered += 1

    # -- objects

    async def _collections(self, server: ServerSeen) -> None:
        """Whoever may not list a kind is told so also when there is no such kind, so that is not asked for."""
        there = [source for source in SOURCES if server.serves(source.resource.group, source.resource.version)]
        await asyncio.gather(*(self._collection(source) for source in there))

    async def _collection(
        self, source: ObservedKind, namespace: str | None = None, field_selector: str | None = None
    ) -> None:
        await self.tell(source.resource.plural, self._pages(source, namespace, field_selector))

    async def _pages(self, source: ObservedKind, namespace: str | None, field_selector: str | None) -> None:
        try:
            pages = self._kube.pages(source.resource, namespace=namespace, field_selector=field_selector)
            async with aclosing(pages):
                async for page in pages:
                    for obj in page.items:
                        self._take(source, obj)
        except NotFound:
            return  # not served: checks say what is missing
        except ClusterError as error:
            self._note(source, "list", error)

    def _take(self, source: ObservedKind, obj: JsonObject) -> None:
        kept = source.keep(obj)
        if kept is None or not self._is_new(source, kept):
            return
        # Items of a list do not say what they are.
        typed = {"apiVersion": source.resource.api_version, "kind": source.resource.kind, **kept}
        self._took(source, typed)
        self.objects.add(source, typed)

    def _is_new(self, source: ObservedKind, obj: JsonObject) -> bool:
        """Events are asked for in more than one way."""
        if source is not EVENT_SOURCE:
            return True
        uid = str(obj["metadata"].get("uid"))
        new = uid not in self._event_uids
        self._event_uids.add(uid)
        return new

    def _note(self, source: ObservedKind, verb: str, error: ClusterError) -> None:
        resource = source.resource
        needed = permission(verb, resource.group, resource.plural) if error.status in _FORBIDDEN else None
        self._unread.setdefault(source.field or resource.plural, Unread(resource.plural, error.message, needed))

    async def _what_follows(self, first: ClusterView) -> None:
        """What has names that are only known now."""
        places = {plugin.metadata.namespace or "default" for plugin in (*first.plugins, *first.controllers)}
        driver = self._driver or first.driver
        leases = sorted({lease_key(controller) for controller in first.controllers})
        told = f"reportingComponent={plugin_events(driver)}"
        await asyncio.gather(
            *(self._one(NAMESPACE_SOURCE, NAMESPACES, name, None) for name in sorted(places)),
            *(self._one(CONFIG_MAP_SOURCE, CONFIG_MAPS, name, namespace) for namespace, name in first.policy_maps()),
            *(self._one(LEASE_SOURCE, LEASES, name, namespace) for namespace, name in leases),
            *(self._collection(EVENT_SOURCE, namespace) for namespace in sorted(places)),
            self._collection(EVENT_SOURCE, None, told),
        )

    async def _one(self, source: ObservedKind, resource: Resource, name: str, namespace: str | None) -> None:
        try:
            self._take(source, await self.tell(f"{resource.kind} {name}", self._kube.get(resource, name, namespace)))
        except NotFound:
            return
        except ClusterError as error:
            self._note(source, "get", error)

    # -- questions

    async def _features(self, minor: int) -> SeenKind[ServerFeatures]:
        """As `dra_driver.publish.observed` asks, under a name of our own."""
        apart = minor >= _COUNTERS_APART
        sent = probe(_PROBE_DRIVER, None, counters_apart=apart)
        try:
            answer = await self.tell("a probe", self._kube.create(RESOURCE_SLICES, sent, dry_run=True))
            return SeenKind((kept_features(answer, counters_apart=apart),))
        except ClusterError as error:
            return SeenKind((), _unread("the slice fields that the API server keeps", "create", RESOURCE_SLICES, error))

    async def _gates(self) -> SeenKind[tuple[str, bool]]:
        found: dict[str, bool] = {}
        try:
            lines = self._kube.lines("/metrics", most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                async for line in lines:
                    match = _GATE.match(line)
                    if match is not None:
                        found[match["name"].decode()] = match["on"] == b"1"
        except ClusterError as error:
            needed = "get /metrics" if error.status in _FORBIDDEN else None
            return SeenKind((), Unread("feature gates", error.message, needed))
        return SeenKind(tuple(sorted(found.items())))

    async def _own_access(self) -> SeenKind[AccessCheck]:
        return await self._reviews("selfsubjectaccessreviews", [_Question(need) for need in OF_WHO_ASKS])

    async def _account_access(self, first: ClusterView) -> SeenKind[AccessCheck]:
        accounts = [(plugin, OF_THE_PLUGIN) for plugin in first.plugins]
        accounts += [(controller, OF_THE_CONTROLLER) for controller in first.controllers]
        asked = [
            _Question(need, workload.account, *(lease_key(workload) if need.lease else (None, None)))
            for workload, needs in accounts
            for need in needs
            if need.gate is None or need.gate in workload.feature_gates
        ]
        return await self._reviews("subjectaccessreviews", asked)

    async def _reviews(self, kind: str, asked: Sequence["_Question"]) -> SeenKind[AccessCheck]:
        try:
            accesses = await self.tell(kind, asyncio.gather(*(self._review(kind, question) for question in asked)))
        except ClusterError as error:
            needed = permission("create", "authorization.k8s.io", kind) if error.status in _FORBIDDEN else None
            return SeenKind((), Unread("permissions", error.message, needed))
        return SeenKind(tuple(accesses))

    async def _review(self, kind: str, asked: "_Question") -> AccessCheck:
        need, who = asked.need, asked.who
        attributes = {"verb": need.verb, "group": need.group, "resource": need.resource}
        attributes |= {"namespace": asked.namespace} if asked.namespace is not None else {}
        attributes |= {"name": asked.name} if asked.name is not None else {}
        body: JsonObject = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview" if who is None else "SubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        if who is not None:
            # An account is known to RBAC by its groups as well.
            body["spec"] |= {"user": who, "groups": _groups(who)}
        answer = await self._kube.raw("POST", f"{_REVIEWS}/{kind}", body)
        allowed = bool((answer.get("status") or {}).get("allowed"))
        return AccessCheck(need.verb, need.group, need.resource, allowed, who, asked.namespace, asked.name)

    async def _webhook_answer(self, first: ClusterView) -> SeenKind[WebhookAnswer]:
        """Nothing is asked where there is no webhook of ours."""
        if not first.webhooks.items:
            return SeenKind()
        driver = self._driver or first.driver
        try:
            await self.tell("the webhook", self._kube.create(RESOURCE_CLAIMS, _senseless(driver), dry_run=True))
        except ClusterError as error:
            if isinstance(error, Rejected) and _DENIED in error.message:
                return SeenKind((WebhookAnswer(True, error.message),))
            if CALL_FAILED in error.message:
                return SeenKind((WebhookAnswer(False, error.message),))
            return SeenKind((), _unread("the webhook", "create", RESOURCE_CLAIMS, error))
        return SeenKind((WebhookAnswer(False, ""),))


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether somebody (None: who asks) may do something; with `name`, to one object."""

    need: Need
    who: str | None = None
    namespace: str | None = None
    name: str | None = None


def _unread(what: str, verb: str, resource: Resource, error: ClusterError) -> Unread:
    needed = permission(verb, resource.group, resource.plural) if error.status in _FORBIDDEN else None
    return Unread(what, error.message, needed)


def _senseless(driver: str) -> JsonObject:
    """A claim that the API server takes, and that no webhook of ours may take."""
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "doctorAsksWhetherThisIsRefused": True}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"generateName": "gpu-dra-doctor-", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}],
                "config": [{"opaque": {"driver": driver, "parameters": parameters}}],
            }
        },
    }


def _groups(account: str) -> list[str]:
    namespace = account.split(":")[2]
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
