"""Calls to the API server are counted by verb and answer."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dra_driver.api.meta import NODES, RESOURCE_CLAIMS
from dra_driver.errors import NotFound, Rejected, Unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.metrics import ApiCalls
from dra_driver.simulation.apiserver.server import SimulatedApiServer


async def test_refusals_and_silence_are_errors_and_what_is_not_there_is_none(api_server: SimulatedApiServer) -> None:
    registry = CollectorRegistry()
    calls = ApiCalls(registry)
    async with Kube(Endpoint(server=api_server.url), answered=calls.answered) as kube:
        await kube.list(NODES)
        with pytest.raises(NotFound):
            await kube.get(RESOURCE_CLAIMS, "none", "default")
        with pytest.raises(Rejected):
            await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "_"}})
    async with Kube(Endpoint(server="http://127.0.0.1:1"), answered=calls.answered) as kube:
        with pytest.raises(Unreachable):
            await kube.list(NODES)
    for expected in (404, 409, 410):
        calls.answered("watch", NODES, expected)
    lines = generate_latest(registry).decode().splitlines()
    assert sorted(line for line in lines if line.startswith("gpu_dra_api_errors_total")) == [
        'gpu_dra_api_errors_total{code="422",verb="create"} 1.0',
        'gpu_dra_api_errors_total{code="none",verb="list"} 1.0',
    ]
    for expected in (
        'gpu_dra_api_requests_total{code="200",resource="nodes",verb="list"} 1.0',
        'gpu_dra_api_requests_total{code="404",resource="resourceclaims",verb="get"} 1.0',
    ):
        assert expected in lines
