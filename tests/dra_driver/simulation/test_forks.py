"""Programs that are forked by a process which has imported them are as programs that are started."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dra_driver.errors import NodeNotReady
from dra_driver.simulation.processes import Forks, Process

PROGRAM = """
import os, signal, sys, time
IMPORTED_BY = os.getpid()
def main():
    print("run by", os.getpid(), "imported by", IMPORTED_BY, "with", *sys.argv, os.environ["NAME"], flush=True)
    print("errors, too", file=sys.stderr)
    interrupted = signal.getsignal(signal.SIGINT) is signal.default_int_handler and sys.stdin.read() == ""
    if sys.argv[1] == "wait":
        time.sleep(60)
    sys.exit({"ends": None, "7": 7, "fails": "why"}[sys.argv[1]] if interrupted else 99)
"""


@asynccontextmanager
async def forks(folder: Path) -> AsyncIterator[Forks]:
    (folder / "a_program.py").write_text(PROGRAM)
    (folder / "a_broken_one.py").write_text("raise RuntimeError('half an edit')")
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[3])]), "NAME": "value"}
    async with Forks.running(["a_program", "a_broken_one"], environment) as running:
        assert running is not None
        yield running


async def test_a_program_is_run_with_its_arguments_and_log_and_ends_with_its_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    async with forks(tmp_path) as started:
        programs = [await started.start("a_program", [argument, "more"], log) for argument in ("7", "ends", "fails")]
        assert [await program.wait() for program in programs] == [7, 0, 1]
        assert [program.returncode for program in programs] == [7, 0, 1]
    first, *lines = log.read_text().splitlines()
    assert first == "before" and lines.count("errors, too") == 3
    (by,) = {line.split()[5] for line in lines if line.startswith("run by")}
    assert by not in {str(program.pid) for program in programs}
    assert sorted(line.partition("with ")[2] for line in lines if line.startswith("run by")) == [
        f"a_program {argument} more value" for argument in ("7", "ends", "fails")
    ]


async def test_signals_reach_it_and_those_after_its_end_reach_nobody(tmp_path: Path) -> None:
    async with forks(tmp_path) as started:
        first, second = [await started.start("a_program", ["wait"], tmp_path / "log") for _ in range(2)]
        assert first.returncode is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.wait(), 0.05)
        first.send_signal(signal.SIGTERM)
        second.kill()
        assert [await first.wait(), await second.wait()] == [-signal.SIGTERM, -signal.SIGKILL]
        first.kill()


async def test_an_interrupt_of_the_terminal_ends_neither_programs_nor_whoever_forks(tmp_path: Path) -> None:
    async with forks(tmp_path) as started:
        started._process.send_signal(signal.SIGINT)  # while it imports
        program = await started.start("a_program", ["wait"], tmp_path / "log")
        program.send_signal(signal.SIGINT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(program.wait(), 0.2)
        program.kill()
        assert await program.wait() == -signal.SIGKILL
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_a_signal_to_all_leaves_whoever_forks_until_it_is_not_needed(tmp_path: Path) -> None:
    async with forks(tmp_path) as started:
        program = await started.start("a_program", ["wait"], tmp_path / "log")
        for number in (signal.SIGINT, signal.SIGTERM):
            started._process.send_signal(number)
        program.send_signal(signal.SIGTERM)
        assert await program.wait() == -signal.SIGTERM


async def test_what_cannot_be_imported_says_why_in_its_own_log(tmp_path: Path) -> None:
    async with forks(tmp_path) as started:
        program = await started.start("a_broken_one", [], tmp_path / "log")
        assert await program.wait() == 1
    assert "RuntimeError: half an edit" in (tmp_path / "log").read_text()


async def test_without_the_process_that_forks_nothing_is_started_and_that_is_said(tmp_path: Path) -> None:
    async with forks(tmp_path) as started:
        pass
    with pytest.raises(NodeNotReady, match="has ended by itself"):
        await started.start("a_program", ["ends"], tmp_path / "log")


async def test_who_is_killed_with_the_process_that_forks_is_known_to_have_ended_and_can_be_started_again(
    tmp_path: Path,
) -> None:
    program = Process("a program", [sys.executable, "-m", "a_program", "7"], tmp_path / "log")
    async with forks(tmp_path) as started:
        await program.start(started)
        waiting = await started.start("a_program", ["wait"], tmp_path / "log")
        started._process.kill()
        waiting.kill()
        assert await asyncio.wait_for(waiting.wait(), 10) == waiting.returncode == -signal.SIGKILL
        await asyncio.wait_for(started._process.wait(), 10)
        await program.stop()
        await program.start(started)
        assert isinstance(program._process, asyncio.subprocess.Process)
        await program.stop()
