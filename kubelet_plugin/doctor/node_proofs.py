"""Proofs that a node works as this driver needs it, for `dractl doctor --node --prove`. Each is a function from the
node to one `Proof`; a DriverError that it raises is a failure, with its message.

Most leave an idle node as it is: what is written is what was there, and what is started is stopped. Those in the second
half change an idle node for a moment, if the user asks for it, and undo every change. They need an idle GPU and a node
without a running plugin, because a plugin would see what they make and offer it to pods. With a plugin, pods prove the
same through claims.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dra_driver.api.inventory import GpuFacts, MigProfileFacts
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.doctor.proofs import Proof, ProofResult, failed, not_tried, passed
from dra_driver.errors import DriverError, HardwareError, NodeNotReady
from dra_driver.phrases import and_more
from kubelet_plugin.claims.node_effects import NodeMachine, effects_of, machine_of
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor.smi import gpu_list, list_differences, profile_differences, profile_list, time_slices
from kubelet_plugin.effects.gpu_settings import INTERVALS
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, OpenNvml
from kubelet_plugin.facts.watcher import try_wait
from kubelet_plugin.hardware.calls import NOT_THERE, NvmlCode
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.imex import channel_nodes
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.borrowed import FOLDER, Borrowed
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    MigMode,
    MpsDaemon,
    Records,
    SwitchedMode,
    VfioBinding,
    gpus_of,
)
from kubelet_plugin.prepare.store import JournalFile
from kubelet_plugin.prepare.transitions import mode_changes


@dataclass(frozen=True)
class ProofNode:
    """`serving`: a plugin listens on this node. `facts` are of one look, with what claims made of the hardware."""

    machine: LocalMachine
    serving: bool

    @property
    def places(self) -> NodePlaces:
        return self.machine.places

    @cached_property
    def open_nvml(self) -> OpenNvml:
        return self.machine.open_nvml()

    @contextmanager
    def folders(self) -> Iterator[None]:
        """Make the plugin's folders that are missing, and remove these again afterwards. Raises OSError."""
        folder = self.places.state_dir / "mps"
        made = []
        for part in (*reversed(folder.parents), folder):
            if not part.exists():
                part.mkdir(mode=0o755)
                made.append(part)
        try:
            yield
        finally:
            for part in reversed(made):
                with suppress(OSError):  # a plugin has come meanwhile
                    part.rmdir()

    @cached_property
    def hardware(self) -> Hardware:
        return Hardware(self.machine.host, self.open_nvml)

    @cached_property
    def facts(self) -> NodeFacts:
        return self.hardware.look()

    @cached_property
    def programs(self) -> DriverPrograms:
        return DriverPrograms(self.machine.host, self.machine.installation.root)

    @cached_property
    def busy(self) -> Mapping[str, str]:
        """Why a GPU is in use, by UUID; those that are not there are idle."""
        try:
            journal = JournalFile(self.places.state_dir).current()
        except DriverError as error:
            return {gpu.uuid: f"the journal of claims cannot be read: {error.message}" for gpu in self.facts.gpus}
        reasons = {gpu.uuid: words for gpu in self.facts.gpus if (words := self._programs_on(gpu))}
        of_claims = [hold for hold in journal.holds if not isinstance(hold, SwitchedMode)]
        reasons |= {gpu.uuid: "claims hold it" for hold in of_claims for gpu in gpus_of(hold)}
        reasons |= {hold.gpu.uuid: "its MIG mode is being switched by a reset" for hold in mode_changes(journal)}
        for entry in journal.held.values():
            reasons |= {device.gpu_uuid: f"{entry.claim} holds it" for device in entry.devices}
        return reasons

    def idle(self, gpu: GpuFacts) -> bool:
        return gpu.uuid not in self.busy

    def _programs_on(self, gpu: GpuFacts) -> str | None:
        try:
            names = self.hardware.use(GpuIdentity.of(gpu), lambda nvml: nvml.mig(gpu.uuid).processes())
        except HardwareError as error:
            return error.message
        return f"used by {', '.join(names)}" if names else None

    @cached_property
    def root(self) -> bool:
        """Whether who asks may change anything."""
        return os.geteuid() == 0 or self.places.simulate is not None

    @cached_property
    def daemons(self) -> MpsDaemons:
        return MpsDaemons(self.places.state_dir / "mps", self._machine.on_host, self.programs)

    @cached_property
    def borrowed(self) -> Borrowed:
        effects = effects_of(self._machine, self.hardware, self.programs, self.daemons, lambda: nullcontext())
        return Borrowed(self.places.state_dir / FOLDER, effects, self.hardware.boot_id)

    @cached_property
    def _machine(self) -> NodeMachine:
        return machine_of(self.machine.host, self.places.host_root if self.places.simulate is not None else None)


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

    def write(gpu: GpuFacts) -> tuple[int, int]:
        def turn(nvml: Nvml) -> tuple[int, int]:
            mode = nvml.compute_mode(gpu.uuid)
            nvml.set_compute_mode(gpu.uuid, mode)
            return mode, nvml.compute_mode(gpu.uuid)

        return node.hardware.use(GpuIdentity.of(gpu), turn)

    return _each_idle(node, "compute mode", write)


