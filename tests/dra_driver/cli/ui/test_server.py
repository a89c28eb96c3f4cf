"""The pages over HTTP: who gets them, which headers they have, and what follows; against the simulated API server."""

import asyncio
import base64
import gc
import json
import re
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.dractl import run
from support.issuer import Issuer
from support.objects import allocate, claim, node, pod, result
from support.rows import rows

from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.cli.tables.following import Following
from dra_driver.cli.ui import ui_server
from dra_driver.cli.ui.command import certificate_of, follow_certificate
from dra_driver.cli.ui.ui_server import Listening, UiServer
from dra_driver.cli.ui.viewers import HttpRefusal, OwnKey, TokenReviews, denied
from dra_driver.cli.ui.watched import WatchedCluster
from dra_driver.errors import InvalidInput, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER


def slice_of(name: str, *, taint: bool = False) -> JsonObject:
    taints = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}] if taint else []
    device = gpu("gpu-0", memory="80Gi", taints=taints, uuid=f"GPU-{name}", productName="H100")
    return resource_slice(f"slice-{name}", device, node=name)


class Visitor:
    """A browser, as far as HTTP goes."""

    def __init__(self, session: aiohttp.ClientSession, root: str, key: str, watched: WatchedCluster) -> None:
        self.session = session
        self.root = root
        self.key = key
        self.watched = watched

    async def get(self, path: str, *, key: str | None = None, **headers: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {key or self.key}", **headers}
        async with self.session.get(self.root + path, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    @asynccontextmanager
    async def follows(self, path: str) -> AsyncIterator[asyncio.Queue[JsonObject]]:
        """What the stream of the page says, as it comes."""
        changes: asyncio.Queue[JsonObject] = asyncio.Queue()
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "text/event-stream"}
        async with self.session.get(self.root + path, headers=headers) as answer:
            assert answer.status == 200

            async def read() -> None:
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        changes.put_nowait(json.loads(line[6:]))

            reading = asyncio.create_task(read())
            try:
                yield changes
            finally:
                reading.cancel()


@pytest.fixture
async def visitor(kube: Kube) -> AsyncIterator[Visitor]:
    for name in ("node-1", "node-2"):
        await kube.create(NODES, node(name))
        await kube.create(RESOURCE_SLICES, slice_of(name))
    watched, viewers = WatchedCluster(kube, GPU_DRIVER, linger_s=0.2), OwnKey()
    async with (
        UiServer(watched, viewers, Listening("127.0.0.1", 0)).serving() as port,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session,
    ):
        yield Visitor(session, f"http://127.0.0.1:{port}", viewers.key, watched)
    await watched.close()


async def until(changes: asyncio.Queue[JsonObject], id_: str, text: str) -> JsonObject:
    """The first change in which the element has the text."""
    async with asyncio.timeout(60):
        while True:
            change = await changes.get()
            if text in change["set"].get(id_, ""):
                return change


async def test_pages_are_whole_without_a_script_and_may_load_nothing_foreign(visitor: Visitor) -> None:
    async with visitor.session.get(visitor.root, headers={"Authorization": f"Bearer {visitor.key}"}) as answer:
        text = await answer.text()
        assert answer.status == 200
        assert "node-1" in text and "2 GPUs on 2 nodes" in text
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for name, kind in (("ui.css", "text/css"), ("ui.js", "text/javascript")):
        (path,) = {part for part in text.split('"') if part.endswith(name)}
        async with visitor.session.get(f"{visitor.root}/{path}") as answer:
            assert (answer.status, answer.content_type) == (200, kind)
            assert "immutable" in answer.headers["Cache-Control"]
    assert "style=" not in text and "onclick" not in text, "the policy forbids them"


async def test_a_change_in_the_cluster_is_sent_alone(visitor: Visitor, kube: Kube) -> None:
    _, text = await visitor.get("/")
    state = text.partition('data-state="')[2].partition('"')[0]
    async with visitor.follows(f"/?since={state}") as changes:
        user = await kube.create(PODS, pod("train-pod", ["train"]))
        await allocate(
            kube, await kube.create(RESOURCE_CLAIMS, claim("train")), result("gpu-0", pool="node-1"), pods=[user]
        )
        change = await until(changes, "node-node-1", "train")
        assert "node-node-2" not in change["set"] and change["rows"] == {}
        await kube.replace(RESOURCE_SLICES, {**(await kube.get(RESOURCE_SLICES, "slice-node-2")), **_tainted("node-2")})
        change = await until(changes, "node-node-2", "unhealthy")
        assert change["rows"] == {"nodes": ["node-node-2", "node-node-1"]}, "problems first"
        assert "node-node-1" not in change["set"]


def _tainted(name: str) -> JsonObject:
    return {"spec": slice_of(name, taint=True)["spec"]}


async def test_a_page_of_another_state_gets_all_parts(visitor: Visitor) -> None:
    async with visitor.follows("/?since=of-yesterday") as changes:
        change = await asyncio.wait_for(changes.get(), 60)
        assert {"node-node-1", "node-node-2", "summary"} <= change["set"].keys()


async def test_a_waiting_pod_is_explained_while_its_page_is_open(visitor: Visitor, kube: Kube) -> None:
    await kube.create(RESOURCE_CLAIMS, claim("later"))
    await kube.create(PODS, pod("later-pod", ["later"], node_name=None))
    async with visitor.follows("/waiting/default/later-pod") as changes:
        change = await until(changes, "reasons", "Pod default/later-pod waits")
        assert "\n" in change["set"]["reasons"]


async def test_a_pod_with_complex_selectors_keeps_no_other_from_being_explained(visitor: Visitor, kube: Kube) -> None:
    """To evaluate them takes minutes here, and hours on the devices of a large cluster."""
    ones = f"[{', '.join(['1'] * 300)}]"
    slow = [
        {"cel": {"expression": f"{ones}.all(a, {ones}.all(b, device.driver != string(a) + string(b) + '{number}'))"}}
        for number in range(32)
    ]
    complex_claim = claim("complex")
    complex_claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = slow
    for made in (complex_claim, claim("later")):
        await kube.create(RESOURCE_CLAIMS, made)
        name = made["metadata"]["name"]
        await kube.create(PODS, pod(f"{name}-pod", [name], node_name=None))
    async with visitor.follows("/waiting/default/complex-pod") as changes:
        change = await until(changes, "reasons", "too complex")
        assert "dractl explain pod complex-pod -n default" in change["set"]["reasons"]
    async with visitor.follows("/waiting/default/later-pod") as changes:
        await until(changes, "reasons", "Pod default/later-pod waits")


async def forgotten(visitor: Visitor) -> None:
    async with asyncio.timeout(60):
        while visitor.watched.following:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)


