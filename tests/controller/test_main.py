"""The controller as a process: it publishes, shows what it does, takes turns, and leaves in order."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from support.inventories import gpu, inventory_object, inventory_spec
from support.ports import free_port
from support.shipped import create_definitions

from dra_driver.api.meta import LEASES, NODE_INVENTORIES, NODES, RESOURCE_SLICES
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer

PATIENCE_S = 60.0


@asynccontextmanager
async def controller(server: SimulatedApiServer, folder: Path, *arguments: str) -> AsyncIterator[Process]:
    kubeconfig = server.kubeconfig(folder / "kubeconfig")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPU_DRA_", "KUBE"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller.main", "--kubeconfig", str(kubeconfig), *arguments),
        stderr=PIPE,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await true():
                return
            await asyncio.sleep(0.05)


async def logs(process: Process, words: str) -> None:
    """Until the process has logged them."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE_S):
        while words not in (line := await process.stderr.readline()).decode():
            assert line, f"the controller ended without {words!r}"


async def report_a_gpu(kube: Kube) -> None:
    await create_definitions(kube)
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    spec = inventory_spec("node-a", [gpu(0)], registered=now)
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))


@pytest.fixture
def published(kube: Kube) -> Callable[[], Awaitable[bool]]:
    async def true() -> bool:
        return bool((await kube.list(RESOURCE_SLICES)).items)

    return true


async def holder(kube: Kube) -> str:
    leases = (await kube.list(LEASES)).items
    return str(leases[0]["spec"]["holderIdentity"]) if leases else "nobody"


async def test_it_publishes_shows_what_it_does_and_gives_the_lease_back(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, published: Callable[[], Awaitable[bool]]
) -> None:
    await report_a_gpu(kube)
    port = free_port()
    async with (
        controller(api_server, tmp_path, f"--http-endpoint=127.0.0.1:{port}", "--identity=me") as process,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        await until(published)
        assert await holder(kube) == "me"

        async def ready() -> bool:
            async with session.get("/readyz") as response:
                return response.status == 200

        await until(ready)
        async with session.get("/healthz") as response:
            assert response.status == 200

        async def metrics() -> list[str]:
            async with session.get("/metrics") as response:
                return (await response.text()).splitlines()

        lines = {
            "gpu_dra_publishing 1.0",
            'gpu_dra_pools{driver="gpu.nvidia.com"} 1.0',
            'gpu_dra_published_devices{driver="gpu.nvidia.com"} 1.0',
            'gpu_dra_slice_writes_total{verb="create"} 1.0',
        }

        async def counted() -> bool:
            return lines <= {*await metrics()}

        await until(counted)
        begins = {line.partition("{")[0] for line in await metrics()}
        assert {"gpu_dra_build_info", "gpu_dra_api_requests_total", "gpu_dra_pool_generation"} <= begins
        async with session.get("/debug") as response:
            assert response.status == 404
        slices = (await kube.list(RESOURCE_SLICES)).items
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert await holder(kube) == ""
    assert (await kube.list(RESOURCE_SLICES)).items == slices, "a controller that stops leaves the slices"


async def test_of_two_replicas_one_works_and_the_other_takes_over(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, published: Callable[[], Awaitable[bool]]
) -> None:
    """The lease of the first ends soon; that of the second lasts, also on a machine that is busy."""
    short = ("--lease-duration=3", "--renew-deadline=2", "--retry-period=0.2")
    long = ("--lease-duration=60", "--renew-deadline=40", "--retry-period=0.2")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with controller(api_server, tmp_path / "one", "--identity=one", *short) as leader:

        async def one_leads() -> bool:
            return await holder(kube) == "one"

        await until(one_leads)
        async with controller(api_server, tmp_path / "two", "--identity=two", *long):
            leader.kill()
            await report_a_gpu(kube)
            await until(published)
            assert await holder(kube) == "two"


async def test_after_the_api_server_was_away_longer_than_a_lease_it_goes_on_by_itself(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, published: Callable[[], Awaitable[bool]]
) -> None:
    quick = ("--lease-duration=6", "--renew-deadline=4", "--retry-period=0.2")
    async with controller(api_server, tmp_path, "--identity=me", *quick) as process:
        await logs(process, "leading")
        await api_server.stop()
        await logs(process, "no longer the leader")
        await api_server.start()
        await report_a_gpu(kube)
        await until(published)
        assert process.returncode is None


async def test_a_policy_with_a_mistake_ends_it_with_a_line_that_names_file_and_field(
    api_server: SimulatedApiServer, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\nwithold: []\n")
    async with controller(api_server, tmp_path, f"--policy={policy}") as process:
        _, output = await process.communicate()
    assert process.returncode == 2
    assert f"policy {policy}: withold: unknown field; did you mean `withhold`?" in output.decode()
    assert "Traceback" not in output.decode()
