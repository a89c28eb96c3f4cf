"""Whatever kubelet, users, crashes, reboots, full disks and hardware do, nothing is given twice or left over.

GPU 0 is offered as a whole and to virtual machines, GPU 1 in parts that are made on demand, GPU 2 in MPS shares, GPU 3
in time-sliced ones. Claims may have configs, right or wrong for their devices.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.claims import (
    NODE,
    FakeClaims,
    FakeFacts,
    a_claim,
    a_config,
    a_gpu,
    a_ref,
    a_result,
    node_facts,
)
from support.disk import Disk
from support.fake_effects import FakeHardware
from support.inventories import inventory_spec, mig
from support.mps import QUICK, effect_for, no_daemons_left, processes_below, until
from support.prepared import given_nodes

from dra_driver.api.inventory import GpuFacts, PassthroughFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cdi.edits import DriverFiles
from dra_driver.cdi.model import DeviceNode
from dra_driver.devices.exclusion import conflict
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.devices.offers import offers
from dra_driver.errors import DriverError, HardwareError, InvalidInput, Unreachable
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER, ClaimRef
from kubelet_plugin.claims.node_effects import CurrentFootprint, NodeMachine, effects_of
from kubelet_plugin.claims.service import ClaimService, ContainerFilesOf, NodeSources, ServicePatience
from kubelet_plugin.effects.gpu_settings import INTERVALS
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, NvmlSource
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.host_programs import MarkedProcess
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    Effects,
    GpuInstance,
    Hold,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
)
from kubelet_plugin.prepare.known_node import ContainerFiles
from kubelet_plugin.prepare.lifecycle import PreparedDevice, digest_of
from kubelet_plugin.prepare.ours import NOTHING, DriverFootprint
from kubelet_plugin.prepare.store import JournalFile, JournalStore
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.vfio import SimulatedKernel

NAMES = ("one", "two", "three", "four")

KEYS = ("gpu 0", "gpu 1", "gpu 2", "gpu 3", "vfio", "share", "1g at 0", "1g at 5", "2g at 0", "3g at 4", "7g at 0")
"""What claims are given: GPUs by index, and of the others what they are."""

PARTS = {(1, 0, 1): "1g at 0", (1, 5, 1): "1g at 5", (2, 0, 2): "2g at 0", (3, 4, 4): "3g at 4", (7, 0, 8): "7g at 0"}
"""By compute slices, start and size."""

GPUS = (
    a_gpu(0, passthrough=PassthroughFacts(iommu_group=7)),
    a_gpu(1, mig=mig()),
    a_gpu(2),
    a_gpu(3),
)


def policy_for(gpus: Sequence[GpuFacts]) -> PublishingPolicy:
    only = [{"names": [gpu.name]} for gpu in gpus]
    return PublishingPolicy.of(
        {
            "publish": [{"gpus": selected} for selected in only],
            "mig": [{"gpus": only[1], "mode": "Dynamic"}],
            "sharing": [
                {"gpus": only[2], "strategy": "MPS", "replicas": 2},
                {"gpus": only[3], "strategy": "TimeSlicing", "unlimited": True, "interval": "Long"},
                {"devices": "mig", "profiles": ["1g.*"], "strategy": "MPS", "replicas": 2},
            ],
            "passthrough": [{"gpus": only[0]}],
        }
    )


def devices_for(gpus: Sequence[GpuFacts], policy: PublishingPolicy) -> dict[str, Offer]:
    """What is offered under each of the keys."""
    by_key: dict[str, Offer] = {}
    for offer in offers(inventory_spec(NODE, gpus), policy, {}).offers:
        if offer.kind is DeviceKind.VFIO:
            by_key["vfio"] = offer
        elif offer.share is not None:
            if offer.gpu == gpus[2]:
                by_key["share"] = offer
        elif offer.partition is None:
            by_key[f"gpu {gpus.index(offer.gpu)}"] = offer
        elif "+" not in offer.partition.profile and "-" not in offer.partition.profile:
            place = int(offer.partition.profile[0]), offer.partition.start, offer.partition.size
            by_key.setdefault(PARTS.get(place, ""), offer)
    return {key: by_key[key] for key in KEYS}


LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
LIMITED = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
CONFIGS = (
    None,
    None,
    ("GpuConfig", {"sharing": LONG}),
    ("GpuConfig", {"sharing": LIMITED}),
    ("MigDeviceConfig", {"sharing": LIMITED}),
)

names = st.sampled_from(NAMES)
some_devices = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)
some_config = st.sampled_from(CONFIGS)


def container_files(facts: NodeFacts) -> ContainerFiles:
    driver = DriverFiles(
        version="580.105.08",
        machine="x86_64-linux-gnu",
        libraries=(),
        links=(),
        library_folders=("/usr/lib64",),
        cuda_folders=("/usr/lib64",),
        files=(),
        sockets=(),
        control_nodes=(DeviceNode("/dev/nvidiactl", type="c", major=195, minor=255),),
    )
    nodes = {
        gpu.uuid: (DeviceNode(f"/dev/nvidia{gpu.minor}", type="c", major=195, minor=gpu.minor),) for gpu in facts.gpus
    }
    return ContainerFiles(driver, given_nodes(nodes), mig_nodes=mig_nodes, host_node=host_node)


def host_node(path: str) -> DeviceNode:
    return DeviceNode(path, type="c", major=511, minor=0)


def mig_nodes(gpu_uuid: str, minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
    return (DeviceNode(f"/dev/nvidia-caps/nvidia-cap{gi}", type="c", major=236, minor=gi),)


class Node(RuleBasedStateMachine):
    """One node, its claims in the API, and every claim that kubelet ever asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.loop = asyncio.new_event_loop()
        self.disk = Disk(self.folder)
        self.disk.__enter__()
        self.api = FakeClaims()
        self.refs: dict[str, ClaimRef] = {}
        self.asked: set[ClaimRef] = set()
        self.generations = 0
        (self.folder / "cdi").mkdir()
        self.new_machine()
        gpus = self.facts.facts.gpus[:4]
        self.policy = policy_for(gpus)
        self.devices = devices_for(gpus, self.policy)
        self.new_process()

    facts: "FakeFacts | LookingFacts"

    def new_machine(self) -> None:
        self.facts = FakeFacts(node_facts(GPUS))
        self.hardware = FakeHardware(on_act=lambda _: self.disk.operate())

    def surroundings(self, journal: JournalStore) -> tuple[Effects, ContainerFilesOf]:
        """What a plugin process finds, besides `facts`."""
        return self.hardware.effects, container_files

    def new_process(self) -> None:
        self.cdi = CdiFiles(self.folder / "cdi", GPU_DRIVER)
        journal = JournalStore(self.folder / "state")
        effects, files = self.surroundings(journal)
        self.service = ClaimService(
            ClaimReader(self.api),
            NodeSources(GPU_DRIVER, NODE, self.facts, files, NodeOffers(NodeRules(self.policy), NODE)),
            Executor(journal, self.cdi, effects),
            patience=ServicePatience(stale_s=0.0, holder_s=0.0, api_s=0.0),
        )

    def run[T](self, work: Awaitable[T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(30):
                return await work

        return self.loop.run_until_complete(limited())

    def put(self, name: str, uid: str, devices: Sequence[str], config: Any, *, admin: bool) -> None:
        flags: dict[str, Any] = {"adminAccess": True} if admin else {}
        ref = a_ref(name, uid)
        results = []
        for number, key in enumerate(devices):
            offer = self.devices[key]
            of_many = offer.sharing is not None and offer.share is None
            share = {"shareID": f"share-of-{uid}-{number}"} if of_many else {}
            results.append(a_result(offer.name, f"request-{number}", **flags, **share))
        configs = []
        if config is not None:
            kind, fields = config
            configs.append(a_config({"apiVersion": CONFIG_API_VERSION, "kind": kind, **fields}))
        self.api.put(a_claim(ref, *results, configs=configs))
        self.refs[name] = ref

    @initialize()
    def first_start(self) -> None:
        assert self.run(self.service.start()).pending == ()

    @rule(name=names, devices=some_devices, config=some_config, admin=st.sampled_from([False, False, True]))
    def a_claim_is_created_again_under_its_name(self, name: str, devices: list[str], config: Any, admin: bool) -> None:
        self.generations += 1
        self.put(name, f"uid-{self.generations}", devices, config, admin=admin)

    @precondition(lambda self: self.refs)
    @rule(name=names, devices=some_devices, config=some_config, admin=st.booleans())
    def the_scheduler_gives_a_claim_other_devices(
        self, name: str, devices: list[str], config: Any, admin: bool
    ) -> None:
        if name in self.refs:
            self.put(name, self.refs[name].uid, devices, config, admin=admin)

    @rule(name=names)
    def a_claim_is_deleted(self, name: str) -> None:
        if name in self.refs:
            self.api.remove(self.refs.pop(name))

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1))
    def kubelet_prepares(self, which: set[str]) -> None:
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]
        before = dict(self.service.held)
        self.asked |= set(refs)
        for uid, answer in self.run(self.service.prepare(refs)).items():
            if isinstance(answer, DriverError):
                self.check_refused(uid, answer, before)
            else:
                self.check_prepared(uid, answer)

    @rule(name=names, devices=some_devices, config=some_config)
    def a_pod_with_a_claim_of_its_own_starts(self, name: str, devices: list[str], config: Any) -> None:
        self.a_claim_is_created_again_under_its_name(name, devices, config, admin=False)
        self.kubelet_prepares({name})

    @rule(name=names, devices=some_devices)
    def a_pod_takes_the_place_of_another(self, name: str, devices: list[str]) -> None:
        """What the first one had is free for the second: there is nothing to wait for."""
        if name in self.refs:
            old = self.refs[name]
            assert self.run(self.service.unprepare([old])) == {old.uid: None}
        self.a_pod_with_a_claim_of_its_own_starts(name, devices, None)

    def check_prepared(self, uid: str, answer: Sequence[PreparedDevice]) -> None:
        (claim,) = [obj for obj in self.api.objects.values() if obj["metadata"]["uid"] == uid]
        results = claim["status"]["allocation"]["devices"]["results"]
        allocated = {((result["request"],), result["device"]) for result in results}
        assert {(device.request_names, device.device) for device in answer} == allocated
        held = {(device.device, device.admin_access) for device in self.service.held[uid].devices}
        assert held == {(result["device"], result.get("adminAccess", False)) for result in results}
        content = self.cdi.read(uid)
        assert content is not None
        assert digest_of(content) == self.service.held[uid].cdi_digest
        for cdi_id in (cdi_id for device in answer for cdi_id in device.cdi_ids):
            assert cdi_id.partition("=")[2] in content.decode()
        assert self.service.held[uid].boot_id == self.facts.facts.boot_id

    def check_refused(self, uid: str, error: DriverError, before: dict[str, Any]) -> None:
        assert "\n" not in str(error)
        assert "internal error" not in str(error)
        assert uid in before or (uid not in self.service.held and self.cdi.read(uid) is None), str(error)

    @rule()
    def kubelet_prepares_claims_that_were_deleted_or_created_again(self) -> None:
        outdated = sorted(self.asked - set(self.refs.values()))
        held = dict(self.service.held)
        assert all(isinstance(answer, InvalidInput) for answer in self.run(self.service.prepare(outdated)).values())
        assert dict(self.service.held) == held

    @rule(which=st.sets(st.integers(0, 30), min_size=1, max_size=3))
    def kubelet_unprepares(self, which: set[int]) -> None:
        known = sorted(self.asked)
        refs = [known[index] for index in which if index < len(known)] + [a_ref("never", "never-heard-of")]
        assert set(self.run(self.service.unprepare(refs)).values()) == {None}
        for ref in refs:
            assert ref.uid not in self.service.held
            assert self.cdi.read(ref.uid) is None

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1), steps=st.integers(0, 30))
    def kubelet_gives_up_and_tries_again(self, which: set[str], steps: int) -> None:
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]

        async def given_up() -> None:
            call = asyncio.create_task(self.begin(refs))
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

        self.run(given_up())
        self.kubelet_prepares(which)

    async def begin(self, refs: Sequence[ClaimRef]) -> None:
        await self.service.prepare(refs)

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1), release=st.booleans(), refusals=st.integers(1, 3))
    def the_hardware_refuses(self, which: set[str], release: bool, refusals: int) -> None:
        """What could not be made is not there; what could not be taken back is, until it can be."""
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]
        self.asked |= set(refs)
        self.hardware.failures = [HardwareError("somebody uses it")] * refusals
        call: Awaitable[Any] = self.service.unprepare(refs) if release else self.service.prepare(refs)
        for answer in self.run(call).values():
            if isinstance(answer, DriverError):
                assert "\n" not in str(answer)
                assert "internal error" not in str(answer)
        self.hardware.failures = []
        self.the_plugin_sweeps()

    @rule(number=st.integers(0, 5))
    def something_vanishes_from_the_hardware_while_the_plugin_is_away(self, number: int) -> None:
        leaves = [hold for hold in self.hardware.holds if not self.is_needed(hold)]
        if number < len(leaves):
            self.hardware.vanish(sorted(leaves, key=repr)[number])
        self.restart(boot=False)

    def is_needed(self, hold: Hold) -> bool:
        return any(repr(hold) in repr(other) for other in self.hardware.holds if other != hold)

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1), release=st.booleans(), changes=st.integers(0, 30))
    def the_plugin_is_killed(self, which: set[str], release: bool, changes: int) -> None:
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]
        self.asked |= set(refs)
        self.disk.dies_after = changes
        call: Awaitable[object] = self.service.unprepare(refs) if release else self.service.prepare(refs)
        self.run(call)
        self.restart(boot=False)

    @rule(changes=st.integers(0, 25))
    def the_plugin_is_killed_while_it_starts(self, changes: int) -> None:
        self.new_process()
        self.disk.dies_after = changes
        self.run(self.service.start())
        self.restart(boot=False)

    @rule()
    def the_node_reboots(self) -> None:
        self.generations += 1
        shutil.rmtree(self.folder / "cdi", ignore_errors=True)
        self.reboot()
        self.restart(boot=True)

    def reboot(self) -> None:
        self.hardware.reboot()
        self.facts.facts = replace(self.facts.facts, boot_id=f"boot-{self.generations}")

    def restart(self, *, boot: bool) -> None:
        self.disk.dies_after = None
        self.new_process()
        report = self.run(self.service.start())
        assert report.pending == (), report
        self.everything_held_is_in_the_api_and_has_its_file()

    def everything_held_is_in_the_api_and_has_its_file(self) -> None:
        held = self.service.held
        alive = {obj["metadata"]["uid"] for obj in self.api.objects.values()}
        assert set(held) <= alive
        assert self.cdi.claims() == set(held)
        for uid, entry in held.items():
            assert digest_of(self.cdi.read(uid) or b"") == entry.cdi_digest
            assert entry.boot_id == self.facts.facts.boot_id
        self.the_hardware_is_as_the_claims_need_it()

    def the_hardware_is_as_at_the_start(self) -> None:
        assert self.hardware.there == {}

    def the_hardware_is_as_the_claims_need_it(self) -> None:
        assert self.hardware.holds == {hold for entry in self.service.held.values() for hold in entry.holds}

    @rule(name=names, text=st.sampled_from([None, b"", b"{}"]))
    def somebody_damages_a_file(self, name: str, text: bytes | None) -> None:
        for uid in self.cdi.claims():
            if name in self.refs and uid == self.refs[name].uid:
                if text is None:
                    self.cdi.path(uid).unlink()
                else:
                    self.cdi.path(uid).write_bytes(text)

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1), release=st.booleans())
    def the_disk_is_full_for_one_call(self, which: set[str], release: bool) -> None:
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]
        self.asked |= set(refs)
        self.disk.full = True
        call: Awaitable[Any] = self.service.unprepare(refs) if release else self.service.prepare(refs)
        for answer in self.run(call).values():
            if isinstance(answer, DriverError):
                assert "\n" not in str(answer)
                assert "internal error" not in str(answer)
        self.disk.full = False

    @precondition(lambda self: self.refs)
    @rule(which=st.sets(names, min_size=1))
    def the_api_server_is_away_for_one_call(self, which: set[str]) -> None:
        refs = [self.refs[name] for name in sorted(which) if name in self.refs]
        held = dict(self.service.held)
        self.api.away = Unreachable("cannot reach the API server", about="API server")
        for uid, answer in self.run(self.service.prepare(refs)).items():
            assert isinstance(answer, DriverError) or uid in held
        self.run(self.service.sweep())
        assert dict(self.service.held) == held
        self.api.away = None

    @rule()
    def the_plugin_sweeps(self) -> None:
        report = self.run(self.service.sweep())
        assert report.pending == (), report
        self.everything_held_is_in_the_api_and_has_its_file()

    @invariant()
    def nothing_is_held_twice(self) -> None:
        entries = list(self.service.held.values())
        for number, entry in enumerate(entries):
            mine = [device.use for device in entry.devices if not device.admin_access]
            for other in entries[:number]:
                theirs = [device.use for device in other.devices if not device.admin_access]
                assert not [
                    (use, other_use) for use in mine for other_use in theirs if conflict(use, other_use) is not None
                ]

    @invariant()
    def no_file_is_without_its_claim(self) -> None:
        assert self.cdi.claims() <= set(self.service.held)

    def teardown(self) -> None:
        try:
            self.run(self.service.unprepare(sorted(self.asked)))
            for name in list(self.refs):
                self.a_claim_is_deleted(name)
            self.run(self.service.sweep())
            assert self.service.held == {}
            self.the_hardware_is_as_at_the_start()
            assert JournalFile(self.folder / "state").current().holds == {}
            assert list((self.folder / "cdi").glob("*")) + list((self.folder / "cdi").glob(".*")) == []
            assert [path.name for path in (self.folder / "state").glob(".*")] == []
            self.run(self.service.close())
        finally:
            self.disk.__exit__(None, None, None)
            self.loop.close()
            shutil.rmtree(self.folder)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_given_twice_or_left_over() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Node, settings=settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    )


