"""Durable files: a reader sees the old or the new content, and after a power failure one of the two exists. All durable
state of the node plugin is written here. Content goes to a temporary file in the same folder, is flushed to the disk,
renamed over the old file, and then the folder is flushed, because it contains the name. CDI files are written here
without flushes. Every OSError becomes a `NodeNotReady` that names the file and the fix; no partial change remains. All
calls block: services call them in a thread.
"""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from dra_driver.errors import NodeNotReady

type AnyPath = Path | str
"""Text where speed matters: to build a Path takes longer than the system call."""

TEMPORARY_SUFFIX = ".tmp"
"""Container runtimes and the driver's own listings ignore such names. Source: CDI, only `.json` and `.yaml` are
read."""

_ADVICE = {
    errno.ENOSPC: "the file system is full: free some space on the node",
    errno.EDQUOT: "the disk quota is used up: free some space on the node, or raise the quota",
    errno.EROFS: "the file system is read-only: mount it writable (the kernel log says why it is read-only)",
    errno.ENOENT: "the folder does not exist: create it on the node, or mount it into the plugin's pod",
    errno.ENOTDIR: "a part of the path is not a folder: remove what is in its place",
    errno.EISDIR: "a folder has that name: remove it",
    errno.EACCES: "permission denied: run the plugin as root, with the folder mounted writable",
    errno.EPERM: "not permitted: run the plugin as root, with the folder mounted writable",
    errno.EIO: "the disk failed: check the kernel log and replace the disk",
}


class StagedFile:
    """Content for `path` that is on disk under a temporary name; publish or discard it. Until then the temporary file
    is locked, so that it does not count as abandoned.
    """

    def __init__(self, path: AnyPath, temporary: str, fd: int) -> None:
        self.path = path
        self._temporary = temporary
        self._fd: int | None = fd

    def publish(self) -> None:
        """Moves the content into place atomically. A power failure may take it back. Raises NodeNotReady."""
        with _Translated(self.path, "cannot be written"):
            try:
                os.replace(self._temporary, self.path)
            except OSError:
                self.discard()
                raise
            self._close()

    def discard(self) -> None:
        """Drops the content; has no effect after `publish`."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def stage(path: AnyPath, content: bytes, *, mode: int = 0o644, flushed: bool = True) -> StagedFile:
    """Writes exactly `content` with `mode` (regardless of the umask) to disk beside `path`. Raises NodeNotReady. If not
    `flushed`, any content may be there after a power failure: for files that every boot writes again.
    """
    with _Translated(path, "cannot be written"):
        temporary, fd = _locked_temporary(path)
        staged = StagedFile(path, temporary, fd)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fchmod(fd, mode)
            if flushed:
                os.fsync(fd)
        except BaseException:
            staged.discard()
            raise
        return staged


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Makes `path` a file of exactly `content` and `mode` (regardless of the umask), or leaves it unchanged. Costs two
    flushes, about a millisecond on a disk. Raises NodeNotReady; also if only the last flush failed: then the new
    content is visible but may be lost in a power failure, so callers should write it again.
    """
    stage(path, content, mode=mode).publish()
    with _Translated(path.parent, "cannot be flushed"):
        _flush_folder(path.parent)


def append_durably(path: Path, content: bytes, *, mode: int = 0o644, create: bool = True) -> None:
    """Appends `content` to the file on a new line, with one flush; if the file is missing, creates it with `mode`, or
    raises. Raises NodeNotReady; then the file is as before, unless the disk refuses that, too."""
    with _Translated(path, "cannot be written"):
        fd = os.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0) | os.O_CLOEXEC, mode)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            rest = memoryview(b"\n" * torn + content)
            try:
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if not size:
            _flush_folder(path.parent)


def remove(path: AnyPath) -> bool:
    """Removes the file `path`; False if it does not exist. A power failure may restore it. Raises NodeNotReady."""
    with _Translated(path, "cannot be removed"):
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def read_if_present(path: AnyPath) -> bytes | None:
    """The content of `path`; None if the file does not exist. Raises NodeNotReady if it cannot be read."""
    with _Translated(path, "cannot be read"):
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None


def is_there(path: Path) -> bool:
    """Raises NodeNotReady if the folder cannot be read, where `Path.exists` would raise or return False."""
    with _Translated(path, "cannot be read"):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def names(folder: AnyPath) -> tuple[str, ...]:
    """The names in `folder`, sorted; a missing folder is empty. Raises NodeNotReady, where `glob` would ignore the
    error."""
    with _Translated(folder, "cannot be listed"):
        try:
            return tuple(sorted(os.listdir(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return ()


def make_folder(folder: AnyPath) -> None:
    """Creates the folder with its parents if it is missing. Raises NodeNotReady."""
    with _Translated(folder, "cannot be created"):
        if not os.path.isdir(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)


def remove_temporaries(folder: Path, prefix: str) -> tuple[Path, ...]:
    """Removes temporary `<prefix>…` files in `folder` whose writers were killed; returns them. Keeps files that another
    plugin process is writing during a rolling update: their writer holds a lock, which the kernel releases with the
    process. Raises NodeNotReady.
    """
    removed = []
    with _Translated(folder, "cannot be cleaned up"):
        for temporary in sorted(folder.glob(f".{prefix}*{TEMPORARY_SUFFIX}")):
            if _remove_if_abandoned(temporary):
                removed.append(temporary)
    return tuple(removed)


def _locked_temporary(path: AnyPath) -> tuple[str, int]:
    folder, slash, name = str(path).rpartition("/")
    while True:
        temporary = f"{folder}{slash}.{name}.{os.urandom(6).hex()}{TEMPORARY_SUFFIX}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        except OSError:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if os.fstat(fd).st_nlink:
            return temporary, fd
        # Another process has removed it as abandoned between open and lock.
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


class _Translated:
    """Of an OSError in the block, a NodeNotReady that says what to do. A generator would cost more than the block."""

    __slots__ = ("_failure", "_path")

    def __init__(self, path: AnyPath, failure: str) -> None:
        self._path = path
        self._failure = failure

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
            raise NodeNotReady(f"{self._failure}: {reason}", about=f"file {self._path}") from error
