"""Everything that watches the hardware, put together: looks, events, MPS daemons, and what is remembered of it all.

Only `kubelet_plugin.main` enters here. The rest of the plugin asks `NodeWatch.facts` for the node's facts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import structlog

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import DOMAIN_SUBJECT, GpuFacts, HealthCondition, Problem
from dra_driver.api.meta import wire_time
from dra_driver.devices.model import DeviceKind, Offer
from dra_driver.errors import DeviceInUse, DriverError, HardwareError, NodeNotReady, UnknownDevice
from dra_driver.features import Feature
from dra_driver.runtime.tasks import forever
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.effects.mps_watch import MpsWatch
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import NodeFacts, OpenNvml
from kubelet_plugin.facts.monitor import HealthFile, HealthMonitor, MonitoredFacts
from kubelet_plugin.facts.validation import Command
from kubelet_plugin.facts.watcher import Coverage, EventWatcher, GpuEvent
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import ComputeInstance, MpsDaemon, Records
from kubelet_plugin.prepare.lifecycle import made_mig_uuid
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.settings import NodePluginSettings

_log = structlog.get_logger(__name__)

_GAVE_UP_S = 300.0

_MODULE = "/sys/module/nvidia"
"""The kernel makes a new folder each time that the module is loaded, and then it has another inode."""


class PrepareFailures:
    """GPUs of which the node gave up to prepare a partition, and that it gave up a channel of a ComputeDomain. For a
    while no claim gets one, so that the scheduler does not choose the same again; then the next claim is the trial."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of_gpus: dict[str, tuple[HealthCondition, float]] = {}
        self._of_channels: tuple[Problem, float] | None = None

    def add(self, gpus: Collection[str], error: DriverError, every: Collection[str]) -> None:
        """By UUID. All GPUs of the node, `every`, are meant if the error is about the node, or if another GPU has one:
        then the scheduler should choose another node."""
        of_hardware = isinstance(error, HardwareError | DeviceInUse | UnknownDevice)
        meant = gpus if of_hardware and self.conditions().keys() <= set(gpus) else every
        condition = HealthCondition(
            type="PrepareFailed",
            severity="Critical",
            message=str(error),
            since=wire_time(datetime.now(UTC)),
            instance="",
        )
        self._of_gpus |= dict.fromkeys(meant, (condition, self._clock() + _GAVE_UP_S))

    def remove(self, gpus: Collection[str]) -> bool:
        """Whether any of them had one."""
        before = len(self._of_gpus)
        self._of_gpus = {uuid: known for uuid, known in self._of_gpus.items() if uuid not in gpus}
        return len(self._of_gpus) < before

    def set_channels(self, error: DriverError | None) -> None:
        """Why the node gave up to prepare a channel; None: one was prepared."""
        self._of_channels = None
        if error is not None:
            problem = Problem(subject=DOMAIN_SUBJECT, reason="ChannelNotPrepared", message=str(error))
            self._of_channels = problem, self._clock() + _GAVE_UP_S

    def problems(self) -> Sequence[Problem]:
        if self._of_channels is None or self._clock() >= self._of_channels[1]:
            return ()
        return (self._of_channels[0],)

    def conditions(self) -> Mapping[str, Sequence[HealthCondition]]:
        now = self._clock()
        return {uuid: (condition,) for uuid, (condition, until) in self._of_gpus.items() if now < until}


