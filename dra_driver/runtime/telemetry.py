"""How a service shows itself: structured logs to standard error, and one HTTP port for probes and metrics.

`/healthz` answers whether the process should live, `/readyz` whether it does its work now, `/metrics` what Prometheus
reads; `/debug`, where it is asked for, what goes on inside. Metric families are made by their owners in a registry that
`main` creates. The HTTP server is a few lines of our own: a few fixed paths need no framework, and each node would pay
for one with 2 MB of memory.
"""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version
from typing import TextIO, cast

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from dra_driver.errors import NodeNotReady
from dra_driver.runtime.debug import Section, debug_page

_log = structlog.get_logger(__name__)

type Check = Callable[[], str | None]
"""None when all is well, else what is wrong, in a line."""

_REQUEST_TIMEOUT_S = 5.0
_TEXT = "text/plain; charset=utf-8"

LEVELS = ("debug", "info", "warning", "error")


class _StandardError:
    """Standard error as it is at the time of each line: loggers are kept for good, and whoever runs a command inside
    another program gives it streams that are closed afterwards."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()


def configure_logging(level: str, log_format: str, stream: TextIO | None = None) -> None:
    """`level` is one of LEVELS; `log_format` is `json`, for collectors, or `console`, for people.

    `stream` None is standard error. With `json`, what others have to say becomes one object a line as well: libraries'
    logs, warnings of Python, and errors that nobody caught.
    """
    stream = stream or cast(TextIO, _StandardError())
    numeric = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(sort_keys=False)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if log_format == "json" else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    libraries = logging.StreamHandler(stream)
    if log_format == "json":
        libraries.setFormatter(_OneObject())
        logging.captureWarnings(True)
        sys.excepthook = _tell_uncaught
        threading.excepthook = lambda end: _tell_uncaught(end.exc_type, end.exc_value or end.exc_type(), None)
    logging.basicConfig(level=logging.WARNING, handlers=[libraries])


class _OneObject(logging.Formatter):
    """A line of a library's log, in the form of ours."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _tell_uncaught(kind: type[BaseException], error: BaseException, _: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    _log.error("failed unexpectedly", exc_info=error)


@asynccontextmanager
async def status_server(
    address: str | None,
    registry: CollectorRegistry,
    *,
    live: Mapping[str, Check],
    ready: Mapping[str, Check],
    debug: Mapping[str, Section] | None = None,
) -> AsyncIterator[int | None]:
    """Serve `/healthz`, `/readyz` and `/metrics` on `host:port` while the block runs; answers the port.

    `live` and `ready` are checks by name, `debug` sections of `/debug`; None: there is no such page, which is the rule.
    `address` None serves nothing. Raises NodeNotReady when the port is taken.
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
    try:
        server = await asyncio.start_server(
            lambda reader, writer: _serve(pages, reader, writer), host.strip("[]"), int(port)
        )
    except OSError as error:
        raise NodeNotReady(f"cannot serve probes and metrics: {error}", about=f"address {address}") from error
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def tell_build(registry: CollectorRegistry, component: str) -> None:
    """Make the family that says which release this process is of."""
    info = Gauge(
        "gpu_dra_build_info", "1, with the release of this process.", ["component", "version"], registry=registry
    )
    info.labels(component, version("gpu-dra-driver")).set(1)


type _Page = Callable[[], tuple[int, str, bytes]]
"""Status, content type and content of a page."""


def _probe(checks: Mapping[str, Check]) -> tuple[int, str, bytes]:
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
            await writer.drain()
    writer.close()


def _answer(pages: Mapping[str, _Page], method: str, path: str) -> tuple[int, str, bytes]:
    if method not in ("GET", "HEAD"):
        return 405, "text/plain", b"only GET"
    if path not in pages:
        return 404, "text/plain", " ".join(pages).encode()
    return pages[path]()
