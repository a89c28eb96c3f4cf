"""Client of the API server: reads and writes JSON objects, and raises errors of this project.

Objects are plain dicts exactly as the server sent them, so nothing is lost between a read and a write; callers decode
what they use. Every error names the affected object.

An `Endpoint` has the server and the credentials: from a pod's service account, or from a kubeconfig through the
official `kubernetes` package. That package costs 15 MB of memory, so it is imported only for a kubeconfig.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Literal, Never, Self

from pydantic_core import PydanticSerializationError, to_json

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError, Unreachable
from dra_driver.kube import answers
from dra_driver.kube.endpoint import Endpoint, endpoint_from
from dra_driver.kube.http_client import ConnectError, HttpAnswer, HttpClient, HttpError, HttpRequest

__all__ = ["Endpoint", "Kube", "Listing", "WatchEvent", "endpoint_from"]

_REQUEST_TIMEOUT_S = 30.0
_WATCH_TIMEOUT_S = 300
"""How long the server should keep a watch open; a silent connection is closed a little later."""
_KEEP_S = 55.0
"""Between two requests that keep a connection open. Servers and most load balancers close it after a longer time."""
_PAGE = 500
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK; a bookmark's object has only a resourceVersion."""

    type: str
    object: JsonObject


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a collection at one resource version, from which a watch can continue."""

    items: list[JsonObject]
    resource_version: str


type Answered = Callable[[str, Resource | None, int | None], None]
"""Called after each request with the RBAC verb, the resource (None for a request by path) and the HTTP status (None: no
answer)."""


type Traced = Callable[[str, str], AbstractContextManager[Mapping[str, str]]]
"""A context manager around each request, called with verb and resource (or path); yields additional headers."""

_NO_HEADERS: Mapping[str, str] = {}
_METADATA_ALONE = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


@dataclass(frozen=True, slots=True)
class _Call:
    """A request. `about` names its object in errors, `verb` and `resource` are as RBAC has them."""

    method: str
    path: str
    about: str
    verb: str
    resource: Resource | None = None
    query: Mapping[str, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def with_json(self, body: JsonObject | None, content_type: str = "application/json") -> "_Call":
        if body is None:
            return self
        try:
            data = to_json(body)
        except PydanticSerializationError:
            # Half of a surrogate pair, as in the name of a file; the server replaces it.
            data = json.dumps(body).encode()
        return replace(self, body=data, headers={**self.headers, "Content-Type": content_type})


class Kube:
    """A connection to one API server; an async context manager, used from one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        user_agent: str = "gpu-dra-driver",
        field_manager: str = "gpu-dra-driver",
        answered: Answered = lambda verb, resource, status: None,
        traced: Traced = lambda verb, resource: nullcontext(_NO_HEADERS),
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_write` raises what keeps a write from being sent; it is called at the last moment."""
        self._endpoint = endpoint
        self._answered = answered
        self._traced = traced
        self._may_write = may_write
        self._user_agent = user_agent
        self._field_manager = field_manager
        self._http: HttpClient | None = None

    async def __aenter__(self) -> Self:
        endpoint, own = self._endpoint, [("User-Agent", self._user_agent), ("Accept", "application/json")]
        self._http = HttpClient(
            endpoint.server,
            proxy=endpoint.proxy,
            server_name=endpoint.server_name,
            headers=[*own, *endpoint.impersonation],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        """Read one object. Raises NotFound."""
        return await self._request("GET", resource, namespace=namespace, name=name)

    async def get_message(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
        """Read one object of a built-in type as a protobuf message. Raises NotFound, and ClusterError without a status
        if a proxy answers in another form."""
        from dra_driver.kube import envelope

        about, path = _about(resource, name, namespace), resource.path(namespace, name)
        call = _Call("GET", path, about, "get", resource, headers={"Accept": answers.PROTOBUF})
        try:
            return envelope.opened(await self._content(call))
        except ValueError as error:
            raise ClusterError(str(error), about=about) from error

    async def replace_message(
        self, resource: Resource, name: str, message: bytes, *, namespace: str | None = None, subresource: str
    ) -> JsonObject:
        """Write a message that was read before; its resourceVersion guards it. Raises Conflict, NotFound, Rejected."""
        from dra_driver.kube import envelope

        about, path = _about(resource, name, namespace), resource.path(namespace, name, subresource)
        query, headers = {"fieldManager": self._field_manager}, {"Content-Type": answers.PROTOBUF}
        body = envelope.enveloped(resource, message)
        content = await self._content(_Call("PUT", path, about, "update", resource, query, headers, body))
        return answers.a_stored_object(answers.decoded(content, about), about)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Listing:
        """Read a whole collection. Raises Gone if it changed too much meanwhile; then start again."""
        listing = Listing([], "")
        pages = self.pages(resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector)
        async for page in pages:
            listing = Listing(listing.items + page.items, page.resource_version)
        return listing

    async def pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = _PAGE,
    ) -> AsyncGenerator[Listing, None]:
        """Read a collection in pieces of at most `limit` objects, for readers that keep less than they read."""
        query = _selectors(label_selector, field_selector) | {"limit": str(limit)}
        while True:
            page = await self._request("GET", resource, namespace=namespace, query=query)
            items = answers.a_list(page, _about(resource, None, namespace))
            yield Listing(items, page["metadata"].get("resourceVersion") or "")
            if not (position := page["metadata"].get("continue")):
                return
            query["continue"] = position

    async def create(
        self, resource: Resource, obj: JsonObject, *, namespace: str | None = None, dry_run: bool = False
    ) -> JsonObject:
        """Create; returns the object as stored, or as a dry run would store it. Raises AlreadyExists, Rejected."""
        # As kubectl and the API server ignore it in an object of the cluster.
        place = (namespace or obj["metadata"].get("namespace")) if resource.namespaced else None
        about = _about(resource, obj["metadata"].get("name") or obj["metadata"].get("generateName"), place)
        query = {"fieldManager": self._field_manager} | ({"dryRun": "All"} if dry_run else {})
        return await self._request("POST", resource, namespace=place, body=obj, about=about, query=query)

    async def replace(self, resource: Resource, obj: JsonObject, *, subresource: str | None = None) -> JsonObject:
        """Write an object that was read before; its resourceVersion guards it. Raises Conflict, NotFound, Rejected."""
        metadata = obj["metadata"]
        return await self._request(
            "PUT",
            resource,
            namespace=metadata.get("namespace"),
            name=metadata["name"],
            subresource=subresource,
            body=obj,
            query={"fieldManager": self._field_manager},
        )

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: JsonObject,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        answer: Literal["object", "metadata"] = "object",
    ) -> JsonObject:
        """JSON merge patch (RFC 7386); None removes a field. A resourceVersion in the patch guards it.

        `answer`: whether all of the stored object is answered or its metadata alone, which is less to read.
        """
        return await self._request(
            "PATCH",
            resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
            body=patch,
            content_type=_MERGE_PATCH,
            query={"fieldManager": self._field_manager},
            headers=_NO_HEADERS if answer == "object" else _METADATA_ALONE,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        """Delete; `uid` and `resource_version` are preconditions (Conflict). Raises NotFound."""
        named = (("uid", uid), ("resourceVersion", resource_version))
        body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in named if value is not None}:
            body["preconditions"] = preconditions
        if grace_period_s is not None:
            body["gracePeriodSeconds"] = grace_period_s
        await self._request("DELETE", resource, namespace=namespace, name=name, body=body)

    async def delete_collection(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> None:
        """Delete every object that the selectors match."""
        query = _selectors(label_selector, field_selector)
        await self._request("DELETE", resource, namespace=namespace, query=query)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: JsonObject, *, namespace: str | None = None
    ) -> JsonObject:
        """POST to a subresource, such as a pod's `binding` or `eviction`."""
        return await self._request("POST", resource, namespace=namespace, name=name, subresource=subresource, body=body)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str,
        accepted: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after `resource_version`, in order, until the server ends the watch (normal, after minutes).

        `accepted` is called when the server has accepted the watch; the first event may take a minute. Raises Gone if
        the position expired, Unreachable if the connection broke or is silent.
        """
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_TIMEOUT_S),
        }
        call = _Call("GET", resource.path(namespace), _about(resource, None, namespace), "watch", resource, query)
        with _Calling(self._answered, call):
            async with self._sent(call, silent_s=_WATCH_TIMEOUT_S + _REQUEST_TIMEOUT_S) as answer:
                await self._accepted(call, answer)
                accepted()
                async for line in _lines(answer):
                    yield WatchEvent(*answers.an_event(answers.decoded(line, call.about), call.about))

    async def keep_connected(self) -> Never:
        """Sends a small request now and then, so that a request after a long pause finds an open connection. Opening
        one takes as long as the request. Ignores the answer, and does not count it."""
        call = _Call("GET", "/version", "GET /version", "get")
        while True:
            await asyncio.sleep(_KEEP_S)
            with suppress(HttpError, ConnectError, OSError, Unreachable):
                async with self._sent(call) as answer:
                    await answer.read()

    async def server_version(self) -> tuple[int, int]:
        """Major and minor version of the server: `(1, 36)`."""
        version = await self.raw("GET", "/version")
        try:
            return int(version["major"]), int("".join(filter(str.isdecimal, version["minor"])))
        except (KeyError, TypeError, ValueError) as error:
            raise answers.of_another(version, "GET /version") from error

    async def raw(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """A request by path, without a resource type. Returns the decoded JSON object."""
        call = _Call(method, path, f"{method} {path}", _VERBS.get(method, "get")).with_json(body)
        answer = answers.decoded(await self._content(call), call.about)
        if not isinstance(answer, dict):
            raise answers.of_another(answer, call.about)
        return answer

    async def lines(self, path: str, *, most_bytes: int, **query: str) -> AsyncGenerator[bytes, None]:
        """Text by path, such as a pod's log or metrics, as lines without line ends; at most `most_bytes`. Raises
        NotFound, Rejected or Unreachable, also while reading.
        """
        call, read, rest = _Call("GET", path, f"GET {path}", "get", None, query, {"Accept": "*/*"}), 0, b""
        with _Calling(self._answered, call):
            async with self._sent(call) as answer:
                await self._accepted(call, answer)
                async for chunk in answer.chunks():
                    *complete, rest = (rest + chunk[: most_bytes - read]).split(b"\n")
                    read += len(chunk)
                    for line in complete:
                        yield line
                    if read >= most_bytes:
                        break
                if rest:
                    yield rest

    async def _request(
        self,
        method: str,
        resource: Resource,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        content_type: str = "application/json",
        about: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> JsonObject:
        about = about or _about(resource, name, namespace)
        verb = _VERBS.get(method) or ("list" if name is None else "get")
        call = _Call(method, resource.path(namespace, name, subresource), about, verb, resource, query, headers)
        answer = answers.decoded(await self._content(call.with_json(body, content_type)), about)
        if method == "DELETE":
            return {}
        is_stored = verb != "list" and not (query or {}).get("dryRun") and (method != "POST" or subresource is None)
        return answers.a_stored_object(answer, about) if is_stored else answers.an_object(answer, about)

    async def _content(self, call: _Call) -> bytes:
        with self._traced(call.verb, call.path if call.resource is None else call.resource.plural) as more:
            with_more = replace(call, headers={**call.headers, **more}) if more else call
            if call.method != "GET":
                self._may_write()
            with _Calling(self._answered, call):
                async with self._sent(with_more) as answer:
                    await self._accepted(call, answer)
                    return await answer.read()

    def _sent(self, call: _Call, silent_s: float | None = None) -> HttpAnswer:
        if self._http is None:
            raise RuntimeError("Kube is used outside its `async with` block")
        headers = {**self._authorization(), **call.headers}
        request = HttpRequest(call.method, call.path, call.query, headers, call.body)
        # For each request, so that connections with a replaced certificate are not reused.
        context = self._endpoint.context()
        return self._http.request(request, context, within_s=_REQUEST_TIMEOUT_S, silent_s=silent_s)

    async def _accepted(self, call: _Call, answer: HttpAnswer) -> None:
        """Raises what the server's refusal means."""
        self._answered(call.verb, call.resource, answer.status)
        if answer.status >= 300:
            raise answers.error_of(answer.status, answer.headers, await answer.read(), call.about)

    def _authorization(self) -> dict[str, str]:
        token = self._endpoint.token()
        if token is not None and not token.isprintable():
            raise Unreachable("the token has a line break or another control character", about="API server")
        return {} if token is None else {"Authorization": token}


class _Calling:
    """A failure of the connection in the block becomes Unreachable. A generator would cost more than the block."""

    __slots__ = ("_answered", "_call")

    def __init__(self, answered: Answered, call: _Call) -> None:
        self._answered = answered
        self._call = call

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, HttpError | ConnectError | OSError):
            self._answered(self._call.verb, self._call.resource, None)
            raise answers.unreachable(error, self._call.about) from error


async def _lines(answer: HttpAnswer) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = bytearray()
    async for chunk in answer.chunks():
        rest += chunk
        if b"\n" in chunk:
            *complete, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in complete:
                if line:
                    yield line


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    pairs = (("labelSelector", label_selector), ("fieldSelector", field_selector))
    return {key: value for key, value in pairs if value is not None}


def _about(resource: Resource, name: str | None, namespace: str | None) -> str:
    place = f"{namespace}/" if namespace else ""
    return f"{resource.kind} {place}{name}" if name else f"{resource.plural}{f' in {namespace}' if namespace else ''}"
