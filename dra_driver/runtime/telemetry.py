"""Probes and metrics of a service on one HTTP port. `/healthz` is the liveness probe, `/readyz` the readiness probe,
`/metrics` is for Prometheus, and `/debug`, if enabled, shows internals. Owners create their metric families in a
registry that `main` creates. The HTTP server is written here, because a framework would cost 2 MB of memory on each
node.
"""

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from types import FrameType
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from dra_driver import __version__
from dra_driver.errors import NodeNotReady

_log = structlog.get_logger(__name__)

type Probe = Callable[[], str | None]
"""Returns None if all is well, otherwise one line that says what is wrong."""

type DebugSection = Callable[[], Iterable[str]]
"""Returns lines of text; called for each request, in the event loop."""

_REQUEST_TIMEOUT_S = 5.0
"""For a request and its answer, also to a client that does not read it: what it does not take by then is dropped."""
_MOST_CONNECTIONS = 64
"""At the limit the oldest connection is closed: a probe or Prometheus is answered within milliseconds."""
_TEXT = "text/plain; charset=utf-8"


@asynccontextmanager
async def status_server(
    address: str | None,
    registry: CollectorRegistry,
    *,
    live: Mapping[str, Probe],
    ready: Mapping[str, Probe],
    debug: Mapping[str, DebugSection] | None = None,
) -> AsyncIterator[int | None]:
    """Serves `/healthz`, `/readyz` and `/metrics` on `host:port` while the block runs; yields the port. `live` and
    `ready` are checks by name, `debug` the sections of `/debug`; None (the default): no such page. `address` None
    serves nothing. Raises NodeNotReady if the port is in use.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    pages: dict[str, _Page] = {
        "/healthz": lambda: _probe(live),
        "/readyz": lambda: _probe(ready),
        "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
    }
    if debug is not None:
        pages["/debug"] = lambda: (200, _TEXT, debug_page(debug).encode())
    connected: dict[asyncio.WriteTransport, None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected[writer.transport] = None
        if len(connected) > _MOST_CONNECTIONS:
            next(iter(connected)).abort()
        try:
            await _serve(pages, reader, writer)
        finally:
            writer.transport.abort()
            connected.pop(writer.transport, None)

    try:
        server = await asyncio.start_server(serve, host.strip("[]"), int(port))
    except OSError as error:
        raise NodeNotReady(f"cannot serve probes and metrics: {error}", about=f"address {address}") from error
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def tell_build(registry: CollectorRegistry, component: str) -> None:
    """Creates the family that shows the release of this process."""
    info = Gauge(
        "gpu_dra_build_info",
        "Always 1; the label is the release of this process.",
        ["component", "version"],
        registry=registry,
    )
    info.labels(component, __version__).set(1)


type _Page = Callable[[], tuple[int, str, bytes]]
"""Status, content type and content of a page."""


def _probe(checks: Mapping[str, Probe]) -> tuple[int, str, bytes]:
    problems = [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]
    return 503 if problems else 200, _TEXT, ("\n".join(problems) or "ok").encode()


async def _serve(pages: Mapping[str, _Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, one answer, and the connection is closed."""
    with suppress(OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.decode("latin-1").split(" ", 2)
            status, kind, content = _answer(pages, method, target.partition("?")[0])
            writer.write(
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            )
            writer.write(b"" if method == "HEAD" else content)
            writer.close()
            await writer.wait_closed()


def _answer(pages: Mapping[str, _Page], method: str, path: str) -> tuple[int, str, bytes]:
    if method not in ("GET", "HEAD"):
        return 405, "text/plain", b"only GET"
    if path not in pages:
        return 404, "text/plain", " ".join(pages).encode()
    return pages[path]()


_DEEPEST = 8
"""Maximum functions of a stack, innermost first."""


def debug_page(sections: Mapping[str, DebugSection]) -> str:
    """All sections with their headings, then the stacks. A failing section shows its error and does not affect the
    others."""
    text = io.StringIO()
    for title, section in {**sections, "tasks": task_stacks, "threads": thread_stacks}.items():
        text.write(f"== {title}\n")
        try:
            lines = list(section())
        except Exception as error:  # noqa: BLE001 - the debug page shows every error
            lines = [f"cannot be shown: {error!r}"]
        text.writelines(f"{line}\n" for line in lines or ["(none)"])
        text.write("\n")
    return text.getvalue()


def task_stacks() -> Iterable[str]:
    """Where each task of the event loop waits, by name. Not with `Task.print_stack`, which shows only the outermost
    function and fails on tasks of compiled modules (gRPC), which have no line numbers.
    """
    for task in sorted(asyncio.all_tasks(), key=lambda item: item.get_name()):
        yield f"{task.get_name()}:"
        places = [
            traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            for frame in _awaited(task.get_coro())
        ]
        yield from "".join(traceback.format_list(places[-_DEEPEST:])).splitlines()


def _awaited(waits: Any) -> Iterator[FrameType]:
    """From a task's coroutine to the innermost one that it awaits, as far as known."""
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is not None:
            yield frame
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)


def thread_stacks() -> Iterable[str]:
    """Stacks of all threads, by name."""
    frames = sys._current_frames()
    for thread in sorted(threading.enumerate(), key=lambda item: item.name):
        yield f"{thread.name}:"
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            yield from "".join(traceback.format_stack(frame, limit=_DEEPEST)).splitlines()
