"""The HTTP side of the simulated server that is not about one object: stop and start, faults, the record of writes."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from support.api import Api
from support.observed_api import ObservedApiServer


async def test_objects_survive_a_stop_and_the_address_stays(api_server: ObservedApiServer) -> None:
    address = api_server.url
    async with aiohttp.ClientSession() as session:
        body = {"metadata": {"name": "kept"}}
        async with session.post(f"{address}/api/v1/nodes", json=body) as response:
            assert response.status == 201
            uid = (await response.json())["metadata"]["uid"]
        await api_server.stop()
        assert await api_server.start() == address
        async with session.get(f"{address}/api/v1/nodes/kept") as response:
            assert (await response.json())["metadata"]["uid"] == uid


async def test_an_injected_failure_is_answered_as_often_as_asked_and_changes_nothing(
    api_server: ObservedApiServer,
) -> None:
    api_server.fail_next("POST", "/nodes$", 429, times=2, retry_after=3)
    statuses = []
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(f"{api_server.url}/api/v1/nodes", json={"metadata": {"name": "n"}}) as response:
                statuses.append((response.status, response.headers.get("Retry-After")))
    assert statuses == [(429, "3"), (429, "3"), (201, None)]


async def test_a_stop_ends_watches_and_a_new_one_goes_on_where_they_were(api_server: ObservedApiServer) -> None:
    async with Api(api_server.url) as api:
        position = (await api.get("/api/v1/nodes"))["metadata"]["resourceVersion"]
        async with api.watch("/api/v1/nodes", resourceVersion=position) as watch:
            await api.post("/api/v1/nodes", {"metadata": {"name": "a"}})
            assert await watch.names(1) == [("ADDED", "a")]
            await api_server.stop()
            assert await watch.rest() == []
    await api_server.start()
    async with Api(api_server.url) as api, api.watch("/api/v1/nodes", resourceVersion=position) as watch:
        assert await watch.names(1) == [("ADDED", "a")]


async def test_a_compaction_makes_open_list_pages_expire(api_server: ObservedApiServer) -> None:
    async with Api(api_server.url) as api:
        for name in ("a", "b"):
            await api.post("/api/v1/nodes", {"metadata": {"name": name}})
        page = await api.get("/api/v1/nodes", limit="1")
        api_server.store.compact()
        refusal = await api.refused("GET", "/api/v1/nodes", **{"limit": "1", "continue": page["metadata"]["continue"]})
        assert (refusal.status, refusal.reason) == (410, "Expired")


async def test_a_failure_can_be_limited_to_a_path_and_taken_back(api_server: ObservedApiServer) -> None:
    api_server.fail_next("GET", "/nodes/a$", 500, times=5, message="injected")
    async with Api(api_server.url) as api:
        assert (await api.refused("GET", "/api/v1/nodes/a")).message == "injected"
        assert (await api.refused("GET", "/api/v1/nodes/b")).status == 404
        api_server.clear_faults()
        assert (await api.refused("GET", "/api/v1/nodes/a")).status == 404


async def test_the_record_of_writes_names_verb_subresource_user_agent_and_outcome(
    api_server: ObservedApiServer,
) -> None:
    async with Api(api_server.url) as api:
        await api.post("/api/v1/nodes", {"metadata": {"name": "a"}})
        await api.patch("/api/v1/nodes/a/status", {"status": {"capacity": {"cpu": "1"}}})
        await api.get("/api/v1/nodes/a")
        await api.put("/api/v1/nodes/a", {"metadata": {"name": "a"}})
    async with aiohttp.ClientSession(headers={"User-Agent": "someone/1"}) as session:
        await session.delete(f"{api_server.url}/api/v1/nodes/b")
    assert [(write.method, write.verb, write.resource, write.status) for write in api_server.writes] == [
        ("POST", "create", "nodes", 201),
        ("PATCH", "patch", "nodes/status", 200),
        ("PUT", "update", "nodes", 200),
        ("DELETE", "delete", "nodes", 404),
    ]
    assert api_server.writes[-1].user_agent == "someone/1"


async def test_only_deletions_in_the_background_are_simulated(api_server: ObservedApiServer) -> None:
    async with Api(api_server.url) as api:
        await api.post("/api/v1/nodes", {"metadata": {"name": "a"}})
        refusal = await api.refused("DELETE", "/api/v1/nodes/a", {"propagationPolicy": "Foreground"})
        assert refusal.status == 400
        await api.delete("/api/v1/nodes/a", {"propagationPolicy": "Background"})


async def test_it_runs_alone_for_benchmarks_and_writes_a_kubeconfig(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "benchmarks/_simulated_api_server.py", "--kubeconfig", str(kubeconfig),
        "--kubernetes-version", "v1.35.1", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    assert json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"] == url
    async with Api(url) as api:
        assert (await api.get("/version"))["gitVersion"] == "v1.35.1"
    process.terminate()
    assert await process.wait() == 0
