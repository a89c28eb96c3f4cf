"""MIG for claims: made once, found again after a crash, taken back as far as it is ours; and every refusal is clear."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mishaps import crash_in, fail_call
from support.nodes import Node, a_node
from support.rows import examples, slow_but

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.mig import (
    PAUSES_S,
    ComputeInstances,
    GpuInstances,
    MigModes,
    _destroying,
)
from kubelet_plugin.facts.hardware import Hardware, NodeFacts
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.mig import MigGpu, Mode
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
)
from kubelet_plugin.prepare.ours import KEPT, kept_text, ours_of
from kubelet_plugin.simulation.nvml_session import Crash


@dataclass
class Plugin:
    """What prepare does with holds, as plainly as can be: one claim's holds in order, and back."""

    node: Node
    records: dict[Hold, HoldRecord] = field(default_factory=dict)
    waited: list[float] = field(default_factory=list)
    while_waiting: Callable[[], Any] = lambda: None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """As after a restart: the journal is all there is."""
        self.hardware = Hardware(
            self.node.files, self.node.open_nvml, lambda: ours_of(self.records, self.hardware.boot_id())
        )
        kinds = ((MigMode, MigModes), (GpuInstance, GpuInstances), (ComputeInstance, ComputeInstances))
        self.effects: dict[type, Any] = {kind: effect(self.hardware, sleep=self._sleep) for kind, effect in kinds}

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.while_waiting()

    def make(self, *holds: Hold) -> Made:
        """Returns what came of the last."""
        facts = {gpu.uuid: gpu for gpu in self.look().gpus}
        intents = {}
        for hold in holds:
            if hold not in self.records:
                made = self.effects[type(hold)].before(hold, self.records)
                if isinstance(hold, MigMode):
                    made = made.with_facts(Made(((KEPT, kept_text(facts[hold.gpu.uuid])),)))
                intents[hold] = HoldRecord(HoldState.INTENT, self.hardware.boot_id(), made)
        self.records.update(intents)
        for hold in holds:
            made = self.effects[type(hold)].make(hold, self.records)
            self.records[hold] = HoldRecord(HoldState.MADE, self.hardware.boot_id(), made)
        return made

    def undo(self, *holds: Hold) -> None:
        for hold in reversed(holds):
            if hold in self.records:
                self.records[hold] = replace(self.records[hold], state=HoldState.UNDOING)
                self.effects[type(hold)].undo(hold, self.records, self.hardware.boot_id())
                del self.records[hold]

    def look(self) -> NodeFacts:
        return self.hardware.look()


def holds_at(
    node: Node, start: int, profile: str = "1g.10gb", *, index: int = 0, parts: Any = (None,)
) -> tuple[Hold, ...]:
    gpu = node.host.state.gpus[index]
    hardware = node.hardware
    facts = next(candidate for candidate in hardware.look().gpus if candidate.uuid == gpu.uuid)
    hardware.close()
    assert facts.mig is not None
    kind = next(candidate for candidate in facts.mig.profiles if candidate.name == profile)
    identity = GpuIdentity(gpu.uuid, gpu.address)
    parent = GpuInstance(identity, profile, kind.id, start, kind.size)
    devices = [ComputeInstance(parent) if part is None else ComputeInstance(parent, part[0], part[1]) for part in parts]
    return (MigMode(identity), parent, *devices)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path, gpus=2)


@pytest.fixture
def plugin(node: Node) -> Plugin:
    return Plugin(node)


@pytest.fixture
def ampere(tmp_path: Path) -> Plugin:
    """GPU 0 was put into MIG mode by an administrator."""
    node = a_node(tmp_path, "dgx-a100-80", gpus=2)
    node.host.set_mig(0, 1)
    return Plugin(node)


def published(plugin: Plugin) -> list[str]:
    """What reaches the inventory, byte for byte."""
    facts = plugin.look()
    assert facts.lost == ()
    return [described.model_dump_json(by_alias=True) for described in (*facts.gpus, *facts.problems)]


def refusal(plugin: Plugin, *holds: Hold) -> HardwareError:
    with pytest.raises(HardwareError) as raised:
        plugin.make(*holds)
    assert raised.value.retry_after_s is not None
    assert str(raised.value).startswith("GPU ")
    return raised.value


