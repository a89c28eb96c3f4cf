"""A node with all that proofs need: its hardware as it is, the driver's programs, effects, and who uses which GPU."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property

from dra_driver.api.inventory import GpuFacts
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import DriverError, HardwareError
from kubelet_plugin.claims.node_effects import NodeMachine, effects_of, machine_of, mps_daemons
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, OpenNvml
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.prepare.borrowed import FOLDER, Borrowed
from kubelet_plugin.prepare.holds import GpuIdentity, SwitchedMode, gpus_of
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
            names = self.hardware.use(identity(gpu), lambda nvml: nvml.mig(gpu.uuid).processes())
        except HardwareError as error:
            return error.message
        return f"used by {', '.join(names)}" if names else None

    @cached_property
    def root(self) -> bool:
        """Whether who asks may change anything."""
        return os.geteuid() == 0 or self.places.simulate is not None

    @cached_property
    def daemons(self) -> MpsDaemons:
        return mps_daemons(self._machine, self.programs, self.places.state_dir / "mps")

    @cached_property
    def borrowed(self) -> Borrowed:
        effects = effects_of(self._machine, self.hardware, self.programs, self.daemons, lambda: nullcontext())
        return Borrowed(self.places.state_dir / FOLDER, effects, self.hardware.boot_id)

    @cached_property
    def _machine(self) -> NodeMachine:
        return machine_of(self.machine.host, self.places.host_root if self.places.simulate is not None else None)


def identity(gpu: GpuFacts) -> GpuIdentity:
    return GpuIdentity(gpu.uuid, gpu.pci_bus_id)
