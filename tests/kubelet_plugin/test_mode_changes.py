"""MIG mode is switched by resets where the policy says so, only when nothing uses the GPU, and a killed plugin heals."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.mode_world import ModeWorld, policy

from kubelet_plugin.prepare.holds import HoldState


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[ModeWorld]:
    world = ModeWorld(tmp_path)
    world.restart()
    yield world
    await world.end()


async def test_a_policy_switches_the_mode_on_and_its_end_switches_it_off(world: ModeWorld) -> None:
    await world.publish()
    (full,) = await world.devices()
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (1, 1)
    assert world.journal.current.holds[world.hold].state is HoldState.MADE
    devices = await world.devices()
    assert full not in devices and any("-mig-1g10gb-0" in name for name in devices)
    assert world.waiting() == [] and await world.problems() == []
    world.policies = []
    await world.until_quiet()
    assert world.mode == (0, 0)
    assert world.journal.current.holds == {}
    assert await world.devices() == [full]
