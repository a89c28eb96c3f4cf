"""One sick GPU is one tainted GPU, remembered and forgotten at the right time."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from support.mishaps import load_driver, unload_driver
from support.nodes import Node, a_node
from support.plugin import eventually

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import MOST_CONDITIONS, GpuFacts, HealthCondition, Problem
from dra_driver.devices.health import evicts
from dra_driver.devices.nvlink import nvlink_domains
from kubelet_plugin.facts.container_files import incomplete
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware
from kubelet_plugin.facts.monitor import HEALTH_FILE, HealthFile, HealthMonitor
from kubelet_plugin.facts.validation import Command, fault_of
from kubelet_plugin.facts.watcher import Coverage, EventWatcher, GpuEvent
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.prepare.ours import DriverFootprint, InUse


class Clock:
    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.time

    def pass_(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class Watched:
    """A node, what a plugin's monitor makes of it, and a plugin that is started again."""

    def __init__(self, folder: Path, policy: HealthPolicy | None = None, command: Command | None = None) -> None:
        self.node: Node = a_node(folder / "host", gpus=4)
        self.folder = folder
        self.clock = Clock()
        self.policy = policy or HealthPolicy()
        self.command = command
        self.start()

    def start(self) -> None:
        self.discovery: Discovery = self.node.discovery()
        self.monitor = HealthMonitor(
            self.discovery,
            HealthFile(self.folder),
            lambda: self.policy,
            instance_uuid=lambda gpu, gi, ci: f"MIG-{gi}-{ci}",
            command=self.command,
            now=self.clock,
        )

    async def look(self, *, after_s: float = 0.0) -> tuple[GpuFacts, ...]:
        self.clock.pass_(after_s)
        return (await self.monitor.observe()).gpus

    async def conditions(self, index: int, *, after_s: float = 0.0) -> list[tuple[str, str | None]]:
        return [
            (condition.type, condition.value)
            for condition in (await self.look(after_s=after_s))[index].health.conditions
        ]

    async def turn(self) -> None:
        """What `run` does in one round."""
        task = asyncio.create_task(self.monitor.run())
        for _ in range(200):
            await asyncio.sleep(0.01)
            if self.monitor._memory == self.monitor._saved and not self.monitor._news.is_set():
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def xid(self, index: int, number: int, gi: int | None = None) -> None:
        uuid = self.monitor.facts.gpus[index].uuid
        self.monitor.heard(GpuEvent(uuid, number, gi, None if gi is None else 0))


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path)
    await watched.look()
    return watched


async def test_a_healthy_node_has_no_conditions(watched: Watched) -> None:
    assert [gpu.health.conditions for gpu in watched.monitor.facts.gpus] == [[]] * 4
    assert all(gpu.health.healthy for gpu in watched.monitor.facts.gpus)


async def test_what_another_source_adds_is_told_at_once(watched: Watched) -> None:
    """The hardware is the same, so a look would tell nobody."""
    added, reported = list[Problem](), list[tuple[Problem, ...]]()
    monitor = HealthMonitor(
        watched.discovery, HealthFile(watched.folder / "other"), HealthPolicy, more_problems=lambda: tuple(added)
    )
    await monitor.observe()
    monitor.subscribe(lambda facts: reported.append(facts.problems))
    added.append(Problem(subject="x", reason="Y", message="z"))
    monitor.more_changed()
    assert reported == [tuple(added)]


async def test_a_lost_gpu_stays_with_its_facts_and_its_condition_and_the_others_are_not_touched(
    watched: Watched,
) -> None:
    before = watched.monitor.facts.gpus
    watched.node.host.lose_gpu(3)
    after = await watched.look()
    assert [gpu.uuid for gpu in after] == [gpu.uuid for gpu in before]
    assert [gpu.health.healthy for gpu in after] == [number != 3 for number in range(4)]
    assert [condition.type for condition in after[3].health.conditions] == ["GpuLost"]
    assert after[3].model_copy(update={"health": before[3].health}) == before[3]
    assert after[:3] == before[:3]
    assert watched.monitor.facts.problems == ()


async def test_a_lost_gpu_takes_no_other_out_of_its_nvlink_domain(watched: Watched) -> None:
    before = nvlink_domains(watched.monitor.facts.gpus)
    assert len(before) == 4
    watched.node.host.lose_gpu(3)
    assert nvlink_domains(await watched.look()) == before
    await watched.turn()
    watched.start()
    assert nvlink_domains(await watched.look()) == before
    watched.node.host.lose_gpu(3, 0)
    assert nvlink_domains(await watched.look()) == before


