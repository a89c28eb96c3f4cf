"""Reads a cluster for the checks and for a bundle. It writes nothing; some questions are creations in a dry run.

Used by the commands `doctor` and `bundle`. What cannot be read is noted with the missing permission, and the rest is
read. Only a server that does not answer at all ends it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

from dra_driver.api.core import Pod
from dra_driver.api.meta import RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.doctor.api_server import OF_THE_CONTROLLER, OF_THE_PLUGIN, OF_WHO_ASKS
from dra_driver.doctor.claims import plugin_events
from dra_driver.doctor.cluster import (
    AccessCheck,
    ClusterFacts,
    ClusterView,
    KubeletSeen,
    ReleaseSeen,
    ServerSeen,
    WebhookAnswer,
    permission,
)
from dra_driver.doctor.configuration import CALL_FAILED
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.doctor.kinds import (
    CONFIG_MAP_KIND,
    EVENT_KIND,
    LEASE_KIND,
    LISTED_KINDS,
    NAMESPACE_KIND,
    DecodedObjects,
    ObservedKind,
)
from dra_driver.doctor.publishing import lease_key
from dra_driver.errors import ClusterError, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.names import CONFIG_API_VERSION
from dra_driver.slices.features import ServerFeatures, kept_features, probe

_FORBIDDEN = (401, 403)
_COUNTERS_APART = 35
"""From Kubernetes 1.N on, counter sets have their own slices."""
_PROBE_DRIVER = "doctor.dra.gpu"
"""The driver of the slice that is created in a dry run: admission policies refuse the driver's real name."""
_MOST_METRICS_BYTES = 64 * 2**20
_GATE = re.compile(rb'kubernetes_feature_enabled\{name="(?P<name>\w+)"[^}]*\}\s+(?P<on>[01])')
_BUILD = re.compile(rb'gpu_dra_build_info\{[^}]*version="(?P<release>[^"]+)"[^}]*\}\s+1')
_REVIEWS = "/apis/authorization.k8s.io/v1"
_DENIED = "denied the request"
_AT_ONCE = 16
"""Requests through the API server's proxy."""


