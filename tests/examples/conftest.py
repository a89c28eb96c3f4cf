"""The cluster that examples are tried on."""

from collections.abc import AsyncIterator

import pytest_asyncio
from support.scheduling import Desk, desk
from support.shipped import create_classes

from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer


@pytest_asyncio.fixture
async def cluster(api_server: SimulatedApiServer, kube: Kube) -> AsyncIterator[Desk]:
    """The shipped classes, scheduler and claim controller; no nodes."""
    async with desk(api_server, kube) as ready_desk:
        await create_classes(kube)
        ready_desk.start_claim_controller()
        ready_desk.start_scheduler()
        yield ready_desk