class TestAClaimComesAndGoes:
    @pytest.mark.parametrize(
        ("profile", "name", "start"),
        [
            ("a30", "1g.6gb", 3),
            ("dgx-a100-40", "2g.10gb", 4),
            ("dgx-a100-80", "7g.80gb", 0),
            ("dgx-h100", "1g.20gb", 6),
            ("h100-nvl", "1g.12gb+me", 2),
            ("gh200", "3g.48gb", 4),
            ("hgx-h200", "4g.71gb", 0),
            ("dgx-b200", "1g.23gb", 6),
            ("gb200", "2g.47gb", 2),
            ("rtx-pro-6000", "1g.24gb+me.all", 1),
        ],
    )
    def test_a_mig_device_is_made_and_nothing_is_left_on_every_model(
        self, tmp_path: Path, profile: str, name: str, start: int
    ) -> None:
        node = a_node(tmp_path, profile, gpus=2)
        if profile.startswith(("a30", "dgx-a100")):
            node.host.set_mig(0, 1)
        plugin, before = Plugin(node), node.host.snapshots()
        holds = holds_at(node, start, name)
        made = plugin.make(*holds)
        (instance,) = node.host.state.gpus[0].instances
        assert (instance.id, instance.start) == (int(made["gi"]), start)
        assert [(str(device.id), device.uuid) for device in instance.compute_instances] == [(made["ci"], made["uuid"])]
        assert int(made["minor"]) == node.host.state.gpus[0].minor
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_making_again_what_is_made_changes_nothing(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 2)
        made, state = plugin.make(*holds), node.host.snapshot(0)
        assert plugin.make(*holds) == made
        assert node.host.snapshot(0) == state

    def test_parts_of_one_gpu_instance_are_made_and_taken_back_one_by_one(self, plugin: Plugin, node: Node) -> None:
        before = node.host.snapshots()
        mode, parent, first, second = holds_at(node, 4, "3g.40gb", parts=[(1, 0), (1, 2)])
        plugin.make(mode, parent, first)
        made = plugin.make(mode, parent, second)
        (instance,) = node.host.state.gpus[0].instances
        assert [(device.start, device.slices) for device in instance.compute_instances] == [(0, 1), (2, 1)]
        plugin.undo(first)
        assert [device.uuid for device in node.host.state.gpus[0].instances[0].compute_instances] == [made["uuid"]]
        plugin.undo(mode, parent, second)
        assert node.host.snapshots() == before

    def test_a_mode_that_was_on_is_left_on(self, plugin: Plugin, node: Node) -> None:
        node.host.set_mig(0, 1)
        before = node.host.snapshots()
        holds = holds_at(node, 0)
        plugin.make(*holds)
        plugin.undo(*holds)
        assert node.host.snapshots() == before
        assert before[node.host.state.gpus[0].uuid]["mig"] == {"current": 1, "pending": 1}

    def test_what_is_gone_already_needs_no_undoing(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 0)
        plugin.make(*holds)
        node.host.set_mig(0, 0)
        fail_call(node.host, 0, "nvmlDeviceSetMigMode", NvmlCode.IN_USE)  # it would be refused, and is not asked for
        plugin.undo(*holds)
        assert plugin.records == {}


class TestFactsStayAsTheyAre:
    @pytest.mark.parametrize("profile", slow_but(["dgx-h100", "gb200", "rtx-pro-6000", "hgx-h200"], "dgx-h100"))
    def test_facts_are_the_same_before_while_and_after_also_for_a_plugin_that_starts_meanwhile(
        self, tmp_path: Path, profile: str
    ) -> None:
        node = a_node(tmp_path, profile, gpus=2)
        plugin = Plugin(node)
        before, mig = published(plugin), plugin.look().gpus[0].mig
        assert mig is not None
        small = max(mig.profiles, key=lambda profile: len(profile.starts)).name
        claims = [holds_at(node, start, small, index=index) for start, index in ((0, 0), (1, 0), (0, 1))]
        for holds in claims:
            plugin.make(*holds)
            assert published(plugin) == before
        plugin.start()
        assert published(plugin) == before
        assert plugin.look().divided
        for holds in (claims[2], claims[1][1:], claims[0]):
            plugin.undo(*holds)
            assert published(plugin) == before
        assert not plugin.look().divided

    def test_an_administrators_mode_and_instances_are_facts_beside_ours(self, ampere: Plugin) -> None:
        (theirs,) = ampere.node.host.make_instance(0, "3g.40gb", 4)
        before = published(ampere)
        ampere.make(*holds_at(ampere.node, 1))
        assert published(ampere) == before
        gpu = next(gpu for gpu in ampere.look().gpus if gpu.mig is not None and gpu.mig.enabled)
        assert gpu.mig is not None
        assert [device.uuid for instance in gpu.mig.instances for device in instance.compute_instances] == [theirs]

    @pytest.mark.parametrize(
        ("function", "when"),
        [
            (function, when)
            for function in (
                "nvmlDeviceSetMigMode",
                "nvmlDeviceCreateGpuInstanceWithPlacement",
                "nvmlGpuInstanceCreateComputeInstance",
            )
            for when in ("before", "after")
        ],
    )
    def test_after_a_crash_between_two_steps_the_facts_are_those_of_before(
        self, plugin: Plugin, node: Node, function: str, when: Any
    ) -> None:
        before, holds = published(plugin), holds_at(node, 3)
        crash(plugin, function, when, lambda: plugin.make(*holds))
        assert published(plugin) == before


