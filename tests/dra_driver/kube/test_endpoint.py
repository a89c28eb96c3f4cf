"""Where the API server is, and who we are there, from a kubeconfig."""

import asyncio
import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from support.rows import rows

from dra_driver.errors import InvalidInput, NodeNotReady, Unreachable, UnreadableFile
from dra_driver.kube import endpoint
from dra_driver.kube.client import Kube
from dra_driver.kube.endpoint import _plain_endpoint, default_kubeconfigs, endpoint_from, namespace_of

PASSWORD = {"username": "u", "password": "p"}
"""With it, a kubeconfig is left to the official package."""
NEW_KEY = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_token_of_the_kubeconfig_is_sent(tmp_path: Path) -> None:
    read = endpoint_from(kubeconfig(tmp_path, {"token": "secret"}))
    assert (read.server, read.token(), read.tls) == ("http://127.0.0.1:1", "Bearer secret", None)


def test_an_exec_plugin_gives_the_token(tmp_path: Path) -> None:
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"fresh"}}'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [credential],
        "interactiveMode": "Never",
    }
    assert endpoint_from(kubeconfig(tmp_path, {"exec": plugin})).token() == "Bearer fresh"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}, "process returned 3. log in first"),
        ({"command": "no-such-command"}, "No such file or directory: 'no-such-command'"),
        ({"command": "echo", "args": ["{}"]}, "malformed response"),
    ],
)
def test_a_failing_exec_plugin_is_an_error_not_a_request_without_credentials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: dict[str, Any], reason: str
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", **command}
    with pytest.raises(InvalidInput, match=f"kubeconfig .*: the command for credentials failed: {reason}"):
        endpoint_from(kubeconfig(tmp_path, {"exec": plugin}))
    assert capsys.readouterr().err == ""


def test_an_exec_plugin_that_fails_later_is_an_error_of_that_request(tmp_path: Path) -> None:
    """Its token has expired, so it is asked again."""
    status = {"token": "old", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    credential = tmp_path / "credential"
    credential.write_text(
        json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
    )
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "cat"}
    endpoint = endpoint_from(kubeconfig(tmp_path, {"exec": plugin | {"args": [str(credential)]}}))
    credential.unlink()
    with pytest.raises(Unreachable, match="API server: the command for credentials failed: process returned 1"):
        endpoint.token()


def test_without_credentials_nothing_is_sent(tmp_path: Path) -> None:
    assert endpoint_from(kubeconfig(tmp_path, {})).token() is None


AS = {"as": "jané", "as-groups": ["devs", "ops"], "as-uid": "7", "as-user-extra": {"example.com/why": ["a", "b"]}}


