"""Files that are whole or absent, also after a power cut.

A file is written beside its final place, flushed to the disk, moved over the old one, and the move is flushed with its
folder. A reader, or a machine that comes back, finds the old bytes or the new ones, never a part of either. Errors of
the operating system become `NodeNotReady` here, with the file and what an administrator has to do.

All functions block for about as long as the disk needs to flush; services call them in a thread.
"""

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import NodeNotReady

_TEMPORARY_SUFFIX = ".tmp"
_ADVICE = {
    errno.ENOSPC: "the disk is full; free space on the node",
    errno.EDQUOT: "the disk quota is used up; free space on the node",
    errno.EROFS: "the file system is read-only; mount it writable",
    errno.EACCES: "permission denied; let the plugin write there",
    errno.EPERM: "not permitted; let the plugin write there",
    errno.ENOENT: "the folder does not exist; create it or mount it into the plugin",
    errno.ENOTDIR: "a part of the path is not a folder; remove what is in its place",
}


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Content that is on the disk under a temporary name, waiting to take its place or to be dropped."""

    path: Path
    temporary: Path

    def publish(self) -> None:
        """Take the final place, at once and whole. Durable only after `flush_folder`. Raises NodeNotReady."""
        try:
            self.temporary.replace(self.path)
        except OSError as error:
            self.discard()
            raise storage_error(error, "write", self.path) from error

    def discard(self) -> None:
        """Drop the content. Dropping it twice, or after it was published, does nothing."""
        with contextlib.suppress(OSError):
            self.temporary.unlink()


def stage(path: Path, content: bytes, *, mode: int = 0o644) -> StagedFile:
    """Put `content` on the disk beside `path`, under a hidden name that ends in `.tmp`. Raises NodeNotReady."""
    staged = StagedFile(path, path.with_name(f".{path.name}{_TEMPORARY_SUFFIX}"))
    try:
        _write_new(staged.temporary, content, mode)
    except OSError as error:
        staged.discard()
        raise storage_error(error, "write", path) from error
    return staged


def flush_folder(folder: Path) -> None:
    """Make the creations, moves and removals in `folder` durable. Raises NodeNotReady."""
    try:
        _fsync_folder(folder)
    except OSError as error:
        raise storage_error(error, "flush", folder) from error


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace `path`. When this returns, `content` is there even after a power cut. Raises NodeNotReady."""
    stage(path, content, mode=mode).publish()
    flush_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Remove `path`; a file that is not there is removed already. Raises NodeNotReady."""
    try:
        path.unlink()
        _fsync_folder(path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "remove", path) from error


def is_temporary(path: Path) -> bool:
    """Whether `path` is what `stage` leaves behind when the process is killed before the file took its place."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY_SUFFIX)


def storage_error(error: OSError, action: str, path: Path) -> NodeNotReady:
    """`error` in words for an administrator. `action` is a verb: `write`, `remove`, `read`."""
    reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return NodeNotReady(f"cannot {action} it: {reason}", about=f"file {path}")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