def crash(plugin: Plugin, function: str, when: Any, act: Callable[[], Any]) -> None:
    """The plugin dies in `function`, and starts again."""
    crash_in(plugin.node.host, 0, function, when)
    with pytest.raises(Crash):
        act()
    plugin.start()


MAKING = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlDeviceGetMinorNumber",
)
UNDOING = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode")


class TestCrashes:
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("function", MAKING[:3])
    def test_whatever_was_half_made_is_finished(self, plugin: Plugin, node: Node, function: str, when: Any) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        crash(plugin, function, when, lambda: plugin.make(*holds))
        made = plugin.make(*holds)
        (instance,) = node.host.state.gpus[0].instances
        assert [device.uuid for device in instance.compute_instances] == [made["uuid"]]
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("function", MAKING[:3])
    def test_whatever_was_half_made_is_taken_back(self, plugin: Plugin, node: Node, function: str, when: Any) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        crash(plugin, function, when, lambda: plugin.make(*holds))
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("function", UNDOING)
    def test_whatever_was_half_taken_back_is_taken_back(
        self, plugin: Plugin, node: Node, function: str, when: Any
    ) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        plugin.make(*holds)
        crash(plugin, function, when, lambda: plugin.undo(*holds))
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_a_compute_instance_without_a_uuid_is_destroyed_again_at_once(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 3)
        plugin.make(mode, parent)
        fail_call(node.host, 0, "nvmlComputeInstanceGetInfo_v2", 999, times=1)
        refusal(plugin, device)
        assert node.host.state.gpus[0].instances[0].compute_instances == []


class TestReboots:
    def test_what_another_boot_made_is_made_again_with_another_uuid(self, plugin: Plugin, node: Node) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        first = plugin.make(*holds)
        node.host.reboot()
        plugin.start()
        again = plugin.make(holds[0], holds[1], replace_record(plugin, holds[2]))
        assert again["uuid"] != first["uuid"]
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_what_another_boot_made_needs_no_undoing(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        plugin.make(*holds)
        node.host.reboot()
        plugin.start()
        before = node.host.snapshots()
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_what_somebody_set_up_after_the_boot_is_theirs(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        plugin.make(*holds)
        node.host.reboot()
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "1g.10gb", 3)
        before = node.host.snapshots()
        plugin.start()
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_a_mode_that_somebody_switched_on_after_the_boot_is_theirs(self, plugin: Plugin, node: Node) -> None:
        mode, *_ = holds_at(node, 3)
        plugin.make(mode)
        node.host.reboot()
        node.host.set_mig(0, 1)
        record = plugin.records[mode]
        assert plugin.make(mode)["was"] == "on"
        plugin.records[mode] = record  # as it is before a claim is prepared anew
        plugin.undo(mode)
        assert node.host.snapshot(0)["mig"] == {"current": 1, "pending": 1}

    @pytest.mark.parametrize("uuid", [True, False], ids=["made", "begun"])
    def test_instances_at_the_same_places_after_a_boot_are_somebody_elses(
        self, plugin: Plugin, node: Node, uuid: bool
    ) -> None:
        mode, parent, device = holds_at(node, 3)
        plugin.make(mode, parent, device)
        if not uuid:
            plugin.records[device] = replace(plugin.records[device], state=HoldState.INTENT, made=Made())
        node.host.reboot()
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "1g.10gb", 3)
        before = node.host.snapshots()
        plugin.undo(device)
        assert node.host.snapshots() == before
        with node.host.edit() as state:
            state.gpus[0].instances[0].compute_instances = []
        before = node.host.snapshots()
        plugin.undo(mode, parent)
        assert node.host.snapshots() == before

    def test_an_ampere_keeps_the_mode_of_its_administrator(self, ampere: Plugin) -> None:
        host, holds = ampere.node.host, holds_at(ampere.node, 3)
        ampere.make(*holds)
        host.reboot()
        ampere.start()
        ampere.undo(*holds)
        uuid = holds[0].gpu.uuid
        assert host.snapshots()[uuid]["mig"] == {"current": 1, "pending": 1}

    def test_a_mode_that_outlives_a_boot_is_put_back(self, ampere: Plugin) -> None:
        """Of a driver that could switch it without a reset then, and cannot any more."""
        mode = holds_at(ampere.node, 0)[0]
        ampere.records[mode] = HoldRecord(HoldState.MADE, "another boot", Made((("was", "off"),)))
        ampere.undo(mode)
        assert ampere.node.host.snapshot(0)["mig"] == {"current": 0, "pending": 0}


