"""Proofs of a simulated node: all pass on one that is well, and each fault turns its line to fail, and no other."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pynvml
import pytest
from support.dractl import run
from support.mishaps import unload_driver
from support.places import SHORT
from support.rows import slow_but

from dra_driver.doctor.findings import Diagnosis, Verdict
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.doctor.proofs import ON_NODE, Proof, ProofChange, ProofResult, lines, summary
from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.doctor import node_proofs
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor.node_proofs import _MPS_KEY, ProofNode
from kubelet_plugin.doctor.part import HARMLESS, attempt, hook_mode, proven, readable_cdi
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, MpsDaemon, SwitchedMode, VfioBinding
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.store import JournalFile
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.state import Client, Mishap

IDLE, BUSY, DIVIDED = 0, (1, 2), 3
_SMI = 'case "$*" in {}) {};; *) exec "$real" "$@";; esac'


@dataclass
class Simulated:
    """A node with an idle GPU, two that a program uses, and one that is divided."""

    host: SimulatedHost
    places: NodePlaces

    def node(self, *, serving: bool = False) -> ProofNode:
        return ProofNode(LocalMachine(self.places), serving)

    def outcomes(self, *, events: bool = False) -> dict[str, ProofResult]:
        """Of what is harmless; without the second that events take, unless they are asked for."""
        node = self.node()
        tried = {name: prove for name, prove in HARMLESS.items() if events or name != "events"}
        with node.folders():
            return {name: attempt(partial(prove, node)).outcome for name, prove in tried.items()}

    def wrap(self, program: str, script: str) -> None:
        """`script` runs in its place; the program itself is "$real"."""
        path = self.host.root / "usr/bin" / program
        real = path.with_name(f"{program}.real")
        path.rename(real)
        path.write_text(f"#!/bin/sh\nreal={real}\n{script}\n")
        path.chmod(0o755)

    def meet(self, function: str, mishap: Mishap) -> None:
        with self.host.edit() as state:
            for gpu in state.gpus:
                gpu.mishaps[function] = mishap

    @property
    def left(self) -> list[str]:
        """Files below kubelet's folder."""
        return sorted(str(path.relative_to(self.places.kubelet_root)) for path in self.places.kubelet_root.rglob("*"))


@pytest.fixture
def simulated() -> Iterator[Simulated]:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        place = Path(folder)
        host = create_host(place / "host", "gb200")
        host.set_mig(DIVIDED, 1)
        host.make_instance(DIVIDED, "1g.23gb")
        with host.edit() as state:
            for number in BUSY:
                state.gpus[number].clients = [Client(pid=4711, name="train")]
        (place / "kubelet").mkdir()
        yield Simulated(host, NodePlaces(host.root, place / "kubelet", place / "cdi", simulate="gb200"))


WELL = dict.fromkeys(("gpu-list", "mig-tables", "look", "compute-mode", "time-slice", "mps"), ProofResult.PASS)


def test_a_node_that_is_well_passes_on_one_screen_and_is_as_before(simulated: Simulated) -> None:
    """Also what an administrator chose is as before."""
    with simulated.host.edit() as state:
        state.gpus[IDLE].compute_mode, state.gpus[IDLE].time_slice = 2, 3
        state.gpus[BUSY[0]].clients = []
    before = simulated.host.snapshots()
    proofs = list(proven(simulated.node(), (), tuple(ProofChange)))
    by_name = {proof.name: proof for proof in proofs}
    assert list(by_name) == [name for name, _ in ON_NODE]
    # Of these two, checks of the node have to be asked first.
    assert {name for name, proof in by_name.items() if proof.outcome is not ProofResult.PASS} == {"cdi-version", "hook"}
    assert by_name["gpu-list"].reason == "4 GPUs, 1 MIG devices: NVML and nvidia-smi agree"
    assert (
        by_name["compute-mode"].reason
        == "set on 2 GPUs to its current value; skipped 2 in use, partitioned or without it"
    )
    assert simulated.host.snapshots() == before
    assert simulated.left == []
    shown = list(lines(proofs, 80))
    assert (len(shown), max(map(len, shown))) == (len(ON_NODE), 80)
    assert summary(proofs) == "12 proofs: 10 passed, 2 not tried"


