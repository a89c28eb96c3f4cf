"""A node with real plugin processes on it, and an API server with claims that are allocated to it."""

from collections.abc import AsyncIterator

import pytest_asyncio
from support.objects import node
from support.observed_api import ObservedApiServer
from support.plugin import short_folder
from support.world import NAMESPACE, World

from dra_driver.api.meta import NAMESPACES, NODES
from dra_driver.kube.client import Kube


@pytest_asyncio.fixture
async def world(api_server: ObservedApiServer, kube: Kube) -> AsyncIterator[World]:
    await kube.create(NODES, node())
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await kube.create(NAMESPACES, namespace)
    with short_folder() as folder:
        yield World(api_server, kube, folder)
