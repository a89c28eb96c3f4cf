"""Fixtures for tests that need a cluster's API: a simulated server of their own, and a client for it."""

from collections.abc import AsyncIterator

import pytest_asyncio
from support.observed_api import ObservedApiServer

from dra_driver.kube.client import Endpoint, Kube


@pytest_asyncio.fixture
async def api_server() -> AsyncIterator[ObservedApiServer]:
    """A running, empty API server on a free port."""
    server = ObservedApiServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture
async def kube(api_server: ObservedApiServer) -> AsyncIterator[Kube]:
    """A client of `api_server`."""
    async with Kube(Endpoint(server=api_server.url)) as client:
        yield client
