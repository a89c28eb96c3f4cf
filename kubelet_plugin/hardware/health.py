"""The health of each GPU: what the driver says when it is asked, and which conditions follow over time.

`kubelet_plugin.hardware.nvml` reads one `HealthReading` for each GPU with every look. Each question may stay without an
answer: older GPUs do not know some, GPUs in MIG mode do not answer others. `kubelet_plugin.facts.monitor` makes
conditions of readings and events, and keeps them in a file. Pure, except for `health_reading`. Two sorts of trouble:

* An **event** (an Xid) is reported once. Its condition stays until something says that the GPU is healthy again:
  another boot, a driver that was loaded again, or, if the driver can tell, that no recovery action is needed. A driver
  that cannot tell leaves only the first two, because a GPU that needs a reset must not look healthy as time passes.
* A **reading** (a lost GPU, memory errors, rows to remap, NVLink, the recommended recovery action) can be taken again.
  Its condition comes at once and ends when the reading has been good for a while, so that a GPU on the edge does not
  come and go with every look.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pynvml

from dra_driver.api.inventory import GpuFacts, HealthCondition
from dra_driver.api.meta import wire_time
from dra_driver.devices.health import Severity, xid_condition

_WELL_AFTER_S = 60.0
"""How long readings must have been good before a condition ends."""


@dataclass(frozen=True, slots=True)
class Era:
    """One life of the driver: no event of a GPU outlives it. `driver` distinguishes two loadings of the kernel module;
    None if that is not known, and then only a boot ends an era."""

    boot_id: str
    driver: str | None = None

    def is_over(self, now: "Era") -> bool:
        return self.boot_id != now.boot_id or (
            self.driver is not None and now.driver is not None and self.driver != now.driver
        )


def bad_reading(
    type_: str, severity: Severity, message: str, value: str | None = None, instance: str | None = None
) -> HealthCondition:
    """A bad reading, without the time since when it is bad."""
    return HealthCondition(type=type_, value=value, severity=severity, message=message, since="", instance=instance)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a GPU. `no_action` is whether the driver says that no recovery is needed; None: it does not say.

    `untold` are types of which the GPU says nothing now, as one in MIG mode says nothing of rows to remap: what was
    known of these stays.
    """

    troubles: tuple[HealthCondition, ...] = ()
    """`since` is empty."""
    no_action: bool | None = None
    untold: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a condition is about; there is one of each."""

    gpu: str
    type: str
    value: str
    instance: str


@dataclass(frozen=True, slots=True)
class Tracked:
    """A condition that holds. `well_since` is since when readings have been good; None while they are bad."""

    condition: HealthCondition
    era: Era
    from_event: bool
    well_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """All conditions of a node, by what they are about. Never changed: a change makes new ones."""

    tracked: Mapping[Key, Tracked] = field(default_factory=dict)

    def of(self, gpu: str) -> tuple[HealthCondition, ...]:
        """Those of one GPU, in the order of the inventory."""
        return tuple(self.tracked[key].condition for key in sorted(self.tracked) if key.gpu == gpu)

    @property
    def gpus(self) -> frozenset[str]:
        return frozenset(key.gpu for key in self.tracked)


def after_xid(now: Conditions, gpu: str, number: int, instance: str | None, *, era: Era, when: datetime) -> Conditions:
    """An Xid of `gpu`; `instance` is the UUID of the MIG device that it concerns, None for the whole GPU.

    The same Xid again keeps the time of its first.
    """
    key = Key(gpu, "Xid", str(number), instance or "")
    known = now.tracked.get(key)
    condition = (
        known.condition if known is not None else xid_condition(number, since=wire_time(when), instance=instance)
    )
    return Conditions({**now.tracked, key: Tracked(condition, era, from_event=True)})


def after_reading(now: Conditions, readings: Mapping[str, Reading], *, era: Era, when: datetime) -> Conditions:
    """What holds after a look at the GPUs, by UUID. A GPU that was not looked at keeps what it has.

    An event's condition ends with its era; a reading's is taken again in the new one.
    """
    tracked = {key: item for key, item in now.tracked.items() if not item.era.is_over(era)}
    for gpu, reading in readings.items():
        troubles = {key_of(gpu, trouble): trouble for trouble in reading.troubles}
        for key in [key for key in tracked if key.gpu == gpu and key not in troubles]:
            still = _seen_well(tracked[key], reading, when)
            if still is None:
                del tracked[key]
            else:
                tracked[key] = still
        for key, trouble in troubles.items():
            known = tracked.get(key)
            since = known.condition.since if known is not None else wire_time(when)
            tracked[key] = Tracked(trouble.model_copy(update={"since": since}), era, from_event=False)
    return Conditions(tracked)


def without_gpus(now: Conditions, present: Iterable[str]) -> Conditions:
    """GPUs that the node no longer has or remembers have no conditions."""
    uuids = frozenset(present)
    return Conditions({key: tracked for key, tracked in now.tracked.items() if key.gpu in uuids})


def _seen_well(tracked: Tracked, reading: Reading, when: datetime) -> Tracked | None:
    """A condition whose GPU looks well now; None when it has for long enough."""
    untold = tracked.condition.type in reading.untold
    if untold or (tracked.from_event and reading.no_action is not True):
        return replace(tracked, well_since=None)
    since = min(tracked.well_since or when, when)  # clocks are set back, too
    if when - since >= timedelta(seconds=_WELL_AFTER_S):
        return None
    return replace(tracked, well_since=since)


def key_of(gpu: str, about: HealthCondition) -> Key:
    return Key(gpu, about.type, about.value or "", about.instance or "")


_ACTIONS = {
    1: ("GpuReset", "reset the GPU"),
    2: ("NodeReboot", "reboot the node"),
    3: ("DrainP2P", "drain peer-to-peer traffic"),
    4: ("DrainAndReset", "drain and reset the GPU"),
    5: ("RecoverImexDomain", "recover the IMEX domain"),
    6: ("BusReset", "reset the bus"),
    7: ("SystemReboot", "reboot the node"),
}
"""Source: nvmlDeviceGpuRecoveryAction_t."""
_DRAIN_P2P = 3

type _Ask = Callable[..., Any]
"""Calls a function of the library about one GPU; None when there is no answer."""


@dataclass(frozen=True, slots=True)
class HealthReading:
    """None is a question without an answer. `uncorrected_errors` counts since the driver was loaded."""

    uncorrected_errors: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    repair_pending: bool | None = None
    recovery_action: int | None = None
    max_clock_mhz: int | None = None
    """Of the multiprocessors."""


def health_reading(ask: _Ask, library: Any, handle: Any) -> HealthReading:
    """Ask all questions about the GPU with this handle."""
    remapped = ask(library.nvmlDeviceGetRemappedRows, handle)
    repair = ask(library.nvmlDeviceGetRepairStatus, handle)
    return HealthReading(
        uncorrected_errors=ask(
            library.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        remap_pending=bool(remapped[2]) if remapped is not None else None,
        remap_failed=bool(remapped[3]) if remapped is not None else None,
        repair_pending=any(repair) if repair is not None else None,
        recovery_action=_recovery_action(ask, library, handle),
        max_clock_mhz=ask(library.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
    )


def _recovery_action(ask: _Ask, library: Any, handle: Any) -> int | None:
    values = ask(library.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def reading_of(gpu: GpuFacts, health: HealthReading) -> Reading:
    """What is wrong with a GPU that answers, by what it answered. Pure."""
    troubles = [*_memory(health), *_action(health), *_fabric(gpu)]
    answers = {
        "Ecc": health.uncorrected_errors,
        "RowRemap": health.remap_failed,
        "Repair": health.repair_pending,
        "RecoveryAction": health.recovery_action,
    }
    untold = frozenset(type_ for type_, answer in answers.items() if answer is None)
    no_action = None if health.recovery_action is None else health.recovery_action == 0
    return Reading(tuple(troubles), no_action, untold)


def _memory(health: HealthReading) -> list[HealthCondition]:
    memory = []
    if health.uncorrected_errors:
        count = health.uncorrected_errors
        memory.append(bad_reading("Ecc", "Warning", f"{count} uncorrected memory errors since the driver was loaded"))
    if health.remap_failed:
        memory.append(
            bad_reading("RowRemap", "Critical", "remapping memory rows failed; the GPU must be replaced", "failed")
        )
    if health.remap_pending:
        memory.append(
            bad_reading("RowRemap", "Warning", "memory rows are remapped at the next reset of the GPU", "pending")
        )
    if health.repair_pending:
        memory.append(bad_reading("Repair", "Warning", "the GPU repairs itself at its next reset"))
    return memory


def _action(health: HealthReading) -> list[HealthCondition]:
    action = health.recovery_action
    if not action:
        return []
    name, what = _ACTIONS.get(action, (str(action), f"action {action}"))
    severity: Severity = "Warning" if action == _DRAIN_P2P else "Critical"
    return [bad_reading("RecoveryAction", severity, f"the driver asks to {what}", name)]


def _fabric(gpu: GpuFacts) -> list[HealthCondition]:
    """A GPU behind NVSwitches cannot start a program until it is registered with the fabric manager."""
    fabric = gpu.fabric
    if fabric is None or (gpu.mig is not None and gpu.mig.enabled):
        return []
    if fabric.state != "Completed":
        message = (
            "the GPU is not registered with the NVLink fabric; is the fabric manager running? If it is, with"
            " FABRIC_MODE=1, switch on the feature gate FabricManagerPartitioning"
        )
        return [bad_reading("NvLink", "Critical", message, fabric.state)]
    if fabric.status != 0:
        message = f"registration with the NVLink fabric failed with NVML code {fabric.status}"
        return [bad_reading("NvLink", "Critical", message, "RegistrationFailed")]
    if fabric.health == "Unhealthy":
        return [bad_reading("NvLink", "Critical", "the NVLink fabric reports the GPU as unhealthy", "Unhealthy")]
    if fabric.health == "LimitedCapacity":
        return [bad_reading("NvLink", "Warning", "the NVLink fabric works with limited capacity", "LimitedCapacity")]
    return []