def _refuses_time_slices(simulated: Simulated) -> None:
    simulated.wrap("nvidia-smi", _SMI.format("*--set-timeslice*", "echo Insufficient; exit 4"))


def _lists_another_mig_device(simulated: Simulated) -> None:
    simulated.wrap("nvidia-smi", _SMI.format("-L", '"$real" -L | sed s/MIG-[0-9a-f]*/MIG-00000000/'))


def _has_another_table(simulated: Simulated) -> None:
    simulated.wrap("nvidia-smi", _SMI.format('"mig -lgip"', '"$real" "$@" | sed "s/MIG 7g.186gb /MIG 7g.190gb /"'))


def _places_elsewhere(simulated: Simulated) -> None:
    simulated.wrap("nvidia-smi", _SMI.format('"mig -lgipp"', '"$real" "$@" | sed "s/{0,2,4}/{0,2}/"'))


def _modes_are_refused(simulated: Simulated) -> None:
    simulated.meet("nvmlDeviceSetComputeMode", Mishap(code=pynvml.NVML_ERROR_NO_PERMISSION))


def _mps_does_not_start(simulated: Simulated) -> None:
    simulated.wrap("nvidia-cuda-mps-control", "exit 1")


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        (_lists_another_mig_device, "gpu-list"),
        (_refuses_time_slices, "time-slice"),
        *slow_but(
            [
                (_has_another_table, "mig-tables"),
                (_places_elsewhere, "mig-tables"),
                (_modes_are_refused, "compute-mode"),
                (_mps_does_not_start, "mps"),
            ]
        ),
    ],
)
def test_a_fault_fails_its_own_proof_alone(
    simulated: Simulated, fault: Callable[[Simulated], None], failing: str
) -> None:
    fault(simulated)
    assert simulated.outcomes() == {**WELL, failing: ProofResult.FAIL}
    assert simulated.left == []


def test_a_wait_that_returns_at_once_fails(simulated: Simulated) -> None:
    simulated.meet("nvmlEventSetWait_v2", Mishap(code=pynvml.NVML_ERROR_TIMEOUT))
    proof = node_proofs.waited(simulated.node())
    assert proof.outcome is ProofResult.FAIL
    assert "ended after 0.0" in proof.reason and "reset" in proof.fix


def test_a_look_that_takes_too_long_fails(simulated: Simulated) -> None:
    assert node_proofs.looked(simulated.node(), longest_s=0.0).outcome is ProofResult.FAIL


def test_without_a_driver_one_line_fails_and_the_others_say_why(simulated: Simulated) -> None:
    unload_driver(simulated.host)
    proofs = list(proven(simulated.node(), (), ()))
    assert [proof.name for proof in proofs if proof.outcome is ProofResult.FAIL] == ["gpu-list"]
    assert {proof.reason for proof in proofs[1:7]} == {"NVML does not work"}


def test_gpus_in_use_are_left_alone(simulated: Simulated) -> None:
    """By a claim in the journal, or by a program; and with a journal that cannot be read, all of them."""
    state, gpus = simulated.places.state_dir, simulated.host.state.gpus
    state.mkdir(parents=True)
    claim = ClaimRef("team-a", "train", "11111111-0000-4000-8000-000000000001")
    device = HeldDevice(("gpu",), "node", "gpu-0", gpus[IDLE].uuid, gpus[IDLE].address, ())
    entry = Entry(claim, "boot", (device,), "0" * 64)
    JournalFile(state).transact([lambda journal: replace(journal, held={claim.uid: entry})])
    for prove in (node_proofs.written_modes, node_proofs.written_slices, node_proofs.tried_mps):
        proof = prove(simulated.node())
        assert proof.outcome is ProofResult.NOT_TRIED
        assert "claim team-a/train holds it" in proof.reason
    (state / "claims.journal").unlink()
    (state / "claims.journal").mkdir()
    assert "cannot be read" in node_proofs.written_modes(simulated.node()).reason