async def test_a_lost_gpu_that_comes_back_is_well_after_a_minute(watched: Watched) -> None:
    watched.node.host.lose_gpu(3)
    await watched.look()
    watched.node.host.lose_gpu(3, 0)
    assert await watched.conditions(3, after_s=10) == [("GpuLost", "GpuIsLost")]
    assert await watched.conditions(3, after_s=59) == [("GpuLost", "GpuIsLost")]
    assert await watched.conditions(3, after_s=1) == []


async def test_a_lost_gpu_is_still_known_after_a_restart(watched: Watched) -> None:
    await watched.turn()
    watched.node.host.lose_gpu(3)
    watched.start()
    gpus = await watched.look()
    assert len(gpus) == 4
    assert not gpus[3].health.healthy


async def test_an_xid_is_a_condition_of_that_gpu_and_outlives_a_restart(watched: Watched) -> None:
    watched.xid(2, 95)
    assert [gpu.health.healthy for gpu in watched.monitor.facts.gpus] == [number != 2 for number in range(4)]
    await watched.turn()
    watched.start()
    assert await watched.conditions(2) == [("Xid", "95")]


async def test_a_gpu_with_more_conditions_than_an_inventory_has_keeps_the_worst_and_the_rest_is_named(
    watched: Watched,
) -> None:
    for number in range(1000, 1100):
        watched.xid(3, number)
    watched.clock.pass_(1)
    watched.xid(3, 79)
    facts = await watched.monitor.observe()
    health = facts.gpus[3].health
    assert len(health.conditions) == MOST_CONDITIONS
    assert (health.healthy, health.reason) == (False, "Xid")
    assert "79" in [condition.value for condition in health.conditions]
    (problem,) = facts.problems
    assert (problem.subject, problem.reason) == (f"health of GPU {facts.gpus[3].pci_bus_id}", "TooManyConditions")
    assert problem.message.startswith("37 of 101 conditions are not reported") and "Xid 1063" in problem.message


async def test_a_contained_error_is_a_warning_and_the_gpu_stays_healthy(watched: Watched) -> None:
    watched.xid(2, 94)
    assert watched.monitor.facts.gpus[2].health.healthy
    assert await watched.conditions(2) == [("Xid", "94")]


async def test_a_programs_own_fault_is_no_condition_unless_the_policy_makes_it_one(tmp_path: Path) -> None:
    for number, (policy, expected) in enumerate(
        ((HealthPolicy(), []), (HealthPolicy(escalate_xids=[31]), [("Xid", "31")]))
    ):
        watched = Watched(tmp_path / str(number), policy)
        await watched.look()
        watched.xid(0, 31)
        assert await watched.conditions(0) == expected


async def test_an_xid_of_one_instance_leaves_the_gpu_healthy(watched: Watched) -> None:
    watched.xid(1, 48, gi=7)
    gpu = watched.monitor.facts.gpus[1]
    assert gpu.health.healthy
    assert [condition.instance for condition in gpu.health.conditions] == ["MIG-7-0"]


async def test_a_reboot_ends_what_was(watched: Watched) -> None:
    watched.xid(0, 79)
    watched.node.host.reboot()
    assert await watched.conditions(0) == []


async def test_rows_to_remap_are_not_forgotten_while_the_gpu_is_divided(watched: Watched) -> None:
    watched.node.host.set_health(0, remap_pending=True)
    assert await watched.conditions(0) == [("RowRemap", "pending")]
    watched.node.host.set_mig(0, 1)
    await watched.look(after_s=1)
    assert await watched.conditions(0, after_s=3600) == [("RowRemap", "pending")]
    watched.node.host.set_mig(0, 0)
    watched.node.host.set_health(0, remap_pending=False)
    await watched.look(after_s=1)
    assert await watched.conditions(0, after_s=61) == []


