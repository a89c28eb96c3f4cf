"""Probes, metrics and logs of a service."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import grpc.aio
import pytest
import structlog
from prometheus_client import CollectorRegistry, Counter

from dra_driver.errors import NodeNotReady
from dra_driver.runtime.telemetry import DebugSection, Probe, configure_logging, status_server


@asynccontextmanager
async def served(
    live: dict[str, Probe] | None = None,
    ready: dict[str, Probe] | None = None,
    registry: CollectorRegistry | None = None,
    debug: Mapping[str, DebugSection] | None = None,
) -> AsyncIterator[str]:
    async with status_server(
        "127.0.0.1:0", registry or CollectorRegistry(), live=live or {}, ready=ready or {}, debug=debug
    ) as port:
        yield f"http://127.0.0.1:{port}"


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_a_service_without_problems_is_live_and_ready() -> None:
    async with served() as url:
        assert await get(f"{url}/healthz") == (200, "ok")
        assert await get(f"{url}/readyz") == (200, "ok")


async def test_what_is_wrong_is_said_with_its_name() -> None:
    problems: dict[str, str | None] = {"registration": "not yet", "other": None}
    checks: dict[str, Probe] = {name: lambda name=name: problems[name] for name in problems}
    async with served(ready=checks) as url:
        assert await get(f"{url}/readyz") == (503, "registration: not yet")
        assert await get(f"{url}/healthz") == (200, "ok")
        problems["registration"] = None
        assert await get(f"{url}/readyz") == (200, "ok")


async def test_metrics_are_those_of_the_registry() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things that happened.", registry=registry).inc(3)
    async with served(registry=registry) as url:
        status, text = await get(f"{url}/metrics?name=ignored")
    assert status == 200
    assert "things_total 3.0" in text.splitlines()


async def test_the_debug_page_is_served_only_where_it_is_asked_for() -> None:
    async with served() as url:
        assert (await get(f"{url}/debug"))[0] == 404

    def broken() -> list[str]:
        raise NodeNotReady("the journal cannot be read")

    async def waiting_for_nothing() -> None:
        await asyncio.sleep(60)

    async def outermost() -> None:
        await waiting_for_nothing()

    task = asyncio.create_task(outermost(), name="idle")
    await asyncio.sleep(0)
    async with served(debug={"claims": lambda: ["a claim"], "empty": list, "broken": broken}) as url:
        status, text = await get(f"{url}/debug")
    task.cancel()
    assert status == 200
    assert "== claims\na claim\n\n== empty\n(none)\n\n== broken\ncannot be shown: " in text
    assert "the journal cannot be read" in text
    stack = text.partition("\nidle:\n")[2].splitlines()
    assert [line.rpartition(" in ")[2] for line in stack[:6:2]] == ["outermost", "waiting_for_nothing", "sleep"]
    assert "MainThread:" in text


async def test_the_debug_page_shows_tasks_of_compiled_modules() -> None:
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with served(debug={}) as url:
        await asyncio.sleep(0)
        _, text = await get(f"{url}/debug")
    await server.stop(None)
    assert "in _server_main_loop" in text
    assert "cannot be shown" not in text


async def test_other_paths_and_methods_are_refused() -> None:
    async with served() as url, aiohttp.ClientSession() as session:
        assert (await get(f"{url}/"))[0] == 404
        async with session.post(f"{url}/healthz") as response:
            assert response.status == 405
        async with session.head(f"{url}/healthz") as response:
            assert (response.status, await response.read()) == (200, b"")


async def test_whoever_talks_nonsense_is_hung_up_on_and_the_next_is_served() -> None:
    async with served() as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"\x16\x03\x01nonsense\r\n\r\n")
        await writer.drain()
        assert await reader.read() == b""
        writer.close()
        assert await get(f"{url}/healthz") == (200, "ok")


async def test_without_an_address_nothing_is_served() -> None:
    async with status_server(None, CollectorRegistry(), live={}, ready={}) as port:
        assert port is None


async def test_a_port_that_is_taken_is_named() -> None:
    async with status_server("127.0.0.1:0", CollectorRegistry(), live={}, ready={}) as port:
        with pytest.raises(NodeNotReady, match=f"127.0.0.1:{port}"):
            async with status_server(f"127.0.0.1:{port}", CollectorRegistry(), live={}, ready={}):
                pass


@pytest.fixture
def _other_tests_log_as_before() -> object:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_other_tests_log_as_before")
def test_json_logs_are_one_object_a_line_with_the_trace_inside(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    log = structlog.get_logger()
    log.debug("not this")
    log.info("registered", driver="gpu.nvidia.com")
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError:
        log.exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["driver"], first["level"]) == ("registered", "gpu.nvidia.com", "info")
    assert "ZeroDivisionError: a defect" in second["exception"]


OTHERS = """
import logging, threading, warnings
from dra_driver.runtime.telemetry import configure_logging

configure_logging("info", "json")
try:
    raise ZeroDivisionError("of a library")
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("two\\nlines of %s", "a library")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("of the\\nprogram")
"""


def test_what_libraries_warnings_threads_and_uncaught_errors_say_is_one_object_a_line_as_well() -> None:
    ended = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    library, warning, thread, program = map(json.loads, ended.stderr.splitlines())
    assert (library["event"], library["logger"], library["level"]) == ("two\nlines of a library", "asyncio", "error")
    assert "ZeroDivisionError: of a library" in library["exception"]
    assert "UserWarning: old" in warning["event"] and warning["level"] == "warning"
    assert "ZeroDivisionError" in thread["exception"] and "RuntimeError: of the\nprogram" in program["exception"]
    assert all(line["timestamp"].endswith("Z") for line in (library, warning, thread, program))
