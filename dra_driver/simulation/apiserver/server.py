"""The simulated API server: HTTP in front of `ObjectService` and `lists`, with failures on demand and records.

Plain HTTP, no authentication; everything runs in the event loop that started it. The store belongs to the object, so
stopping and starting again is an API server that was away.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from aiohttp import web

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.status import ApiError, path_not_found
from dra_driver.cel.functions import Server
from dra_driver.kubernetes import CURRENT, SEEN, FeatureGates, minor_of
from dra_driver.simulation.apiserver import crds, discovery, protobuf
from dra_driver.simulation.apiserver.containers import NodeContainers
from dra_driver.simulation.apiserver.core_rules import core_rules
from dra_driver.simulation.apiserver.dra_rules import dra_rules, selector_problem
from dra_driver.simulation.apiserver.garbage import GarbageCollector
from dra_driver.simulation.apiserver.handlers import Handlers, answer_review, as_object, read_body
from dra_driver.simulation.apiserver.lists import WatchSettings
from dra_driver.simulation.apiserver.objects import ObjectService
from dra_driver.simulation.apiserver.requests import RequestTarget, resolve
from dra_driver.simulation.apiserver.resource_types import TypeRegistry
from dra_driver.simulation.apiserver.rules import Rules
from dra_driver.simulation.apiserver.store import Store, encode
from dra_driver.simulation.apiserver.workload_rules import workload_rules


@dataclass(frozen=True, slots=True)
class Write:
    """One write request that reached the server. `verb` is Kubernetes' word (create, update, patch, delete)."""

    method: str
    path: str
    user_agent: str
    verb: str
    resource: str
    """Plural, with `/subresource` when one was addressed."""
    status: int


@dataclass(frozen=True, slots=True)
class Access:
    """What a client did to a type: what RBAC would have had to allow. `verb` is one of RBAC's."""

    user_agent: str
    verb: str
    group: str
    resource: str
    """Plural, with `/subresource` when one was addressed."""
    namespace: str | None
    """None for types without namespaces, and for all namespaces at once."""
    name: str | None
    """None where the request named no object: for all of them at once, and for one that is created."""


@dataclass
class Fault:
    """The next `times` requests that match are answered with `status` instead of being handled."""

    method: str
    path: re.Pattern[str]
    status: int
    times: int
    message: str
    retry_after_s: int | None

    def error(self) -> ApiError:
        details = {} if self.retry_after_s is None else {"retryAfterSeconds": self.retry_after_s}
        return ApiError(self.status, self.message or "injected failure", details=details)


DEFAULT_VERSION = SEEN[CURRENT]
_SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_ACCESSES_KEPT = 20_000
_ONE_NAME = re.compile(r"metadata\.name==?([^,=]+)")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def _now() -> datetime:
    return datetime.now(UTC)


