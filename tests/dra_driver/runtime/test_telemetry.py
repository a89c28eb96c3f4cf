"""Probes and metrics of a service."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry, Counter

from dra_driver.errors import NodeNotReady
from dra_driver.runtime.telemetry import DebugSection, Probe, status_server


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


async def connected(url: str, request: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1)
    writer.write(request)
    return reader, writer


async def test_an_answer_that_nobody_reads_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each such client would keep an answer in memory for as long as it likes."""
    monkeypatch.setattr("dra_driver.runtime.telemetry._REQUEST_TIMEOUT_S", 0.3)
    large = "x" * 20_000_000
    async with served(ready={"large": lambda: large}) as url:
        reader, writer = await connected(url, b"GET /readyz HTTP/1.1\r\n\r\n")
        await asyncio.sleep(1.0)
        received = 0
        with suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                received += len(part)
        assert 0 < received < len(large)
        writer.close()
        assert await get(f"{url}/healthz") == (200, "ok")


async def test_silent_connections_are_limited_and_keep_nobody_from_being_served() -> None:
    async with served() as url:
        silent = [await connected(url, b"GET /healthz") for _ in range(64)]
        assert await get(f"{url}/healthz") == (200, "ok")
        async with asyncio.timeout(2):
            with suppress(ConnectionError):
                assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()


async def test_without_an_address_nothing_is_served() -> None:
    async with status_server(None, CollectorRegistry(), live={}, ready={}) as port:
        assert port is None


async def test_a_port_that_is_taken_is_named() -> None:
    async with status_server("127.0.0.1:0", CollectorRegistry(), live={}, ready={}) as port:
        with pytest.raises(NodeNotReady, match=f"127.0.0.1:{port}"):
            async with status_server(f"127.0.0.1:{port}", CollectorRegistry(), live={}, ready={}):
                pass
