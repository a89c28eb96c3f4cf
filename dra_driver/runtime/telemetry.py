"""How a service shows itself: structured logs to standard error, and one HTTP port for probes and metrics.

`/healthz` answers whether the process should live, `/readyz` whether it does its work now, `/metrics` what Prometheus
reads. Metric families are made by their owners in a registry that `main` creates.
"""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from dra_driver.errors import NodeNotReady

type Check = Callable[[], str | None]
"""None when all is well, else what is wrong, in a line."""

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str, log_format: str) -> None:
    """`level` is one of LEVELS; `log_format` is `json`, for collectors, or `console`, for people."""
    numeric = getattr(logging, level.upper())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(sort_keys=False)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


@asynccontextmanager
async def status_server(
    address: str | None, registry: CollectorRegistry, *, live: Mapping[str, Check], ready: Mapping[str, Check]
) -> AsyncIterator[int | None]:
    """Serve `/healthz`, `/readyz` and `/metrics` on `host:port` while the block runs; answers the port.

    `live` and `ready` are checks by name. `address` None serves nothing. Raises NodeNotReady when the port is taken.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    app = web.Application()
    app.router.add_get("/healthz", _probe(live))
    app.router.add_get("/readyz", _probe(ready))
    app.router.add_get("/metrics", _metrics(registry))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except OSError as error:
            raise NodeNotReady(f"cannot serve probes and metrics: {error}", about=f"address {address}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _probe(checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        problems = [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]
        return web.Response(status=503 if problems else 200, text="\n".join(problems) or "ok")

    return answer


def _metrics(registry: CollectorRegistry) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")

    return answer
