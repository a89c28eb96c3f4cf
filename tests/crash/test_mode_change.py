"""A plugin that is killed after any operation while it switches MIG mode by a reset leaves a GPU that has one mode.

As in `test_killed_with_holds`: by default every so many operations are tried; GPU_DRA_TEST_CRASH_STRIDE=1 tries all of
them, which takes some minutes. In between, a claim is refused, never half served.
"""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from support.plugin_process import Died, NodeUnderTest, Plugin, PluginForks, plugin_on
from support.shipped import create_definitions
from support.world import World

from dra_driver.api.gpu_settings import GpuDecisions, ModeName, NodeMig, NodePolicy, WaitingGpu
from dra_driver.api.inventory import NodeInventoryStatus
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.errors import NotFound
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.holds import HoldState, SwitchedMode
from kubelet_plugin.prepare.store import JournalFile
from kubelet_plugin.simulation.host import create_host

STRIDE = int(os.environ.get("GPU_DRA_TEST_CRASH_STRIDE", "17"))
MODES: tuple[ModeName, ...] = ("On", "Off")


def a_node(world: World) -> NodeUnderTest:
    folder = world.folder / f"n{next(world.nodes)}"
    node = NodeUnderTest(folder, world.kubeconfig, create_host(folder / "host", "a100-pcie-80", gpus=1))
    file = folder / "policy.yaml"
    rule = {"mode": "Dynamic", "modeChange": "WhenIdle"}
    file.write_text(yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "mig": [rule]}))
    node.options = (f"--policy={file}", "--feature-gates=MigModeChange=true", "--discovery-interval=0.5")
    node.watched = (node.host.root / "sim",)
    return node


def allowed(node: NodeUnderTest, mode: ModeName) -> JsonObject:
    """What the publisher writes."""
    uuid, (name,) = node.host.state.gpus[0].uuid, node.devices
    mig = NodeMig(mode="Dynamic", mode_change="WhenIdle", rule="mig[0]") if mode == "On" else None
    waiting = WaitingGpu(gpu=name, uuid=uuid, mig_mode=mode)
    return NodeInventoryStatus(
        policy=NodePolicy(gpus=[GpuDecisions(uuids=[uuid], mig=mig)], waiting=[waiting])
    ).to_wire()


def stands(node: NodeUnderTest, mode: ModeName) -> bool:
    """Whether the GPU has the mode, nothing is pending, and the journal says whose it is."""
    mig, on = node.host.state.gpus[0].mig, mode == "On"
    holds = {type(hold): record.state for hold, record in JournalFile(node.state).current().holds.items()}
    settled = holds == ({SwitchedMode: HoldState.MADE} if on else {})
    return mig is not None and (mig.current, mig.pending) == (int(on), int(on)) and settled


async def tell(world: World, node: NodeUnderTest, plugin: Plugin, mode: ModeName) -> None:
    async with asyncio.timeout(20):
        while not plugin.has_ended:
            with suppress(NotFound):
                patch = {"status": allowed(node, mode)}
                await world.kube.merge_patch(NODE_INVENTORIES, node.name, patch, subresource="status")
                return
            await asyncio.sleep(0.05)
    raise Died


async def story(
    forks: PluginForks, world: World, node: NodeUnderTest, claim: ClaimRef, log: Path, kill_after: int | None
) -> list[ModeName]:
    """The modes that the GPU had in the end of each step."""
    done: list[ModeName] = []

    async def go_on(plugin: Plugin) -> None:
        while len(done) < len(MODES):
            mode = MODES[len(done)]
            await tell(world, node, plugin, mode)
            async with asyncio.timeout(30):
                while not stands(node, mode):
                    if plugin.has_ended:
                        raise Died
                    await asyncio.sleep(0.05)
            done.append(mode)

    async with plugin_on(forks, node, kill_after=kill_after, kill_log=log) as plugin:
        if await plugin.ready():
            with suppress(Died):
                await go_on(plugin)
    if len(done) < len(MODES):
        async with plugin_on(forks, node) as plugin:
            await go_on(plugin)
            answer = (await plugin.prepare(claim))[claim.uid]
            assert not isinstance(answer, str), answer
            assert (await plugin.unprepare(claim))[claim.uid] == ""
    return done


@pytest.mark.slow
async def test_killed_anywhere_while_the_mode_is_switched(forks: PluginForks, world: World) -> None:
    await create_definitions(world.kube)
    log = world.folder / "operations"
    node = a_node(world)
    claim = await world.allocated("late", [node.devices[0]])
    before = node.host.snapshots()

    assert await story(forks, world, node, claim, log, None) == [*MODES], node.log.read_text()

    assert node.host.snapshots() == before
    operations = log.read_text().splitlines()
    assert len(operations) > 12
    for number, operation in list(enumerate(operations, start=1))[5::STRIDE]:
        node = a_node(world)
        done = await story(forks, world, node, claim, log, number)
        assert done == [*MODES], f"killed after {number}: {operation}\n{node.log.read_text()}"
        assert node.host.snapshots() == before, f"killed after {number}: {operation}"
        shutil.rmtree(node.folder)