def test_a_gpu_whose_mig_mode_is_being_switched_is_left_alone(simulated: Simulated) -> None:
    """And not one whose mode was switched."""
    gpu = simulated.host.state.gpus[IDLE]
    hold = SwitchedMode(GpuIdentity(gpu.uuid, gpu.address))
    simulated.places.state_dir.mkdir(parents=True)
    for state, reasons in ((HoldState.UNDOING, ["its MIG mode is being switched by a reset"]), (HoldState.MADE, [])):
        record = HoldRecord(state, "boot")
        JournalFile(simulated.places.state_dir).transact([lambda journal, r=record: replace(journal, holds={hold: r})])
        busy = simulated.node().busy
        assert [reason for uuid, reason in busy.items() if uuid == gpu.uuid] == reasons


def test_a_time_slice_that_cannot_be_read_is_not_written(simulated: Simulated) -> None:
    simulated.wrap("nvidia-smi", _SMI.format("*--list*", "echo strange"))
    proof = node_proofs.written_slices(simulated.node())
    assert (proof.outcome, proof.texts) == (ProofResult.NOT_TRIED, {"answer": "strange\n"})
    assert simulated.host.state.gpus[IDLE].time_slice == 0


# -- what changes the node


def test_nothing_is_changed_where_a_plugin_runs(simulated: Simulated) -> None:
    proof = node_proofs.obstacle(simulated.node(serving=True))
    assert proof is not None and proof.outcome is ProofResult.NOT_TRIED and "claims" in proof.reason
    assert node_proofs.obstacle(simulated.node()) is None


def _instances_are_refused(simulated: Simulated) -> None:
    simulated.meet("nvmlDeviceCreateGpuInstanceWithPlacement", Mishap(code=pynvml.NVML_ERROR_UNKNOWN))


def _parts_are_refused(simulated: Simulated) -> None:
    simulated.meet("nvmlGpuInstanceCreateComputeInstance", Mishap(code=pynvml.NVML_ERROR_UNKNOWN))


def _has_no_vfio_module(simulated: Simulated) -> None:
    with simulated.host.edit() as state:
        state.passthrough.modules = []


@pytest.mark.parametrize(
    ("prove", "fault"),
    [
        (node_proofs.made_mig_device, _instances_are_refused),
        (node_proofs.made_mig_device, _parts_are_refused),
        (node_proofs.bound_to_vfio, _has_no_vfio_module),
    ],
)
def test_a_change_that_fails_is_taken_back(
    simulated: Simulated, prove: Callable[[ProofNode], Proof], fault: Callable[[Simulated], None]
) -> None:
    before, node = simulated.host.snapshots(), simulated.node()
    assert node.facts.gpus
    fault(simulated)
    with node.folders():
        assert attempt(partial(prove, node)).outcome is ProofResult.FAIL
    with simulated.host.edit() as state:
        for gpu in state.gpus:
            gpu.mishaps = {}
    assert simulated.host.snapshots() == before
    assert simulated.left == []


_PROOF = """
import sys
from pathlib import Path
from dra_driver.doctor.node_part import NodePlaces
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor import node_proofs
from kubelet_plugin.doctor.node_proofs import ProofNode
places = NodePlaces(*map(Path, sys.argv[1:]), simulate="gb200")
node_proofs.made_mig_device(ProofNode(LocalMachine(places), False))
"""


def test_a_channel_that_does_not_open_fails(simulated: Simulated) -> None:
    node = simulated.node()
    assert node.facts.imex is not None
    unload_driver(simulated.host)
    assert attempt(partial(node_proofs.opened_channel, node)).outcome is ProofResult.FAIL


def test_what_a_killed_proof_leaves_is_taken_back_when_a_plugin_starts(simulated: Simulated) -> None:
    """A process that is killed by nvidia-smi, which it asks for its MIG device."""
    simulated.wrap("nvidia-smi", _SMI.format("-L", "kill -9 $PPID"))
    before, places = simulated.host.snapshots(), simulated.places
    words = [sys.executable, "-c", _PROOF, places.host_root, places.kubelet_root, places.cdi_root]
    with simulated.node().folders():
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        assert simulated.host.snapshots() != before
        asyncio.run(simulated.node().borrowed.settle())
    assert simulated.host.snapshots() == before
    assert simulated.left == []


