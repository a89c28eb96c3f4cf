import asyncio
from pathlib import Path

import pytest
from support.plugin import eventually

from dra_driver.runtime import inotify
from dra_driver.runtime.files import write_durably
from dra_driver.runtime.inotify import replacements


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def noticed(notices: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await notices.wait()
    notices.clear()


async def test_a_file_that_is_written_replaced_or_removed_is_noticed(tmp_path: Path) -> None:
    path, notices = tmp_path / "request.json", asyncio.Event()
    with replacements(path, notices.set) as works:
        assert works
        for change in (lambda: write_durably(path, b"1"), lambda: write_durably(path, b"2"), path.unlink):
            change()
            await noticed(notices)


async def test_other_files_are_not_noticed(tmp_path: Path) -> None:
    heard: list[None] = []
    with replacements(tmp_path / "request.json", lambda: heard.append(None)):
        for number in range(200):
            write_durably(tmp_path / f"{number}.json", b"")
            (tmp_path / f"{number}.json").unlink()
        await asyncio.sleep(0.05)
        assert not heard
        write_durably(tmp_path / "request.json", b"")
        await eventually(lambda: heard)


async def test_a_folder_that_is_removed_is_noticed_once(tmp_path: Path) -> None:
    folder, heard = tmp_path / "folder", asyncio.Event()
    folder.mkdir()
    with replacements(folder / "request.json", heard.set) as works:
        assert works
        folder.rmdir()
        await noticed(heard)
        await asyncio.sleep(0.05)
        assert not heard.is_set()


async def test_without_a_folder_or_inotify_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    with replacements(tmp_path / "missing" / "request.json", lambda: None) as works:
        assert not works
    monkeypatch.setattr(inotify.ctypes, "CDLL", lambda _: object())
    with replacements(tmp_path / "request.json", lambda: None) as works:
        assert not works
    assert open_files() == before


async def test_nothing_is_noticed_after_the_block(tmp_path: Path) -> None:
    before, heard = open_files(), asyncio.Event()
    with replacements(tmp_path / "request.json", heard.set):
        pass
    write_durably(tmp_path / "request.json", b"")
    await asyncio.sleep(0.05)
    assert not heard.is_set() and open_files() == before
