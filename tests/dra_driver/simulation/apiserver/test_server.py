"""The HTTP side of the simulated server that is not about one object: stop and start, faults, the record of writes."""

import aiohttp

from dra_driver.simulation.apiserver import SimulatedApiServer


async def test_objects_survive_a_stop_and_the_address_stays(api_server: SimulatedApiServer) -> None:
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
    api_server: SimulatedApiServer,
) -> None:
    api_server.fail_next("POST", "/nodes$", 429, times=2, retry_after=3)
    statuses = []
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.post(f"{api_server.url}/api/v1/nodes", json={"metadata": {"name": "n"}}) as response:
                statuses.append((response.status, response.headers.get("Retry-After")))
    assert statuses == [(429, "3"), (429, "3"), (201, None)]


async def test_writes_are_recorded_with_their_user_agent_and_outcome(api_server: SimulatedApiServer) -> None:
    headers = {"User-Agent": "someone/1"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(f"{api_server.url}/api/v1/nodes", json={"metadata": {"name": "n"}}):
            pass
        async with session.get(f"{api_server.url}/api/v1/nodes/n"):
            pass
        async with session.delete(f"{api_server.url}/api/v1/nodes/m"):
            pass
    assert [(one.verb, one.resource, one.user_agent, one.status) for one in api_server.writes] == [
        ("create", "nodes", "someone/1", 201),
        ("delete", "nodes", "someone/1", 404),
    ]
