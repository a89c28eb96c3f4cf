"""Objects travel unchanged, and every failure is an error that names the object and says whether to try again."""

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.objects import claim, node
from support.plugin import eventually
from support.rows import rows

from dra_driver.api.meta import CONFIG_MAPS, NODES, RESOURCE_CLAIMS
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, Gone, InvalidInput, NotFound, Rejected, Unreachable
from dra_driver.kube import client
from dra_driver.kube.answers import unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.http_client import ConnectError, HttpError
from dra_driver.simulation.apiserver.server import SimulatedApiServer


@asynccontextmanager
async def talking_to(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], *, path: str = "", **endpoint: Any
) -> AsyncIterator[Kube]:
    """A client of a server that answers everything with `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    try:
        async with Kube(Endpoint(f"http://127.0.0.1:{port}{path}", **endpoint)) as client:
            yield client
    finally:
        await runner.cleanup()


def answering(status: int, body: Any = None, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, headers=headers)

    return handler


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data,
    }


async def test_an_object_lives_and_dies(kube: Kube) -> None:
    created = await kube.create(CONFIG_MAPS, config_map("a", x="1"))
    assert await kube.get(CONFIG_MAPS, "a", "default") == created
    replaced = await kube.replace(CONFIG_MAPS, {**created, "data": {"x": "2"}})
    patched = await kube.merge_patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "3"}}, namespace="default")
    assert (replaced["data"], patched["data"]) == ({"x": "2"}, {"y": "3"})
    await kube.delete(CONFIG_MAPS, "a", namespace="default", uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAPS, "a", "default")


async def test_a_connection_is_kept_whatever_is_answered_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_KEEP_S", 0.01)
    counted: list[str] = []
    connections: list[object] = []
    paths: set[str] = set()
    refuses = False

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.add(request.path)
        connections.append(request.transport)
        if refuses:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=403)

    async with talking_to(handler) as kube:
        kube._answered = lambda verb, resource, status: counted.append(verb)
        keeping = asyncio.create_task(kube.keep_connected())
        await eventually(lambda: len(connections) > 2)
        assert len(set(connections)) == 1
        refuses = True
        await eventually(lambda: len(set(connections)) > 2)
        refuses = False
        asked = len(connections)
        await eventually(lambda: len(connections) > asked + 2)
        keeping.cancel()
    assert counted == [] and connections[-1] is connections[-2]
    assert paths == {"/version"}


async def test_a_namespace_in_an_object_of_the_cluster_is_ignored(kube: Kube) -> None:
    """As kubectl and a real API server do."""
    created = await kube.create(NODES, {**node("node-1"), "metadata": {"name": "node-1", "namespace": "team"}})
    assert "namespace" not in created["metadata"]
    assert await kube.get(NODES, "node-1") == created


async def test_the_errors_of_the_server_are_ours_and_name_the_object(kube: Kube) -> None:
    created = await kube.create(CONFIG_MAPS, config_map("a"))
    await kube.merge_patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace="default")
    for expected, attempt in (
        (AlreadyExists, kube.create(CONFIG_MAPS, config_map("a"))),
        (Conflict, kube.replace(CONFIG_MAPS, created)),
        (Conflict, kube.delete(CONFIG_MAPS, "a", namespace="default", uid="other")),
        (Conflict, kube.delete(CONFIG_MAPS, "a", namespace="default", resource_version="1")),
        (
            Conflict,
            kube.merge_patch(CONFIG_MAPS, "a", {"metadata": {"resourceVersion": "1"}}, namespace="default"),
        ),
    ):
        with pytest.raises(expected) as caught:
            await attempt
        assert type(caught.value) is expected
        assert caught.value.about == "ConfigMap default/a"
        assert caught.value.status == 409
    with pytest.raises(Rejected) as refused:
        await kube.create(CONFIG_MAPS, config_map("A_B"))
    assert refused.value.retry_after_s is None
    with pytest.raises(NotFound) as missing:
        await kube.get(NODES, "node-x")
    assert missing.value.about == "Node node-x"


async def test_credentials_that_are_refused_are_named() -> None:
    async with talking_to(answering(401, {"kind": "Status", "message": "Unauthorized"})) as client:
        with pytest.raises(Rejected, match=r"Unauthorized: the API server does not accept the credentials"):
            await client.server_version()


async def test_a_proxy_that_asks_for_a_login_is_named() -> None:
    async with talking_to(answering(407, {})) as client:
        with pytest.raises(Rejected, match=r"the proxy requires authentication; set its URL to http://USER:PASSWORD@"):
            await client.server_version()


@rows("status", [400, 401, 403, 405, 413, 415, 422])
async def test_a_request_that_can_never_succeed_is_not_worth_another_attempt(status: int) -> None:
    async with talking_to(answering(status, {"kind": "Status", "message": "no"})) as client:
        with pytest.raises(Rejected) as caught:
            await client.get(NODES, "a")
    assert (caught.value.retry_after_s, caught.value.status, caught.value.message) == (None, status, "no")


@rows(
    "status, header, wait_s",
    [
        (429, {"Retry-After": "7"}, 7.0),
        (503, {}, 1.0),
        (500, {}, 1.0),
        (503, {"Retry-After": "86400"}, 60.0),
        (503, {"Retry-After": "9" * 400}, 60.0),
        (503, {"Retry-After": "²"}, 1.0),
        (503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 1.0),
    ],
)
async def test_an_overloaded_server_is_asked_again_when_it_says(
    status: int, header: dict[str, str], wait_s: float
) -> None:
    async with talking_to(answering(status, "<html>busy</html>", **header)) as client:
        with pytest.raises(Unreachable) as caught:
            await client.list(NODES)
    assert (caught.value.retry_after_s, caught.value.message) == (wait_s, "<html>busy</html>")


async def test_a_redirect_is_not_followed_and_named() -> None:
    async with talking_to(answering(302, "", Location="https://login.example.com/")) as client:
        with pytest.raises(Unreachable, match=r"redirects to https://login\.example\.com/") as caught:
            await client.list(NODES)
    assert caught.value.status == 302


async def test_an_answer_that_is_not_json_is_tried_again() -> None:
    async with talking_to(answering(200, "<html>login</html>")) as client:
        with pytest.raises(Unreachable, match="not JSON"):
            await client.get(NODES, "a")


@rows("answer", ["null", "[]", "{}", '"ok"', '{"metadata": null}', '{"metadata": []}', "7"])
async def test_an_answer_that_is_json_and_nothing_of_an_api_server_is_tried_again(answer: str) -> None:
    """Of a proxy, or a page of its own; nobody who reads it ends for it."""
    async with talking_to(answering(200, f"{answer}\n")) as client:
        for request in (
            client.get(NODES, "a"),
            client.list(NODES),
            client.create(NODES, node("a")),
            client.replace(NODES, node("a")),
            client.merge_patch(NODES, "a", {}),
            anext(client.watch(NODES, resource_version="1")),
        ):
            with pytest.raises(Unreachable, match=r"not from|invalid line"):
                await request


@rows(
    "answer", ["null", "[]", "{}", '"ok"', '{"major": "1"}', '{"major": 1, "minor": 36}', '{"major": "", "minor": "+"}']
)
async def test_an_answer_that_is_no_version_is_tried_again(answer: str) -> None:
    async with talking_to(answering(200, f"{answer}\n")) as client:
        with pytest.raises(Unreachable, match="not from an API server"):
            await client.server_version()


@pytest.mark.parametrize("more", [{}, {"kind": "Status", "status": "Success"}, {"items": "none"}, {"items": 7}])
async def test_an_answer_without_items_does_not_mean_that_there_are_no_objects(more: dict[str, Any]) -> None:
    async with talking_to(answering(200, {"metadata": {"resourceVersion": "1"}, **more})) as client:
        with pytest.raises(Unreachable, match="not from an API server"):
            await client.list(NODES)


@rows("position", [True, 7, ["1"], {"a": 1}])
@rows("field", ["resourceVersion", "continue"])
async def test_a_position_that_is_no_text_is_not_sent_back(field: str, position: Any) -> None:
    """Campaign, seed 95839313: the controller ended because of it."""
    async with talking_to(answering(200, {"metadata": {field: position}, "items": []})) as client:
        with pytest.raises(Unreachable, match="not from an API server"):
            await client.list(NODES)
    line = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1", field: position}}}
    async with talking_to(answering(200, json.dumps(line) + "\n")) as client:
        with pytest.raises(Unreachable, match="not from an API server"):
            await anext(client.watch(NODES, resource_version="1"))


@pytest.mark.parametrize(
    "line",
    ['{"type": "ADDED"}', '{"object": {}}', '{"type": "ADDED", "object": {}}', '{"type": "ERROR", "object": "x"}'],
)
async def test_a_line_that_is_none_of_a_watch_ends_it_and_it_is_tried_again(line: str) -> None:
    async with talking_to(answering(200, line + "\n")) as client:
        with pytest.raises(Unreachable, match=r"not from|invalid line"):
            await anext(client.watch(NODES, resource_version="1"))


METADATA = {"name": "n", "uid": "u", "resourceVersion": "1"}
DEEP = 100_000 * "[" + 100_000 * "]"


@rows(
    "obj",
    [
        {"metadata": {key: value for key, value in METADATA.items() if key != lacking}}
        for lacking in ("name", "uid", "resourceVersion")
    ]
    + [{"metadata": METADATA | {key: 7}} for key in ("name", "namespace", "uid", "labels", "ownerReferences")]
    + [{"metadata": METADATA | {"ownerReferences": [None]}}, {"metadata": METADATA, "spec": []}]
    + [{"metadata": METADATA | {key: {"a": 7}}} for key in ("labels", "annotations")]
    + [{"metadata": METADATA, "status": "Success"}, 7, None],
)
async def test_an_object_that_no_api_server_stores_is_tried_again_wherever_it_is_read(obj: Any) -> None:
    async with talking_to(answering(200, obj)) as client:
        for request in (client.get(NODES, "a"), client.create(NODES, node("a")), client.merge_patch(NODES, "a", {})):
            with pytest.raises(Unreachable, match=r"not from|invalid line"):
                await request
    async with talking_to(answering(200, {"metadata": {}, "items": [obj]})) as client:
        with pytest.raises(Unreachable, match=r"not from|invalid line"):
            await client.list(NODES)
    async with talking_to(answering(200, json.dumps({"type": "ADDED", "object": obj}) + "\n")) as client:
        with pytest.raises(Unreachable, match=r"not from|invalid line"):
            await anext(client.watch(NODES, resource_version="1"))


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_of_a_hundred_thousand_levels_is_tried_again(status: int) -> None:
    async with talking_to(answering(status, DEEP + "\n")) as client:
        with pytest.raises(Unreachable):
            await client.get(NODES, "a")
        with pytest.raises(Unreachable):
            await anext(client.watch(NODES, resource_version="1"))


async def test_a_bookmark_has_a_version_and_no_name() -> None:
    async with talking_to(
        answering(200, json.dumps({"type": "BOOKMARK", "object": {"metadata": {}}}) + "\n")
    ) as client:
        with pytest.raises(Unreachable, match=r"not from|invalid line"):
            await anext(client.watch(NODES, resource_version="1"))


async def test_a_message_of_any_form_is_a_text() -> None:
    async with talking_to(answering(422, {"kind": "Status", "message": {"odd": 1}})) as client:
        with pytest.raises(Rejected, match="odd"):
            await client.get(NODES, "a")


async def test_no_server_is_worth_another_attempt() -> None:
    async with Kube(Endpoint("http://127.0.0.1:1")) as client:
        with pytest.raises(Unreachable, match="cannot reach the API server") as caught:
            await client.get(NODES, "a")
    assert (caught.value.retry_after_s, caught.value.status) == (1.0, None)


def test_an_unknown_host_is_named_without_python_objects() -> None:
    cause = ConnectError("nosuch.invalid:6443", socket.gaierror(-2, "Name or service not known"))
    assert unreachable(cause, "GET /version").message == (
        "cannot reach the API server: nosuch.invalid:6443: Name or service not known"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HttpError("the connection ended before the answer did"), "the connection ended before the answer did"),
        (OSError(errno.ECONNRESET, "Cannot write"), "Connection reset by peer"),
        (TimeoutError(), "no answer in time"),
        (TimeoutError(errno.ETIMEDOUT, "in a library"), "Connection timed out"),
        (ConnectError("api:6443", TimeoutError()), "api:6443: no answer in time"),
        (ConnectError("api:6443", OSError("unusual")), "api:6443: unusual"),
    ],
)
def test_a_connection_that_fails_gives_its_reason_without_the_librarys_own_words(error: Exception, reason: str) -> None:
    assert unreachable(error, "pods").message == f"cannot reach the API server: {reason}"


async def test_what_may_not_be_written_is_not_sent_and_reads_are(api_server: SimulatedApiServer, kube: Kube) -> None:
    def refuse() -> None:
        raise Unreachable("not now")

    async with Kube(Endpoint(api_server.url), may_write=refuse) as client:
        for write in (client.create(NODES, node("a")), client.delete(NODES, "a"), client.merge_patch(NODES, "a", {})):
            with pytest.raises(Unreachable, match="not now"):
                await write
        assert (await client.list(NODES)).items == (await kube.list(NODES)).items == []


async def test_a_list_is_read_page_by_page(api_server: SimulatedApiServer, kube: Kube) -> None:
    for number in range(5):
        await kube.create(NODES, node(f"n{number}"))
    sizes = [len(page.items) async for page in kube.pages(NODES, limit=2)]
    assert sizes == [2, 2, 1]
    listing = await kube.list(NODES)
    assert [item["metadata"]["name"] for item in listing.items] == [f"n{number}" for number in range(5)]
    assert listing.resource_version


async def test_selectors_reach_the_server(kube: Kube) -> None:
    for name, team in (("a", "x"), ("b", "y")):
        obj = node(name)
        obj["metadata"]["labels"] = {"team": team}
        await kube.create(NODES, obj)
    assert [item["metadata"]["name"] for item in (await kube.list(NODES, label_selector="team=y")).items] == ["b"]
    assert [item["metadata"]["name"] for item in (await kube.list(NODES, field_selector="metadata.name=a")).items] == [
        "a"
    ]
    await kube.delete_collection(NODES, label_selector="team=x")
    assert [item["metadata"]["name"] for item in (await kube.list(NODES)).items] == ["b"]


async def test_a_watch_tells_what_happens_after_its_position(kube: Kube) -> None:
    position = (await kube.create(RESOURCE_CLAIMS, claim("old")))["metadata"]["resourceVersion"]
    await kube.create(RESOURCE_CLAIMS, claim("new"))
    events = kube.watch(RESOURCE_CLAIMS, resource_version=position)
    event = await anext(events)
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "new")
    await kube.delete(RESOURCE_CLAIMS, "new", namespace="default")
    seen = [await anext(events)]
    assert seen[-1].type == "DELETED"
    await events.aclose()


async def test_an_expired_position_is_gone_whether_told_by_status_or_by_event(
    api_server: SimulatedApiServer, kube: Kube
) -> None:
    position = (await kube.create(NODES, node("a")))["metadata"]["resourceVersion"]
    await kube.create(NODES, node("b"))
    await kube.create(NODES, node("c"))
    api_server.store.compact()
    with pytest.raises(Gone):
        await anext(kube.watch(NODES, resource_version=position))
    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
    async with talking_to(answering(200, json.dumps({"type": "ERROR", "object": status}) + "\n")) as client:
        with pytest.raises(Gone, match="too old"):
            await anext(client.watch(NODES, resource_version="1"))


async def test_watch_events_may_be_of_any_size_and_cut_anywhere() -> None:
    big = {"type": "ADDED", "object": {"metadata": METADATA, "message": "é" * 300_000}}
    lines = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in (big, big, big))

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for start in range(0, len(lines), 65_537):
            await response.write(lines[start : start + 65_537])
        return response

    async with talking_to(handler) as client:
        events = [event async for event in client.watch(NODES, resource_version="1")]
    assert [len(event.object["message"]) for event in events] == [300_000] * 3


async def test_a_watch_that_breaks_off_is_tried_again() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(
            json.dumps({"type": "ADDED", "object": {"metadata": METADATA}}).encode() + b'\n{"type": "AD'
        )
        assert request.transport is not None
        request.transport.abort()
        return response

    async with talking_to(handler) as client:
        events = client.watch(NODES, resource_version="1")
        assert (await anext(events)).object["metadata"]["name"] == "n"
        with pytest.raises(Unreachable):
            await anext(events)


async def test_every_request_carries_the_token_of_the_moment() -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"metadata": METADATA})

    tokens = iter(["Bearer one", "Bearer two", None])
    async with talking_to(handler, token=lambda: next(tokens)) as client:
        for _ in range(3):
            await client.get(NODES, "a")
    assert seen == ["Bearer one", "Bearer two", None]


async def test_a_server_behind_a_path_is_reached() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": METADATA, "path": request.path})

    async with talking_to(handler, path="/k8s/clusters/c-1") as client:
        assert (await client.get(NODES, "a"))["path"] == "/k8s/clusters/c-1/api/v1/nodes/a"


async def test_writes_say_who_writes(kube: Kube) -> None:
    seen: list[tuple[str, str | None, str]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.query.get("fieldManager"), request.headers["User-Agent"]))
        return web.json_response({"metadata": METADATA})

    async with talking_to(handler) as client:
        await client.create(NODES, node("a"))
        await client.merge_patch(NODES, "a", {})
    assert seen == [("POST", "gpu-dra-driver", "gpu-dra-driver"), ("PATCH", "gpu-dra-driver", "gpu-dra-driver")]


async def test_the_version_of_the_server_is_two_numbers() -> None:
    async with talking_to(answering(200, {"major": "1", "minor": "36+"})) as client:
        assert await client.server_version() == (1, 36)


async def test_a_certificate_that_cannot_be_trusted_is_said_to_be_that(tmp_path: Path) -> None:
    tls = ssl.create_default_context()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Kube(Endpoint(f"https://127.0.0.1:{port}", tls)) as client:
        with pytest.raises(ClusterError, match="cannot trust the API server"):
            await client.get(NODES, "a")


def test_the_official_package_is_not_loaded_without_a_kubeconfig() -> None:
    """It costs more memory than everything else in the client together."""
    import subprocess
    import sys

    code = "import sys, dra_driver.kube.client; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_texts_come_in_lines_and_no_more_of_them_than_asked_for() -> None:
    async with talking_to(answering(200, "first\nsecond\nthird")) as client:
        assert [line async for line in client.lines("/log", most_bytes=100)] == [b"first", b"second", b"third"]
        assert [line async for line in client.lines("/log", most_bytes=9)] == [b"first", b"sec"]


async def test_a_text_that_is_refused_is_an_error_of_ours() -> None:
    async with talking_to(answering(403, {"message": "no logs for you"})) as client:
        with pytest.raises(Rejected, match="no logs for you"):
            _ = [line async for line in client.lines("/log", most_bytes=100, tailLines="5")]


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "a%2Fb", "../../namespaces/other/secrets/key"])
async def test_a_name_that_would_address_something_else_is_refused(name: str) -> None:
    """As of `dractl explain deploy a/b` and `-n ..`: the server would see another path."""
    async with talking_to(answering(200, {})) as kube:
        for asked in (kube.get(CONFIG_MAPS, name, "default"), kube.list(CONFIG_MAPS, namespace=name)):
            with pytest.raises(InvalidInput, match="is not a name"):
                await asked


async def test_a_name_is_one_part_of_the_path_whatever_characters_it_has() -> None:
    paths = []

    async def handler(request: web.Request) -> web.StreamResponse:
        paths.append((request.path, dict(request.query)))
        return web.json_response(config_map("a"))

    async with talking_to(handler) as kube:
        await kube.delete(CONFIG_MAPS, "a?dryRun=All#b c", namespace="default")
    assert paths == [("/api/v1/namespaces/default/configmaps/a?dryRun=All#b c", {})]