class Reader:
    """`take` gets every object that is kept. `waiting` and `answered` are for progress messages."""

    def __init__(
        self,
        kube: Kube,
        *,
        release: str,
        driver: str | None = None,
        take: Callable[[ObservedKind, JsonObject], None] = lambda kind, obj: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.objects = DecodedObjects()
        self.waiting: list[str] = []
        """Requests without an answer yet."""
        self.answered = 0
        self._kube = kube
        self._release = release
        self._driver = driver
        self._take = take
        self._now = now
        self._unread: dict[str, Unread] = {}
        self._event_uids: set[str] = set()

    async def read(self) -> tuple[ClusterView, ClusterFacts]:
        """Everything. Raises ClusterError if the server does not answer, or does not accept the user's credentials."""
        server = await self._server()
        started = self._now()
        features, gates, own, _ = await asyncio.gather(
            self._features(server.minor), self._gates(), self._own_access(), self._collections(server)
        )
        facts = ClusterFacts(time=started, release=self._release, server=server, driver_given=self._driver)
        first = self.objects.cluster(facts)
        accounts, webhook, kubelets, releases, _ = await asyncio.gather(
            self._account_access(first),
            self._webhook_answer(first),
            self.waited("kubelets", self._kubelets(first)),
            self.waited("releases", self._releases(first)),
            self._named_objects(first),
        )
        facts = replace(
            facts,
            time=self._now(),  # last, so that no new object seems to come from the future
            features=features,
            gates=gates,
            own_access=own,
            account_access=accounts,
            webhook_answer=webhook,
            kubelets=kubelets,
            releases=releases,
            unread_kinds=self._unread,
        )
        return self.objects.cluster(facts), facts

    async def _server(self) -> ServerSeen:
        version = await self.waited("the version", self._kube.raw("GET", "/version"))
        try:
            groups = await self.waited("the API groups", self._kube.raw("GET", "/apis"))
        except ClusterError:
            groups = {}
        served = {
            str(group["name"]): tuple(str(item["version"]) for item in group.get("versions") or ())
            for group in groups.get("groups") or ()
        }
        return ServerSeen(str(version.get("gitVersion", "")), served)

    async def waited[T](self, what: str, work: Awaitable[T]) -> T:
        """The result of `work`; until then, `waiting` has `what`."""
        self.waiting.append(what)
        try:
            return await work
        finally:
            self.waiting.remove(what)
            self.answered += 1

    # -- objects

    async def _collections(self, server: ServerSeen) -> None:
        """Only of kinds that are served: for others, a user without permissions gets a misleading 403."""
        served = [kind for kind in LISTED_KINDS if server.serves(kind.resource.group, kind.resource.version)]
        await asyncio.gather(*(self._collection(kind) for kind in served))

    async def _collection(
        self, kind: ObservedKind, namespace: str | None = None, field_selector: str | None = None
    ) -> None:
        async def read() -> None:
            pages = self._kube.pages(kind.resource, namespace=namespace, field_selector=field_selector)
            async with aclosing(pages):
                async for page in pages:
                    for obj in page.items:
                        self._keep(kind, obj)

        await self._noted(kind, "list", kind.resource.plural, read())

    async def _named(self, kind: ObservedKind, name: str, namespace: str | None) -> None:
        async def read() -> None:
            self._keep(kind, await self._kube.get(kind.resource, name, namespace))

        await self._noted(kind, "get", f"{kind.resource.kind} {name}", read())

    async def _noted(self, kind: ObservedKind, verb: str, what: str, work: Awaitable[None]) -> None:
        """If it fails, the kind is unread. If it does not exist, checks say what is missing."""
        try:
            await self.waited(what, work)
        except NotFound:
            return
        except ClusterError as error:
            unread = _unread(kind.resource.plural, error, verb, kind.resource)
            self._unread.setdefault(kind.field or kind.resource.plural, unread)

    def _keep(self, kind: ObservedKind, obj: JsonObject) -> None:
        trimmed = kind.keep(obj)
        if trimmed is None:
            return
        if kind is EVENT_KIND:
            # The two requests for Events overlap.
            uid = str(trimmed["metadata"].get("uid"))
            if uid in self._event_uids:
                return
            self._event_uids.add(uid)
        # Items of a list have no kind.
        typed = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **trimmed}
        self._take(kind, typed)
        self.objects.add(kind, typed)

    async def _named_objects(self, first: ClusterView) -> None:
        """Objects whose names or namespaces follow from others."""
        namespaces = {workload.metadata.namespace or "default" for workload in (*first.plugins, *first.controllers)}
        leases = {lease_key(controller) for controller in first.controllers}
        await asyncio.gather(
            *(self._named(NAMESPACE_KIND, name, None) for name in sorted(namespaces)),
            *(self._named(CONFIG_MAP_KIND, name, namespace) for namespace, name in first.policy_maps()),
            *(self._named(LEASE_KIND, name, namespace) for namespace, name in sorted(leases)),
            *(self._collection(EVENT_KIND, namespace) for namespace in sorted(namespaces)),
            self._collection(EVENT_KIND, None, f"reportingComponent={plugin_events(first.driver)}"),
        )

    # -- questions

    async def _features(self, minor: int) -> SeenKind[ServerFeatures]:
        """The same question as in `dra_driver.publish.observed`, under another driver name."""
        apart = minor >= _COUNTERS_APART
        slice_ = probe(_PROBE_DRIVER, None, counters_apart=apart)
        try:
            answer = await self.waited("a probe", self._kube.create(RESOURCE_SLICES, slice_, dry_run=True))
            return SeenKind((kept_features(answer, counters_apart=apart),))
        except ClusterError as error:
            what = "the slice fields that the API server keeps"
            return SeenKind((), _unread(what, error, "create", RESOURCE_SLICES))

    async def _gates(self) -> SeenKind[tuple[str, bool]]:
        gates: dict[str, bool] = {}
        try:
            lines = self._kube.lines("/metrics", most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                async for line in lines:
                    match = _GATE.match(line)
                    if match is not None:
                        gates[match["name"].decode()] = match["on"] == b"1"
        except ClusterError as error:
            return SeenKind((), _unread("feature gates", error, "get /metrics"))
        return SeenKind(tuple(sorted(gates.items())))

    async def _own_access(self) -> SeenKind[AccessCheck]:
        questions = [AccessCheck(need.verb, need.group, need.resource, False) for need in OF_WHO_ASKS]
        return await self._reviews("selfsubjectaccessreviews", questions)

    async def _account_access(self, first: ClusterView) -> SeenKind[AccessCheck]:
        accounts = [(plugin, OF_THE_PLUGIN) for plugin in first.plugins]
        accounts += [(controller, OF_THE_CONTROLLER) for controller in first.controllers]
        questions = []
        for workload, needs in accounts:
            for need in needs:
                if need.gate is None or need.gate in workload.feature_gates:
                    namespace, name = lease_key(workload) if need.lease else (None, None)
                    access = AccessCheck(need.verb, need.group, need.resource, False, workload.account, namespace, name)
                    questions.append(access)
        return await self._reviews("subjectaccessreviews", questions)

    async def _reviews(self, kind: str, questions: Sequence[AccessCheck]) -> SeenKind[AccessCheck]:
        try:
            answers = asyncio.gather(*(self._review(kind, question) for question in questions))
            return SeenKind(tuple(await self.waited(kind, answers)))
        except ClusterError as error:
            return SeenKind((), _unread("permissions", error, permission("create", "authorization.k8s.io", kind)))

    async def _review(self, kind: str, question: AccessCheck) -> AccessCheck:
        asked = ("verb", "group", "resource", "namespace", "name")
        attributes = {name: value for name in asked if (value := getattr(question, name)) is not None}
        body: JsonObject = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview" if question.who is None else "SubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        if question.who is not None:
            # RBAC also knows a service account by its groups.
            namespace = question.who.split(":")[2]
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
            body["spec"] |= {"user": question.who, "groups": groups}
        answer = await self._kube.raw("POST", f"{_REVIEWS}/{kind}", body)
        return replace(question, allowed=bool((answer.get("status") or {}).get("allowed")))

    async def _webhook_answer(self, first: ClusterView) -> SeenKind[WebhookAnswer]:
        """Asks nothing if this driver has no webhook."""
        if not first.webhooks.items:
            return SeenKind()
        try:
            claim = _invalid_claim(first.driver)
            await self.waited("the webhook", self._kube.create(RESOURCE_CLAIMS, claim, dry_run=True))
        except ClusterError as error:
            refused = isinstance(error, Rejected) and _DENIED in error.message
            if refused or CALL_FAILED in error.message:
                return SeenKind((WebhookAnswer(refused, error.message),))
            return SeenKind((), _unread("the webhook", error, "create", RESOURCE_CLAIMS))
        return SeenKind((WebhookAnswer(False, ""),))

    # -- through the API server's proxy

    async def _kubelets(self, cluster: ClusterView) -> SeenKind[KubeletSeen]:
        """Feature gates in the configuration of kubelets with GPUs. A kubelet that does not answer is left out."""

        async def configured(node: str) -> KubeletSeen:
            answer = await self._kube.raw("GET", f"/api/v1/nodes/{node}/proxy/configz")
            gates = ((answer or {}).get("kubeletconfig") or {}).get("featureGates") or {}
            return KubeletSeen(node, {str(gate): bool(on) for gate, on in gates.items()})

        names = [node.name for node in cluster.gpu_nodes]
        return await _asked(configured, names, "configurations of kubelets", "get nodes/proxy")

    async def _releases(self, cluster: ClusterView) -> SeenKind[ReleaseSeen]:
        """From the metrics of a pod, for each workload whose image has no release tag."""

        async def reported(source: tuple[Pod, str]) -> ReleaseSeen:
            pod, path = source
            lines = self._kube.lines(path, most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                async for line in lines:
                    match = _BUILD.match(line)
                    if match is not None:
                        return ReleaseSeen(pod.program or "", match["release"].decode())
            return ReleaseSeen(pod.program or "", "")

        sources: list[tuple[Pod, str]] = []
        for workload in (*cluster.plugins, *cluster.controllers):
            if workload.ours is not None and workload.ours.version is None:
                pods = [pod for pod in cluster.our_pods(workload.program or "") if pod.ready]
                own = [pod for pod in pods if pod.metadata.namespace == workload.metadata.namespace]
                sources += [(pod, path) for pod in own if (path := metrics_path(pod)) is not None][:1]
        return await _asked(reported, sources, "metrics of pods", "get pods/proxy")


async def _asked[Q, T](ask: Callable[[Q], Awaitable[T]], whom: Sequence[Q], what: str, permission: str) -> SeenKind[T]:
    """Asks the first alone: a user who may not ask one may ask none. Few users may use the proxy, and `get nodes/proxy`
    equals a shell on the nodes, so the checks must work without it."""
    results: list[T] = []
    failures: list[ClusterError] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def answer(question: Q) -> None:
        async with gate:
            try:
                results.append(await ask(question))
            except ClusterError as error:
                failures.append(error)

    for part in (whom[:1], whom[1:]):
        await asyncio.gather(*(answer(question) for question in part))
        if any(error.status in _FORBIDDEN for error in failures):
            return SeenKind(tuple(results), Unread(what, failures[0].message, permission))
    if failures and not results:
        return SeenKind((), Unread(what, failures[0].message))
    return SeenKind(tuple(results))


def metrics_path(pod: Pod) -> str | None:
    """Of the metrics of our program in the pod, through the proxy; None if it serves none."""
    address = pod.spec.ours.setting("--http-endpoint") if pod.spec.ours is not None else None
    port = (address or "").rpartition(":")[2]
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{port}/proxy/metrics" if port else None


def _unread(what: str, error: ClusterError, needed: str, resource: Resource | None = None) -> Unread:
    """`needed` is a permission, or its verb for `resource`."""
    if resource is not None:
        needed = permission(needed, resource.group, resource.plural)
    return Unread(what, error.message, needed if error.status in _FORBIDDEN else None)


def _invalid_claim(driver: str) -> JsonObject:
    """A claim that the API server accepts and our webhook must refuse."""
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