type Trait = tuple[str, ...]


class SimulatedNode(Node):
    """The same with the real effects, on a simulated host with H100s: a small file that every NVML call reads."""

    def new_machine(self) -> None:
        self.host_folder = Path(tempfile.mkdtemp(prefix="host", dir=self.folder.parent))  # no disk that dies or is full
        self.host = create_host(self.host_folder / "host", "h100-nvl")
        self.at_start = self.traits()
        self.facts = LookingFacts(self.hardware_for(lambda: NOTHING))

    def hardware_for(self, ours: Callable[[], DriverFootprint]) -> Hardware:
        source = NvmlSource(SimulatedNvml(self.host.root), str(self.host.driver_root))
        return Hardware(HostFiles(self.host.root), lambda: source, ours)

    def surroundings(self, journal: JournalStore) -> tuple[Effects, ContainerFilesOf]:
        files = HostFiles(self.host.root, runtime_root=str(self.host.root))
        installation = DriverInstallation(files)
        hardware = self.hardware_for(CurrentFootprint(journal, files))
        kernel = SimulatedKernel(self.host.root)
        machine = NodeMachine(files, OnHost.simulated(files), kernel, kernel)
        self.daemons = effect_for(self.host, self.host_folder / "mps", replace(QUICK, quit_s=0.2))
        effects = effects_of(machine, hardware, DriverPrograms(files, installation.root), self.daemons, nullcontext)
        self.facts = LookingFacts(hardware)
        return effects, partial(container_files_of, installation)

    the_hardware_refuses = None

    @rule(number=st.integers(0, 3))
    def something_vanishes_from_the_hardware_while_the_plugin_is_away(self, number: int) -> None:
        self.kill(processes_below(self.host_folder / "mps")[number : number + 1])
        self.restart(boot=False)

    def reboot(self) -> None:
        self.kill(processes_below(self.host_folder / "mps"))
        self.host.reboot()

    def kill(self, processes: Sequence[MarkedProcess]) -> None:
        """And wait for their end: a daemon that is about to die still looks as if it were there."""
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        until(
            lambda: (
                not {process.pid for process in processes_below(self.host_folder)}
                & {process.pid for process in processes}
            )
        )

    def traits(self) -> set[Trait]:
        """What the hardware is like, where it is not as ever."""
        traits: set[Trait] = set()
        for gpu in self.host.state.gpus:
            if gpu.mig is not None and (gpu.mig.current or gpu.mig.pending):
                traits.add(("MIG mode", gpu.uuid))
            for instance in gpu.instances:
                traits.add(("instance", gpu.uuid, str(instance.start), str(instance.size)))
                traits |= {
                    ("part", gpu.uuid, str(instance.start), str(part.slices)) for part in instance.compute_instances
                }
            if gpu.compute_mode:
                traits.add(("compute mode", gpu.uuid, str(gpu.compute_mode)))
            if gpu.time_slice:
                traits.add(("time slice", gpu.uuid, str(gpu.time_slice)))
            if gpu.bound_to != "nvidia":
                traits.add(("VFIO", gpu.uuid))
        folders = (self.host_folder / "mps").glob("*")
        return traits | {("daemon", folder.name) for folder in folders}

    def the_hardware_is_as_the_claims_need_it(self) -> None:
        holds = {hold for entry in self.service.held.values() for hold in entry.holds}
        assert self.traits() == {trait_of(hold) for hold in holds}
        marks = [process.mark for process in processes_below(self.host_folder / "mps")]
        for hold in holds:
            if isinstance(hold, MpsDaemon):
                assert any(f"/{hold.key}" in mark for mark in marks)

    def the_hardware_is_as_at_the_start(self) -> None:
        assert self.traits() == self.at_start
        assert processes_below(self.host_folder / "mps") == ()

    def teardown(self) -> None:
        with no_daemons_left(self.host_folder):
            super().teardown()
        shutil.rmtree(self.host_folder)


class LookingFacts:
    """What Discovery knows, without its thread."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.facts = hardware.look()

    async def observe(self) -> NodeFacts:
        self.facts = self._hardware.look()
        return self.facts


def trait_of(hold: Hold) -> Trait:
    match hold:
        case MigMode(gpu):
            return "MIG mode", gpu.uuid
        case GpuInstance(gpu, _, _, start, size):
            return "instance", gpu.uuid, str(start), str(size)
        case ComputeInstance(parent):
            return "part", parent.gpu.uuid, str(parent.start), parent.profile[0]
        case ComputeMode(gpu, mode):
            return "compute mode", gpu.uuid, str(mode)
        case TimeSlice(gpu, interval):
            return "time slice", gpu.uuid, str(INTERVALS[interval])
        case MpsDaemon(key):
            return "daemon", key
        case VfioBinding(gpu):
            return "VFIO", gpu.uuid
        case _:
            raise AssertionError(hold)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_same_on_a_simulated_host() -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        SimulatedNode,
        settings=settings(max_examples=6, stateful_step_count=15, deadline=None, suppress_health_check=checks),
    )
