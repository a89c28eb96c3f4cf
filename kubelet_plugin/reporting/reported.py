"""What this node has reported about claims: one file, with a section for each reporter of each driver.

After a crash, the next plugin reads here what was reported to which pods, and which claims have a `status.devices` that
it may need to remove. The file may be incomplete: unreadable parts are dropped, and of two plugins during an update the
last to write a section wins. Calls block, and none raises.
"""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import read_if_present, write_durably

_log = structlog.get_logger(__name__)

REPORTED = "reported.json"

_NO_SENSE = (NodeNotReady, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class Reported:
    """The file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REPORTED
        self._lock = threading.Lock()

    def read(self, name: str) -> Mapping[str, Any]:
        sections = self._sections()
        section = sections.get(name, {})
        return section if isinstance(section, dict) else {}

    def write(self, name: str, content: Mapping[str, Any]) -> bool:
        """Whether it is on the disk."""
        with self._lock:
            sections = {**self._sections(), name: content}
            try:
                write_durably(self._path, json.dumps(sections, sort_keys=True).encode() + b"\n", mode=0o600)
            except NodeNotReady as error:
                _log.warning("the record of reports cannot be written", error=str(error))
                return False
        return True

    def _sections(self) -> dict[str, Any]:
        try:
            content = read_if_present(self._path)
            return {} if content is None else dict(json.loads(content))
        except _NO_SENSE as error:
            self.drop(error)
            return {}

    def drop(self, error: BaseException) -> None:
        _log.warning(
            "the record of reports cannot be read; starting with an empty one", file=str(self._path), error=repr(error)
        )


class Section[T]:
    """What one reporter has reported, by claim UID. `parse` makes a value of a claim's UID and its JSON, or raises;
    `plain` makes the JSON again."""

    def __init__(self, file: Reported, name: str, parse: Callable[[str, Any], T], plain: Callable[[T], Any]) -> None:
        self._file = file
        self._name = name
        self._parse = parse
        self._plain = plain

    def read(self) -> dict[str, T]:
        try:
            return {uid: self._parse(uid, item) for uid, item in self._file.read(self._name).items()}
        except _NO_SENSE as error:
            self._file.drop(error)
            return {}

    def write(self, values: Mapping[str, T]) -> bool:
        """Whether it is on the disk."""
        return self._file.write(self._name, {uid: self._plain(values[uid]) for uid in values})