async def test_the_cluster_is_followed_only_while_somebody_looks(visitor: Visitor, kube: Kube) -> None:
    assert not visitor.watched.following
    async with visitor.follows("/") as changes:
        await asyncio.wait_for(changes.get(), 60)
        await asyncio.sleep(0.5)
        assert visitor.watched.following
    await forgotten(visitor)
    await kube.replace(RESOURCE_SLICES, {**(await kube.get(RESOURCE_SLICES, "slice-node-2")), **_tainted("node-2")})
    status, text = await visitor.get("/nodes/node-2")
    assert status == 200, "and again with the next viewer"
    assert re.search("before .*tainted gpu.nvidia.com/xid", text), "what happened meanwhile is known"


# -- who gets nothing


@rows("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil:8080", ""])
async def test_a_foreign_name_that_leads_here_gets_nothing(visitor: Visitor, host: str) -> None:
    status, text = await visitor.get("/", Host=host)
    assert status in (400, 421) and "node-1" not in text


@rows("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
async def test_names_of_this_machine_are_answered_on_any_port(visitor: Visitor, host: str) -> None:
    assert (await visitor.get("/", Host=host))[0] == 200


@rows("path", ["/", "/nodes/node-1", "/waiting/a/b", "/domains"])
@pytest.mark.parametrize("key", ["wrong", "ä"])
async def test_without_the_key_there_is_only_a_form(visitor: Visitor, path: str, key: str) -> None:
    status, text = await visitor.get(path, key=key)
    assert status == 401 and "node-1" not in text and 'type="password"' in text
    status, text = await visitor.get(path, key=key, Accept="text/event-stream")
    assert status == 401 and "data:" not in text
    assert not visitor.watched.following


async def test_the_printed_address_leaves_a_cookie_that_scripts_cannot_read(visitor: Visitor) -> None:
    async with visitor.session.get(f"{visitor.root}/enter?key={visitor.key}", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "./")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    async with visitor.session.get(visitor.root) as answer:
        assert "node-1" in await answer.text()
    async with visitor.session.post(f"{visitor.root}/enter", data={"secret": "wrong"}) as answer:
        assert answer.status == 401


@rows("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_but_reading_is_possible(visitor: Visitor, method: str) -> None:
    headers = {"Authorization": f"Bearer {visitor.key}"}
    async with visitor.session.request(method, f"{visitor.root}/nodes/node-1", headers=headers) as answer:
        assert answer.status == 405


async def test_streams_are_bounded(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui_server, "_MOST_STREAMS", 1)
    async with visitor.follows("/"):
        assert (await visitor.get("/", Accept="text/event-stream"))[0] == 503
        assert (await visitor.get("/"))[0] == 200


async def test_connections_without_a_request_make_room_and_pages_that_are_followed_do_not(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.runtime.connections.MOST_CONNECTIONS", 4)
    port = int(visitor.root.rpartition(":")[2])
    async with visitor.follows("/") as changes, asyncio.timeout(60):
        await changes.get()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        assert (await visitor.get("/"))[0] == 200
        for reader, _ in silent[:8]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


async def test_a_port_in_use_is_a_mistake_of_the_user(kube: Kube) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput) as refused:
            async with UiServer(WatchedCluster(kube, GPU_DRIVER), OwnKey(), Listening("127.0.0.1", port)).serving():
                pass
    assert str(refused.value) == (
        f"127.0.0.1:{port}: the port cannot be used: Address already in use; choose another with --port"
    )


@rows(
    "words, problem",
    [
        (["--certificates", "/nowhere"], "is for --shared"),
        (["--shared", "--certificates", "/nowhere"], "tls.crt and tls.key cannot be used"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_before_anything_is_served(words: list[str], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        run("ui", *words)


def pair(address: str) -> tuple[str, str]:
    """A certificate and its key."""
    data = Issuer("authority").secret("ui", address)["data"]
    return base64.b64decode(data["tls.crt"]).decode(), base64.b64decode(data["tls.key"]).decode()


def put(folder: Path, certificate: str, key: str) -> None:
    (folder / "tls.crt").write_text(certificate)
    (folder / "tls.key").write_text(key)


async def served_by(port: int) -> str:
    """The certificate that a new connection gets."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


async def test_a_certificate_that_is_replaced_is_used_by_new_connections(kube: Kube, tmp_path: Path) -> None:
    """And a pair that does not fit is not, until it does."""
    first, second = (pair("127.0.0.1") for _ in range(2))
    put(tmp_path, *first)
    context = certificate_of(tmp_path)
    async with UiServer(
        WatchedCluster(kube, GPU_DRIVER), OwnKey(), Listening("127.0.0.1", 0, tls=context)
    ).serving() as port:
        following = asyncio.create_task(follow_certificate(context, tmp_path, every_s=0.01))
        try:
            assert await served_by(port) == first[0]
            put(tmp_path, second[0], first[1])
            await asyncio.sleep(0.2)
            assert await served_by(port) == first[0]
            put(tmp_path, *second)
            async with asyncio.timeout(20):
                while await served_by(port) != second[0]:
                    pass
        finally:
            following.cancel()


async def test_the_answer_to_probes_needs_no_secret_and_has_none(visitor: Visitor) -> None:
    assert await visitor.get("/healthz", key="none") == (200, "ok\n")


# -- tokens of a cluster

POD_KIND = Resource("", "v1", "pods", "Pod", True)
SLICE_KIND = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)


class Authority:
    """An API server that knows one token. `may` are plurals that its user may list and watch."""

    def __init__(self, may: Sequence[str], *, watch: bool = True) -> None:
        self.may = may
        self.watch = watch
        self.asked: list[JsonObject] = []
        self.broken = False

    async def raw(self, method: str, path: str, body: JsonObject) -> Any:
        await asyncio.sleep(0)  # others are asked meanwhile
        assert (method, path) == ("POST", f"/apis/{body['apiVersion']}/{body['kind'].lower()}s")
        if self.broken:
            raise Unreachable("no answer", about="reviews")
        self.asked.append(body["spec"])
        if body["kind"] == "TokenReview":
            known = body["spec"]["token"] == "good"
            user = {"username": "ann", "uid": "7", "groups": ["team"], "extra": {"scope": ["all"]}}
            return {"status": {"authenticated": known, **({"user": user} if known else {"error": "no"})}}
        attributes = body["spec"]["resourceAttributes"]
        allowed = attributes["resource"] in self.may and (attributes["verb"] == "list" or self.watch)
        return {"status": {"allowed": allowed}}


def reviews(authority: Authority) -> TokenReviews:
    return TokenReviews(authority, [POD_KIND, SLICE_KIND], "viewer")


async def test_a_user_who_may_read_everything_that_is_shown_may_look() -> None:
    authority = Authority(["pods", "resourceslices"])
    viewers = reviews(authority)
    assert await viewers.refusal("good") is None
    questions = authority.asked[1:]
    assert {(item["resourceAttributes"]["verb"], item["resourceAttributes"]["resource"]) for item in questions} == {
        (verb, kind) for verb in ("list", "watch") for kind in ("pods", "resourceslices")
    }
    assert all(item["user"] == "ann" and item["groups"] == ["team"] and item["extra"] for item in questions)
    assert all("namespace" not in item["resourceAttributes"] for item in questions), "in all namespaces"


@rows("may, watch", [(["pods"], True), (["resourceslices"], True), ([], True), (["pods", "resourceslices"], False)])
async def test_a_user_who_may_not_gets_the_command_that_changes_it(may: Sequence[str], watch: bool) -> None:
    refusal = await reviews(Authority(may, watch=watch)).refusal("good")
    assert refusal is not None and refusal.status == 403
    assert "kubectl create clusterrolebinding gpu-ui-viewer --clusterrole=viewer --user=ann" in refusal.text


def test_a_service_account_is_named_as_kubectl_wants_it() -> None:
    text = denied("system:serviceaccount:team:bot", ["pods"], "viewer")
    assert text.endswith("--clusterrole=viewer --serviceaccount=team:bot")


@rows("token", ["bad", "", None, "x" * 5000])
async def test_an_unknown_token_is_refused(token: str | None) -> None:
    refusal = await reviews(Authority(["pods", "resourceslices"])).refusal(token)
    assert refusal is not None and refusal.status == 401


async def test_an_api_server_that_does_not_answer_lets_nobody_in_and_is_asked_again() -> None:
    authority = Authority(["pods", "resourceslices"])
    authority.broken = True
    viewers = reviews(authority)
    refusal = await viewers.refusal("good")
    assert refusal is not None and refusal.status == 503
    authority.broken = False
    assert await viewers.refusal("good") is None


async def test_strangers_with_many_tokens_are_not_kept_waiting_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.cli.ui.viewers._MOST_WAITING", 5)
    authority = Authority(["pods", "resourceslices"])
    viewers = reviews(authority)
    answers = await asyncio.gather(*(viewers.refusal(f"bad-{number}") for number in range(8)))
    assert sorted(answer.status for answer in answers if answer is not None) == [401] * 5 + [503] * 3
    assert len(authority.asked) == 5
    assert await viewers.refusal("good") is None


async def test_an_answer_about_a_token_counts_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(["pods", "resourceslices"])
    viewers = reviews(authority)
    assert await viewers.refusal("good") is None
    authority.may = []
    assert await viewers.refusal("good") is None
    monkeypatch.setattr("dra_driver.cli.ui.viewers._REMEMBERED_S", 0.0)
    assert isinstance(await viewers.refusal("good"), HttpRefusal)


@pytest.mark.parametrize("secret", ["\udcff", "\ud800", "?", "é"])
async def test_bytes_that_are_no_text_are_a_wrong_secret(secret: str) -> None:
    refusal = await OwnKey().refusal(secret)
    assert refusal is not None and refusal.status == 401


@rows(
    "body, kind",
    [
        (b"secret=%ff", "application/x-www-form-urlencoded"),
        (b"secret=x", "application/x-www-form-urlencoded; charset=nope"),
        (b"secret=x", "multipart/form-data"),
    ],
)
async def test_a_form_that_is_no_text_is_a_wrong_secret(visitor: Visitor, body: bytes, kind: str) -> None:
    async with visitor.session.post(
        f"{visitor.root}/enter", data=body, headers={"Content-Type": kind}, allow_redirects=False
    ) as answer:
        assert answer.status == 401


async def test_what_was_followed_is_given_back_with_the_last_viewer(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[weakref.ref[Following]] = []
    running = Following.running

    def noted(self: Following) -> Any:
        followed.append(weakref.ref(self))
        return running(self)

    monkeypatch.setattr(Following, "running", noted)
    for _ in range(2):
        assert (await visitor.get("/"))[0] == 200
        await forgotten(visitor)
    await asyncio.sleep(0.1)
    gc.collect()
    assert [ref() for ref in followed] == [None, None]


async def test_slices_that_cannot_be_listed_are_not_taken_for_lost_gpus(
    visitor: Visitor, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await visitor.get("/nodes/node-1"))[0] == 200
    await forgotten(visitor)
    pages, refused = kube.pages, list[str]()

    def flaky(resource: Resource, **more: Any) -> Any:
        if resource == RESOURCE_SLICES and not refused:
            refused.append(resource.plural)
            raise Unreachable("503")
        return pages(resource, **more)

    monkeypatch.setattr(kube, "pages", flaky)
    async with asyncio.timeout(60), visitor.watched.viewed():
        text = ""
        while not (refused and "gpu-0" in text):
            await asyncio.sleep(0.2)
            text = (await visitor.get("/nodes/node-1"))[1]
    assert "published" not in text
