"""What a scan of the file system looked at, and whether it still looks the same.

`kubelet_plugin.hardware.driver_root` keeps a result together with the `Seen` of the scan that gave it. Checking costs
one stat call for each path: names of files come and go with their folder's time stamp, a remounted or replaced folder
is another inode, and a folder that did not exist is watched through the nearest one that did.
"""

import os
import time
from pathlib import PurePosixPath

from kubelet_plugin.hardware.sysfs import HostFiles

_STILL_MOVING_NS = 50_000_000
"""Time stamps move in ticks of up to 10 ms: a folder that changed just now may change again with the same stamp."""

type _State = tuple[int, int, int, int] | None


class Seen:
    """Grows while a scan runs, on one thread; afterwards it is only compared."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._moving = False

    def look(self, files: HostFiles, path: str | PurePosixPath) -> PurePosixPath | None:
        """Where `path` leads, links followed inside the root of `files`; None when nothing is there. Remembered."""
        resolved = files.resolve(path)
        existing, place = resolved, PurePosixPath(path)
        while existing is None and place != place.parent:
            place = place.parent
            existing = files.resolve(place)
        for one in {place, existing or place}:
            here = str(files.path(one))
            if here not in self._states:
                self._states[here] = state = _state(here)
                self._moving |= state is not None and time.time_ns() - state[2] < _STILL_MOVING_NS
        return resolved

    def unchanged(self) -> bool:
        return all(_state(path) == state for path, state in self._states.items())

    def settled(self) -> bool:
        """Whether a change from now on would be noticed: nothing had changed just before it was looked at."""
        return not self._moving


def _state(path: str) -> _State:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
