"""Proofs that leave an idle node as it is: what is written is what was there, and what is started is stopped.

Each is a function from the node to one `Proof`; a DriverError that it raises is a failure, with its message.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from dra_driver.api.inventory import GpuFacts
from dra_driver.doctor.proofs import Proof, failed, not_tried, passed
from dra_driver.errors import HardwareError
from dra_driver.phrases import and_more
from kubelet_plugin.doctor.proof.proof_node import ProofNode, identity
from kubelet_plugin.doctor.proof.smi import (
    gpu_list,
    list_differences,
    profile_differences,
    profile_list,
    time_slices,
)
from kubelet_plugin.effects.gpu_settings import INTERVALS
from kubelet_plugin.facts.hardware import Hardware
from kubelet_plugin.facts.watcher import try_wait
from kubelet_plugin.hardware.calls import NOT_THERE
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import MpsDaemon

_SHORTEST_WAIT_S, _LONGEST_WAIT_S, _WAITS = 0.95, 3.0, 3
_LONGEST_LOOK_S = 5.0
"""How often the plugin looks at a node with a GPU in MIG mode."""
_MPS_KEY = "proof"
_NO_MIG = "No MIG-enabled devices found"
_REPORT = "attach the archive to an issue: this driver does not know this output"


def compared_lists(node: ProofNode) -> Proof:
    """Compared again when they differ: an administrator may have made a MIG device between the two answers."""
    differences: tuple[str, ...] = ()
    text = ""
    for _ in range(2):
        gpus = node.hardware.look().gpus
        text = _smi(node, "-L") if gpus else ""
        if not gpus:
            return not_tried("the NVIDIA driver reports no GPU on this node")
        differences = list_differences(gpus, gpu_list(text))
        if not differences:
            devices = sum(len(gpu.mig_devices) for gpu in gpus)
            return passed(f"{len(gpus)} GPUs, {devices} MIG devices: NVML and nvidia-smi agree", list=text)
    return failed(_words(differences), f"run nvidia-smi -L on the node; {_REPORT}", list=text)


def compared_tables(node: ProofNode) -> Proof:
    gpus = [gpu for gpu in node.facts.gpus if gpu.mig is not None]
    if not gpus:
        return not_tried("no GPU on this node supports MIG")
    try:
        table, places = _smi(node, "mig", "-lgip"), _smi(node, "mig", "-lgipp")
    except HardwareError as error:
        if _NO_MIG in error.message and not any(gpu.mig is not None and gpu.mig.enabled for gpu in gpus):
            return not_tried("nvidia-smi lists only GPUs in MIG mode, and this node has none")
        raise
    listed = profile_list(table, places)
    differences = profile_differences(gpus, _smi(node, "-L"), listed)
    texts = {"profiles": table, "placements": places}
    if differences:
        return failed(
            _words(differences), f"run nvidia-smi mig -lgip and nvidia-smi mig -lgipp on the node; {_REPORT}", **texts
        )
    return passed(f"{len(listed.rows)} profiles: NVML and nvidia-smi agree", **texts)


def waited(node: ProofNode) -> Proof:
    for _ in range(_WAITS):
        tried = try_wait(node.open_nvml)
        if tried.seconds is None:
            return not_tried("no GPU on this node reports events, so Xids are not detected")
        if tried.event:
            continue
        if tried.seconds < _SHORTEST_WAIT_S:
            return failed(
                f"a wait of 1 s ended after {tried.seconds:.2f} s without an event",
                "run dmesg | grep -i -e nvrm -e xid: a lost GPU ends waits early; reset it, or reboot the node",
            )
        if tried.seconds > _LONGEST_WAIT_S:
            return failed(
                f"a wait of 1 s took {tried.seconds:.1f} s", "search the kernel log for NVRM: the driver is busy"
            )
        return passed(f"a wait of 1 s lasted {tried.seconds:.2f} s")
    return failed(
        f"events came in each of {_WAITS} waits of 1 s",
        "run dmesg | grep -i xid to see which GPU keeps reporting events",
    )


def looked(node: ProofNode, longest_s: float = _LONGEST_LOOK_S) -> Proof:
    with closing(Hardware(node.machine.host, node.open_nvml)) as hardware:
        first, again = _timed(hardware.look), _timed(hardware.look)
    durations = f"{len(node.facts.gpus)} GPUs in {again:.2f} s; with a new session {first:.2f} s"
    if again > longest_s:
        return failed(
            durations, "systemctl enable --now nvidia-persistenced; the plugin reads all GPUs every 5 to 30 s"
        )
    return passed(durations)


def written_modes(node: ProofNode) -> Proof:
    """The compute mode of each idle GPU, as it is."""

    def write(gpu: GpuFacts) -> str | None:
        def turn(nvml: Nvml) -> tuple[int, int]:
            mode = nvml.compute_mode(gpu.uuid)
            nvml.set_compute_mode(gpu.uuid, mode)
            return mode, nvml.compute_mode(gpu.uuid)

        before, after = node.hardware.use(identity(gpu), turn)
        return (
            None
            if after == before
            else f"{gpu.uuid} had compute mode {before}; after the same value was set it has {after}"
        )

    return _each_idle(node, "compute mode", write)


def written_slices(node: ProofNode) -> Proof:
    def write(gpu: GpuFacts) -> str | None:
        before = time_slice(node, gpu)
        if before is None:
            raise _Unknown(_policies(node, gpu))
        words = ("compute-policy", "-i", gpu.uuid, "--set-timeslice", str(INTERVALS[before]))
        node.programs.run("nvidia-smi", words, about=str(identity(gpu)))
        after = time_slice(node, gpu)
        return (
            None
            if after == before
            else f"{gpu.uuid} had time slice {before}; after the same value was set it has {after}"
        )

    return _each_idle(node, "time slice", write)


class _Unknown(Exception):
    """What nvidia-smi said of a value: one that cannot be read is not written."""


def _each_idle(node: ProofNode, what: str, write: Callable[[GpuFacts], str | None]) -> Proof:
    """`write` writes what it read, and answers what is wrong then."""
    if not node.root:
        return not_tried("needs root", "sudo dractl doctor --node --prove")
    whole = [gpu for gpu in node.facts.gpus if gpu.mig is None or not gpu.mig.enabled]
    tried, wrong, without = 0, [], []
    for gpu in filter(node.idle, whole):
        try:
            problem = write(gpu)
        except HardwareError as error:
            if error.code not in NOT_THERE:
                raise
            without.append(gpu.uuid)
            continue
        except _Unknown as unknown:
            why = not_tried(f"the output of nvidia-smi for the {what} is not known; the archive has it")
            return replace(why, texts={"answer": str(unknown)})
        tried += 1
        wrong += [problem] if problem is not None else []
    if wrong:
        return failed(_words(tuple(wrong)), _REPORT)
    if tried:
        others = len(node.facts.gpus) - tried
        skipped = f"; skipped {others} in use, partitioned or without it" if others else ""
        return passed(f"set on {tried} GPUs to its current value{skipped}")
    if without:
        return not_tried(f"the GPUs on this node have no {what} that can be set")
    return not_tried(_why_busy(node) if whole else "every GPU on this node is in MIG mode")


def tried_mps(node: ProofNode) -> Proof:
    """In the folder of all MPS daemons, under a key that no claim has: the plugin sweeps what a killed proof leaves."""
    if not node.root:
        return not_tried("needs root", "sudo dractl doctor --node --prove")
    gpu = next((gpu for gpu in filter(node.idle, node.facts.gpus) if gpu.mig is None or not gpu.mig.enabled), None)
    if gpu is None:
        return not_tried(_why_busy(node))
    hold = MpsDaemon(_MPS_KEY, (identity(gpu),))
    node.daemons.undo(hold, {}, "")
    try:
        made = node.daemons.make(hold, {})
        servers = node.daemons.asked(hold, "get_server_list")
    finally:
        node.daemons.undo(hold, {}, "")
    left = node.daemons.left(hold)
    if servers.strip():
        return failed(f"a new MPS daemon has servers: {servers.split()}", _REPORT)
    if left:
        return failed(
            f"the MPS daemon has ended but left {and_more(left, 5)}", "restart the plugin's pod, which removes it"
        )
    how = made.get("unit") or made.get("launcher") or ""
    return passed(f"a daemon started ({how}), answered, and left nothing")


def time_slice(node: ProofNode, gpu: GpuFacts) -> str | None:
    """What nvidia-smi says; None when it does not say it in words that are known, or the GPU has none."""
    try:
        results = set(time_slices(_policies(node, gpu)))
    except HardwareError as error:
        if error.code in NOT_THERE:
            return None
        raise
    return results.pop() if len(results) == 1 else None


def _policies(node: ProofNode, gpu: GpuFacts) -> str:
    return node.programs.run("nvidia-smi", ("compute-policy", "-i", gpu.uuid, "--list"), about=str(identity(gpu)))


def _smi(node: ProofNode, *words: str) -> str:
    return node.programs.run("nvidia-smi", words, about="driver")


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _why_busy(node: ProofNode) -> str:
    reasons = [f"{gpu.name}: {node.busy[gpu.uuid]}" for gpu in node.facts.gpus if gpu.uuid in node.busy]
    return f"no GPU is idle ({and_more(reasons, 2)})" if reasons else "this node has no whole GPU"


def _words(differences: tuple[str, ...]) -> str:
    return and_more(differences, 3)