async def test_a_mig_device_that_vanishes_from_under_a_claim_is_a_condition_of_that_device(watched: Watched) -> None:
    host = watched.node.host
    host.set_mig(0, 1)
    intact, gone = (host.make_instance(0, "1g.10gb", start)[0] for start in (0, 1))
    ours = DriverFootprint(in_use=tuple(InUse(host.state.gpus[0].uuid, uuid) for uuid in (intact, gone)))
    watched.discovery._hardware = Hardware(watched.node.files, watched.node.open_nvml, lambda: ours)
    assert await watched.conditions(0) == []
    host.destroy_instance(0, 1)
    (gpu, *others) = await watched.look()
    (condition,) = gpu.health.conditions
    assert (condition.type, condition.severity, condition.instance) == ("InstanceLost", "Critical", gone)
    assert "no longer exists" in condition.message
    assert gpu.health.healthy
    assert not any(other.health.conditions for other in others)
    ours = DriverFootprint()
    await watched.look(after_s=1)
    assert await watched.conditions(0, after_s=61) == []


async def test_a_driver_that_goes_away_takes_no_condition_with_it(watched: Watched) -> None:
    watched.xid(0, 79)
    unload_driver(watched.node.host)
    assert await watched.look() == ()
    load_driver(watched.node.host)
    assert await watched.conditions(0) == [("Xid", "79")]


async def test_a_gpu_without_events_is_said_to_be_unmonitored_and_stays_healthy(watched: Watched) -> None:
    uuid = watched.monitor.facts.gpus[1].uuid
    watched.monitor.covered(Coverage(frozenset(), ((uuid, "not supported"),)))
    gpu = watched.monitor.facts.gpus[1]
    assert [(condition.type, condition.severity) for condition in gpu.health.conditions] == [("Unmonitored", "Warning")]
    assert gpu.health.healthy


async def test_conditions_of_other_services_are_shown_with_the_gpu(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.look()
    uuid = watched.monitor.facts.gpus[0].uuid
    dead = HealthCondition(type="MpsDaemon", severity="Critical", message="it died", since="2026-01-01T00:00:00Z")
    watched.monitor._more = (lambda: {uuid: [dead]},)
    assert await watched.conditions(0) == [("MpsDaemon", None)]


async def test_a_damaged_memory_is_forgotten_and_the_node_is_served(watched: Watched) -> None:
    (watched.folder / HEALTH_FILE).write_text("{")
    watched.start()
    assert len(await watched.look()) == 4


async def test_a_driver_that_no_container_can_use_is_a_condition_of_each_gpu_until_it_is_complete(
    tmp_path: Path,
) -> None:
    """Otherwise the GPUs would look usable, and each claim would be refused on the node."""
    node = a_node(tmp_path / "host", gpus=2)
    installation = DriverInstallation(node.files)
    (cuda,) = node.host.root.rglob("libcuda.so.*.*")
    cuda.rename(cuda.with_name("away"))
    discovery = Discovery(Hardware(node.files, node.open_nvml, incomplete=partial(incomplete, installation)))
    monitor = HealthMonitor(discovery, HealthFile(tmp_path), HealthPolicy)

    gpus = (await monitor.observe()).gpus

    for gpu in gpus:
        (condition,) = gpu.health.conditions
        assert (condition.type, condition.severity) == ("DriverIncomplete", "Critical")
        assert "libcuda.so" in condition.message and not evicts(condition, HealthPolicy(evict=True))
    cuda.with_name("away").rename(cuda)
    assert all(gpu.health.healthy and not gpu.health.conditions for gpu in (await monitor.observe()).gpus)


async def test_nothing_new_is_told_to_nobody(watched: Watched) -> None:
    reported: list[object] = []
    watched.monitor.subscribe(reported.append)
    for _ in range(3):
        await watched.look(after_s=30)
    assert reported == []


class TestValidation:
    async def test_a_new_gpu_is_held_back_until_its_check_passed(self, tmp_path: Path) -> None:
        watched = Watched(tmp_path, HealthPolicy(validate_gpus=True))
        gpus = await watched.look()
        assert {condition.type for gpu in gpus for condition in gpu.health.conditions} == {"NotValidated"}
        await watched.turn()
        assert all(gpu.health.healthy for gpu in watched.monitor.facts.gpus)

    async def test_a_check_that_passed_is_remembered_and_a_reboot_asks_for_another(self, tmp_path: Path) -> None:
        watched = Watched(tmp_path, HealthPolicy(validate_gpus=True))
        await watched.look()
        await watched.turn()
        watched.start()
        assert {gpu.health.healthy for gpu in await watched.look()} == {True}
        watched.node.host.reboot()
        assert {gpu.health.healthy for gpu in await watched.look()} == {False}

    async def test_a_gpu_that_was_lost_is_checked_again(self, tmp_path: Path) -> None:
        watched = Watched(tmp_path, HealthPolicy(validate_gpus=True))
        await watched.look()
        await watched.turn()
        watched.node.host.lose_gpu(0)
        await watched.look()
        watched.node.host.lose_gpu(0, 0)
        assert ("NotValidated", None) in await watched.conditions(0)

    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ("exit 0", None),
            ("echo broken $GPU_MINOR; exit 3", "it did not pass its check: the check `sh` ended with status 3: broken"),
        ],
    )
    async def test_an_administrators_command_decides(self, tmp_path: Path, script: str, message: str | None) -> None:
        watched = Watched(tmp_path, HealthPolicy(validate_gpus=True), Command(("sh", "-c", script)))
        await watched.look()
        await watched.turn()
        health = watched.monitor.facts.gpus[0].health
        assert health.healthy is (message is None)
        assert message is None or (health.message or "").startswith(message)

    async def test_a_command_that_does_not_end_is_ended_and_is_a_fault(self, tmp_path: Path) -> None:
        gpu = a_node(tmp_path, gpus=4).hardware.look().gpus[0]
        fault = await Command(("sh", "-c", "sleep 600 & wait"), timeout_s=0.2).fault_of(gpu)
        assert fault == "the check `sh` did not end within 0.2 s"

    async def test_a_command_that_is_not_there_is_a_fault(self, tmp_path: Path) -> None:
        gpu = a_node(tmp_path, gpus=4).hardware.look().gpus[0]
        fault = await Command(("/no/such/check",)).fault_of(gpu)
        assert fault == "the check `/no/such/check` cannot be run in the plugin's container: No such file or directory"

    def test_the_built_in_check_finds_missing_memory_links_and_clocks(self, tmp_path: Path) -> None:
        first, *others = a_node(tmp_path, gpus=4).hardware.look().gpus
        assert first.nvlink is not None and first.memory_bytes is not None
        assert fault_of(first, others, 1980) is None
        assert fault_of(first, others, None) is None
        assert fault_of(first, others, 0) == "its clocks are at 0 MHz"
        fewer = first.model_copy(update={"nvlink": first.nvlink.model_copy(update={"links": 17})})
        assert fault_of(fewer, others, None) == "17 of its NVLinks are active, others of its kind have 18"
        less = first.model_copy(update={"memory_bytes": first.memory_bytes - 1})
        assert "bytes of memory, others of its kind have" in (fault_of(less, others, None) or "")


