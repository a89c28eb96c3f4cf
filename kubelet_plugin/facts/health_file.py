"""What the plugin remembers of its GPUs' health across restarts: one JSON file beside the journal.

`kubelet_plugin.facts.monitor` reads it once at start and replaces it when something changed. It is a memory, not a
promise: a file that cannot be read is ignored, because events that matter leave other traces, and no GPU is offered or
withheld because of this file alone for longer than until the next look.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog
from pydantic import TypeAdapter

from dra_driver.api.inventory import GpuFacts
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import read_if_present, write_durably
from kubelet_plugin.hardware.health import Conditions, Era, Tracked, key_of

_log = structlog.get_logger(__name__)

NAME = "health.json"


@dataclass(frozen=True, slots=True)
class Memory:
    """`gpus` are the last facts of every GPU that was seen; `checked` says in which era each passed its check."""

    conditions: Conditions = field(default_factory=Conditions)
    gpus: tuple[GpuFacts, ...] = ()
    checked: Mapping[str, Era] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Content:
    """The file: conditions that hold, each with the UUID of its GPU; and the rest of the memory."""

    version: Literal[2]
    conditions: list[tuple[str, Tracked]]
    gpus: list[GpuFacts]
    checked: dict[str, Era]


_CONTENT = TypeAdapter(_Content)


class HealthFile:
    """The file in `folder`; blocking."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> Memory:
        """What was remembered; nothing when there is no file or it makes no sense. Never raises."""
        try:
            content = read_if_present(self._path)
            return Memory() if content is None else decode(content)
        except (NodeNotReady, ValueError) as error:
            _log.warning("discarding saved health that cannot be read", file=str(self._path), error=str(error))
            return Memory()

    def write(self, memory: Memory) -> None:
        """Raises NodeNotReady when the disk refuses."""
        write_durably(self._path, encode(memory), mode=0o600)


def encode(memory: Memory) -> bytes:
    """The same memory gives the same bytes."""
    tracked = memory.conditions.tracked
    conditions = [(key.gpu, tracked[key]) for key in sorted(tracked)]
    content = _Content(2, conditions, list(memory.gpus), dict(sorted(memory.checked.items())))
    return _CONTENT.dump_json(content, by_alias=True, exclude_none=True) + b"\n"


def decode(text: bytes) -> Memory:
    """Raises ValueError when it is not what `encode` writes."""
    content = _CONTENT.validate_json(text)
    tracked = {key_of(gpu, known.condition): known for gpu, known in content.conditions}
    return Memory(Conditions(tracked), tuple(content.gpus), content.checked)