class SimulatedApiServer:
    """A Kubernetes API server in this process.

    `version` decides what is served and which feature gates are on by default; `feature_gates` overrides gates by
    name; `history_size` is how many changes watches may look back; `now` is the wall clock.
    """

    def __init__(
        self,
        *,
        version: str = DEFAULT_VERSION,
        feature_gates: dict[str, bool] | None = None,
        history_size: int = 20_000,
        watch: WatchSettings | None = None,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self.version = version
        minor = minor_of(version)
        self.registry = TypeRegistry(minor)
        self.store = Store(history_size=history_size)
        gates = FeatureGates(minor, feature_gates)
        definitions = {crds.KEY: crds.DefinitionRules()}
        cel = Server(
            minor, gates.enabled("DRAConsumableCapacity"), gates.enabled("DRAListTypeAttributes"), stored=False
        )
        judged = partial(selector_problem, server=cel)
        rules = Rules({**core_rules(), **workload_rules(), **dra_rules(judged), **definitions}, crds.CustomRules())
        self.objects = ObjectService(self.store, self.registry, rules, gates, minor, now)
        self.writes: list[Write] = []
        """Every write request since the start (or since a test cleared it), refused ones included."""
        self.url = ""
        self.accesses: set[Access] = set()
        """What was done to which objects by whom, reads included: the first so many that differ, for they are kept."""
        self._faults: list[Fault] = []
        """Open faults, oldest first."""
        self._handlers = Handlers(self.objects, watch or WatchSettings())
        self._runner: web.AppRunner | None = None
        self._bound: tuple[str, int] | None = None
        self._collector = GarbageCollector(self.objects)
        self._handlers.bootstrap(_SYSTEM_NAMESPACES)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listens, and answers the URL. After a `stop`, the same address again unless another one is given."""
        if port == 0 and self._bound is not None:
            host, port = self._bound
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, reuse_address=True, backlog=4096)
        await site.start()
        self._bound = self._runner.addresses[0][:2]
        self.url = f"http://{self._bound[0]}:{self._bound[1]}"
        self._collector.wake()
        return self.url

    async def stop(self) -> None:
        """Ends all watches and stops listening; the objects stay."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        self.store.close_subscriptions()
        await runner.cleanup()

    def serve(self, resources: Iterable[Resource], storage: str | None = None) -> None:
        """Serves types of which only the names are known, each until a CustomResourceDefinition defines it. `storage`
        is the version in which they are stored, where these are other versions of types that are served."""
        for resource in resources:
            self.registry.add(crds.open_type(resource, storage))

    def answer_for(self, nodes: Mapping[str, NodeContainers]) -> None:
        """Passes requests about containers on to the kubelets of these nodes, by name; more may come later."""
        self._handlers.nodes = nodes

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig for this server and answers its path."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "simulated", "cluster": {"server": self.url}}],
            "users": [{"name": "simulated", "user": {}}],
            "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated"}}],
            "current-context": "simulated",
        }
        path.write_text(json.dumps(config, indent=2))
        return path

    def fail_next(
        self,
        method: str,
        path_regex: str,
        status: int,
        times: int = 1,
        message: str = "",
        retry_after: int | None = None,
    ) -> None:
        """The next `times` requests whose method (`*` for any) and path match are answered with `status`.

        `retry_after` is in seconds and goes into the Retry-After header.
        """
        self._faults.append(Fault(method, re.compile(path_regex), status, times, message, retry_after))

    def clear_faults(self) -> None:
        """Takes back every `fail_next` that was not used up."""
        self._faults.clear()

    def _next_fault(self, method: str, path: str) -> Fault | None:
        """The first fault that matches, used up by one."""
        for fault in self._faults:
            if fault.method in ("*", method) and fault.path.search(path):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def compact(self) -> None:
        """Forgets the history: open positions of watches and list pages answer 410 from now on."""
        self.store.compact()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        target = resolve(self.registry, request.path)
        if target is not None and len(self.accesses) < _ACCESSES_KEPT:
            self.accesses.add(_access(request, target))
        fault = self._next_fault(request.method, request.path)
        try:
            if fault is not None:
                raise fault.error()
            response = await self._answer(request, target)
        except ApiError as error:
            response = _failure(error)
        if request.method in _VERBS:
            self._record(request, target, response.status)
        return response

    async def _answer(self, request: web.Request, target: RequestTarget | None) -> web.StreamResponse:
        if target is not None:
            return await self._handlers.resource(request, target)
        review = discovery.review_at(request.path)
        if review is not None and request.method == "POST":
            answer = answer_review(review, as_object(await read_body(request)))
            return web.Response(body=encode(answer), status=201, content_type="application/json")
        if request.path == "/openapi/v2" and protobuf.SWAGGER_TYPE in request.headers.get("Accept", ""):
            return web.Response(body=protobuf.swagger(self.version), content_type=protobuf.SWAGGER_SENT)
        body = self._document(request)
        if body is None and discovery.knows(self.registry, request.path):
            raise path_not_found()
        if body is None:
            return web.Response(status=404, text="404 page not found\n")
        if isinstance(body, str):
            return web.Response(text=body)
        return web.Response(body=encode(body), content_type="application/json")

    def _document(self, request: web.Request) -> JsonObject | str | None:
        path = request.path.rstrip("/")
        if path in ("/healthz", "/readyz", "/livez"):
            return "ok"
        if path == "/version":
            return discovery.version_document(self.version)
        if path == "/api":
            return discovery.api_versions()
        if path == "/apis":
            return discovery.api_group_list(self.registry)
        if path == "/openapi/v2":
            return discovery.swagger(self.version)
        if path == "/openapi/v3":
            return discovery.openapi_root(self.registry, self.store.revision)
        if path.startswith("/openapi/v3/"):
            return discovery.openapi_document(self.registry, path.removeprefix("/openapi/v3/"), self.version)
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) == 2:
            return discovery.api_resource_list(self.registry, "", parts[1])
        if parts[0] == "apis" and len(parts) == 2:
            return discovery.api_group(self.registry, parts[1])
        if parts[0] == "apis" and len(parts) == 3:
            return discovery.api_resource_list(self.registry, parts[1], parts[2])
        return None

    def _record(self, request: web.Request, target: RequestTarget | None, status: int) -> None:
        resource = ""
        if target is not None:
            resource = target.kind.resource.plural + (f"/{target.subresource}" if target.subresource else "")
        self.writes.append(
            Write(
                request.method,
                request.path,
                request.headers.get("User-Agent", ""),
                _VERBS[request.method],
                resource,
                status,
            )
        )


def _access(request: web.Request, target: RequestTarget) -> Access:
    verb = _VERBS.get(request.method, "get")
    if not target.name:
        watches = request.query.get("watch", "").lower() in ("true", "1")
        verb = {"get": "watch" if watches else "list", "delete": "deletecollection"}.get(verb, verb)
    resource = target.kind.resource
    plural = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    agent = request.headers.get("User-Agent", "")
    return Access(agent, verb, resource.group, plural, target.namespace or None, target.name or _selected_name(request))


def _selected_name(request: web.Request) -> str | None:
    """RBAC takes a list of the one object that a field selector names as one that names it."""
    match = _ONE_NAME.fullmatch(request.query.get("fieldSelector", ""))
    return match.group(1) if match else None


def _failure(error: ApiError) -> web.Response:
    headers = {}
    retry_after = (error.details or {}).get("retryAfterSeconds")
    if retry_after:
        headers["Retry-After"] = str(retry_after)
    return web.Response(
        body=encode(error.to_status()), status=error.status, content_type="application/json", headers=headers
    )