class TestWatcher:
    async def test_an_xid_of_the_hardware_becomes_a_condition(self, watched: Watched) -> None:
        covered = asyncio.Event()
        heard: list[GpuEvent] = []

        def coverage(now: Coverage) -> None:
            watched.monitor.covered(now)
            covered.set()

        watcher = EventWatcher(
            watched.node.open_nvml, lambda event: (heard.append(event), watched.monitor.heard(event))[0], coverage
        )
        task = asyncio.create_task(watcher.run())
        await asyncio.wait_for(covered.wait(), 10)
        watched.node.host.inject_event(3, 79)
        await eventually(lambda: bool(heard))
        assert [event.xid for event in heard] == [79]
        assert heard[0].gpu_instance is None
        unhealthy = [gpu.uuid for gpu in watched.monitor.facts.gpus if not gpu.health.healthy]
        assert unhealthy == [heard[0].gpu]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_a_driver_that_is_loaded_again_is_listened_to_again(self, watched: Watched) -> None:
        sessions: list[Coverage] = []
        watcher = EventWatcher(watched.node.open_nvml, lambda event: None, sessions.append)
        task = asyncio.create_task(watcher.run())
        await eventually(lambda: len(sessions) == 1)
        unload_driver(watched.node.host)
        load_driver(watched.node.host)
        await eventually(lambda: len(sessions) == 2)
        assert sessions[1].monitored == sessions[0].monitored
        assert len(sessions[1].monitored) == 4
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_no_session_is_open_during_a_pause_and_listening_goes_on_after_it(self, watched: Watched) -> None:
        sessions: list[Coverage] = []
        watcher = EventWatcher(watched.node.open_nvml, lambda event: None, sessions.append)
        task = asyncio.create_task(watcher.run())
        await eventually(lambda: len(sessions) == 1)

        def pause() -> bool:
            with watcher.paused(), watcher.paused():
                return watcher._open

        assert not await asyncio.to_thread(pause)
        await eventually(lambda: len(sessions) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