@pytest.mark.parametrize("user", [{"token": "t"}, PASSWORD], ids=["read here", "read by the official package"])
async def test_a_user_that_impersonates_another_does_so_in_each_request(tmp_path: Path, user: dict[str, Any]) -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.extend((name, value) for name, value in request.headers.items() if name.startswith("Impersonate"))
        return web.json_response({"major": "1", "minor": "36"})

    app = web.Application()
    app.router.add_get("/version", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = kubeconfig(tmp_path, user | AS, server=f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with Kube(endpoint_from(config)) as kube:
        await kube.server_version()
    await runner.cleanup()
    assert seen == [
        ("Impersonate-User", "jané"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "devs"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-example.com%2Fwhy", "a"),
        ("Impersonate-Extra-example.com%2Fwhy", "b"),
    ]


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ({"as-groups": ["devs"]}, "also need the user's name in `as`"),
        ({"as": "jane", "as-groups": "devs"}, "as-groups must be a list of groups"),
        ({"as": "jane", "as-user-extra": {"why": "a"}}, "as-user-extra must have a list of values for each key"),
        ({"as": 5}, "must be text of one line"),
        ({"as": "a\nb"}, "must be text of one line"),
    ],
)
def test_an_impersonation_that_cannot_be_sent_is_refused(tmp_path: Path, user: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        endpoint_from(kubeconfig(tmp_path, user))


@pytest.mark.parametrize("server", ["", "127.0.0.1:6443", "https://127.0.0.1:99999", "https://[::1"])
def test_a_server_that_is_no_url_is_a_mistake_that_is_named(tmp_path: Path, server: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a URL; write it as https://HOST:PORT|Invalid IPv6 URL"):
        endpoint_from(kubeconfig(tmp_path, {}, server=server))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("abc", "has certificate data that is not Base64: Incorrect padding"),
        ("YWJj", "client-certificate and client-key are not a certificate and its key"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_a_mistake_that_is_named(tmp_path: Path, data: str, reason: str) -> None:
    user = {"client-certificate-data": data, "client-key-data": data}
    with pytest.raises(InvalidInput, match=reason):
        endpoint_from(kubeconfig(tmp_path, user, server="https://127.0.0.1:1"))


async def test_a_token_that_cannot_be_sent_is_an_error_without_the_token(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xd0\x00")
    for user, reason in [
        ({"token": "a\nb"}, "API server: the token has a line break or another control character"),
        ({"tokenFile": "binary"}, "API server: cannot read the token"),
    ]:
        async with Kube(endpoint_from(kubeconfig(tmp_path, user))) as kube:
            with pytest.raises(Unreachable, match=reason):
                await kube.server_version()


def test_a_context_that_is_not_there_is_a_mistake_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"kubeconfig .*: has no context nowhere; kubectl config get-contexts lists"):
        endpoint_from(kubeconfig(tmp_path, {}), "nowhere")
    (tmp_path / "none").write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(InvalidInput, match=r"has no current context; kubectl config use-context NAME sets it"):
        endpoint_from(tmp_path / "none")


def test_outside_a_pod_a_kubeconfig_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NodeNotReady, match="--kubeconfig"):
        endpoint_from(None)


def test_the_default_kubeconfig_is_kubectls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/one:/two")
    assert default_kubeconfigs() == (Path("/one"), Path("/two"))
    monkeypatch.delenv("KUBECONFIG")
    assert default_kubeconfigs() == (Path.home() / ".kube" / "config",)


def test_several_files_count_together_as_they_do_for_kubectl(tmp_path: Path) -> None:
    """The first that says something says it; files that are empty or not there are passed over."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        config = yaml.safe_load(kubeconfig(tmp_path / name, {"token": name}).read_text())
        for kind, entry in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            config[kind][0]["name"] = name
            if kind == "contexts":
                config[kind][0][entry] = {"cluster": name, "user": name}
        config["current-context"] = name
        (tmp_path / name / "config").write_text(yaml.safe_dump(config))
    (tmp_path / "empty").touch()
    files = [tmp_path / "empty", *(tmp_path / name / "config" for name in ("gone", "one", "two"))]
    assert endpoint_from(files).token() == "Bearer one"
    assert endpoint_from(files, "two").token() == "Bearer two"


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {})
    assert namespace_of([path], None) == "default"
    config = yaml.safe_load(path.read_text())
    config["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}})
    path.write_text(yaml.safe_dump(config))
    assert (namespace_of([path], None), namespace_of([tmp_path / "gone", path], "y")) == ("default", "team-a")
    path.write_text("- a")
    assert namespace_of([path], "y") == "default"
    os.mkfifo(tmp_path / "pipe")
    assert namespace_of([tmp_path / "pipe"], "y") == "default", "and it is not read"


def test_a_kubeconfig_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"gone: does not exist; name another file"):
        endpoint_from(tmp_path / "gone")


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    read = endpoint_from(kubeconfig(tmp_path, {"tokenFile": "token"}))
    assert read.token() == "Bearer one"
    (tmp_path / "next").write_text("two\n")
    (tmp_path / "next").replace(file)
    assert read.token() == "Bearer two"
    file.unlink()
    with pytest.raises(Unreachable, match="cannot read the token"):
        read.token()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that vouches for itself, as an old cluster's has it: no key usage, no identifiers."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    folder = tmp_path_factory.mktemp("certificates")
    command = f"openssl {NEW_KEY} -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
    more = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *more], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("inline", [True, False])
async def test_certificates_prove_both_sides(certificates: Path, inline: bool) -> None:
    def given(field: str, name: str) -> dict[str, str]:
        content = (certificates / name).read_bytes()
        return {f"{field}-data": base64.b64encode(content).decode()} if inline else {field: name}

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "cert.pem"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")

    proven: list[bool] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        connection: ssl.SSLObject = request.transport.get_extra_info("ssl_object")
        assert connection.getpeercert() is not None
        proven.append(bool(connection.session_reused))
        return web.json_response({"major": "1", "minor": "36"})

    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    user = {**given("client-certificate", "cert.pem"), **given("client-key", "key.pem")}
    server = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        trusted = kubeconfig(certificates, user, server=server, **given("certificate-authority", "cert.pem"))
        async with Kube(endpoint_from(trusted)) as kube:
            assert await kube.server_version() == (1, 36)
            await asyncio.gather(kube.server_version(), kube.server_version())
            assert sorted(proven) == [False, False, True], "a resumed session still proves who the client is"
        async with Kube(endpoint_from(kubeconfig(certificates, user, server=server))) as kube:
            with pytest.raises(
                Unreachable, match=r"cannot trust the API server: 127.0.0.1:\d+: self-signed certificate$"
            ):
                await kube.server_version()
    finally:
        await runner.cleanup()


def a_certificate(folder: Path, name: str, of: str = "IP:127.0.0.1") -> None:
    """A server's key and a certificate that vouches for itself, as `name`.key and `name`.crt."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    command = f"openssl {NEW_KEY} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.crt"
    more = ["-addext", f"subjectAltName={of}"]
    subprocess.run([*command.split(), *more], cwd=folder, check=True, capture_output=True)


@asynccontextmanager
async def a_server(folder: Path, name: str, port: int = 0, resumed: list[bool] | None = None) -> AsyncIterator[int]:
    """One that answers its version, with the certificate of that name; its port. `resumed` says of each request whether
    its connection resumed a TLS session."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")

    async def answer(request: web.Request) -> web.Response:
        if resumed is not None:
            assert request.transport is not None
            resumed.append(request.transport.get_extra_info("ssl_object").session_reused)
        return web.json_response({"major": "1", "minor": "36"})

    app = web.Application()
    app.router.add_get("/version", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("tunneled", [False, True])
async def test_later_connections_resume_the_tls_session_of_the_first(tmp_path: Path, *, tunneled: bool) -> None:
    a_certificate(tmp_path, "api")
    resumed: list[bool] = []
    async with a_server(tmp_path, "api", resumed=resumed) as port, a_tunnel(port, []) as proxy:
        through = {"proxy-url": f"http://127.0.0.1:{proxy}"} if tunneled else {}
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": "api.crt", **through}
        async with Kube(endpoint_from(kubeconfig(tmp_path, {}, **cluster))) as kube:
            await kube.server_version()
            await asyncio.gather(*(kube.server_version() for _ in range(3)))
    assert sorted(resumed) == [False, False, True, True]


@pytest.mark.parametrize("in_pod", [True, False])
async def test_an_authority_that_is_rotated_is_followed_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_pod: bool
) -> None:
    """And the one before is trusted no longer. A file that is no certificate leaves what was read before."""
    for name in ("old", "new"):
        a_certificate(tmp_path, name)

    def trust(content: bytes) -> None:
        (tmp_path / "next").write_bytes(content)
        (tmp_path / "next").replace(tmp_path / "ca.crt")

    trust((tmp_path / "old.crt").read_bytes())
    (tmp_path / "token").write_text("t")
    async with a_server(tmp_path, "old") as port:
        monkeypatch.setattr(endpoint, "_SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        url = f"https://127.0.0.1:{port}"
        config = kubeconfig(tmp_path, {}, server=url, **{"certificate-authority": "ca.crt"})
        kube = Kube(endpoint_from(None if in_pod else config))
        await kube.__aenter__()
        assert await kube.server_version() == (1, 36)
        trust(b"half a certif")
        assert await kube.server_version() == (1, 36)
    async with kube, a_server(tmp_path, "new", port):
        with pytest.raises(Unreachable):
            await kube.server_version()
        trust((tmp_path / "new.crt").read_bytes())
        assert await kube.server_version() == (1, 36)
    async with kube, a_server(tmp_path, "old", port):
        with pytest.raises(Unreachable, match="cannot trust"):
            await kube.server_version()


@pytest.mark.parametrize("user", [{}, PASSWORD], ids=["read here", "read by the official package"])
async def test_the_certificate_has_the_name_that_the_kubeconfig_says(tmp_path: Path, user: dict[str, Any]) -> None:
    """The address is of a tunnel or a load balancer: the certificate is for another name."""
    a_certificate(tmp_path, "api", "DNS:api.internal")
    async with a_server(tmp_path, "api") as port:
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(tmp_path / "api.crt")}
        async with Kube(
            endpoint_from(kubeconfig(tmp_path, user, **cluster, **{"tls-server-name": "api.internal"}))
        ) as kube:
            assert await kube.server_version() == (1, 36)
        for other in ({}, {"tls-server-name": "other.internal"}):
            async with Kube(endpoint_from(kubeconfig(tmp_path, user, **cluster, **other))) as kube:
                with pytest.raises(Unreachable):
                    await kube.server_version()


async def test_the_proxy_of_a_kubeconfig_is_used(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.url.host == "api.invalid"
        return web.json_response({"major": "1", "minor": "36"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy = {"proxy-url": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    try:
        for user in ({}, PASSWORD):  # read here, and by the official package
            config = kubeconfig(tmp_path, user, server="http://api.invalid:6443", **proxy)
            async with Kube(endpoint_from(config)) as kube:
                assert await kube.server_version() == (1, 36)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_tunnel(
    port: int, requests: list[str], status: str = "200 OK", tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A proxy that takes CONNECT alone and leads to `port` here; its own port. `requests` are the heads that it got."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(65536):
            writer.write(part)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        if not status.startswith("200"):
            writer.close()
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_proxy_with_tls_is_trusted_by_its_own_name_and_the_server_behind_it_by_another(tmp_path: Path) -> None:
    a_certificate(tmp_path, "api", "DNS:api.invalid")
    tunnels = {}
    for name, of in (("proxy", "IP:127.0.0.1"), ("other", "DNS:other.invalid")):
        a_certificate(tmp_path, name, of)
        tunnels[name] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tunnels[name].load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
    (tmp_path / "ca.crt").write_text("".join((tmp_path / f"{name}.crt").read_text() for name in ("api", *tunnels)))
    requests: list[str] = []

    async def version(port: int) -> tuple[int, int]:
        cluster = {"certificate-authority": "ca.crt", "proxy-url": f"https://127.0.0.1:{port}"}
        config = kubeconfig(tmp_path, {"token": "t"}, server="https://api.invalid:6443", **cluster)
        async with Kube(endpoint_from(config)) as kube:
            return await kube.server_version()

    async with a_server(tmp_path, "api") as server:
        async with a_tunnel(server, requests, tls=tunnels["proxy"]) as port:
            assert await version(port) == (1, 36)
        async with a_tunnel(server, requests, tls=tunnels["other"]) as port:
            with pytest.raises(Unreachable, match=r"cannot trust the API server: 127\.0\.0\.1"):
                await version(port)
    assert [head.split("\r\n")[0] for head in requests] == ["CONNECT api.invalid:6443 HTTP/1.1"]


async def test_https_goes_through_a_proxy_that_sees_nothing_of_it(tmp_path: Path) -> None:
    """Read here, and by the official package. The name is known to the proxy alone; the certificate is the server's."""
    for name in ("right", "wrong"):
        a_certificate(tmp_path, name, "DNS:api.invalid")
    requests: list[str] = []

    async def asked(authority: str, port: int, user: dict[str, str]) -> tuple[int, int]:
        cluster = {"certificate-authority": f"{authority}.crt", "proxy-url": f"http://user:secret@127.0.0.1:{port}"}
        config = kubeconfig(tmp_path, user, server="https://api.invalid:6443", **cluster)
        async with Kube(endpoint_from(config)) as kube:
            return await kube.server_version()

    async with a_server(tmp_path, "right") as server, a_tunnel(server, requests) as tunnel:
        for user in ({"token": "t"}, PASSWORD):
            assert await asked("right", tunnel, user) == (1, 36)
        with pytest.raises(Unreachable, match="cannot trust"):
            await asked("wrong", tunnel, {})
    assert {head.split("\r\n")[0] for head in requests} == {"CONNECT api.invalid:6443 HTTP/1.1"}
    login = base64.b64encode(b"user:secret").decode()
    assert all(f"Proxy-Authorization: Basic {login}" in head and "Bearer" not in head for head in requests)


@pytest.mark.parametrize("user", [{}, PASSWORD])
@pytest.mark.parametrize(
    ("server", "proxy", "uses_tls"),
    [
        ("http://api", "http://proxy", False),
        ("http://api", "https://proxy", True),
        ("https://api", "http://proxy", True),
    ],
)
def test_the_certificates_of_a_proxy_are_checked_also_if_the_server_has_none(
    tmp_path: Path, user: dict[str, Any], server: str, proxy: str, uses_tls: bool
) -> None:
    context = endpoint_from(kubeconfig(tmp_path, user, server=server, **{"proxy-url": proxy})).context()
    assert (context is not None) == uses_tls
    assert context is None or (context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname)


@rows(
    "status, reason",
    [
        ("403 Forbidden", "refuses the tunnel: HTTP status 403$"),
        (
            "407 Login",
            "HTTP status 407; the proxy requires authentication; set its URL to http://USER:PASSWORD@HOST:PORT",
        ),
    ],
)
async def test_a_proxy_that_refuses_is_named(tmp_path: Path, status: str, reason: str) -> None:
    async with a_tunnel(1, [], status) as tunnel:
        proxy = {"proxy-url": f"http://127.0.0.1:{tunnel}"}
        config = kubeconfig(tmp_path, {}, server="https://api.invalid:6443", **proxy)
        async with Kube(endpoint_from(config)) as kube:
            with pytest.raises(Unreachable, match=reason):
                await kube.server_version()


def test_a_proxy_that_cannot_be_used_is_a_mistake_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the proxy 'socks5://proxy' is not supported"):
        endpoint_from(kubeconfig(tmp_path, {}, **{"proxy-url": "socks5://proxy"}))


SERVER = "https://api.example.com:6443"


@pytest.mark.parametrize("user", [{}, PASSWORD], ids=["read here", "read by the official package"])
@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        (SERVER, {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (SERVER, {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        (SERVER, {"HTTP_PROXY": "http://proxy:3128", "ALL_PROXY": "http://proxy:3128"}, None),
        ("http://api.example.com", {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        (SERVER, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "other.com, .example.com"}, None),
        (SERVER, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "Example.com"}, None),
        (SERVER, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "*.example.com:6443"}, None),
        (SERVER, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "*"}, None),
        (SERVER, {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "example.com:443,ple.com,"}, "http://proxy"),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://proxy", "no_proxy": "10.0.0.0/8"}, None),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "10.1.0.1/16"}, None),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://proxy", "no_proxy": "10.1.2.3"}, None),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://proxy", "no_proxy": "10.2.0.0/16"}, "http://proxy"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://proxy"}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://proxy"}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://proxy"}, None),
    ],
)
def test_the_proxy_of_the_environment_is_used_as_by_kubectl(
    user: dict[str, Any],
    server: str,
    environment: dict[str, str],
    proxy: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert endpoint_from(kubeconfig(tmp_path, user, server=server)).proxy == proxy
    own = kubeconfig(tmp_path, user, **{"server": server, "proxy-url": "http://own"})
    assert endpoint_from(own).proxy == "http://own"


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"exec": {"command": "echo"}}, {}),
        ({"auth-provider": {"name": "gcp"}}, {}),
        (PASSWORD, {}),
        ({}, {"insecure-skip-tls-verify": True}),
        ({"client-certificate-data": "***"}, {"server": "https://127.0.0.1:1"}),
        ({}, {"certificate-authority": "missing.pem", "server": "https://127.0.0.1:1"}),
    ],
)
def test_what_is_not_plain_is_left_to_the_official_package(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any]
) -> None:
    assert _plain_endpoint(kubeconfig(tmp_path, user, **cluster), None) is None


def test_a_plain_kubeconfig_does_not_load_the_official_package(tmp_path: Path) -> None:
    """It costs 10 MB in every service."""
    code = "import sys, pathlib; from dra_driver.kube.endpoint import endpoint_from; "
    code += "endpoint_from(pathlib.Path(sys.argv[1])); sys.exit('kubernetes' in sys.modules)"
    path = kubeconfig(tmp_path, {"token": "secret"})
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_a_folder_and_bytes_that_are_no_text_are_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r": Is a directory$"):
        endpoint_from(tmp_path)
    (tmp_path / "config").write_bytes(b"\xaf")
    with pytest.raises(InvalidInput, match=r": is not UTF-8 text, so it is not a kubeconfig$"):
        endpoint_from(tmp_path / "config")


@pytest.mark.parametrize("text", ["", "{", "[]", "{contexts: 3}", "clusters: []", "some text"])
def test_what_is_no_kubeconfig_is_a_mistake_that_names_the_file_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=f"^kubeconfig {path}: [^\n]+$"):
        endpoint_from(path)
