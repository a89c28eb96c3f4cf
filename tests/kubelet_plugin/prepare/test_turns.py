"""Turns with holds, in one process and between two: kubelet_plugin/prepare/turns.py."""

import asyncio
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.errors import NodeNotReady
from kubelet_plugin.prepare.turns import LOCK, Turns

HOLD_A_TURN = """
import asyncio, sys
from pathlib import Path
from kubelet_plugin.prepare.turns import Turns

async def main():
    async with Turns(Path(sys.argv[1])).of(sys.argv[2], about="it"):
        print("mine", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


def another_process(folder: Path, name: str) -> subprocess.Popen[str]:
    """Has its turn with `name` until it reads a line, or dies."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_TURN, str(folder), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


async def test_one_at_a_time_has_its_turn_with_a_name_and_others_are_not_waited_for(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    order: list[str] = []

    async def take(name: str, who: str) -> None:
        async with turns.of(name, about=name):
            order.append(f"{who} begins")
            await asyncio.sleep(0)
            order.append(f"{who} ends")

    await asyncio.gather(take("a", "one"), take("a", "two"), take("b", "three"))

    assert order.index("one ends") < order.index("two begins")
    assert order.index("three begins") < order.index("one ends")
    turns.close()


async def test_a_turn_of_another_process_is_waited_for_and_those_with_other_names_are_not(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "var" / "state")
    async with turns.of("a", about="a"):
        pass
    process = await asyncio.to_thread(another_process, tmp_path / "var" / "state", "a")
    async with turns.of("b", about="b"):
        pass
    waiting = asyncio.ensure_future(turns.of("a", about="a").__aenter__())
    await asyncio.sleep(0.1)
    assert not waiting.done()

    process.communicate("\n")

    await asyncio.wait_for(waiting, 10)
    turns.close()


async def test_a_turn_ends_with_its_process_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    process = await asyncio.to_thread(another_process, tmp_path, "a")
    process.kill()
    process.communicate()

    async with Turns(tmp_path).of("a", about="a"):
        pass

    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert (tmp_path / LOCK).read_bytes() == b""


async def test_a_hung_instance_is_named_and_not_waited_for_for_ever(tmp_path: Path) -> None:
    process = await asyncio.to_thread(another_process, tmp_path, "a")

    with pytest.raises(NodeNotReady, match=r"MIG mode of GPU-1: another instance .* is it hung"):
        async with Turns(tmp_path, patience_s=0.05).of("a", about="MIG mode of GPU-1"):
            pass

    process.communicate("\n")


async def test_a_folder_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NodeNotReady, match=LOCK):
        async with Turns(tmp_path / "file" / "below").of("a", about="a"):
            pass


async def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("kubelet_plugin.prepare.turns.fcntl.lockf", refuse)
    with pytest.raises(NodeNotReady, match="cannot be locked: No locks available"):
        async with asyncio.timeout(5), Turns(tmp_path).of("a", about="a"):
            pass
