"""The two servers of one driver, from first to last."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from kubelet_plugin.rpc.registration import RegistrationServer
from kubelet_plugin.rpc.server import DraServer


class Closable(Protocol):
    async def close(self) -> None:
        """Returns when what was begun is finished."""


@asynccontextmanager
async def serving(dra: DraServer, registration: RegistrationServer, claims: Closable) -> AsyncIterator[None]:
    """Kubelet hears of us when we serve, and no longer before we stop; what was begun is finished."""
    try:
        await dra.start()
        await registration.start()
        yield
    finally:
        await registration.stop()
        await dra.stop()
        await claims.close()
