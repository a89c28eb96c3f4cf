import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.errors import NodeNotReady
from dra_driver.runtime import files
from dra_driver.runtime.files import (
    append_durably,
    is_there,
    read_if_present,
    remove,
    remove_temporaries,
    stage,
    write_durably,
)
from kubelet_plugin.hardware.hook_program import InstalledHook
from kubelet_plugin.prepare.store import JournalFile


def failing(code: int) -> Callable[..., int]:
    def call(*_arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def test_what_may_not_be_seen_is_neither_there_nor_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert [is_there(tmp_path / name) for name in ("file", "none", "file/below")] == [True, False, False]
    journal, hook = JournalFile(tmp_path), InstalledHook(tmp_path)
    for ask in (lambda: is_there(tmp_path / "file"), lambda: journal.exists, hook.install):
        with monkeypatch.context() as closed, pytest.raises(NodeNotReady, match="cannot be read: permission denied"):
            closed.setattr(Path, "stat", failing(errno.EACCES))
            ask()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", [b"", b"a", b"x" * 3_000_000])
def test_a_written_file_has_exactly_the_content_and_nothing_else_is_left(tmp_path: Path, content: bytes) -> None:
    write_durably(tmp_path / "a.json", b"what was there before, and longer than one byte")
    write_durably(tmp_path / "a.json", content)
    assert (tmp_path / "a.json").read_bytes() == content
    assert names(tmp_path) == ["a.json"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_durably(tmp_path / "a", b"")
        write_durably(tmp_path / "b", b"", mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


def test_content_is_flushed_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in this order does a power cut leave the old file or the new one."""
    log: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        log.append(f"flush {'folder' if Path(f'/proc/self/fd/{fd}').is_dir() else 'content'}")
        real_fsync(fd)

    def replace(source: str, target: Path) -> None:
        log.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_durably(tmp_path / "a", b"x")
    assert log == ["flush content", "rename", "flush folder"]


def test_what_cannot_be_added_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_durably(tmp_path / "a", b"first\n")
    for call in ("write", "fsync"):
        with monkeypatch.context() as broken:
            broken.setattr(os, call, failing(errno.ENOSPC))
            with pytest.raises(NodeNotReady, match="full"):
                append_durably(tmp_path / "a", b"second\n")
        assert (tmp_path / "a").read_bytes() == b"first\n"
    append_durably(tmp_path / "a", b"third\n")
    assert (tmp_path / "a").read_bytes() == b"first\nthird\n"


def test_nothing_is_added_to_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(NodeNotReady):
        append_durably(tmp_path / "a", b"line\n", create=False)
    assert not (tmp_path / "a").exists()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data[:3])))
    write_durably(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


@pytest.mark.parametrize("call", ["write", "fsync", "fchmod"])
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "the file system is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "the disk failed"),
        (errno.ENOTSUP, "not supported"),
    ],
)
def test_a_failed_write_leaves_the_old_file_alone_and_says_whose_move_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, advice: str
) -> None:
    write_durably(tmp_path / "a", b"old")
    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing(code))
        with pytest.raises(NodeNotReady, match="cannot be written") as caught:
            write_durably(tmp_path / "a", b"new")
    assert advice in caught.value.message.lower()
    assert caught.value.about == f"file {tmp_path / 'a'}"
    assert caught.value.retry_after_s is not None
    assert isinstance(caught.value.__cause__, OSError)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_durably(tmp_path / "a", b"new")
    assert names(tmp_path) == []


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NodeNotReady, match="the folder does not exist: create it"):
        write_durably(tmp_path / "folder" / "a", b"")
    assert names(tmp_path) == []


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(NodeNotReady, match="a folder has that name"):
        write_durably(tmp_path / "a", b"")
    assert names(tmp_path) == ["a"]


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(NodeNotReady, match="not a folder"):
        write_durably(tmp_path / "a" / "b", b"")


def test_an_error_of_the_last_flush_is_told_although_the_content_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(files, "_flush_folder", failing(errno.EIO))
        with pytest.raises(NodeNotReady, match="cannot be flushed: the disk failed"):
            write_durably(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_staged_content_is_not_seen_until_it_is_published(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", b"old")
    staged = stage(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    staged.publish()
    assert (tmp_path / "a").read_bytes() == b"new"
    staged.discard()
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_discarded_content_leaves_nothing(tmp_path: Path) -> None:
    staged = stage(tmp_path / "a", b"new")
    staged.discard()
    staged.discard()
    assert names(tmp_path) == []


def test_no_file_descriptor_is_left_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        write_durably(tmp_path / "a", b"x")
        stage(tmp_path / "a", b"y").discard()
        remove_temporaries(tmp_path, "")
    assert descriptors() == before


def test_removing_says_whether_there_was_a_file(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", b"x")
    assert remove(tmp_path / "a") is True
    assert remove(tmp_path / "a") is False
    assert remove(tmp_path / "no folder" / "a") is False
    (tmp_path / "file").touch()
    assert remove(tmp_path / "file" / "a") is False


def test_a_file_that_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
    with pytest.raises(NodeNotReady, match="cannot be removed: the file system is read-only"):
        remove(tmp_path / "a")


def test_reading_tells_a_missing_file_from_an_unreadable_one(tmp_path: Path) -> None:
    write_durably(tmp_path / "a", b"x")
    (tmp_path / "b").mkdir()
    assert read_if_present(tmp_path / "a") == b"x"
    assert read_if_present(tmp_path / "c") is None
    assert read_if_present(tmp_path / "no folder" / "c") is None
    with pytest.raises(NodeNotReady, match="cannot be read"):
        read_if_present(tmp_path / "b")


_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from dra_driver.runtime.files import stage
stage(Path(sys.argv[1]), b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_found_and_removed(tmp_path: Path) -> None:
    write_durably(tmp_path / "mine-1.json", b"kept")
    write_durably(tmp_path / "theirs-1.json", b"kept")
    for name in ("mine-1.json", "mine-2.json", "theirs-1.json"):
        subprocess.run([sys.executable, "-c", _KILLED_WRITER, tmp_path / name], check=False)
    assert len(names(tmp_path)) == 5
    removed = remove_temporaries(tmp_path, "mine-")
    assert [path.name.rpartition(".json")[0] for path in removed] == [".mine-1", ".mine-2"]
    remaining = names(tmp_path)
    assert len(remaining) == 3
    assert remaining[0].startswith(".theirs-1.json.")
    assert remaining[1:] == ["mine-1.json", "theirs-1.json"]


def test_a_file_that_is_being_written_now_is_not_taken_for_abandoned(tmp_path: Path) -> None:
    """Two instances of the plugin share the folder during a rolling update."""
    staged = stage(tmp_path / "a", b"new")
    assert remove_temporaries(tmp_path, "") == ()
    staged.publish()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_writer_whose_new_file_was_taken_for_abandoned_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the file and locking it, another instance may lock and remove it."""
    real_flock = files.fcntl.flock
    taken: list[Path] = []

    def flock(fd: int, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        real_flock(fd, operation)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    write_durably(tmp_path / "a", b"x")
    assert taken
    assert names(tmp_path) == ["a"]


def test_temporaries_of_a_missing_folder_are_none(tmp_path: Path) -> None:
    assert remove_temporaries(tmp_path / "no folder", "") == ()


_ON_A_REAL_FILE_SYSTEM = """
import subprocess, sys
from pathlib import Path
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import write_durably
folder, options = Path(sys.argv[1]), sys.argv[2]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
write_durably(folder / "a", b"old")
if options:
    subprocess.run(["mount", "-o", options, folder], check=True)
try:
    write_durably(folder / "a", b"x" * 1_000_000)
except NodeNotReady as error:
    print(error.message)
print((folder / "a").read_bytes().decode(), sorted(path.name for path in folder.iterdir()))
"""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "cannot be written: the file system is full: free some space on the node"),
        ("remount,ro", "cannot be written: the file system is read-only: mount it writable"),
    ],
)
def test_a_real_file_system_that_refuses_keeps_the_old_file(tmp_path: Path, options: str, says: str) -> None:
    """Where the test may mount one; in a mount namespace of its own, which ends with the process."""
    command = ["unshare", "--mount", sys.executable, "-c", _ON_A_REAL_FILE_SYSTEM, str(tmp_path), options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("needs the right to mount")
    assert done.stdout.startswith(says), done.stderr
    assert done.stdout.endswith("old ['a']\n")
