"""MIG mode is switched by resets where the policy says so, when nothing uses the GPU; and a killed plugin heals."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from support.claims import a_held_device, a_ref, an_entry
from support.killed import Killed
from support.mishaps import crash_in, fail_call
from support.mode_world import AT_ONCE, NODE, PATIENT, ModeWorld, Moment, policy
from support.rows import slow_but

from dra_driver.api.policy import rules_of
from dra_driver.errors import NodeNotReady
from kubelet_plugin.prepare.holds import HoldRecord, HoldState
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import Entry, ModeChanging
from kubelet_plugin.prepare.transitions import mode_change_begun, released, with_entry
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.nvml_session import Crash


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[ModeWorld]:
    world = ModeWorld(tmp_path)
    world.restart()
    yield world
    await world.end()


@pytest.mark.parametrize("profile", ["a100-pcie-80", "a30", "dgx-a100-80"])
async def test_a_policy_switches_the_mode_on_and_its_end_switches_it_off(tmp_path: Path, profile: str) -> None:
    world = ModeWorld(tmp_path, profile)
    world.restart()
    await world.publish()
    (full,) = await world.devices()
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (1, 1)
    assert world.journal.current.holds[world.hold].state is HoldState.MADE
    devices = await world.devices()
    assert full not in devices and any("-mig-1g" in name for name in devices)
    assert world.waiting() == [] and await world.problems() == []
    world.policies = []
    await world.until_quiet()
    assert world.mode == (0, 0)
    assert world.journal.current.holds == {}
    assert await world.devices() == [full]
    assert world.resets == [True, False]
    await world.end()


async def test_a_claim_that_uses_the_gpu_is_waited_for(world: ModeWorld) -> None:
    await world.publish()
    (full,) = await world.devices()
    world.policies, world.users = [policy()], {full: ["team/a"]}
    await world.until_quiet()
    assert world.mode == (0, 0) and world.waiting() == [("On", ["team/a"])]
    assert rules_of(world.held).changes_later(await world.look())
    world.users = {}
    await world.until_quiet()
    assert world.mode == (1, 1)
    part = next(name for name in await world.devices() if "-mig-1g10gb-" in name)
    world.policies, world.users = [], {part: ["team/b"]}
    await world.until_quiet()
    assert world.mode == (1, 1) and [claims for _, claims in world.waiting()] == [["team/b"]]
    world.users = {}
    await world.until_quiet()
    assert world.mode == (0, 0)


@pytest.mark.parametrize("change", ["Never", "WhenIdle"])
async def test_what_an_administrator_switched_is_not_touched(world: ModeWorld, change: str) -> None:
    world.host.set_mig(0, 1)
    world.policies = [policy(change=change)]
    await world.until_quiet()
    world.policies = []
    await world.until_quiet()
    assert world.mode == (1, 1) and world.journal.current.holds == {}
    world.host.set_mig(0, 0)
    world.policies = [policy(change="Never")]
    await world.until_quiet()
    assert world.mode == (0, 0)
    assert [reason for reason, _, _ in await world.problems()] == ["ResetNeeded"]


async def test_a_mode_that_an_administrator_left_pending_is_completed(world: ModeWorld) -> None:
    world.host.set_mig(0, 0, 1)
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (1, 1)


async def test_a_program_that_has_the_gpu_open_is_named_and_not_harmed(world: ModeWorld) -> None:
    pid = world.host.attach_client(0, name="dcgm-exporter", kind="monitor")
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (0, 0) and world.journal.current.holds == {}
    ((reason, message, fix),) = await world.problems()
    assert reason == "ModeChangeBlocked" and f"dcgm-exporter ({pid})" in message
    assert f"kubectl label node {NODE} --overwrite nvidia.com/gpu.deploy.dcgm=false" in fix
    # Until it ends, claims get the GPU as it is.
    assert world.waiting() == [] and not rules_of(world.held).changes_later(await world.look())
    world.host.detach_client(pid)
    await world.until_quiet()
    assert world.mode == (1, 1) and await world.problems() == []


async def test_after_an_obstacle_the_taint_must_stand_again_before_the_reset(tmp_path: Path) -> None:
    """While the program was in the way, claims could have the GPU, and schedulers saw no taint."""
    world = ModeWorld(tmp_path)
    world.restart(patience=replace(AT_ONCE, settle_s=0.2))
    pid = world.host.attach_client(0, name="dcgm-exporter", kind="monitor")
    world.policies = [policy()]
    await world.publish()
    await world.publish()
    await world.modes.settle()
    await asyncio.sleep(0.25)
    await world.modes.settle()
    await world.publish()
    assert [reason for reason, _, _ in await world.problems()] == ["ModeChangeBlocked"] and world.waiting() == []
    world.host.detach_client(pid)
    await world.modes.settle()
    await world.publish()
    assert world.waiting() == [("On", [])]
    await world.modes.settle()
    assert world.mode == (0, 0)
    await asyncio.sleep(0.25)
    await world.modes.settle()
    assert world.mode == (1, 1)
    await world.end()


async def test_while_a_program_is_in_the_way_claims_come_and_go(world: ModeWorld) -> None:
    """The program of a claim is not what kept the GPU from its reset."""
    monitor = world.host.attach_client(0, name="dcgm-exporter", kind="monitor")
    world.policies = [policy()]
    await world.until_quiet()
    (full,) = await world.devices()
    world.users, program = {full: ["team/a"]}, world.host.attach_client(0, name="python3")
    await world.until_quiet()
    assert world.waiting() == []
    world.host.detach_client(monitor)
    await world.until_quiet()
    assert world.waiting() == [("On", ["team/a"])] and world.mode == (0, 0)
    world.host.detach_client(program)
    world.users = {}
    await world.until_quiet()
    assert world.mode == (1, 1)


async def test_a_claim_that_only_observes_the_gpu_keeps_it_from_its_reset(world: ModeWorld) -> None:
    gpu = world.host.state.gpus[0]
    device = replace(a_held_device(0), gpu_uuid=gpu.uuid, pci_bus_id=gpu.address, admin_access=True)
    entry = an_entry(a_ref("watcher"), device)
    await world.journal.commit(with_entry(entry))
    world.policies = [policy()]
    await world.until_quiet()
    ((reason, message, fix),) = await world.problems()
    assert (reason, world.mode) == ("ModeChangeBlocked", (0, 0))
    assert "team-a/watcher" in message and "delete them" in fix
    await world.journal.commit(released(entry.claim.uid))
    await world.until_quiet()
    assert world.mode == (1, 1)


async def test_an_instance_that_no_claim_has_keeps_the_mode_on(world: ModeWorld) -> None:
    world.policies = [policy()]
    await world.until_quiet()
    world.host.make_instance(0, "3g.40gb", 0)
    world.policies = []
    await world.until_quiet()
    assert world.mode == (1, 1)
    ((reason, message, fix),) = await world.problems()
    assert reason == "ModeChangeBlocked" and "3g.40gb" in message and "-dgi" in fix
    world.host.destroy_instance(0, 0)
    await world.until_quiet()
    assert world.mode == (0, 0)


@pytest.mark.parametrize("kind", ["passthrough", "vgpu"])
async def test_in_a_virtual_machine_nothing_is_tried(world: ModeWorld, kind: str) -> None:
    with world.host.edit() as state:
        state.gpus[0].virtualization = 1 if kind == "passthrough" else 2
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (0, 0) and world.waiting() == []
    assert [reason for reason, _, _ in await world.problems()] == [
        "ResetNeeded" if kind == "passthrough" else "NoMigProfiles"
    ]


async def test_another_session_refuses_the_reset_and_leaves_nothing_pending(world: ModeWorld) -> None:
    """Who it is, the kernel does not show, as when a kernel module has the GPU."""
    world.restart(patience=PATIENT)
    other = SimulatedNvml(world.host.root)
    other.nvmlInitWithFlags(0)
    (world.host.root / "sys/module/nvidia_drm").mkdir(parents=True)
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (0, 0) and world.journal.current.holds == {}
    ((reason, message, fix),) = await world.problems()
    assert reason == "ModeChangeBlocked" and "In use by another client" in message and "rmmod nvidia_drm" in fix
    other.nvmlShutdown()
    await world.end()
    world.restart()
    await world.until_quiet()
    assert world.mode == (1, 1)


async def test_a_machine_that_cannot_reset_one_gpu_says_so_and_goes_on_as_before(tmp_path: Path) -> None:
    world = ModeWorld(tmp_path, gpus=2)
    world.restart()
    world.host.set_resets("together")
    world.policies = [policy()]
    await world.until_quiet()
    reason, message, fix = (await world.problems())[0]
    assert reason == "ModeChangeBlocked" and "not supported" in message and "reboot it" in fix
    assert world.mode == (0, 0) and world.waiting() == [] and world.journal.current.holds == {}
    assert len(await world.devices()) == 2
    await world.end()


async def test_a_claim_that_was_allocated_too_late_gets_the_mode_back(world: ModeWorld) -> None:
    await world.publish()
    (full,) = await world.devices()
    world.policies = [policy()]
    await world.until_quiet()
    world.users = {full: ["team/late"]}
    await world.until_quiet()
    assert world.mode == (0, 0) and await world.devices() == [full]
    assert world.waiting() == [("On", ["team/late"])]
    world.users = {}
    await world.until_quiet()
    assert world.mode == (1, 1)


async def test_two_instances_of_the_plugin_switch_once(world: ModeWorld) -> None:
    world.policies = [policy()]
    await world.publish()
    await world.publish()
    other = ModeWorld.beside(world)
    other.restart()
    await other.publish()
    await asyncio.gather(world.modes.settle(), other.modes.settle())
    await other.end()
    await world.until_quiet()
    assert world.mode == (1, 1)
    assert world.journal.current.holds[world.hold].state is HoldState.MADE


async def test_without_its_gate_the_plugin_switches_nothing_on_and_takes_back_what_it_did(world: ModeWorld) -> None:
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (1, 1)
    await world.end()
    world.restart(allowed=False)
    world.policies = []
    await world.until_quiet()
    assert world.mode == (0, 0)
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (0, 0) and world.journal.current.holds == {}


async def test_a_switched_mode_that_healing_brings_back_is_compared_with_the_gpu(world: ModeWorld) -> None:
    """The log of holds had lost that the mode was switched off again; healing takes its entry back after the start."""
    await world.publish()
    running = asyncio.create_task(world.modes.run())
    await asyncio.sleep(0.5)  # idle: nothing is asked, nothing is switched

    def made(journal: Journal) -> Journal:
        return replace(journal, holds={world.hold: HoldRecord(HoldState.MADE, "boot")})

    await world.journal.commit(made)
    await world.discovery.observe()
    for _ in range(500):
        if not world.journal.current.holds:
            break
        await asyncio.sleep(0.01)
    running.cancel()
    assert (world.journal.current.holds, world.mode) == ({}, (0, 0))


def killed_at(number: int, seen: list[str]) -> Moment:
    def moment(what: str) -> None:
        seen.append(what)
        if len(seen) == number:
            raise Killed

    return moment


async def lives(world: ModeWorld, moment: Moment) -> None:
    """One life: until all is done, or the plugin is killed."""
    world.restart(moment)
    try:
        with suppress(Killed):
            await world.until_quiet()
    finally:
        await world.end()


async def prepared(folder: Path, *, on: bool) -> ModeWorld:
    """A node about to switch its GPU on, or off again."""
    world = ModeWorld(folder)
    world.policies = [policy()]
    if not on:
        await lives(world, lambda what: None)
        assert world.mode == (1, 1)
        world.policies = []
    return world


@pytest.mark.parametrize("reset_by", slow_but(["nvml", "nvidia-smi"], "nvml"))
@pytest.mark.parametrize("then", slow_but(["go on", "take back", "reboot"], "go on", "reboot"))
@pytest.mark.parametrize("on", slow_but([True, False], True), ids=["on", "off"])
async def test_killed_after_any_step(
    tmp_path: Path, on: bool, then: str, reset_by: Literal["nvml", "nvidia-smi"]
) -> None:
    """Then the policy is as it was, or the opposite of it. Either way the mode is what the policy says in the end,
    nothing is pending, and the journal knows whose mode it is. In between, no claim gets the GPU."""
    numbers = count(1)
    for number in numbers:
        world = await prepared(tmp_path / str(number), on=on)
        world.host.set_resets(reset_by)
        seen: list[str] = []
        await lives(world, killed_at(number, seen))
        if len(seen) < number:
            break
        if then == "take back":
            world.policies = [] if on else [policy()]
        if then == "reboot":
            world.host.reboot()
        wanted = bool(world.policies)
        world.restart()
        if world.mode not in ((0, 0), (1, 1)):
            with pytest.raises(ModeChanging):
                await world.executor.journal.commit(with_entry(claim_of(world)))
        await world.until_quiet()
        states = {hold: record.state for hold, record in world.journal.current.holds.items()}
        assert world.mode == (int(wanted), int(wanted)), (number, seen)
        assert states == ({world.hold: HoldState.MADE} if wanted else {}), (number, seen)
        await world.end()
    assert next(numbers) > 5


def claim_of(world: ModeWorld) -> Entry:
    gpu = world.host.state.gpus[0]
    return an_entry(a_ref("late"), replace(a_held_device(0), gpu_uuid=gpu.uuid, pci_bus_id=gpu.address))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_inside_nvml(tmp_path: Path, when: Literal["before", "after"]) -> None:
    world = await prepared(tmp_path, on=True)
    crash_in(world.host, 0, "nvmlDeviceSetMigMode", when)
    world.restart()
    with pytest.raises(Crash):
        await world.until_quiet()
    await world.end()
    world.restart()
    await world.until_quiet()
    assert world.mode == (1, 1)
    await world.end()


async def test_a_change_that_can_neither_be_completed_nor_taken_back_keeps_claims_away(tmp_path: Path) -> None:
    world = ModeWorld(tmp_path)
    world.host.set_resets("nvidia-smi")

    def moment(what: str) -> None:
        if what.startswith("before nvidia-smi --gpu-reset"):
            fail_call(world.host, 0, "nvmlDeviceSetMigMode", 999)
            world.host.set_resets("nvml")
            world.host.attach_client(0, pid=4711)

    world.restart(moment, PATIENT)
    world.policies = [policy()]
    await world.until_quiet()
    assert world.mode == (0, 1)
    assert world.journal.current.holds[world.hold].state is HoldState.INTENT
    assert rules_of(world.held).changes_later(await world.look())
    with pytest.raises(ModeChanging):
        await world.executor.journal.commit(with_entry(claim_of(world)))
    assert [reason for reason, _, _ in await world.problems()] == ["ModeChangeBlocked"]
    await world.end()
    fail_call(world.host, 0, "nvmlDeviceSetMigMode", 0)
    world.host.detach_client(4711)
    world.restart()
    await world.until_quiet()
    assert world.mode == (1, 1)
    await world.end()


async def test_a_gpu_that_nvml_cannot_reach_keeps_no_other_from_its_change(tmp_path: Path) -> None:
    world = ModeWorld(tmp_path, gpus=2)
    world.restart(patience=PATIENT)
    world.policies = [policy()]
    fail_call(world.host, 0, "nvmlDeviceSetMigMode", 999)
    await world.until_quiet()
    assert world.mode == (0, 0)
    other = world.host.state.gpus[1].mig
    assert other is not None and (other.current, other.pending) == (1, 1)
    ((reason, message, _),) = await world.problems()
    assert reason == "ModeChangeBlocked" and message
    await world.end()


async def test_while_the_gpus_are_released_nothing_is_switched(world: ModeWorld) -> None:
    """Whoever asked for them works on them."""
    world.policies = [policy()]
    await world.publish()
    await world.publish()
    world.hardware.release("an administrator works on the GPUs")
    await world.look()
    await world.modes.settle()
    assert world.mode == (0, 0) and world.journal.current.holds == {}
    world.hardware.resume()
    await world.until_quiet()
    assert world.mode == (1, 1)


@pytest.mark.parametrize("refused", [1, 2])
async def test_a_disk_that_refuses_the_journal_leaves_no_gpu_half_switched(tmp_path: Path, refused: int) -> None:
    """The first commit is the intent: without it nothing is set. The second is the result, which can be seen again."""
    commits = count(1)

    def moment(what: str) -> None:
        if what == "before a commit" and next(commits) == refused:
            raise NodeNotReady("no space left on device", about="file claims.journal")

    world = ModeWorld(tmp_path)
    world.restart(moment, PATIENT)
    world.policies = [policy()]
    await world.publish()
    await world.publish()
    await world.modes.settle()
    assert world.mode == ((0, 0) if refused == 1 else (1, 1))
    states = [record.state for record in world.journal.current.holds.values()]
    assert states == ([] if refused == 1 else [HoldState.INTENT])
    await world.publish()
    if refused == 1:
        ((reason, message, _),) = await world.problems()
        assert reason == "ModeChangeBlocked" and "no space left" in message
    await world.end()
    world.restart()
    await world.until_quiet()
    assert world.mode == (1, 1) and world.journal.current.holds[world.hold].state is HoldState.MADE
    await world.end()


async def test_before_the_rules_are_known_nothing_is_done(world: ModeWorld) -> None:
    world.host.set_mig(0, 0, 1)
    await world.journal.commit(mode_change_begun(world.hold, HoldState.INTENT, "boot"))
    await world.look()
    await world.modes.settle()
    assert world.mode == (0, 1)
    world.policies = []
    await world.until_quiet()
    assert world.mode == (0, 0) and world.journal.current.holds == {}
