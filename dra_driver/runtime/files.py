"""Files that survive: a reader sees the old content or the new one, and after a power cut one of the two is there.

The journal and the CDI files of the node plugin are written here, and nothing else writes durable state. Content goes
to a temporary file in the same folder, is flushed to the disk, renamed over the old file, and then the folder is
flushed, because the name lives there. Every OSError becomes a `NodeNotReady` that names the file and says whose move it
is; nothing is half done when it is raised. All calls block: services call them in a thread.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_driver.errors import NodeNotReady

TEMPORARY_SUFFIX = ".tmp"
"""Container runtimes and our own listings pass over such names. Source: CDI, `.json` and `.yaml` are read, only."""

_ADVICE = {
    errno.ENOSPC: "the file system is full: free some space on the node",
    errno.EDQUOT: "the disk quota is used up: free some space on the node, or raise the quota",
    errno.EROFS: "the file system is read-only: mount it writable (and see the kernel log for why it is not)",
    errno.ENOENT: "the folder does not exist: create it on the node, or mount it into the plugin's pod",
    errno.ENOTDIR: "a part of the path is not a folder: remove what is in its place",
    errno.EISDIR: "there is a folder of that name: remove it",
    errno.EACCES: "permission denied: the plugin has to run as root, with the folder mounted writable",
    errno.EPERM: "not permitted: the plugin has to run as root, with the folder mounted writable",
    errno.EIO: "the disk failed: see the kernel log, and replace it",
}


class StagedFile:
    """Content that is on the disk under a temporary name, for `path`; publish it or discard it.

    The lock on the temporary file is held until then, so that nobody takes it for abandoned.
    """

    def __init__(self, path: Path, temporary: Path, fd: int) -> None:
        self.path = path
        self._temporary = temporary
        self._fd: int | None = fd

    def publish(self) -> None:
        """Take the final place, at once and whole; durable after `flush_folder`. Raises NodeNotReady."""
        with _translated(self.path, "cannot be written"):
            try:
                self._temporary.replace(self.path)
            except OSError:
                self.discard()
                raise
            self._close()

    def discard(self) -> None:
        """Drop the content; nothing to do after `publish`."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def stage(path: Path, content: bytes, *, mode: int = 0o644) -> StagedFile:
    """Put exactly `content` with `mode` (whatever the umask) on the disk beside `path`. Raises NodeNotReady."""
    with _translated(path, "cannot be written"):
        temporary, fd = _locked_temporary(path)
        staged = StagedFile(path, temporary, fd)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        except BaseException:
            staged.discard()
            raise
        return staged


def flush_folder(folder: Path) -> None:
    """Make the names in `folder` durable: what was published, what was removed. Raises NodeNotReady."""
    with _translated(folder, "cannot be flushed"):
        _flush_folder(folder)


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Make `path` a file of exactly `content` and `mode` (whatever the umask), or leave it as it was.

    Costs two flushes, about a millisecond on a disk. Raises NodeNotReady; also when only the last flush failed, after
    which the new content is visible but may be lost in a power cut, so that writing it again is right.
    """
    stage(path, content, mode=mode).publish()
    flush_folder(path.parent)


def append_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Add `content` to the file, which is made with `mode` if it is not there, on a line of its own. Raises
    NodeNotReady; then a part of the content may be there, without an end of line after it."""
    with _translated(path, "cannot be written"):
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            rest = memoryview(b"\n" * torn + content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        if not size:
            _flush_folder(path.parent)


def remove(path: Path) -> bool:
    """Remove the file `path`; False when there was none. A power cut may bring it back. Raises NodeNotReady."""
    with _translated(path, "cannot be removed"):
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def read_if_present(path: Path) -> bytes | None:
    """The content of `path`; None when there is no such file. Raises NodeNotReady when it cannot be read."""
    with _translated(path, "cannot be read"):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def is_there(path: Path) -> bool:
    """Raises NodeNotReady when the folder may not be read, which is no answer: `exists` raises, or says no."""
    with _translated(path, "cannot be read"):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def listed(folder: Path) -> tuple[Path, ...]:
    """What is in `folder`, sorted; a missing folder is empty. Raises NodeNotReady: `glob` would pass over the error."""
    with _translated(folder, "cannot be listed"):
        try:
            return tuple(sorted(folder.iterdir()))
        except FileNotFoundError:
            return ()


def make_folder(folder: Path) -> None:
    """With its parents, unless it is there. Raises NodeNotReady."""
    with _translated(folder, "cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)


def rename(path: Path, to: Path) -> None:
    """Put a file in the place of another. Raises NodeNotReady."""
    with _translated(path, f"cannot be renamed to {to.name}"):
        path.replace(to)


def remove_temporaries(folder: Path, prefix: str) -> tuple[Path, ...]:
    """Remove what writers of `<prefix>…` files in `folder` left when they were killed; returns what was removed.

    A file that is being written now, by another instance of the plugin during a rolling update, is left alone: its
    writer holds a lock on it, which the kernel releases with the process. A missing folder has none. Raises
    NodeNotReady.
    """
    removed = []
    with _translated(folder, "cannot be cleaned up"):
        for temporary in sorted(folder.glob(f".{prefix}*{TEMPORARY_SUFFIX}")):
            if _remove_if_abandoned(temporary):
                removed.append(temporary)
    return tuple(removed)


def _locked_temporary(path: Path) -> tuple[Path, int]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        except OSError:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            raise
        if os.fstat(fd).st_nlink:
            return temporary, fd
        # Taken for abandoned and removed between our opening and our locking it.
        os.close(fd)


def _remove_if_abandoned(temporary: Path) -> bool:
    try:
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()
        return True
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(fd)


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _translated(path: Path, failure: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
        raise NodeNotReady(f"{failure}: {reason}", about=f"file {path}") from error
