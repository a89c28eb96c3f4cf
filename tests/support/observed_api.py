"""A simulated API server that remembers who did what, and refuses requests on demand."""

import re
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.lists import RequestTarget, resolve
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.simulation.cluster import SimulatedCluster


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
    """The next `times` requests that match are answered with `error` instead of being handled."""

    method: str
    path: re.Pattern[str]
    error: ApiError
    times: int


_ACCESSES_KEPT = 20_000
_ONE_NAME = re.compile(r"metadata\.name==?([^,=]+)")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class ObservedApiServer(SimulatedApiServer):
    """With records of requests, refused ones included, and with faults."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.writes: list[Write] = []
        """Every write request since the start, or since a test cleared it."""
        self.accesses: set[Access] = set()
        """What was done to which objects by whom, reads included: the first so many that differ."""
        self._faults: list[Fault] = []
        """Open faults, oldest first."""

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
        details = {} if retry_after is None else {"retryAfterSeconds": retry_after}
        error = ApiError(status, message or "injected failure", details=details)
        self._faults.append(Fault(method, re.compile(path_regex), error, times))

    def clear_faults(self) -> None:
        """Takes back every `fail_next` that was not used up."""
        self._faults.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        target = resolve(self.registry, request.path)
        if target is not None and len(self.accesses) < _ACCESSES_KEPT:
            self.accesses.add(_access(request, target))
        error = self._next_fault(request.method, request.path)
        if error is not None:
            raise error
        return await super().answer(request)

    async def serve_request(self, request: web.Request) -> web.StreamResponse:
        response = await super().serve_request(request)
        if request.method in _VERBS:
            target = resolve(self.registry, request.path)
            agent, resource = request.headers.get("User-Agent", ""), "" if target is None else _plural(target)
            verb = _VERBS[request.method]
            self.writes.append(Write(request.method, request.path, agent, verb, resource, response.status))
        return response

    def _next_fault(self, method: str, path: str) -> ApiError | None:
        """The first fault that matches, used up by one."""
        for fault in self._faults:
            if fault.method in ("*", method) and fault.path.search(path):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault.error
        return None


class ObservedCluster(SimulatedCluster):
    """A simulated cluster with such a server."""

    server: ObservedApiServer
    server_type = ObservedApiServer


def _plural(target: RequestTarget) -> str:
    plural = target.kind.resource.plural
    return f"{plural}/{target.subresource}" if target.subresource else plural


def _access(request: web.Request, target: RequestTarget) -> Access:
    verb = _VERBS.get(request.method, "get")
    if not target.name:
        watches = request.query.get("watch", "").lower() in ("true", "1")
        verb = {"get": "watch" if watches else "list", "delete": "deletecollection"}.get(verb, verb)
    agent, group = request.headers.get("User-Agent", ""), target.kind.resource.group
    name = target.name or _selected_name(request)
    return Access(agent, verb, group, _plural(target), target.namespace or None, name)


def _selected_name(request: web.Request) -> str | None:
    """RBAC takes a list of the one object that a field selector names as one that names it."""
    match = _ONE_NAME.fullmatch(request.query.get("fieldSelector", ""))
    return match.group(1) if match else None
