"""Fixtures for tests that need a cluster's API: a simulated server of their own, and a client for it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from dra_driver.kube.client import Endpoint, Kube
from dra_driver.simulation.apiserver import SimulatedApiServer


@pytest_asyncio.fixture
async def api_server() -> AsyncIterator[SimulatedApiServer]:
    """A running, empty API server on a free port."""
    server = SimulatedApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def kube(api_server: SimulatedApiServer) -> AsyncIterator[Kube]:
    """A client of `api_server`."""
    async with Kube(Endpoint(server=api_server.url)) as client:
        yield client
