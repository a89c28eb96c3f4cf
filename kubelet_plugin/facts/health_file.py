"""What the plugin remembers of its GPUs' health across restarts: one JSON file beside the journal.

`kubelet_plugin.facts.monitor` reads it once at start and replaces it when something changed. It is a memory, not a
promise:
what cannot be read is put aside and forgotten, because events that matter leave other traces, and no GPU is handed out
or kept back on the strength of this file alone for longer than until the next look.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import AwareDatetime, Field, ValidationError

from dra_driver.api.inventory import GpuFacts, HealthCondition
from dra_driver.api.meta import Model
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import read_if_present, write_durably
from kubelet_plugin.hardware.health import Conditions, Era, Key, Tracked

_log = structlog.get_logger(__name__)

NAME = "health.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """`gpus` are the last facts of every GPU that was seen; `checked` says in which era each passed its check."""

    conditions: Conditions = field(default_factory=Conditions)
    gpus: tuple[GpuFacts, ...] = ()
    checked: Mapping[str, Era] = field(default_factory=dict)


class _Era(Model):
    boot_id: str = Field(alias="bootID")
    driver: str | None = None


class _Condition(Model):
    gpu: str
    condition: HealthCondition
    era: _Era
    from_event: bool
    well_since: AwareDatetime | None = None


class _File(Model):
    version: int = _VERSION
    conditions: list[_Condition] = Field(default_factory=list)
    gpus: list[GpuFacts] = Field(default_factory=list)
    checked: dict[str, _Era] = Field(default_factory=dict)


class HealthFile:
    """The file in `folder`; blocking."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> Memory:
        """What was remembered; nothing when there is no file or it makes no sense. Never raises."""
        try:
            content = read_if_present(self._path)
            return Memory() if content is None else decode(content)
        except (NodeNotReady, ValidationError, ValueError) as error:
            _log.warning("health of before cannot be read and is forgotten", file=str(self._path), error=str(error))
            return Memory()

    def write(self, memory: Memory) -> None:
        """Raises NodeNotReady when the disk refuses."""
        write_durably(self._path, encode(memory), mode=0o600)


def encode(memory: Memory) -> bytes:
    """The same memory gives the same bytes."""
    tracked = memory.conditions.tracked
    file = _File(
        conditions=[_to_wire(key, tracked[key]) for key in sorted(tracked)],
        gpus=list(memory.gpus),
        checked={uuid: _era(era) for uuid, era in sorted(memory.checked.items())},
    )
    return file.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"


def decode(content: bytes) -> Memory:
    """Raises ValidationError (a ValueError) when it is not what `encode` writes."""
    file = _File.model_validate_json(content)
    tracked = {}
    for one in file.conditions:
        condition = one.condition
        key = Key(one.gpu, condition.type, condition.value or "", condition.instance or "")
        tracked[key] = Tracked(condition, Era(one.era.boot_id, one.era.driver), one.from_event, one.well_since)
    checked = {uuid: Era(era.boot_id, era.driver) for uuid, era in file.checked.items()}
    return Memory(Conditions(tracked), tuple(file.gpus), checked)


def _to_wire(key: Key, one: Tracked) -> _Condition:
    return _Condition(
        gpu=key.gpu,
        condition=one.condition,
        era=_era(one.era),
        from_event=one.from_event,
        well_since=one.well_since,
    )


def _era(era: Era) -> _Era:
    return _Era(boot_id=era.boot_id, driver=era.driver)
