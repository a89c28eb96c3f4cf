"""Where tests put their files: into memory where there is room, for they are some hundred thousand small ones.

On a disk, making and removing them takes several times the processor time, and every flush is a wait.
"""

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 * 1024**3


def fits(place: Path = _MEMORY) -> bool:
    """Whether everything can be there: enough room, and programs may be started from it, which containers forbid."""
    if not place.is_dir() or not os.access(place, os.W_OK):
        return False
    volume = os.statvfs(place)
    return volume.f_bavail * volume.f_frsize >= _ROOM_BYTES and not volume.f_flag & os.ST_NOEXEC


SHORT = str(_MEMORY) if fits() else "/tmp"
"""A folder whose path leaves the path of a socket below it within the 107 bytes that it may have."""
