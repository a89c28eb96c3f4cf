"""A node whose GPUs switch MIG mode by a reset, with all parts of the plugin that take part, and the publisher's rules.

Everything is real but the hardware, the API server, and the clock: what the publisher decides goes straight to the
plugin, and the tests say when.
"""

from collections.abc import Callable
from pathlib import Path

from support.smi import SmiInProcess

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec, NodeInventoryStatus, summary_of
from dra_driver.api.policy import rules_of
from dra_driver.devices.limitations import limitations_of
from dra_driver.devices.offers import offers
from dra_driver.publish.decisions import decided, settled, with_mode_changes
from kubelet_plugin.claims.mode_changes import ModeChanges, ModePatience
from kubelet_plugin.claims.node_effects import CurrentFootprint
from kubelet_plugin.effects.mode_reset import ModeResets
from kubelet_plugin.effects.vfio_driver import DriverOfNode
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.facts.offers import NodeRules
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import GpuIdentity, SwitchedMode
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.prepare.transitions import Transition
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml

NODE = "node-1"
AT_ONCE = ModePatience(settle_s=0.0, first_retry_s=0.0, longest_retry_s=0.0)
PATIENT = ModePatience(settle_s=0.0)
"""What failed is not tried again within a test."""

type Moment = Callable[[str], None]
"""Called before and after each step; what it raises ends the plugin's life."""


def policy(name: str = "parts", *, change: str = "WhenIdle", **spec: object) -> GpuPolicy:
    mig = {"mode": "Dynamic", "modeChange": change}
    return GpuPolicy.of({"metadata": {"name": name}, "spec": {"mig": mig, **spec}})


class ToldJournal(JournalStore):
    """The journal on disk; each commit is a step."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        super().__init__(folder)
        self._moment = moment

    async def commit(self, change: Transition, **more: object) -> Journal:
        self._moment("before a commit")
        journal = await super().commit(change)
        self._moment("after a commit")
        return journal


class ToldResets(ModeResets):
    """Each change of the hardware is a step."""

    moment: Moment = staticmethod(lambda what: None)

    def switch(self, gpu: GpuIdentity, *, on: bool) -> None:
        self.moment("before a switch")
        super().switch(gpu, on=on)
        self.moment("after a switch")

    def cancel(self, gpu: GpuIdentity) -> bool:
        self.moment("before a cancel")
        on = super().cancel(gpu)
        self.moment("after a cancel")
        return on


class ModeWorld:
    """`policies` and `users` (claims by device) are the cluster's; a plugin's life begins with `restart`."""

    def __init__(self, folder: Path, profile: str = "a100-pcie-80", gpus: int = 1) -> None:
        self.folder = folder
        self.host = create_host(folder / "host", profile, gpus=gpus)
        self.policies: list[GpuPolicy] = []
        self.users: dict[str, list[str]] = {}
        self.held: NodePolicy | None = None
        self.resets: list[bool] = []
        """Events of resets: whether the mode is on now."""

    @classmethod
    def beside(cls, other: "ModeWorld") -> "ModeWorld":
        """Another instance of the plugin on the same node."""
        world = cls.__new__(cls)
        world.folder, world.host = other.folder, other.host
        world.policies, world.users, world.held = other.policies, other.users, other.held
        world.resets = other.resets
        return world

    def restart(
        self, moment: Moment = lambda what: None, patience: ModePatience = AT_ONCE, *, allowed: bool = True
    ) -> None:
        """A new process: nothing is in its memory, and the publisher's last decision is in the API server."""
        files = HostFiles(self.host.root)
        self.journal = ToldJournal(self.folder / "state", moment)
        ours = CurrentFootprint(self.journal, files)
        self.hardware = Hardware(
            files, lambda: NvmlSource(SimulatedNvml(self.host.root), str(self.host.driver_root)), ours
        )
        self.discovery = Discovery(self.hardware)
        self.rules = NodeRules()
        self.executor = Executor(self.journal, CdiFiles(self.folder / "cdi", "gpu.nvidia.com"), {})
        smi = SmiInProcess(files, moment)
        resets = ToldResets(files, self.hardware, DriverOfNode(self.hardware, smi), smi)
        resets.moment = moment
        self.modes = ModeChanges(
            NODE,
            self.executor,
            resets,
            self.rules,
            self.discovery,
            ours.report,
            lambda gpu, on: self.resets.append(on),
            patience,
            allowed=allowed,
        )

    async def end(self) -> None:
        """Of a process: the kernel ends its sessions and locks."""
        self.hardware.close()
        await self.executor.close()
        await self.journal.close()

    async def look(self) -> GpuFacts:
        """The first GPU."""
        return (await self.discovery.observe()).gpus[0]

    async def inventory(self) -> NodeInventorySpec:
        facts = await self.discovery.observe()
        gpus, problems = list(facts.gpus), facts.problems
        summary = summary_of(facts.driver, gpus, problems)
        return NodeInventorySpec(node_name=NODE, boot_id=facts.boot_id, driver=facts.driver, gpus=gpus, summary=summary)

    async def publish(self) -> NodePolicy:
        """What the publisher decides now goes to the plugin."""
        inventory = await self.inventory()
        wanted = decided(combined(self.policies), self.policies, inventory, {})
        if self.held is not None:
            wanted = with_mode_changes(settled(self.held, wanted, inventory, self.users), inventory, self.users)
        self.held = wanted
        self.rules.saw({"status": NodeInventoryStatus(policy=wanted).to_wire()})
        return wanted

    async def until_quiet(self, most: int = 12) -> None:
        """The publisher and the plugin in turns, until nothing changes any more."""
        before: object = None
        for _ in range(most):
            await self.publish()
            await self.modes.settle()
            now = (self.host.snapshot(0), self.held, dict(self.journal.current.holds))
            if now == before:
                return
            before = now
        raise AssertionError(f"it does not come to rest: {before}")

    async def problems(self) -> list[tuple[str, str, str]]:
        """Reason, message and fix of what cannot be followed."""
        assert self.held is not None
        rules = rules_of(self.held)
        notes = offers(await self.inventory(), rules, {}).notes
        limits = limitations_of(notes, rules, "gpu.nvidia.com", NODE)
        return [(limit.reason, limit.message, limit.fix) for limit in limits]

    async def devices(self) -> list[str]:
        assert self.held is not None
        return [offer.name for offer in offers(await self.inventory(), rules_of(self.held), {}).offers]

    @property
    def mode(self) -> tuple[int, int]:
        mig = self.host.state.gpus[0].mig
        assert mig is not None
        return mig.current, mig.pending

    @property
    def hold(self) -> SwitchedMode:
        gpu = self.host.state.gpus[0]
        return SwitchedMode(GpuIdentity(gpu.uuid, gpu.address))

    def waiting(self) -> list[tuple[str | None, list[str]]]:
        """MIG mode and claims of each GPU that waits."""
        assert self.held is not None
        return [(gpu.mig_mode, gpu.claims) for gpu in self.held.waiting]
