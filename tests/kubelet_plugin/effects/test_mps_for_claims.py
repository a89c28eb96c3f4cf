"""Claims with MPS through the whole plugin: a container's clients, deaths of daemons and plugins, release."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.claims import FakeFacts, a_claim, a_config, a_ref, a_result
from support.mps import Client, no_daemons_left, processes_below, until
from support.prepared import Bench, prepare_one, unprepare_one

from dra_driver.api.meta import JsonObject
from dra_driver.names import CONFIG_API_VERSION
from kubelet_plugin.claims.node_effects import NodeMachine, effects_of
from kubelet_plugin.claims.service import ClaimService
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.effects.mps_watch import MpsWatch
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import HoldRecord, MpsDaemon, Records
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.vfio import SimulatedKernel

_CLAIM = a_ref("train", "0b5b1c8e-6b9e-4b0e-8f0a-000000000001")


class _Node:
    """A simulated node and the plugins that run on it, one after the other. GPU 0 is the claims'."""

    def __init__(self, root: Path) -> None:
        self.host: SimulatedHost = create_host(root / "host", "l40s")
        self.files = HostFiles(self.host.root)
        self.hardware = Hardware(self.files, lambda: NvmlSource(SimulatedNvml(self.host.root), "/"))
        kernel = SimulatedKernel(self.host.root)
        machine = NodeMachine(self.files, OnHost.simulated(self.files), kernel, kernel)
        programs = DriverPrograms(self.files, DriverInstallation(self.files).root)
        self.daemons = MpsDaemons(root / "state" / "mps", machine.on_host, programs)
        effects = effects_of(machine, self.hardware, programs, self.daemons, nullcontext)
        self.bench = Bench(root, facts=FakeFacts(self.hardware.look()), effects=effects)

    def put(self, sharing: JsonObject) -> None:
        device = self.bench.facts.facts.gpus[0].name
        config = a_config({"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": sharing})
        self.bench.api.put(a_claim(_CLAIM, a_result(device), configs=[config]))

    @property
    def records(self) -> Records:
        """What the journal says, as another process reads it."""
        return JournalStore(self.bench.state).current.holds

    @property
    def daemon(self) -> HoldRecord:
        (record,) = (record for hold, record in self.records.items() if isinstance(hold, MpsDaemon))
        return record

    def edits(self) -> dict[str, Any]:
        """What the runtime is told to do for the claim's containers."""
        content = self.bench.cdi.read(_CLAIM.uid)
        assert content is not None
        (device,) = json.loads(content)["devices"]
        edits: dict[str, Any] = device["containerEdits"]
        return edits

    def container(self) -> Client:
        """A program in a container of the claim: its environment, with the pipe folder where it is mounted from."""
        edits = self.edits()
        environment = dict(text.split("=", 1) for text in edits["env"])
        mounted = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        return Client(self.host, mounted[environment["CUDA_MPS_PIPE_DIRECTORY"]], environment)

    def watch(self, service: ClaimService) -> MpsWatch:
        return MpsWatch(self.daemons, lambda: self.records, self.files.boot_id, service.reassert_hold)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[_Node]:
    with no_daemons_left(tmp_path):
        yield _Node(tmp_path)


_LIMITED: JsonObject = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "4Gi"},
}


async def test_containers_of_a_claim_get_its_limits_and_nothing_stays(node: _Node, tmp_path: Path) -> None:
    before = node.host.state
    node.put(_LIMITED)
    async with node.bench.plugin() as service:
        await prepare_one(service, _CLAIM)
        assert node.host.state.gpus[0].compute_mode == 3
        client = node.container()
        assert client.granted["threads"] == 30.0
        assert list(client.granted["memory"].values()) == [4 << 30]
        assert client.end() == 0
        await unprepare_one(service, _CLAIM)
    assert node.host.state == before
    assert processes_below(tmp_path) == () and list((node.bench.state / "mps").iterdir()) == []


async def test_a_claim_computes_on_while_plugins_come_and_go(node: _Node) -> None:
    node.put(_LIMITED)
    async with node.bench.plugin() as service:
        await prepare_one(service, _CLAIM)
    made, client = node.daemon, node.container()
    async with node.bench.plugin():
        assert node.daemon == made
        assert client.process.poll() is None
    assert client.end() == 0


async def test_a_daemon_that_dies_under_its_claim_is_started_anew_and_the_journal_knows(node: _Node) -> None:
    node.put(_LIMITED)
    async with node.bench.plugin() as service:
        await prepare_one(service, _CLAIM)
        watch, edits = node.watch(service), node.edits()
        await watch.look()
        pid = int(node.daemon.made["pid"])
        os.kill(pid, signal.SIGKILL)
        until(lambda: not node.daemons.stands(node.daemon.made))
        await watch.look()
        assert int(node.daemon.made["pid"]) != pid and node.daemons.stands(node.daemon.made)
        assert node.edits() == edits, "containers that start over find the new daemon in the same folders"
        client = node.container()
        assert client.granted["threads"] == 30.0
        assert client.end() == 0
        ((gpu, (trouble,)),) = watch.conditions().items()
        assert (gpu, trouble.severity) == (node.host.state.gpus[0].uuid, "Warning")
        await unprepare_one(service, _CLAIM)
        await watch.look()
        assert watch.conditions() == {}


async def test_after_a_reboot_the_claim_has_its_daemon_and_compute_mode_again(node: _Node, tmp_path: Path) -> None:
    node.put(_LIMITED)
    async with node.bench.plugin() as service:
        await prepare_one(service, _CLAIM)
    node.host.reboot()
    until(lambda: not processes_below(tmp_path))
    node.bench.facts.facts = node.hardware.look()
    async with node.bench.plugin() as service:
        await prepare_one(service, _CLAIM)
        assert node.host.state.gpus[0].compute_mode == 3
        assert node.container().end() == 0
        await unprepare_one(service, _CLAIM)
    assert node.host.state.gpus[0].compute_mode == 0
    assert processes_below(tmp_path) == ()
