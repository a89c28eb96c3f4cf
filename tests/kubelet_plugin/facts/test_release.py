"""GPUs are released to whoever resets them, seen, bounded and over restarts; and nobody is given one meanwhile."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.dractl import dractl, run
from support.mishaps import run_persistenced
from support.mps import identity
from support.nodes import Node, a_node
from support.plugin import eventually

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.meta import NODES, JsonObject
from dra_driver.devices.health import taints
from dra_driver.errors import DriverError, InvalidInput, NodeNotReady
from dra_driver.kube.client import Kube
from dra_driver.names import RELEASE_GPUS as KEY
from dra_driver.runtime.files import write_durably
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import RELEASED, Hardware
from kubelet_plugin.facts.monitor import HealthFile, HealthMonitor
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.facts.release import (
    MIG_STATE,
    REQUEST,
    STATE,
    GpuRelease,
    asked_by_file,
    asked_by_mig_manager,
    asked_by_node,
)
from kubelet_plugin.facts.watcher import Coverage, EventWatcher
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvml import SimulatedNvml

NODE = "node-a"
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


class TestWhatIsAskedFor:
    @pytest.mark.parametrize(
        ("metadata", "until"),
        [
            ({"annotations": {KEY: "true"}}, None),
            ({"labels": {KEY: "true"}}, None),
            ({"annotations": {KEY: "2026-11-24T12:00:00Z"}}, NOON),
            ({"annotations": {KEY: "2026-11-24T13:00:00+01:00"}}, NOON),
            ({"annotations": {KEY: "2026-11-24T12:00:00Z"}, "labels": {KEY: "true"}}, NOON),
        ],
    )
    def test_a_label_or_annotation_of_the_node(self, metadata: JsonObject, until: datetime | None) -> None:
        request = asked_by_node({"name": NODE, **metadata})
        assert request is not None and request.until == until
        assert f"node {NODE} {KEY}-" in request.message

    @pytest.mark.parametrize("metadata", [{}, {"labels": None}, {"annotations": {"other": "true"}}])
    def test_nothing(self, metadata: JsonObject) -> None:
        assert asked_by_node({"name": NODE, **metadata}) is None

    @pytest.mark.parametrize(
        "value", ["", "yes", "30m", "2026-11-24", "2026-11-24T12:00:00", "0001-01-01T00:00:00+14:00"]
    )
    def test_a_value_that_makes_no_sense_is_refused_with_what_to_write(self, value: str) -> None:
        with pytest.raises(InvalidInput, match=r"must be `true`, or in an annotation a time"):
            asked_by_node({"name": NODE, "annotations": {KEY: value}})

    def test_a_file_of_somebody_else_is_refused(self) -> None:
        assert asked_by_file(None) is None
        for content in (b"", b"[]", b'{"until": "soon"}'):
            with pytest.raises(InvalidInput, match="dractl gpus resume"):
                asked_by_file(content)

    @pytest.mark.parametrize(("state", "works"), [("pending", True), ("rebooting", True), ("success", False)])
    def test_the_mig_manager_has_a_time_limit(self, state: str, works: bool) -> None:
        request = asked_by_mig_manager({"labels": {MIG_STATE: state}}, NOON)
        assert (request is not None and request.until == NOON + timedelta(minutes=30)) == works


class Plugin:
    """The parts of a plugin that have GPUs open, on a simulated node with an API server; one life of it."""

    def __init__(self, folder: Path, kube: Kube, profile: str = "dgx-a100-80") -> None:
        self.folder = folder / "plugins" / "gpu.nvidia.com"
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            a_node(folder, profile)
        self.node = Node(SimulatedHost(folder / "host"))
        self.host = self.node.host
        self.kube = kube
        self.now = NOON
        self.refused: list[str] = []
        self.sessions: list[Coverage] = []
        self.hardware: Hardware = self.node.hardware
        self.discovery = Discovery(self.hardware, interval_s=0.1)
        self.monitor = HealthMonitor(self.discovery, HealthFile(self.folder), HealthPolicy, now=lambda: self.now)
        self.watcher = EventWatcher(self.node.open_nvml, lambda event: None, self.sessions.append, wait_s=0.05)
        self.own = OwnNode(NODE)
        self.release = GpuRelease(
            self.folder,
            self.hardware,
            self.watcher,
            self.discovery,
            self.own,
            self.refused.append,
            now=lambda: self.now,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Plugin"]:
        self.release.restore()
        loops = (self.discovery.run, self.watcher.run, self.release.run, lambda: self.own.follow(self.kube))
        tasks = [asyncio.create_task(loop()) for loop in loops]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await eventually(lambda: not self.watcher.is_open)
            self.hardware.close()

    async def opened(self) -> None:
        await eventually(lambda: self.watcher.is_open and self.hardware._session is not None)
        await eventually(lambda: self.discovery._facts is not None)

    async def released(self) -> JsonObject:
        """What the plugin confirms."""
        await eventually((self.folder / STATE).exists)
        state: JsonObject = json.loads((self.folder / STATE).read_text())
        return state

    async def taken_back(self) -> None:
        await eventually(lambda: not (self.folder / STATE).exists())
        await self.opened()
        await eventually(lambda: RELEASED not in self.problems)

    @property
    def problems(self) -> list[str]:
        return [problem.reason for problem in self.monitor.facts.problems]

    async def annotate(self, value: str | None, kind: str = "annotations", key: str = KEY) -> None:
        await self.kube.merge_patch(NODES, NODE, {"metadata": {kind: {key: value}}})

    async def smi(self, *words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(
            subprocess.run, [self.host.root / "usr/bin/nvidia-smi", *words], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout


@pytest.fixture
async def cluster(kube: Kube) -> Kube:
    await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    return kube


async def test_a_gpu_is_reset_after_an_annotation_and_not_before(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        uuid = plugin.host.state.gpus[0].uuid
        status, text = await plugin.smi("--gpu-reset", "-i", uuid)
        assert status == 255 and "In use by another client" in text
        await plugin.annotate("true")
        state = await plugin.released()
        assert (state["source"], state.get("until")) == ("node", None)
        assert not plugin.watcher.is_open and plugin.hardware._session is None
        plugin.host.set_health(0, remap_pending=True, channel_repair_pending=True, tpc_repair_pending=True)
        assert await plugin.smi("--gpu-reset", "-i", uuid) == (
            0,
            f"GPU {plugin.host.state.gpus[0].address} was successfully reset.\nAll done.\n",
        )
        health = plugin.host.state.gpus[0].health
        assert not (health.remap_pending or health.channel_repair_pending or health.tpc_repair_pending)
        await plugin.annotate(None)
        await plugin.taken_back()
        assert (await plugin.smi("--gpu-reset"))[0] == 255


async def test_the_mig_manager_changes_the_mode_of_an_a100_while_it_says_that_it_works(
    tmp_path: Path, cluster: Kube
) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()

        def switch() -> int:
            nvml = SimulatedNvml(plugin.host.root)
            nvml.nvmlInitWithFlags(0)
            status = nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByIndex(0), 1)
            nvml.nvmlShutdown()
            return status

        assert switch() != 0 and plugin.host.state.gpus[0].mig == type(plugin.host.state.gpus[0].mig)(pending=1)
        await plugin.annotate("pending", "labels", MIG_STATE)
        await plugin.released()
        assert (await plugin.smi("--gpu-reset", "-i", plugin.host.state.gpus[0].address))[0] == 0
        assert plugin.host.snapshot(0)["mig"] == {"current": 1, "pending": 1}
        await plugin.annotate("success", "labels", MIG_STATE)
        await plugin.taken_back()
        await eventually(lambda: bool(plugin.monitor.facts.gpus[0].mig and plugin.monitor.facts.gpus[0].mig.enabled))


async def test_the_inventory_keeps_the_gpus_and_taints_each(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        before = plugin.monitor.facts
        await plugin.annotate("true")
        await plugin.released()
        facts = plugin.monitor.facts
        assert (facts.driver, [gpu.uuid for gpu in facts.gpus]) == (before.driver, [gpu.uuid for gpu in before.gpus])
        (problem,) = [problem for problem in facts.problems if problem.reason == RELEASED]
        assert f"kubectl annotate node {NODE} {KEY}-" in problem.message
        for gpu in facts.gpus:
            assert not gpu.health.healthy
            (taint,) = taints(gpu.health.conditions, HealthPolicy(evict=True), "gpu.nvidia.com")
            assert (taint.key, taint.effect) == ("gpu.nvidia.com/released", "NoSchedule"), "nobody is evicted"
        await plugin.annotate(None)
        await plugin.taken_back()
        assert plugin.monitor.facts == before


async def test_nothing_changes_the_hardware_meanwhile_and_all_is_tried_again(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        await plugin.annotate("true")
        await plugin.released()
        for work in (
            lambda: plugin.hardware.use(identity(plugin.host), lambda nvml: nvml.driver("/")),
            lambda: plugin.hardware.without_session(lambda: None),
        ):
            with pytest.raises(NodeNotReady, match="released the GPUs") as refusal:
                await asyncio.to_thread(work)
            assert refusal.value.retry_after_s is not None


async def test_a_release_ends_with_its_time_though_nobody_takes_it_back(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        await plugin.annotate("2026-11-24T12:30:00Z")
        await plugin.released()
        plugin.now = NOON + timedelta(minutes=30)
        plugin.release.wake.set()
        await plugin.taken_back()


async def test_the_plugin_waits_for_the_end_of_a_release_and_otherwise_for_notices(
    tmp_path: Path, cluster: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing looks each second: with looks an hour apart, requests are heard and a release ends at its time."""
    monkeypatch.setattr("kubelet_plugin.facts.release._LOOK_S", 3600.0)
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        write_durably(plugin.folder / REQUEST, b"{}")
        await plugin.released()
        (plugin.folder / REQUEST).unlink()
        await plugin.taken_back()
        plugin.now = NOON + timedelta(minutes=29, seconds=59)
        await plugin.annotate("2026-11-24T12:30:00Z")
        await plugin.released()
        plugin.now += timedelta(seconds=1)
        await plugin.taken_back()


async def test_what_fails_is_tried_again_though_nobody_asks_again(
    tmp_path: Path, cluster: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.facts.release._LOOK_S", 3600.0)
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        with monkeypatch.context() as patched:
            patched.setattr(EventWatcher, "is_open", property(lambda _: True))
            write_durably(plugin.folder / REQUEST, b"{}")
            await asyncio.sleep(0.3)
            assert not (plugin.folder / STATE).exists()
        await plugin.released()


async def test_without_notices_the_plugin_looks_often(
    tmp_path: Path, cluster: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.runtime.inotify._watching", lambda _: None)
    monkeypatch.setattr("kubelet_plugin.facts.release._LOOK_S", 3600.0)
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        write_durably(plugin.folder / REQUEST, b"{}")
        await plugin.released()


async def test_a_plugin_that_starts_meanwhile_opens_nothing_and_knows_the_gpus(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster, "gb200").running() as plugin:
        await plugin.opened()
        await plugin.annotate("true")
        await plugin.released()
        before = plugin.monitor.facts
    other = Plugin(tmp_path, cluster)
    opened: list[object] = []
    other.hardware._open_nvml = lambda: opened.append(None) or other.node.open_nvml()  # type: ignore[func-returns-value]
    async with other.running():
        await eventually(lambda: other.own.metadata is not None)
        assert (await other.smi("--gpu-reset"))[0] == 0
        assert [gpu.uuid for gpu in other.monitor.facts.gpus] == [gpu.uuid for gpu in before.gpus]
        assert other.monitor.facts.imex == before.imex is not None
        assert RELEASED in other.problems and not opened
        await other.annotate(None)
        await other.taken_back()
        assert opened


async def test_a_request_that_makes_no_sense_changes_nothing_and_is_told_once(tmp_path: Path, cluster: Kube) -> None:
    async with Plugin(tmp_path, cluster).running() as plugin:
        await plugin.opened()
        await plugin.annotate("30m")
        write_durably(plugin.folder / REQUEST, b"30m")
        await eventually(lambda: len(plugin.refused) == 2)
        for _ in range(3):
            await plugin.release.settle()
        assert len(plugin.refused) == 2 and plugin.watcher.is_open and not (plugin.folder / STATE).exists()


async def test_a_session_that_does_not_end_is_not_confirmed(
    tmp_path: Path, cluster: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin(tmp_path, cluster)
    monkeypatch.setattr("kubelet_plugin.facts.watcher._PAUSE_PATIENCE_S", 0.01)
    plugin.watcher._open = True  # a library that hangs
    (plugin.folder / REQUEST).write_text("{}")
    await plugin.release.settle()
    assert not (plugin.folder / STATE).exists() and plugin.hardware._released is None
    plugin.watcher._open = False
    await plugin.release.settle()
    assert (plugin.folder / STATE).exists()


class TestDractl:
    def options(self, plugin: Plugin, tmp_path: Path) -> list[str]:
        return ["--kubelet-root", str(tmp_path), "--host-root", str(plugin.host.root)]

    async def test_it_waits_until_the_gpus_are_closed_and_until_they_are_back(
        self, tmp_path: Path, cluster: Kube
    ) -> None:
        async with Plugin(tmp_path, cluster).running() as plugin:
            await plugin.opened()
            plugin.now = datetime.now(UTC)
            options = self.options(plugin, tmp_path)
            assert (await dractl("gpus", "status", *options))[0] == 1
            assert (await dractl("gpus", "release", "--for", "10m", *options))[0] == 0
            assert not plugin.watcher.is_open and plugin.hardware._session is None
            assert (await plugin.smi("--gpu-reset"))[0] == 0
            assert (await dractl("gpus", "status", *options))[0] == 0
            assert (await dractl("gpus", "resume", *options[:2]))[0] == 0
            await plugin.taken_back()

    async def test_who_has_a_gpu_open_is_named(self, tmp_path: Path, cluster: Kube) -> None:
        plugin = Plugin(tmp_path, cluster)
        plugin.host.attach_client(0, name="python3", pid=4711)
        shown = run("gpus", "status", *self.options(plugin, tmp_path)).stderr
        assert "python3 (4711)" in " ".join(shown.split()) and "nvidia-persiste (700)" in " ".join(shown.split())

    @pytest.mark.parametrize(
        ("words", "error"),
        [
            (["release", "--for", "soon"], "is not a time such as"),
            (["release", "--for", "5m", "--until-resumed"], "use one of them"),
            (["release", "--patience", "0"], "has not confirmed"),
            (["release", "--kubelet-root", "/no/such"], "run this on the node, as root"),
        ],
    )
    async def test_what_cannot_be_is_said(self, tmp_path: Path, cluster: Kube, words: list[str], error: str) -> None:
        options = self.options(Plugin(tmp_path, cluster), tmp_path)
        with pytest.raises(DriverError, match=error):
            await dractl("gpus", words[0], *options, *words[1:])


async def test_settings_that_the_driver_forgot_are_told(tmp_path: Path, cluster: Kube) -> None:
    """Of a GPU that is not persistent, when nobody had it open: a compute mode is as after a boot."""
    plugin = Plugin(tmp_path, cluster)
    run_persistenced(plugin.host, running=False)
    gpu = identity(plugin.host)
    reopened: list[object] = []
    plugin.hardware.when_reopened(lambda: reopened.append(None))
    plugin.hardware.look()
    plugin.hardware.use(gpu, lambda nvml: nvml.set_compute_mode(gpu.uuid, 3))
    assert plugin.hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 3 and not reopened
    plugin.hardware.without_session(lambda: None)
    assert plugin.hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 0 and len(reopened) == 1
    run_persistenced(plugin.host, running=True)
    plugin.hardware.use(gpu, lambda nvml: nvml.set_compute_mode(gpu.uuid, 3))
    plugin.hardware.without_session(lambda: None)
    assert plugin.hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 3
