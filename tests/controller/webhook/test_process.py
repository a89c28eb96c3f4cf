"""The controller starts the webhook's process again, whatever becomes of it, and the probe says why it is not ready."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.webhook.process import WebhookProcess

WELL = json.dumps({"problem": None, "metrics": "# TYPE reviews gauge\nreviews 7.0\n"})
SERVES = f"print({WELL!r}, flush=True); input()"
"""Reports once, and ends when its input closes."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between attempts."""
    monkeypatch.setattr("controller.webhook.process.Backoff.next_s", lambda *_: 0.0)


def running(folder: Path, first: str = SERVES) -> WebhookProcess:
    """It runs the program `first` in Python at the first start, and one that serves later."""
    process, started = WebhookProcess([], drain_s=0.0), str(folder / "started")
    program = """
import os, sys
again = os.path.exists(sys.argv[1])
open(sys.argv[1], "w").close()
exec(sys.argv[3 if again else 2])
"""
    process._command = (sys.executable, "-c", program, started, first, SERVES)
    return process


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "broken",
    [
        "pass",
        "print('no JSON', flush=True); input()",
        "print('[]', flush=True); input()",
        "print('{}', flush=True); input()",
        "print('[' * 100_000, flush=True); input()",
        """print('{"problem": null, "metrics": "{"}', flush=True); input()""",
        "print('x' * 5_000_000, flush=True); input()",
    ],
)
@pytest.mark.usefixtures("quick")
async def test_a_process_that_ends_or_reports_nonsense_is_started_again(tmp_path: Path, broken: str) -> None:
    process = running(tmp_path, broken)
    assert process.problem() is not None
    async with process.serving():
        await until(lambda: process.problem() is None)
        (family,) = process.collect()
        assert [sample.value for sample in family.samples] == [7.0]


def test_a_report_that_is_invalid_in_part_changes_nothing() -> None:
    process = WebhookProcess([], drain_s=0.0)
    with pytest.raises(ValueError):
        process._take({"problem": None, "metrics": "{"})
    assert process.problem() is not None


@pytest.mark.usefixtures("quick")
async def test_a_process_that_hangs_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, start = running(tmp_path, "input()"), asyncio.create_subprocess_exec
    patience = iter([0.5])

    async def started(*words: str, **options: Any) -> Any:
        # Only the first process hangs. On a busy machine, the next may need seconds for its report.
        monkeypatch.setattr("controller.webhook.process._SILENT_S", next(patience, 60.0))
        return await start(*words, **options)

    monkeypatch.setattr("asyncio.create_subprocess_exec", started)
    async with process.serving():
        await until(lambda: process.problem() is None)


@pytest.mark.usefixtures("quick")
async def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, start, tries = running(tmp_path), asyncio.create_subprocess_exec, list[int]()

    async def full(*words: str, **options: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*words, **options)

    monkeypatch.setattr("asyncio.create_subprocess_exec", full)
    async with process.serving():
        await until(lambda: process.problem() is None)
    assert len(tries) == 3
