"""A registry that remembers what is pushed to it (OCI Distribution Specification 1.1, what clients need to push)."""

import base64
import hashlib
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import override
from urllib.parse import parse_qs, urlsplit

from support.issuer import Issuer


@dataclass
class Registry:
    """`blobs` by digest; `manifests` by repository and tag, with the media type that they were pushed as.
    `authority` signed its certificate (PEM)."""

    address: str = ""
    authority: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)


@contextmanager
def registry() -> Iterator[Registry]:
    """While the block runs. Clients must trust `authority`."""
    pushed = Registry()

    class Handler(_Handler):
        registry = pushed

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    secret = Issuer("registry").secret("registry", "127.0.0.1")["data"]
    texts = {name: base64.b64decode(text).decode() for name, text in secret.items()}
    pushed.authority = texts["ca.crt"]
    server.socket = _tls(texts).wrap_socket(server.socket, server_side=True)
    pushed.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield pushed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _tls(texts: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tls.crt", "tls.key"):
            (Path(folder) / name).write_text(texts[name])
        context.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    return context


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._give(with_content=True)

    def do_HEAD(self) -> None:
        self._give(with_content=False)

    def _give(self, *, with_content: bool) -> None:
        digest = self.path.rpartition("/")[2]
        content = b"" if self.path == "/v2/" else self.registry.blobs.get(digest)
        if content is None:
            self._answer(404)
            return
        kinds = {body: kind for kind, body in self.registry.manifests.values()}
        kind = kinds.get(content, "application/octet-stream")
        self._answer(200, {"Docker-Content-Digest": digest, "Content-Type": kind}, length=len(content))
        if with_content:
            self.wfile.write(content)

    def do_POST(self) -> None:
        self._body()
        self._answer(202, {"Location": f"https://{self.registry.address}{self.path}upload"})

    def do_PUT(self) -> None:
        body, target = self._body(), urlsplit(self.path)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        repository, part, name = target.path.removeprefix("/v2/").rsplit("/", 2)
        if part == "manifests":
            self.registry.manifests[repository, name] = (self.headers["Content-Type"], body)
        else:
            assert parse_qs(target.query)["digest"] == [digest]
        self.registry.blobs[digest] = body
        self._answer(201, {"Docker-Content-Digest": digest, "Location": f"/v2/{repository}/blobs/{digest}"})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: dict[str, str] | None = None, *, length: int = 0) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass
