"""What stands between the driver's processes and the API server: HTTPS that fails, stalls and changes its authority."""

import asyncio
import json
import random
import ssl
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web
from support.issuer import Issuer

_ADDRESS = "127.0.0.1"
_DEEP = "[" * 5000 + "]" * 5000
_GARBAGE = (
    "",
    "<html>502 Bad Gateway</html>",
    "[]",
    "null",
    '{"kind": "Status"}',
    '{"items": [{}]}',
    '{"items": [{"metadata": {}}], "metadata": {"resourceVersion": "1"}}',
    '{"items": null, "metadata": null}',
    '{"metadata": {"name": 7, "uid": null}, "status": []}',
    '{"metadata": {"name": "x", "namespace": "y", "uid": "z"}, "spec": "no", "status": {"allocation": 3}}',
    f'{{"items": {_DEEP}}}',
    "\udcff\udcfe",
)
_LINES = (
    b'{"type": "ADDED", "object": {}}\n',
    b'{"type": "MODIFIED"}\n',
    b"[]\n",
    b"not JSON\n",
    b'{"type": 1, "object": {"metadata": []}}\n',
)


def spoiled(value: Any, rng: random.Random) -> Any:
    """A copy in which one value has a type that it cannot have; null and the empty string have a meaning."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        return {**value, key: spoiled(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        index = rng.randrange(len(value))
        return [*value[:index], spoiled(value[index], rng), *value[index + 1 :]]
    return rng.choice(("no", [7]) if isinstance(value, dict | int | float) else (7, {"no": "such"}, True))


class Front:
    """`mode` is `ok`, `down`, `slow`, `429`, `500` or `garbage`, from one request to the next."""

    def __init__(self, upstream: str, folder: Path, rng: random.Random) -> None:
        self._upstream = upstream
        self._folder = folder
        self._rng = rng
        self.mode = "ok"
        self.requests = 0
        self._streams: set[web.StreamResponse] = set()
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._session: ClientSession
        self._context = self._new_authority()

    async def start(self) -> Path:
        """Answers the kubeconfig for those who come through here."""
        self._session = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))
        await self._listen()
        kubeconfig = self._folder / "kubeconfig-front"
        kubeconfig.write_text(
            f"""
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://{_ADDRESS}:{self._port}", certificate-authority: {self._ca} }}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""
        )
        return kubeconfig

    async def stop(self) -> None:
        await self._deafen()
        await self._session.close()

    async def set(self, mode: str) -> None:
        """From now on; watches that are open are cut, or get a line that makes no sense."""
        was, self.mode = self.mode, mode
        if mode == "down":
            await self._deafen()
        elif was == "down":
            await self._listen()
        elif mode == "garbage":
            for stream in list(self._streams):
                line = self._rng.choice(_LINES)
                await asyncio.gather(stream.write(line), return_exceptions=True)

    async def rotate(self) -> None:
        """Another authority signs from now on, and its certificate is in the file that clients were given."""
        self._context = self._new_authority()
        if self._runner is not None:
            await self._deafen()
            await self._listen()

    @property
    def _ca(self) -> Path:
        return self._folder / "ca.crt"

    def _new_authority(self) -> ssl.SSLContext:
        import base64

        data = Issuer("campaign").secret("front", _ADDRESS)["data"]
        files = {name: base64.b64decode(text) for name, text in data.items()}
        for name, content in files.items():
            part = self._folder / f"{name}.new"
            part.write_bytes(content)
            part.replace(self._folder / name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        return context

    async def _listen(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, _ADDRESS, self._port, ssl_context=self._context, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _deafen(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.mode == "slow":
            await asyncio.sleep(self._rng.uniform(0.05, 1.5))
        if self.mode in ("429", "500"):
            headers = {"Retry-After": "1"} if self.mode == "429" else {}
            return web.json_response({"kind": "Status", "code": int(self.mode)}, status=int(self.mode), headers=headers)
        if self.mode == "garbage":
            return web.Response(body=await self._garbage(request), content_type="application/json")
        return await self._forward(request)

    async def _garbage(self, request: web.Request) -> bytes:
        """Half of the reads get the true answer with one value of another type: everything else of it can be used."""
        if request.method == "GET" and "watch" not in request.query and self._rng.random() < 0.5:
            async with self._session.get(self._upstream + request.raw_path) as answer:
                if answer.status == 200:
                    return json.dumps(spoiled(await answer.json(), self._rng)).encode()
        return self._rng.choice(_GARBAGE).encode("utf-8", "surrogateescape")

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "connection")}
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, self._upstream + request.raw_path, headers=headers, data=await request.read()
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in ("Content-Type", "Retry-After"):
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                await response.prepare(request)
                self._streams.add(response)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (ClientError, OSError):
            return web.Response(status=502)
        finally:
            if response is not None:
                self._streams.discard(response)
