"""One of the controller's replicas. All of them follow the cluster, one leads and writes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from dra_driver.kube.watch import Watches
from dra_driver.runtime import memory
from dra_driver.runtime.tasks import forever


class Parts(Protocol):
    """What follows the cluster with `watches`, and writes only while `run` runs."""

    @property
    def watches(self) -> Watches: ...

    async def run(self) -> None:
        """What the leader does, until cancelled."""


type Lead = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Waits until this replica leads, and does the work as long as it does, see `LeaderElection.lead`."""


class Replica[T: Parts]:
    """Follows the cluster all the time, so that a new leader need not read it first. After it led, all is built and
    read again: another leader may do what this one does not expect.
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self.parts = build()

    async def run(self, lead: Lead) -> None:
        """Until cancelled."""
        while True:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(forever("following", self.parts.watches.run))
                settling = tasks.create_task(self._settle())
                await lead(self.parts.run)
                following.cancel()
                settling.cancel()
            self.parts = self._build()

    async def _settle(self) -> None:
        """The first read of a large cluster leaves free memory that nothing uses again."""
        await self.parts.watches.read()
        memory.settle()


async def alone(work: Callable[[], Awaitable[None]]) -> None:
    """Without an election, a replica leads as long as it runs."""
    await work()
