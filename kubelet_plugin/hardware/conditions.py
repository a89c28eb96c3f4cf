"""What is wrong with each GPU, over time: events and readings become conditions, and conditions end. Pure.

`kubelet_plugin.facts.monitor` enters here with what it heard and read, and keeps the answer in a file. Two sorts of
trouble:

* An **event** (an Xid) is told once. Its condition stays until something says that the GPU is well again: another boot,
  a driver that was loaded again, or, where the driver can tell, that no recovery action is needed any more. A driver
  that cannot tell leaves only the first two, for a GPU that needs a reset must not look well because time went by.
* A **reading** (a lost GPU, memory errors, rows to remap, NVLink, the recommended recovery action) can be taken again.
  Its condition comes at once and ends when the reading has been good for a while, so that a GPU on the edge does not
  come and go with every look.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dra_driver.api.inventory import HealthCondition
from dra_driver.devices.health import Severity, xid_condition

WELL_AFTER_S = 60.0
"""How long readings must have been good before a condition ends."""


@dataclass(frozen=True, slots=True)
class Era:
    """One life of the driver: nothing that befell a GPU before outlives the next. `driver` is what tells two loadings
    of the kernel module apart; None where that cannot be told, and then only a boot ends an era."""

    boot_id: str
    driver: str | None = None

    def is_over(self, now: "Era") -> bool:
        return self.boot_id != now.boot_id or (
            self.driver is not None and now.driver is not None and self.driver != now.driver
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    """One bad reading of a GPU."""

    type: str
    severity: Severity
    message: str
    value: str | None = None
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a GPU. `no_action` is whether the driver says that no recovery is needed; None: it does not say.

    `untold` are types of which the GPU says nothing now, as one in MIG mode says nothing of rows to remap: what was
    known of these stays.
    """

    troubles: tuple[Trouble, ...] = ()
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
    condition = known.condition if known is not None else xid_condition(number, since=_text(when), instance=instance)
    return Conditions({**now.tracked, key: Tracked(condition, era, from_event=True)})


def after_reading(
    now: Conditions, readings: Mapping[str, Reading], *, era: Era, when: datetime, well_after_s: float = WELL_AFTER_S
) -> Conditions:
    """What holds after a look at the GPUs, by UUID. A GPU that was not looked at keeps what it has.

    An event's condition ends with its era; a reading's is taken again in the new one.
    """
    tracked = {key: one for key, one in now.tracked.items() if not one.era.is_over(era)}
    for gpu, reading in readings.items():
        bad = {_key(gpu, trouble): trouble for trouble in reading.troubles}
        for key in [key for key in tracked if key.gpu == gpu and key not in bad]:
            kept = _seen_well(tracked[key], reading, when, well_after_s)
            if kept is None:
                del tracked[key]
            else:
                tracked[key] = kept
        for key, trouble in bad.items():
            known = tracked.get(key)
            since = known.condition.since if known is not None else _text(when)
            tracked[key] = Tracked(_condition(trouble, since), era, from_event=False)
    return Conditions(tracked)


def without_gpus(now: Conditions, present: Iterable[str]) -> Conditions:
    """GPUs that the node does not have any more, nor remembers, have no conditions."""
    kept = frozenset(present)
    return Conditions({key: one for key, one in now.tracked.items() if key.gpu in kept})


def _seen_well(tracked: Tracked, reading: Reading, when: datetime, well_after_s: float) -> Tracked | None:
    """A condition whose GPU looks well now; None when it has for long enough."""
    untold = tracked.condition.type in reading.untold
    if untold or (tracked.from_event and reading.no_action is not True):
        return replace(tracked, well_since=None)
    since = min(tracked.well_since or when, when)  # clocks are set back, too
    if when - since >= timedelta(seconds=well_after_s):
        return None
    return replace(tracked, well_since=since)


def _key(gpu: str, trouble: Trouble) -> Key:
    return Key(gpu, trouble.type, trouble.value or "", trouble.instance or "")


def _condition(trouble: Trouble, since: str) -> HealthCondition:
    return HealthCondition(
        type=trouble.type,
        value=trouble.value,
        severity=trouble.severity,
        message=trouble.message,
        since=since,
        instance=trouble.instance,
    )


def _text(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
