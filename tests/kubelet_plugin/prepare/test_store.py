"""The journal on disk: kubelet_plugin/prepare/store.py."""

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.claims import a_held_device, a_ref, an_entry

from dra_driver.errors import DeviceInUse, NodeNotReady
from dra_driver.runtime import files
from kubelet_plugin.prepare import store as store_module
from kubelet_plugin.prepare.journal import Journal, Unreadable, encode, encode_change
from kubelet_plugin.prepare.lifecycle import Entry, admitted, without_claim
from kubelet_plugin.prepare.store import DAMAGED, JOURNAL, LOCK, Change, JournalFile, JournalStore


def entering(entry: Entry) -> Change:
    return lambda journal: replace(journal, held=admitted(journal.held, entry))


def leaving(uid: str) -> Change:
    return lambda journal: replace(journal, held=without_claim(journal.held, uid))


def claims(count: int) -> list[Entry]:
    return [an_entry(a_ref(f"claim-{index}"), a_held_device(index)) for index in range(count)]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were written or added to durably, in order."""
    written: list[Path] = []

    def noted(write: Callable[..., None]) -> Callable[..., None]:
        def writing(path: Path, content: bytes, **options: Any) -> None:
            written.append(path)
            write(path, content, **options)

        return writing

    for name in ("write_durably", "append_durably"):
        monkeypatch.setattr(store_module, name, noted(getattr(files, name)))
    return written


async def test_a_committed_change_is_there_after_a_restart(tmp_path: Path) -> None:
    first = JournalStore(tmp_path / "state")
    await first.commit(entering(an_entry()))
    await first.close()

    assert JournalStore(tmp_path / "state").current.held == {"uid-of-train": an_entry()}


async def test_a_change_after_the_end_is_an_error_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    await store.close()
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError):
            await store.commit(entering(an_entry()))


async def test_a_new_node_has_an_empty_journal(tmp_path: Path) -> None:
    store = JournalStore(tmp_path / "state")

    assert not store.exists
    assert store.current == Journal({})


async def test_changes_that_come_together_are_written_together(tmp_path: Path, writes: list[Path]) -> None:
    store = JournalStore(tmp_path)

    await asyncio.gather(*(store.commit(entering(entry)) for entry in claims(8)))

    assert len(store.current.held) == 8
    assert len(writes) == 1


async def test_changes_that_come_during_a_write_share_the_next_one(tmp_path: Path, writes: list[Path]) -> None:
    store = JournalStore(tmp_path)
    begun, may_go_on = threading.Event(), threading.Event()
    first, *others = claims(8)

    def slow(journal: Journal) -> Journal:
        begun.set()
        may_go_on.wait(10)
        return entering(first)(journal)

    slow_commit = asyncio.ensure_future(store.commit(slow))
    await asyncio.to_thread(begun.wait, 10)
    rest = asyncio.gather(*(store.commit(entering(entry)) for entry in others))
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(slow_commit, rest)

    assert len(store.current.held) == 8
    assert len(writes) == 2


async def test_a_refused_change_is_told_so_and_the_others_of_its_write_count(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    entry, other = an_entry(a_ref("one")), an_entry(a_ref("two"), a_held_device(1))

    outcomes = await asyncio.gather(
        store.commit(entering(entry)),
        store.commit(entering(an_entry(a_ref("thief")))),
        store.commit(entering(other)),
        return_exceptions=True,
    )

    assert isinstance(outcomes[1], DeviceInUse)
    assert store.current.held == {"uid-of-one": entry, "uid-of-two": other}


class Work:
    """Around a change: what was done, in order; fails where it is told to."""

    def __init__(self, folder: Path, fails: str = "") -> None:
        self._folder = folder
        self._fails = fails
        self.done: list[str] = []

    def __enter__(self) -> None:
        self._step("begin")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._step("end" if error is None else f"end after: {error}")

    def _step(self, name: str) -> None:
        self.done.append(f"{name}, {len(JournalStore(self._folder).current.held)} claims in the file")
        if name == self._fails:
            raise NodeNotReady(f"{name} failed", about="file x")


async def test_work_that_fails_before_a_change_stops_that_change_and_no_other(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    first, second, third = claims(3)
    good, bad = Work(tmp_path), Work(tmp_path, fails="begin")

    outcomes = await asyncio.gather(
        store.commit(entering(first), around=good),
        store.commit(entering(second), around=bad),
        store.commit(entering(third)),
        return_exceptions=True,
    )

    assert good.done == ["begin, 0 claims in the file", "end, 2 claims in the file"]
    assert bad.done == ["begin, 0 claims in the file"]
    assert str(outcomes[1]) == "file x: begin failed"
    assert list(store.current.held) == [first.claim.uid, third.claim.uid]
    with pytest.raises(NodeNotReady):
        await store.commit(entering(second), around=bad)


async def test_work_that_fails_after_a_change_does_not_take_it_back(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)

    with pytest.raises(NodeNotReady, match="end failed"):
        await store.commit(entering(an_entry()), around=Work(tmp_path, fails="end"))

    assert store.current.held == {"uid-of-train": an_entry()}


async def test_work_hears_that_its_change_was_refused_or_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"), a_held_device(0))))
    refused, unwritten = Work(tmp_path), Work(tmp_path)

    with pytest.raises(DeviceInUse) as refusal:
        await store.commit(entering(an_entry(a_ref("two"), a_held_device(0))), around=refused)

    def full(*_: object, **__: object) -> None:
        raise NodeNotReady("the disk is full")

    monkeypatch.setattr(store_module, "append_durably", full)
    with pytest.raises(NodeNotReady):
        await store.commit(entering(an_entry(a_ref("three"), a_held_device(1))), around=unwritten)

    assert refused.done[1:] == [f"end after: {refusal.value}, 1 claims in the file"]
    assert unwritten.done[1:] == ["end after: the disk is full, 1 claims in the file"]


async def test_a_change_that_changes_nothing_writes_nothing(tmp_path: Path, writes: list[Path]) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry()))

    await store.commit(entering(an_entry()))
    await store.commit(leaving("nobody"))

    assert len(writes) == 1


async def test_two_instances_see_each_others_changes_and_decide_on_them(tmp_path: Path) -> None:
    old, new = JournalStore(tmp_path), JournalStore(tmp_path)
    assert new.current == Journal({})

    await old.commit(entering(an_entry(a_ref("one"))))

    assert list(new.current.held) == ["uid-of-one"]
    with pytest.raises(DeviceInUse):
        await new.commit(entering(an_entry(a_ref("two"))))
    await new.commit(leaving("uid-of-one"))
    assert old.current.held == {}


async def test_many_instances_at_once_lose_no_change(tmp_path: Path) -> None:
    stores = [JournalStore(tmp_path) for _ in range(4)]

    await asyncio.gather(*(stores[index % 4].commit(entering(entry)) for index, entry in enumerate(claims(32))))

    assert len(stores[0].current.held) == 32


async def test_an_instance_that_hangs_with_the_lock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_LOCK_TIMEOUT_S", 0.0)
    descriptor = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(NodeNotReady, match="another instance"):
        await JournalStore(tmp_path).commit(entering(an_entry()))

    os.close(descriptor)
    await JournalStore(tmp_path).commit(entering(an_entry()))


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
async def test_a_full_disk_refuses_the_change_and_the_next_try_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))
    entry = an_entry(a_ref("two"), a_held_device(1))
    if call == "replace":
        monkeypatch.setattr(store_module, "_LINES_TO_SPARE", -2)

    with monkeypatch.context() as full:
        full.setattr(os, call, refusing(errno.ENOSPC))
        with pytest.raises(NodeNotReady, match=r"claims\.journal.*full"):
            await store.commit(entering(entry))
        assert list(store.current.held) == ["uid-of-one"]

    await store.commit(entering(entry))
    assert len(store.current.held) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL, LOCK]


def half(size: int) -> Callable[[int, bytes], int]:
    """A disk that is full after so many bytes of a write."""
    write, left = os.write, size

    def writes(descriptor: int, content: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, content[:left])
        left -= written
        return written

    return writes


@pytest.mark.parametrize("size", [1, 100, 300])
@pytest.mark.parametrize("can_be_cut", [True, False])
async def test_a_change_that_is_written_in_part_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, can_be_cut: bool
) -> None:
    store, other = JournalStore(tmp_path), JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))
    before = (tmp_path / JOURNAL).read_bytes()
    with monkeypatch.context() as full:
        full.setattr(os, "write", half(size))
        if not can_be_cut:
            full.setattr(os, "ftruncate", refusing(errno.EROFS))
        with pytest.raises(NodeNotReady, match="full"):
            await store.commit(entering(an_entry(a_ref("two"), a_held_device(1))))
    left = (tmp_path / JOURNAL).read_bytes().removeprefix(before)

    assert len(left) == (0 if can_be_cut else size)
    for each in (store, other):
        # Whether it was acknowledged, and the file lost its end since, nobody can know.
        assert (list(each.current.held), each.current.incomplete) == (["uid-of-one"], not can_be_cut)
    assert list(tmp_path.glob("*.damaged")) == []
    await other.commit(entering(an_entry(a_ref("three"), a_held_device(2))))
    assert list(store.current.held) == ["uid-of-one", "uid-of-three"]
    assert store.current.incomplete is not can_be_cut


async def test_half_of_a_change_that_another_instance_is_writing_is_no_damage(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))
    journal = tmp_path / JOURNAL
    change = encode_change(store.current, Journal({}))
    descriptor = os.open(tmp_path / LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    journal.write_bytes(journal.read_bytes() + change[:-10])
    assert (list(store.current.held), store.current.incomplete) == (["uid-of-one"], False)
    journal.write_bytes(journal.read_bytes() + change[-10:])
    os.close(descriptor)
    assert (list(store.current.held), store.current.incomplete) == ([], False)


async def test_after_a_failed_flush_the_file_is_written_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))
    inode = (tmp_path / JOURNAL).stat().st_ino
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refusing(errno.EIO))
        with pytest.raises(NodeNotReady):
            await store.commit(entering(an_entry(a_ref("two"), a_held_device(1))))

    await store.commit(entering(an_entry(a_ref("two"), a_held_device(1))))
    assert (tmp_path / JOURNAL).stat().st_ino != inode
    inode = (tmp_path / JOURNAL).stat().st_ino
    await store.commit(leaving("uid-of-one"))
    assert (tmp_path / JOURNAL).stat().st_ino == inode
    assert list(JournalStore(tmp_path).current.held) == ["uid-of-two"]


async def test_the_file_stays_short_and_a_start_reads_it(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    staying, moving = claims(2)
    await store.commit(entering(staying))
    lines = []
    for _ in range(120):
        await store.commit(entering(moving))
        await store.commit(leaving(moving.claim.uid))
        lines.append((tmp_path / JOURNAL).read_bytes().count(b"\n"))

    assert max(lines) > min(lines[1:]) + 100  # changes were added, not the whole file written
    assert max(lines) < 210
    assert JournalStore(tmp_path).current == store.current == Journal({staying.claim.uid: staying})


async def test_a_journal_that_is_removed_just_before_a_change_is_added_does_not_shrink_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))

    def removed(journal: Journal) -> Journal:
        (tmp_path / JOURNAL).unlink()
        return entering(an_entry(a_ref("two"), a_held_device(1)))(journal)

    with pytest.raises(NodeNotReady):
        await store.commit(removed)
    await store.commit(entering(an_entry(a_ref("three"), a_held_device(2))))
    current = JournalStore(tmp_path).current
    assert (list(current.held), current.incomplete) == (["uid-of-one", "uid-of-three"], True)


async def test_when_only_the_last_flush_fails_memory_is_as_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JournalStore(tmp_path)

    with monkeypatch.context() as broken:
        broken.setattr(files, "_flush_folder", refusing(errno.EIO))
        with pytest.raises(NodeNotReady):
            await store.commit(entering(an_entry()))

    assert store.current == JournalStore(tmp_path).current
    assert "uid-of-train" in store.current.held
    inode = (tmp_path / JOURNAL).stat().st_ino
    await store.commit(leaving("uid-of-train"))  # not added to a file whose name may be gone after a power failure
    assert (tmp_path / JOURNAL).stat().st_ino != inode


async def test_a_damaged_line_goes_to_the_side_file_and_the_rest_goes_on(tmp_path: Path) -> None:
    await JournalStore(tmp_path).commit(entering(an_entry(a_ref("one"))))
    await JournalStore(tmp_path).commit(entering(an_entry(a_ref("two"), a_held_device(1))))
    content = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(content.replace(b"uid-of-one", b"uid-of-0ne"))
    store = JournalStore(tmp_path)

    damage = await store.put_aside_damage()

    assert len(damage) == 1
    assert (tmp_path / DAMAGED).read_bytes() == damage[0].line + b"\n"
    assert store.current.incomplete
    assert list(store.current.held) == ["uid-of-two"]
    assert JournalStore(tmp_path).current == store.current
    assert await store.put_aside_damage() == ()


async def test_what_a_killed_process_was_writing_is_removed_at_start(tmp_path: Path) -> None:
    for name in (JOURNAL, DAMAGED):
        (tmp_path / f".{name}.0123{files.TEMPORARY_SUFFIX}").write_bytes(b"half")
    (tmp_path / "another file").write_bytes(b"")

    await JournalStore(tmp_path).put_aside_damage()

    assert {path.name for path in tmp_path.iterdir()} == {"another file", LOCK}


async def test_damage_found_while_serving_is_put_aside_by_the_next_commit(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    await store.commit(entering(an_entry(a_ref("one"))))
    (tmp_path / JOURNAL).write_bytes(b"nonsense\n")

    await store.commit(entering(an_entry(a_ref("two"))))

    assert (tmp_path / DAMAGED).read_bytes() == b"nonsense\n"
    assert list(store.current.held) == ["uid-of-two"]
    assert store.current.incomplete


async def test_damage_is_added_to_what_was_put_aside_before(tmp_path: Path) -> None:
    for line in (b"first", b"second"):
        (tmp_path / JOURNAL).write_bytes(line)
        await JournalStore(tmp_path).put_aside_damage()

    assert (tmp_path / DAMAGED).read_bytes() == b"first\nsecond\n"


async def test_a_newer_releases_journal_is_neither_used_nor_touched(tmp_path: Path) -> None:
    content = encode(Journal({})).partition(b" ")[2].replace(b'"minReader":1', b'"minReader":9')
    sealed = store_line(content)
    (tmp_path / JOURNAL).write_bytes(sealed)
    store = JournalStore(tmp_path)

    with pytest.raises(Unreadable):
        await store.commit(entering(an_entry()))

    assert (tmp_path / JOURNAL).read_bytes() == sealed
    assert not (tmp_path / DAMAGED).exists()


def store_line(text: bytes) -> bytes:
    import hashlib

    text = text.rstrip(b"\n")
    return hashlib.sha256(text).hexdigest()[:32].encode() + b" " + text + b"\n"


def test_a_journal_that_somebody_removes_takes_no_claim_with_it(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "var" / "state")
    file.transact([entering(an_entry())])
    (tmp_path / "var" / "state" / JOURNAL).unlink()

    assert file.current() == Journal({"uid-of-train": an_entry()}, incomplete=True)


async def test_a_cancelled_caller_does_not_take_its_change_back(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    commit = asyncio.ensure_future(store.commit(entering(an_entry())))
    await asyncio.sleep(0)

    commit.cancel()
    await store.close()

    assert list(JournalFile(tmp_path).current().held) == ["uid-of-train"]


async def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(NodeNotReady, match=str(tmp_path / "file")):
        await JournalStore(tmp_path / "file" / "state").commit(entering(an_entry()))


async def test_leftovers_of_every_file_beside_the_journal_are_removed(tmp_path: Path) -> None:
    """Health, told claims, pods' events: a plugin that was killed while it wrote any of them."""
    left = [
        tmp_path / f".{name}.0a1b2c.tmp" for name in ("claims.journal", "health.json", "told-claims.json", "x.json")
    ]
    for path in left:
        path.write_text("half")
    store = JournalStore(tmp_path)
    await store.put_aside_damage()
    await store.close()
    assert [path for path in left if path.exists()] == []