def test_or_by_the_next_proof(simulated: Simulated) -> None:
    before, node = simulated.host.snapshots(), simulated.node()
    gpu = simulated.host.state.gpus[IDLE]
    with node.folders():
        node.borrowed.begin([VfioBinding(GpuIdentity(gpu.uuid, gpu.address), False)])
        assert simulated.host.snapshots() != before
        assert len(node_proofs.given_back(simulated.node())) == 1
    assert simulated.host.snapshots() == before
    assert simulated.left == []


def test_two_proofs_do_not_change_a_node_at_once(simulated: Simulated) -> None:
    node, gpu = simulated.node(), simulated.host.state.gpus[IDLE]
    hold = VfioBinding(GpuIdentity(gpu.uuid, gpu.address), False)

    def meanwhile(_: object) -> None:
        other = simulated.node().borrowed
        assert other.give_back() == ()
        with pytest.raises(NodeNotReady, match="another proof"):
            other.there_and_back([hold], lambda _: None)

    with node.folders():
        node.borrowed.there_and_back([hold], meanwhile)
    assert simulated.left == []


def test_an_mps_daemon_of_a_killed_proof_is_swept(simulated: Simulated) -> None:
    """By the plugin's sweep, and by the next proof."""
    node = simulated.node()
    hold = MpsDaemon(_MPS_KEY, (GpuIdentity.of(node.facts.gpus[0]),))
    with node.folders():
        for again in (
            lambda: simulated.node().daemons.sweep(lambda: ()),
            lambda: node_proofs.tried_mps(simulated.node()),
        ):
            node.daemons.make(hold, {})
            assert node.daemons.left(hold)
            again()
            assert node.daemons.left(hold) == ()


# -- what checks have found


def _finding(check: str, verdict: Verdict, trouble: str = "") -> Diagnosis:
    return Diagnosis(check, verdict, "as it is", "containerd", "a fix", trouble)


@pytest.mark.parametrize(
    ("verdict", "trouble", "outcome"),
    [
        (Verdict.OK, "", ProofResult.PASS),
        (Verdict.WARNING, "old", ProofResult.FAIL),
        (Verdict.PROBLEM, "none", ProofResult.FAIL),
        (Verdict.WARNING, "off", ProofResult.NOT_TRIED),
    ],
)
def test_containers_without_hooks_fail_unless_somebody_chose_it(
    verdict: Verdict, trouble: str, outcome: ProofResult
) -> None:
    assert hook_mode([_finding("node-hook", verdict, trouble)]).outcome is outcome


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([Verdict.OK], ProofResult.PASS),
        ([Verdict.OK, Verdict.PROBLEM], ProofResult.FAIL),
        ([Verdict.UNKNOWN], ProofResult.NOT_TRIED),
        ([Verdict.WARNING], ProofResult.PASS),
    ],
)
def test_a_runtime_that_cannot_read_our_files_fails(verdicts: list[Verdict], outcome: ProofResult) -> None:
    assert readable_cdi([_finding("node-runtime", verdict) for verdict in verdicts]).outcome is outcome


@pytest.mark.slow
def test_without_a_kubeconfig_only_the_proofs_in_pods_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    create_host(tmp_path / "host", "t4")
    archive = tmp_path / "proof.tar.gz"
    roots = ("--kubelet-root", str(tmp_path / "kubelet"), "--cdi-root", str(tmp_path / "cdi"))
    places = ("--host-root", str(tmp_path / "host"), "--simulate", "t4", "--on", "node-1", *roots)
    done = run("doctor", "--node", "--prove", *places, "--archive", str(archive))
    assert archive.exists() and done.exit_code == 0
    assert "pass      gpu-list" in done.stdout and "not tried pod-gpu " in done.stdout