def replace_record(plugin: Plugin, hold: Hold) -> Hold:
    """As the journal does after a boot: the ids and the UUID of the last one say nothing any more."""
    plugin.records[hold] = HoldRecord(HoldState.INTENT, plugin.hardware.boot_id(), Made())
    return hold


class TestWhatIsNotOurs:
    def test_an_instance_in_the_way_is_named_and_left(self, plugin: Plugin, node: Node) -> None:
        node.host.set_mig(0, 1)
        (theirs,) = node.host.make_instance(0, "3g.40gb", 0)
        before, gi = node.host.snapshots(), node.host.state.gpus[0].instances[0].id
        error = refusal(plugin, *holds_at(node, 3))
        assert f"1g.10gb at 3 cannot be created because of GPU instance {gi} (3g.40gb at 0: {theirs})" in error.message
        assert "an administrator destroys it" in error.message
        assert node.host.snapshots() == before
        assert plugin.records == {}

    def test_an_instance_of_another_claim_is_waited_for(self, plugin: Plugin, node: Node) -> None:
        first, second = holds_at(node, 3), holds_at(node, 2, "2g.20gb")
        plugin.make(*first)
        error = refusal(plugin, *second)
        assert "which this driver made for another claim; it is tried again until that one is released" in error.message
        plugin.undo(*first)
        plugin.make(*second)

    def test_an_instance_that_came_after_the_intent_is_named_and_left(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 3)
        plugin.make(mode)
        plugin.records[parent] = HoldRecord(HoldState.INTENT, plugin.hardware.boot_id())
        (theirs,) = node.host.make_instance(0, "1g.10gb", 3)
        before = node.host.snapshots()
        assert theirs in refusal(plugin, parent).message
        plugin.undo(mode, parent, device)
        assert node.host.snapshots() == before

    def test_a_gpu_instance_without_mig_devices_in_the_way_is_named(self, plugin: Plugin, node: Node) -> None:
        node.host.set_mig(0, 1)
        node.host.make_instance(0, "1g.10gb", 3, parts=())
        assert "(1g.10gb at 3: no MIG device in it)" in refusal(plugin, *holds_at(node, 3)).message

    def test_engines_that_are_taken_elsewhere_are_explained_by_what_there_is(self, plugin: Plugin, node: Node) -> None:
        node.host.set_mig(0, 1)
        (theirs,) = node.host.make_instance(0, "1g.10gb+me", 6)
        error = refusal(plugin, *holds_at(node, 0, "1g.10gb+me"))
        assert "what it needs is taken by GPU instance" in error.message
        assert theirs in error.message
        assert error.code == NvmlCode.INSUFFICIENT_RESOURCES

    def test_a_mig_device_of_another_uuid_is_left(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 3)
        made = plugin.make(mode, parent, device)
        node.host.destroy_instance(0, 3)
        (theirs,) = node.host.make_instance(0, "1g.10gb", 3)
        assert theirs != made["uuid"]
        assert [(device.mig_uuid, device.gpu_uuid) for device in plugin.look().lost] == [(made["uuid"], mode.gpu.uuid)]
        error = refusal(plugin, mode, parent, device)
        assert f"because of GPU instance {made['gi']} (1g.10gb at 3: {theirs})" in error.message
        plugin.undo(mode, parent, device)
        (instance,) = node.host.state.gpus[0].instances
        assert [device.uuid for device in instance.compute_instances] == [theirs]
        assert node.host.snapshot(0)["mig"] == {"current": 1, "pending": 1}

    def test_mode_stays_on_for_an_instance_of_somebody_else(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        plugin.make(*holds)
        (theirs,) = node.host.make_instance(0, "2g.20gb", 0)
        plugin.undo(*holds)
        assert node.host.snapshot(0)["mig"] == {"current": 1, "pending": 1}
        assert [device.uuid for device in node.host.state.gpus[0].instances[0].compute_instances] == [theirs]
        gpu = plugin.look().gpus[0]
        assert gpu.mig is not None
        assert gpu.mig.enabled

    def test_mode_stays_on_while_instances_may_be_there_that_nvml_does_not_list(
        self, plugin: Plugin, node: Node
    ) -> None:
        mode, parent, device = holds_at(node, 3)
        plugin.make(mode, parent, device)
        node.host.make_instance(0, "2g.20gb", 0)
        plugin.undo(parent, device)
        fail_call(node.host, 0, "nvmlDeviceGetGpuInstances", NvmlCode.NOT_SUPPORTED)
        with pytest.raises(HardwareError, match="Not Supported"):
            plugin.undo(mode)

    def test_a_mig_device_that_somebody_put_into_our_instance_is_in_the_way(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 4, "3g.40gb")
        plugin.make(mode, parent)
        node.host.destroy_instance(0, 4)
        theirs = node.host.make_instance(0, "3g.40gb", 4, parts=(1,))[0]
        for whole_or_part in (device, replace(device, slices=2, start=0)):
            error = refusal(plugin, whole_or_part)
            assert f"because of {theirs} in GPU instance" in error.message
        plugin.make(replace(device, slices=1, start=1))

    def test_a_mig_device_that_vanished_is_not_made_again_under_its_claim_but_for_the_next(
        self, plugin: Plugin, node: Node
    ) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        made = plugin.make(*holds)
        node.host.destroy_instance(0, 3)
        (lost,) = plugin.look().lost
        assert lost.mig_uuid == made["uuid"]
        error = refusal(plugin, *holds)
        assert f"GPU instance {made['gi']} (1g.10gb at 3) no longer exists" in error.message
        assert "delete the pods" in error.message
        plugin.undo(*holds)
        assert plugin.look().lost == ()
        assert plugin.make(*holds)["uuid"] != made["uuid"]
        plugin.undo(*holds)
        assert node.host.snapshots() == before

    def test_a_mig_device_that_vanished_alone_is_named(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        made = plugin.make(*holds)
        with node.host.edit() as state:
            state.gpus[0].instances[0].compute_instances = []
        assert f"MIG device {made['uuid']} (1g.10gb at 3) no longer exists" in refusal(plugin, *holds).message

    def test_a_mode_that_was_switched_off_under_a_claim_is_told(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        plugin.make(*holds)
        node.host.set_mig(0, 0)
        assert "another tool switched it off while a claim holds it" in refusal(plugin, *holds).message

    def test_a_gpu_instance_that_vanished_between_two_steps_is_told(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 3)
        plugin.make(mode, parent)
        node.host.destroy_instance(0, 3)
        message = refusal(plugin, device).message
        assert "the GPU instance of its MIG device (1g.10gb at 3) no longer exists" in message

    def test_a_mode_that_was_switched_off_between_two_steps_is_told(self, plugin: Plugin, node: Node) -> None:
        mode, parent, _ = holds_at(node, 3)
        plugin.make(mode)
        node.host.set_mig(0, 0)
        message = refusal(plugin, parent).message
        assert "1g.10gb at 3 cannot be made: the MIG mode that it needs no longer exists" in message


class TestModeChanges:
    def test_a_client_in_the_way_is_named(self, plugin: Plugin, node: Node) -> None:
        pid = node.host.attach_client(0, name="python3")
        error = refusal(plugin, *holds_at(node, 3))
        assert f"cannot be switched on while programs have the GPU open: {pid} (python3)" in error.message
        assert error.code == NvmlCode.IN_USE
        assert node.host.snapshot(0)["mig"] == {"current": 0, "pending": 0}
        node.host.detach_client(pid)
        plugin.make(*holds_at(node, 3))

    def test_a_client_that_nvml_does_not_name_is_guessed(self, plugin: Plugin, node: Node) -> None:
        node.host.attach_client(0, name="dcgm", kind="monitor")
        assert "perhaps a monitoring agent (DCGM)" in refusal(plugin, *holds_at(node, 3)).message

    def test_a_session_of_our_own_is_in_the_way_only_until_it_pauses(self, plugin: Plugin, node: Node) -> None:
        pauses: list[int] = []

        @contextmanager
        def paused() -> Iterator[None]:
            pauses.append(pid)
            node.host.detach_client(pid)
            yield

        before, holds = node.host.snapshots(), holds_at(node, 3)
        plugin.effects[MigMode] = MigModes(plugin.hardware, paused)
        pid = node.host.attach_client(0, kind="monitor")
        plugin.make(*holds)
        pid = node.host.attach_client(0, kind="monitor")
        plugin.undo(*holds)
        assert len(pauses) == 2
        assert node.host.snapshots() == before

    def test_an_ampere_with_mig_off_is_an_administrators_move(self, tmp_path: Path) -> None:
        node = a_node(tmp_path, "dgx-a100-80", gpus=2)
        plugin, before = Plugin(node), node.host.snapshots()
        holds = holds_at(node, 3)
        error = refusal(plugin, *holds)
        assert "MIG mode is off: an administrator switches it on once" in error.message
        assert f"nvidia-smi -i {holds[0].gpu.uuid} -mig 1" in error.message
        assert error.code == NvmlCode.RESET_REQUIRED
        assert node.host.snapshots() == before

    def test_an_ampere_that_waits_for_its_reset_is_told(self, tmp_path: Path) -> None:
        node = a_node(tmp_path, "dgx-a100-80", gpus=2)
        node.host.set_mig(0, 0, 1)
        assert "MIG mode waits for a reset" in refusal(Plugin(node), *holds_at(node, 3)).message

    def test_an_ampere_that_will_be_switched_off_is_told(self, ampere: Plugin) -> None:
        holds = holds_at(ampere.node, 3)
        ampere.node.host.set_mig(0, 1, 0)
        assert "will switch it off at the next reset" in refusal(ampere, *holds).message

    def test_a_gpu_without_mig_is_told(self, tmp_path: Path) -> None:
        node = a_node(tmp_path, "l40s")
        gpu = node.host.state.gpus[0]
        assert "this GPU has no MIG" in refusal(Plugin(node), MigMode(GpuIdentity(gpu.uuid, gpu.address))).message

    @pytest.mark.parametrize(("status", "reason"), [(16, "by a reset only"), (999, "NVML gives 999")])
    def test_an_activation_that_fails_leaves_nothing_pending(
        self, plugin: Plugin, node: Node, status: int, reason: str
    ) -> None:
        before = node.host.snapshots()
        holds = holds_at(node, 3)
        library = plugin.hardware.use(node.gpu(0), lambda nvml: nvml.library)
        real, asked = library.nvmlDeviceSetMigMode, list[int]()

        def only_pending(handle: Any, mode: int) -> int:
            asked.append(mode)
            node.host.set_mig(0, 0, mode)
            return status if mode else real(handle, mode)

        library.nvmlDeviceSetMigMode = only_pending
        error = refusal(plugin, *holds)
        assert reason in error.message
        assert asked == [1, 0]
        assert node.host.snapshots() == before

    def test_an_activation_of_which_nothing_is_pending_is_left_at_that(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        library = plugin.hardware.use(node.gpu(0), lambda nvml: nvml.library)
        asked: list[int] = []

        def refused(handle: Any, mode: int) -> int:
            asked.append(mode)
            return 16

        library.nvmlDeviceSetMigMode = refused
        assert "by a reset only" in refusal(plugin, *holds).message
        assert asked == [1]

    @pytest.mark.parametrize("code", [3, 4, 999])
    def test_a_call_that_fails_is_told(self, plugin: Plugin, node: Node, code: int) -> None:
        fail_call(node.host, 0, "nvmlDeviceSetMigMode", code)
        error = refusal(plugin, *holds_at(node, 3))
        assert "MIG mode cannot be switched on: NVML" in error.message
        assert error.code == code

    def test_a_mode_that_is_only_pending_is_taken_back(self, ampere: Plugin) -> None:
        (mode, *_), host = holds_at(ampere.node, 0), ampere.node.host
        host.set_mig(0, 0, 1)
        ampere.records[mode] = HoldRecord(HoldState.UNDOING, ampere.hardware.boot_id(), Made((("was", "off"),)))
        ampere.undo(mode)
        assert host.snapshot(0)["mig"] == {"current": 0, "pending": 0}

    def test_a_mode_that_nvml_does_not_know_now_is_not_forgotten(self, plugin: Plugin, node: Node) -> None:
        mode, *_ = holds_at(node, 3)
        plugin.make(mode)
        fail_call(node.host, 0, "nvmlDeviceGetMigMode", NvmlCode.NOT_SUPPORTED)
        with pytest.raises(HardwareError, match="does not say now whether MIG mode is on"):
            plugin.undo(mode)
        assert mode in plugin.records
        fail_call(node.host, 0, "nvmlDeviceGetMigMode", 0)
        plugin.undo(mode)
        assert node.host.snapshot(0)["mig"] == {"current": 0, "pending": 0}


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            (23, "what it needs is taken by nothing that NVML lists"),
            (19, "programs use the GPU as a whole"),
            (2, "does not know this profile or placement"),
            (3, "cannot be divided here"),
            (4, "mig/config"),
            (999, "NVML: "),
        ],
    )
    def test_each_refusal_of_an_instance_says_what_it_means(
        self, plugin: Plugin, node: Node, code: int, reason: str
    ) -> None:
        fail_call(node.host, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", code)
        error = refusal(plugin, *holds_at(node, 3))
        assert "1g.10gb at 3 cannot be made: " in error.message
        assert reason in error.message
        assert error.code == code

    def test_programs_that_use_the_whole_gpu_in_mig_mode_are_named(self, plugin: Plugin, node: Node) -> None:
        node.host.set_mig(0, 1)
        pid = node.host.attach_client(0)
        assert f"programs use the GPU as a whole: {pid}" in refusal(plugin, *holds_at(node, 3)).message

    def test_a_profile_of_another_gpu_is_told(self, plugin: Plugin, node: Node) -> None:
        mode, parent, _ = holds_at(node, 3)
        assert isinstance(parent, GpuInstance)
        assert (
            "does not know this profile or placement" in refusal(plugin, mode, replace(parent, profile_id=77)).message
        )

    def test_slices_that_no_compute_instance_has_are_told(self, plugin: Plugin, node: Node) -> None:
        mode, parent, device = holds_at(node, 4, "3g.40gb", parts=[(5, 0)])
        assert "no compute instance of 5 slices" in refusal(plugin, mode, parent, device).message

    def test_a_gpu_that_nvml_does_not_have_is_told(self, plugin: Plugin) -> None:
        gpu = GpuIdentity("GPU-00000000-0000-0000-0000-000000000000", "0000:aa:00.0")
        with pytest.raises(HardwareError, match="NVML does not list it now"):
            plugin.effects[MigMode].before(MigMode(gpu), {})

    def test_race_for_resources_ends_well_when_they_come_free(self, plugin: Plugin, node: Node) -> None:
        fail_call(node.host, 0, "nvmlDeviceCreateGpuInstanceWithPlacement", 23, times=1)
        holds = holds_at(node, 3)
        refusal(plugin, *holds)
        plugin.make(*holds)


class TestPatience:
    def test_programs_that_are_about_to_end_are_waited_for(self, plugin: Plugin, node: Node) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        made = plugin.make(*holds)
        pid = node.host.attach_client(0, mig_uuid=made["uuid"])
        plugin.while_waiting = lambda: len(plugin.waited) == 3 and node.host.detach_client(pid)
        plugin.undo(*holds)
        assert plugin.waited == list(PAUSES_S[:3])
        assert node.host.snapshots() == before

    def test_what_fails_for_another_reason_is_not_waited_for(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        plugin.make(*holds)
        for function in UNDOING[:2]:
            fail_call(node.host, 0, function, 999)
            with pytest.raises(HardwareError) as raised:
                plugin.undo(*holds)
            assert raised.value.code == 999 and "programs" not in raised.value.message
            fail_call(node.host, 0, function, 0)
        assert plugin.waited == []

    def test_programs_that_do_not_end_are_named(self, plugin: Plugin, node: Node) -> None:
        holds = holds_at(node, 3)
        made = plugin.make(*holds)
        pid = node.host.attach_client(0, mig_uuid=made["uuid"])
        with pytest.raises(HardwareError, match=f"programs still use it: {pid}") as raised:
            plugin.undo(*holds)
        assert raised.value.code == NvmlCode.IN_USE
        assert made["uuid"] in raised.value.message
        assert plugin.waited == list(PAUSES_S)
        node.host.detach_client(pid)
        plugin.undo(*holds)
        assert plugin.records == {}

    def test_a_client_that_came_meanwhile_keeps_the_mode_on_for_a_while_only(self, plugin: Plugin, node: Node) -> None:
        before, holds = node.host.snapshots(), holds_at(node, 3)
        plugin.make(*holds)
        pid = node.host.attach_client(0, kind="monitor")
        with pytest.raises(HardwareError, match="cannot be switched off while programs have the GPU open"):
            plugin.undo(*holds)
        node.host.detach_client(pid)
        plugin.undo(*holds)
        assert node.host.snapshots() == before


class TestAnySequence:
    @settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_after_claims_and_crashes_in_any_order_the_gpu_is_as_before(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        node = a_node(tmp_path_factory.mktemp("any"), "gh200")
        plugin, before = Plugin(node), node.host.snapshots()
        facts = published(plugin)
        places = [holds_at(node, start, "1g.12gb") for start in range(3)] + [
            holds_at(node, 4, "3g.48gb", parts=[(1, start)]) for start in (0, 1)
        ]
        standing: set[int] = set()
        for _ in range(data.draw(st.integers(1, 8))):
            which = data.draw(st.integers(0, len(places) - 1))
            if data.draw(st.booleans()):
                crash_in(
                    node.host,
                    0,
                    data.draw(st.sampled_from(MAKING + UNDOING)),
                    data.draw(st.sampled_from(["before", "after"])),
                )
            try:
                if which in standing:
                    release(plugin, places, standing, which)
                else:
                    plugin.make(*places[which])
                standing ^= {which}
            except Crash:
                plugin.start()
                standing |= {which}
            with node.host.edit() as state:
                state.gpus[0].mishaps = {}
            assert published(plugin) == facts
        for which in sorted(standing):
            release(plugin, places, standing, which)
            standing.discard(which)
        assert node.host.snapshots() == before
        assert plugin.records == {}


def release(plugin: Plugin, places: list[tuple[Hold, ...]], standing: set[int], which: int) -> None:
    """Holds that another claim has, too, stay."""
    shared = {hold for other in standing if other != which for hold in places[other]}
    plugin.undo(*(hold for hold in places[which] if hold not in shared))


def test_the_mode_of_a_gpu_that_was_taken_out_of_the_node_is_nobodys(plugin: Plugin) -> None:
    """It went while the node was off, so there was a boot since."""
    node = plugin.node
    mode, *_ = holds_at(node, 0)
    gone = MigMode(GpuIdentity("GPU-11111111-2222-3333-4444-555555555555", "0000:1b:00.0"))
    plugin.make(mode)
    before = plugin.records[mode]
    effect = plugin.effects[MigMode]
    with pytest.raises(HardwareError) as refused:
        effect.undo(gone, {gone: before}, before.boot_id)
    assert refused.value.code == NvmlCode.NOT_FOUND
    effect.undo(gone, {gone: before}, "another-boot")
    plugin.undo(mode)


class TestAnswersOfNvml:
    def refused(self, code: NvmlCode) -> None:
        raise HardwareError("refused", about="GPU", code=code)

    def test_what_is_gone_already_needs_no_destruction(self) -> None:
        gpu = GpuIdentity("GPU-a", "0000:01:00.0")
        _destroying(gpu, "in use", lambda: self.refused(NvmlCode.NOT_FOUND))
        with pytest.raises(HardwareError, match="in use"):
            _destroying(gpu, "in use", lambda: self.refused(NvmlCode.IN_USE))
        with pytest.raises(HardwareError, match="refused"):
            _destroying(gpu, "in use", lambda: self.refused(NvmlCode.NO_PERMISSION))

    def test_a_gpu_without_mig_mode_is_not_asked_for_instances(self) -> None:
        """NVML refuses the question then. Source: nvmlDeviceGetGpuInstances."""

        class Off:
            is_on = MigGpu.is_on

            def mode(self) -> Mode:
                return Mode(on=False, pending=False)

        assert MigGpu.instances_if_on(cast(Any, Off())) == ()