def written_slices(node: ProofNode) -> Proof:
    def write(gpu: GpuFacts) -> tuple[str, str | None]:
        before = time_slice(node, gpu)
        if before is None:
            raise _Unknown(_policies(node, gpu))
        words = ("compute-policy", "-i", gpu.uuid, "--set-timeslice", str(INTERVALS[before]))
        node.programs.run("nvidia-smi", words, about=str(GpuIdentity.of(gpu)))
        return before, time_slice(node, gpu)

    return _each_idle(node, "time slice", write)


class _Unknown(Exception):
    """What nvidia-smi said of a value: one that cannot be read is not written."""


def _each_idle(node: ProofNode, what: str, write: Callable[[GpuFacts], tuple[object, object]]) -> Proof:
    """`write` writes what it read, and answers that and what it reads then."""
    if not node.root:
        return not_tried("needs root", "sudo dractl doctor --node --prove")
    whole = [gpu for gpu in node.facts.gpus if gpu.mig is None or not gpu.mig.enabled]
    tried, wrong, without = 0, [], []
    for gpu in filter(node.idle, whole):
        try:
            before, after = write(gpu)
        except HardwareError as error:
            if error.code not in NOT_THERE:
                raise
            without.append(gpu.uuid)
            continue
        except _Unknown as unknown:
            why = not_tried(f"the output of nvidia-smi for the {what} is not known; the archive has it")
            return replace(why, texts={"answer": str(unknown)})
        tried += 1
        if after != before:
            wrong.append(f"{gpu.uuid} had {what} {before}; after the same value was set it has {after}")
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
    hold = MpsDaemon(_MPS_KEY, (GpuIdentity.of(gpu),))
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
    return node.programs.run("nvidia-smi", ("compute-policy", "-i", gpu.uuid, "--list"), about=str(GpuIdentity.of(gpu)))


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
    parent = GpuInstance(GpuIdentity.of(gpu), profile.name, profile.id, profile.starts[0], profile.size)
    device = ComputeInstance(parent)

    def look(records: Records) -> tuple[str, bool, Proof]:
        uuid = records[device].made["uuid"]
        listed = gpu_list(node.programs.run("nvidia-smi", ("-L",), about="driver"))
        return uuid, uuid in listed.rows, compared_tables(ProofNode(node.machine, node.serving))

    uuid, there, tables = node.borrowed.there_and_back((MigMode(GpuIdentity.of(gpu)), parent, device), look)
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
        return node.hardware.use(GpuIdentity.of(gpu), lambda nvml: nvml.compute_mode(gpu.uuid))
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
    hold: Hold = VfioBinding(GpuIdentity.of(gpu), gpu.passthrough is not None and gpu.passthrough.iommufd)
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
