"""The tour in a terminal, as a newcomer meets it: Enter after each command, or Ctrl-C."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.plugin import short_folder

from dra_driver.cli.simulated.tour import STEPS

_ENTER, _CTRL_C = b"\n", b"\x03"
_LONGEST_S = 240.0
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PROGRAM = """
import fcntl, sys, termios
from dra_driver.cli.__main__ import main
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = ["dractl", "tour"]
main()
"""
"""With its terminal as the one whose Ctrl-C it gets."""


class Terminal:
    """`dractl tour` in a terminal of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.shown = ""
        self._file, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            **dict.fromkeys(("stdin", "stdout", "stderr"), inner),
            env=environment,
            start_new_session=True,
        )
        os.close(inner)

    def until(self, condition: Callable[[str], bool]) -> None:
        """Read until what was shown so far fulfills this, or the program ends."""
        deadline = time.monotonic() + _LONGEST_S
        while not condition(self.shown):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._file], [], [], 1.0)[0] and not self._read():
                return

    def _read(self) -> bool:
        try:
            part = os.read(self._file, 65536)
        except OSError:  # Linux's answer when the other side is closed
            return False
        self.shown += _STYLE.sub("", part.decode(errors="replace"))
        return bool(part)

    def type(self, keys: bytes) -> None:
        os.write(self._file, keys)

    def end(self) -> int:
        """The exit status."""
        try:
            self.until(lambda _: False)
            return self._process.wait(_LONGEST_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._file)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "TERM": "xterm", "COLUMNS": "200", **more}


@pytest.mark.slow
def test_the_tour_shows_each_command_and_runs_it_after_enter(folder: Path) -> None:
    terminal = Terminal(environment(folder))
    for command in (command for step in STEPS for command in step.commands):
        terminal.until(lambda shown, line=command.line: f"$ {line}" in shown)
        terminal.type(_ENTER)
    assert terminal.end() == 0, terminal.shown
    text = " ".join(terminal.shown.split())
    for expected in (
        "20 GPUs of three models",
        "dgx-h100-1/gpu-69a54c71 H100 80GB HBM3 one-gpu/main",
        "L40S (cores 50, memory 8Gi)",
        "To repair it: drain and reboot dgx-h100-1",
        "It fits with 7 devices instead of 8",
        "dgx-h100-1 8 8/8 0/8",
        "That was the tour.",
    ):
        assert expected in text, expected
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_nothing_and_without_kubectl_it_applies_files_itself(folder: Path) -> None:
    programs, place = folder / "bin", folder / "place"
    programs.mkdir()
    place.mkdir()
    (programs / "sh").symlink_to(str(shutil.which("sh")))
    terminal = Terminal(environment(place, PATH=str(programs)))
    for line in ("$ dractl get nodes", "$ kubectl apply -f examples/features/one-gpu"):
        terminal.until(lambda shown, line=line: line in shown)
        terminal.type(_ENTER)
    terminal.until(lambda shown: "$ dractl get claims" in shown)
    terminal.type(_CTRL_C)
    assert terminal.end() == 0, terminal.shown
    text = " ".join(terminal.shown.split())
    assert "the tour has applied the files" in text
    assert "The tour ended early. The cluster is stopped" in text
    assert list(place.iterdir()) == []
