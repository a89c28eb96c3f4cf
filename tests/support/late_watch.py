"""Clients whose watch of one type shows everything late."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from dra_driver.api.meta import Resource
from dra_driver.kube.client import Kube, WatchEvent


def late(late_type: Resource, by_s: float) -> type[Kube]:
    class Late(Kube):
        async def watch(self, resource: Resource, **more: Any) -> AsyncGenerator[WatchEvent, None]:
            async for event in super().watch(resource, **more):
                if resource is late_type:
                    await asyncio.sleep(by_s)
                yield event

    return Late
