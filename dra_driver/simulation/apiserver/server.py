"""The simulated API server: HTTP in front of `ObjectService` and `lists`.

Plain HTTP, no authentication; everything runs in the event loop that started it. The store belongs to the object, so
stopping and starting again is an API server that was away.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from aiohttp import web

from dra_driver.api.meta import Resource
from dra_driver.apirules.status import ApiError, path_not_found
from dra_driver.kubernetes import CURRENT, SEEN, FeatureGates, minor_of
from dra_driver.simulation.apiserver import crds, discovery, protobuf
from dra_driver.simulation.apiserver.dra_rules import DRA_RULES
from dra_driver.simulation.apiserver.garbage import GarbageCollector
from dra_driver.simulation.apiserver.handlers import Handlers, Kubelets
from dra_driver.simulation.apiserver.lists import resolve
from dra_driver.simulation.apiserver.objects import NAMESPACE_KEY, ObjectService, WriteOptions
from dra_driver.simulation.apiserver.resource_types import TypeRegistry
from dra_driver.simulation.apiserver.rules import BUILTIN_RULES
from dra_driver.simulation.apiserver.store import Store, encode

DEFAULT_VERSION = SEEN[CURRENT]
_SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


class SimulatedApiServer:
    """A Kubernetes API server in this process.

    `version` decides what is served and which feature gates are on by default; `feature_gates` overrides gates by
    name.
    """

    objects_type: ClassVar[type[ObjectService]] = ObjectService

    def __init__(
        self,
        *,
        version: str = DEFAULT_VERSION,
        feature_gates: dict[str, bool] | None = None,
        bookmark_interval_s: float = 60.0,
    ) -> None:
        self.version = version
        minor = minor_of(version)
        self.registry = TypeRegistry(minor)
        self.store = Store()
        rules = {**BUILTIN_RULES, **DRA_RULES, crds.KEY: crds.DefinitionRules()}
        gates = FeatureGates(minor, feature_gates)
        self.objects = self.objects_type(self.store, self.registry, rules, crds.CustomRules(), gates)
        self.url = ""
        self._handlers = Handlers(self.objects, bookmark_interval_s)
        self._runner: web.AppRunner | None = None
        self._port = 0
        GarbageCollector(self.objects)
        if (kind := self.registry.of_key(NAMESPACE_KEY)) is not None:
            for name in _SYSTEM_NAMESPACES:
                self.objects.create(kind, "", {"metadata": {"name": name}}, WriteOptions())

    async def start(self, port: int = 0) -> str:
        """Listens, and answers the URL. After a `stop`, the same port again unless another one is given."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self.serve_request)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self._port, reuse_address=True, backlog=4096)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
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

    def answer_for(self, kubelets: Kubelets) -> None:
        """Passes requests about containers on to these kubelets; more may come later."""
        self._handlers.kubelets = kubelets

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

    async def serve_request(self, request: web.Request) -> web.StreamResponse:
        """The answer to any request, refusals included."""
        try:
            return await self.answer(request)
        except ApiError as error:
            retry_after = (error.details or {}).get("retryAfterSeconds")
            headers = {"Retry-After": str(retry_after)} if retry_after else {}
            body = encode(error.to_status())
            return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Raises ApiError for a refusal."""
        target = resolve(self.registry, request.path)
        if target is not None:
            return await self._handlers.resource(request, target)
        if request.path == "/openapi/v2" and protobuf.SWAGGER_TYPE in request.headers.get("Accept", ""):
            return web.Response(body=protobuf.swagger(self.version), content_type=protobuf.SWAGGER_SENT)
        body = discovery.document(self.registry, request.path, self.version, self.store.revision)
        if body is None and discovery.knows(self.registry, request.path):
            raise path_not_found()
        if body is None:
            return web.Response(status=404, text="404 page not found\n")
        if isinstance(body, str):
            return web.Response(text=body)
        return web.Response(body=encode(body), content_type="application/json")
