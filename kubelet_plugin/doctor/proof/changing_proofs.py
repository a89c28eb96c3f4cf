"""Proofs that change an idle node for a moment, if the user asks for it, and undo every change.

They need an idle GPU and a node without a running plugin, because a plugin would see what they make and offer it to
pods. With a plugin, pods prove the same through claims.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dra_driver.api.inventory import GpuFacts, MigProfileFacts
from dra_driver.doctor.proofs import Proof, ProofResult, failed, not_tried, passed
from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.doctor.proof.harmless import compared_tables, time_slice
from kubelet_plugin.doctor.proof.proof_node import ProofNode, identity
from kubelet_plugin.doctor.proof.smi import gpu_list
from kubelet_plugin.hardware.calls import NOT_THERE, NvmlCode
from kubelet_plugin.hardware.imex import channel_nodes
from kubelet_plugin.prepare.borrowed import FOLDER
from kubelet_plugin.prepare.holds import ComputeInstance, GpuInstance, Hold, MigMode, Records, VfioBinding


def obstacle(node: ProofNode) -> Proof | None:
    """Why nothing may be changed here; None: it may."""
    if not node.root:
        return not_tried("needs root", "sudo dractl doctor --node --prove")
    if node.serving:
        return not_tried(
            "the plugin runs here and could offer the test device to pods; the pod proofs cover this through claims",
            "keep the plugin off this node during the proof: `kubeletPlugin.nodeSelector`",
        )
    return None


def made_mig_device(node: ProofNode) -> Proof:
    """The smallest one, on a GPU without any; and while it is there, what is listed of it."""
    gpu = next((gpu for gpu in _spare(node) if _divisible(gpu)), None)
    if gpu is None:
        return not_tried(
            "no GPU is idle, has default settings, has no MIG devices and can be partitioned without a reset"
        )
    profile = _smallest(gpu)
    parent = GpuInstance(identity(gpu), profile.name, profile.id, profile.starts[0], profile.size)
    device = ComputeInstance(parent)

    def look(records: Records) -> tuple[str, bool, Proof]:
        uuid = records[device].made["uuid"]
        listed = gpu_list(node.programs.run("nvidia-smi", ("-L",), about="driver"))
        return uuid, uuid in listed.rows, compared_tables(ProofNode(node.machine, node.serving))

    uuid, there, tables = node.borrowed.there_and_back((MigMode(identity(gpu)), parent, device), look)
    after = next((gpu_facts for gpu_facts in node.hardware.look().gpus if gpu_facts.uuid == gpu.uuid), None)
    if tables.outcome is ProofResult.FAIL:
        return tables
    if not there:
        return failed(f"{uuid} was created, but nvidia-smi -L did not list it", "search the kernel log for NVRM")
    if after is None or after.mig is None or gpu.mig is None or after.mig.enabled != gpu.mig.enabled:
        return failed(f"{gpu.name} did not return to its previous MIG mode", f"nvidia-smi -i {gpu.uuid} -q -d MIG")
    if after.mig.instances:
        return failed(f"GPU instances remain on {gpu.name}", f"nvidia-smi mig -i {gpu.uuid} -dci, then -dgi")
    return passed(f"{profile.name} created on {gpu.name}, listed, destroyed", **tables.texts)


def _spare(node: ProofNode) -> Iterator[GpuFacts]:
    """Idle GPUs with default compute mode and time slice: a GPU that is divided or rebound forgets other values."""
    for gpu in filter(node.idle, node.facts.gpus):
        if not _compute_mode(node, gpu) and time_slice(node, gpu) in (None, "Default"):
            yield gpu


def _compute_mode(node: ProofNode, gpu: GpuFacts) -> int:
    try:
        return node.hardware.use(identity(gpu), lambda nvml: nvml.compute_mode(gpu.uuid))
    except HardwareError as error:
        if error.code not in NOT_THERE:
            raise
        return 0


def _divisible(gpu: GpuFacts) -> bool:
    mig = gpu.mig
    return mig is not None and bool(mig.profiles) and not mig.instances and (mig.enabled or mig.switchable)


def _smallest(gpu: GpuFacts) -> MigProfileFacts:
    assert gpu.mig is not None
    return min(gpu.mig.profiles, key=lambda profile: (profile.memory_bytes, profile.id))


def bound_to_vfio(node: ProofNode) -> Proof:
    whole = [gpu for gpu in _spare(node) if gpu.mig is None or not gpu.mig.enabled]
    gpu = next((gpu for gpu in whole if gpu.passthrough is not None), None)
    if gpu is None:
        return not_tried(
            "no GPU is idle, has default settings and can be passed through (IOMMU on, alone in its group)"
        )
    hold: Hold = VfioBinding(identity(gpu), gpu.passthrough is not None and gpu.passthrough.iommufd)
    path = node.borrowed.there_and_back((hold,), lambda records: records[hold].made["node"])
    if not any(gpu_facts.uuid == gpu.uuid for gpu_facts in node.hardware.look().gpus):
        return failed(
            f"NVML does not list {gpu.name} again", "search the kernel log for NVRM; reboot the node to restore the GPU"
        )
    return passed(f"{gpu.name} was bound to vfio-pci as {path}, and is back")


def opened_channel(node: ProofNode) -> Proof:
    """Channel 0, through a device node of our own: containers get theirs from the runtime in the same way."""
    facts = node.facts.imex
    if facts is None or not facts.channels:
        return not_tried("the NVIDIA driver on this node has no IMEX channels")
    (channel,) = channel_nodes(node.machine.host, [0])
    try:
        if node.places.simulate is None:
            _open(node.places.state_dir / FOLDER, channel.major, channel.minor)
        else:
            _open_simulated(node)
    except OSError as error:
        return failed(
            f"channel 0 cannot be opened: {error.strerror}",
            "search the kernel log for NVRM, and run nvidia-imex-ctl -q -N",
        )
    return passed(f"channel 0 of {facts.channels} can be opened")


def _open(folder: Path, major: int, minor: int) -> None:
    """Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "channel0"
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _open_simulated(node: ProofNode) -> None:
    """A simulated node's devices are not this kernel's: the channel opens while the driver is loaded."""
    if not node.hardware.look().gpus:
        raise OSError(6, os.strerror(6))


def given_back(node: ProofNode) -> tuple[str, ...]:
    """What a proof that was killed had left, in words; it is gone now. Raises NodeNotReady when it cannot be."""
    if not node.root:
        return ()
    try:
        return node.borrowed.give_back()
    except HardwareError as error:
        if error.code == NvmlCode.DRIVER_NOT_LOADED:
            return ()
        raise NodeNotReady(
            f"leftovers of an earlier proof cannot be removed: {error.message}", about="proof"
        ) from error