class NodeWatch:
    """`facts` is the node with its health, `events` can be paused. `run_in` starts all of it.

    With the feature gate of health off, `facts` is what Discovery sees, without events and conditions.
    """

    def __init__(
        self,
        settings: NodePluginSettings,
        policy: Callable[[], HealthPolicy],
        host: HostFiles,
        discovery: Discovery,
        open_nvml: OpenNvml,
        journal: JournalStore,
    ) -> None:
        self._host = host
        self._discovery = discovery
        self._journal = journal
        self._daemons: MpsDaemons | None = None
        self._mps: MpsWatch | None = None
        self._prepare_failures = PrepareFailures()
        self._health = self._monitor(settings, policy) if Feature.HEALTH in settings.feature_gates else None
        self.facts: MonitoredFacts = discovery if self._health is None else self._health
        self.events = EventWatcher(open_nvml, self._heard, self._covered)
        self._nvidia_gpus: tuple[str, ...] = ()
        discovery.subscribe(self._seen)

    def instance_of(self, offer: Offer) -> str | None:
        """UUID of the MIG device that an offer stands for; see `kubelet_plugin.facts.node_watch`."""
        return instance_of(offer, self._records())

    def watch_mps(self, daemons: MpsDaemons, again: Callable[[MpsDaemon], Awaitable[None]]) -> None:
        """Look after the MPS daemons of prepared claims, too. Called once, before `run_in`."""
        self._daemons = daemons
        self._mps = MpsWatch(daemons, self._records, self._host.boot_id, again)

    async def start(self) -> None:
        """Remove the MPS daemons and folders that no claim has; once, after the journal was repaired."""
        if self._daemons is None:
            return
        try:
            for sentence in await asyncio.to_thread(self._daemons.sweep, self._all_records):
                _log.warning("repaired", what=sentence)
        except DriverError as error:
            _log.warning("MPS daemons that no claim has may be left", error=str(error))

    def run_in(self, tasks: asyncio.TaskGroup) -> None:
        """Start to look, listen and remember; ends with the group."""
        tasks.create_task(forever("discovery", self._discovery.run))
        if self._health is not None:
            tasks.create_task(forever("health", self._health.run))
            tasks.create_task(forever("events", self.events.run))
        if self._mps is not None:
            tasks.create_task(forever("mps", self._mps.run))

    def gave_up(self, gpus: Collection[str], error: DriverError) -> None:
        """The node could not prepare partitions of these GPUs for a pod that waited."""
        self._prepare_failures.add(gpus, error, [gpu.uuid for gpu in self._discovery.facts.gpus])
        self._failures_changed()

    def prepared(self, gpus: Collection[str]) -> None:
        """Partitions of these GPUs can be prepared."""
        if self._prepare_failures.remove(gpus):
            self._failures_changed()

    def channels_prepared(self, error: DriverError | None) -> None:
        """What became of a channel that a pod waited for; None: it was prepared."""
        if error is not None or self._prepare_failures.problems():
            self._prepare_failures.set_channels(error)
            self._failures_changed()

    def _failures_changed(self) -> None:
        # A look at the hardware finds nothing new, so it would not update the facts.
        if self._health is not None:
            self._health.more_changed()

    def _monitor(self, settings: NodePluginSettings, policy: Callable[[], HealthPolicy]) -> HealthMonitor:
        return HealthMonitor(
            self._discovery,
            HealthFile(settings.state_dir),
            policy,
            driver_era=self._driver_era,
            instance_uuid=self._instance_uuid,
            more=(self._mps_conditions, self._prepare_failures.conditions),
            more_problems=self._prepare_failures.problems,
            command=Command(settings.validation_command) if settings.validation_command else None,
        )

    def _covered(self, coverage: Coverage) -> None:
        if self._health is not None:
            self._health.covered(coverage)

    def _heard(self, event: GpuEvent) -> None:
        if self._health is not None:
            self._health.heard(event)
        # A look shows more of any event: a lost GPU, another MIG layout, counters.
        self._discovery.poke()

    def _seen(self, facts: NodeFacts) -> None:
        """Other GPUs than before: the session that listens does not have them."""
        now = tuple(gpu.uuid for gpu in facts.gpus)
        if now != self._nvidia_gpus:
            self._nvidia_gpus = now
            self.events.renew()

    def _driver_era(self) -> str | None:
        try:
            return str(self._host.path(_MODULE).stat().st_ino)
        except OSError:
            return None

    def _instance_uuid(self, gpu_uuid: str, gi: int, ci: int) -> str | None:
        try:
            gpus = self._discovery.facts.gpus
        except NodeNotReady:
            gpus = ()
        gpu = next((gpu for gpu in gpus if gpu.uuid == gpu_uuid), None)
        return instance_uuid(gpu, self._records(), gpu_uuid, gi, ci)

    def _all_records(self) -> Records:
        """Raises NodeNotReady while some may be missing: what a lost claim needs must not be taken away."""
        journal = self._journal.current
        if journal.incomplete:
            raise NodeNotReady("claims may be missing from it", about="the journal of prepared claims")
        return journal.holds

    def _records(self) -> Records:
        try:
            return self._journal.current.holds
        except DriverError:
            return {}

    def _mps_conditions(self) -> Mapping[str, Sequence[HealthCondition]]:
        return self._mps.conditions() if self._mps is not None else {}


def instance_uuid(gpu: GpuFacts | None, records: Records, gpu_uuid: str, gi: int, ci: int) -> str | None:
    """UUID of the MIG device with these ids on this GPU; None when it is not known."""
    for hold, record in records.items():
        of_gpu = isinstance(hold, ComputeInstance) and hold.parent.gpu.uuid == gpu_uuid
        if of_gpu and (record.made.get("gi"), record.made.get("ci")) == (str(gi), str(ci)):
            return record.made.get("uuid")
    if gpu is None or gpu.mig is None:
        return None
    for instance in gpu.mig.instances:
        for part in instance.compute_instances:
            if (instance.id, part.id) == (gi, ci):
                return part.uuid
    return None


def instance_of(offer: Offer, records: Records) -> str | None:
    """UUID of the MIG device that an offer stands for: empty while it does not exist, None for what is none."""
    if offer.kind is not DeviceKind.MIG:
        return None
    if offer.existing is not None:
        return offer.existing.uuid
    return made_mig_uuid(offer.gpu.uuid, offer.partition, records)
