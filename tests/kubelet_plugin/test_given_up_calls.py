"""Calls that kubelet gives up, over the real socket, for both drivers: what only waits is dropped, and never begun."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from support.claims import FakeClaims, a_claim, a_ref, a_result
from support.domain_claims import Heard, Node
from support.plugin import ScriptedHealth, eventually
from support.prepared import Bench

from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2 as messages
from dra_driver.names import ClaimRef
from kubelet_plugin.rpc.servers import ClaimHandler, DraServer


@dataclass
class Driver:
    """One driver's service behind its socket. `files` are the claims' CDI files."""

    api: FakeClaims
    ref: ClaimRef
    claims: ClaimHandler
    heard: Heard
    files: Callable[[], object]
    channel: grpc.aio.Channel

    def call(self, method: str, timeout_s: float | None = None) -> Any:
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(namespace=self.ref.namespace, uid=self.ref.uid, name=self.ref.name)]
        )
        ask = self.channel.unary_unary(
            f"/{kubelet_api.DRA_V1}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )
        return ask(request, timeout=timeout_s)

    async def over(self, count: int) -> None:
        await eventually(lambda: len(self.heard.operations) >= count)


@asynccontextmanager
async def gpus(folder: Path) -> AsyncIterator[Driver]:
    bench, heard = Bench(folder / "node"), Heard()
    ref = bench.api.put(a_claim(a_ref(), a_result(0)))
    async with bench.plugin(listener=heard, api_s=20.0) as service, served(folder, service) as channel:
        yield Driver(bench.api, ref, service, heard, lambda: bench.claims_with_file, channel)


@asynccontextmanager
async def domains(folder: Path) -> AsyncIterator[Driver]:
    node = Node(folder)
    node.ready("d")
    ref, service = node.claim("one", "d"), node.plugin(patience_s=60.0)
    async with served(folder, service) as channel:
        yield Driver(node.api, ref, service, node.heard, node.cdi.claims, channel)
    await service.close()


@asynccontextmanager
async def served(folder: Path, claims: ClaimHandler) -> AsyncIterator[grpc.aio.Channel]:
    server = DraServer(folder / "s", claims, ScriptedHealth())
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder}/s", (("grpc.use_local_subchannel_pool", 1),)) as channel:
            yield channel
    finally:
        await server.stop()


both_drivers = pytest.mark.parametrize("driver", [gpus, domains])
type Open = Callable[[Path], Any]


@both_drivers
@pytest.mark.parametrize("by_deadline", [False, True])
async def test_a_prepare_that_waits_for_the_api_server_is_dropped(
    folder: Path, driver: Open, *, by_deadline: bool
) -> None:
    async with driver(folder) as scene, asyncio.timeout(30):
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slowly(_: str) -> None:
            asked.set()
            await answer.wait()

        scene.api.before_answer = slowly
        call = scene.call("NodePrepareResources", 0.5 if by_deadline else None)
        await asked.wait()
        if not by_deadline:
            call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        await scene.over(1)  # though the API server has not answered yet
        assert "gave up" in str(scene.heard.operations[0].error)
        answer.set()
        retry = await scene.call("NodePrepareResources")
        assert [len(claim.devices) for claim in retry.claims.values()] == [1]


@both_drivers
async def test_calls_for_one_claim_ask_the_api_server_once(folder: Path, driver: Open) -> None:
    async with driver(folder) as scene, asyncio.timeout(30):
        reads, answer = scene.api.reads, asyncio.Event()

        async def slowly(_: str) -> None:
            await answer.wait()

        scene.api.before_answer = slowly
        calls = [asyncio.ensure_future(scene.claims.prepare([scene.ref])) for _ in range(3)]
        await eventually(lambda: scene.api.reads > reads)
        await asyncio.sleep(0)
        answer.set()
        await asyncio.gather(*calls)
        assert scene.api.reads - reads == 1


@both_drivers
async def test_a_release_waits_for_no_prepare_and_nothing_is_left_of_that(folder: Path, driver: Open) -> None:
    async with driver(folder) as scene, asyncio.timeout(30):
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slowly(_: str) -> None:
            asked.set()
            await answer.wait()

        scene.api.before_answer = slowly
        call = scene.call("NodePrepareResources")
        await asked.wait()
        assert not (await scene.call("NodeUnprepareResources")).claims[scene.ref.uid].error
        call.cancel()
        await scene.over(2)
        answer.set()
        assert not scene.files()


async def test_a_channel_that_waits_for_its_domain_is_dropped(folder: Path) -> None:
    node = Node(folder)
    node.domains.put("d")
    ref, service = node.claim("one", "d"), node.plugin(patience_s=60.0)
    async with served(folder, service) as channel, asyncio.timeout(30):
        driver = Driver(node.api, ref, service, node.heard, node.cdi.claims, channel)
        call = driver.call("NodePrepareResources")
        await node.domains.watched.wait()
        call.cancel()
        await driver.over(1)
        node.ready("d")
    await service.close()
    assert (set(node.cdi.claims()), node.journal.current.domains) == (set(), {})
