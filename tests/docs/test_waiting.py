"""Loops of pages that wait: each ends by itself, well or with a sentence that says where to look."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.rows import slow_but

DOCS = Path(__file__).parents[2] / "docs"
LOOPS = [
    loop
    for page in (DOCS / "gpu-operator.md", DOCS / "install.md", DOCS / "upgrade.md")
    for loop in re.findall(r"^for .*?^done$", page.read_text(), re.DOTALL | re.MULTILINE)
    if "sleep" in loop and "kubectl" in loop
]
ASKED = {
    "allocatable": ("8", "0"),
    "resourceclaims": ("gpu.nvidia.com NODE;", "gpu.nvidia.com NODE-2;"),
    "resourceslices": ("resourceslice/node-a", ""),
}
"""By a word of the question: an answer with which the wait goes on, and one with which it is over."""
SHELLS = [shell for shell in ("sh", "bash", "zsh") if shutil.which(shell)]


def waited(loop: str, shell: str, answers: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """With a kubectl that gives these answers, the last one again and again, and with a sleep that does not."""
    for number, answer in enumerate(answers):
        (folder / f"answer.{number}").write_text(answer)
    (folder / "n").write_text("0")
    last = len(answers) - 1
    script = f"cd {folder}; n=$(cat n); cat answer.$n; [ $n = {last} ] || echo $((n + 1)) > n"
    for name, body in (("kubectl", script), ("sleep", ":")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [shell, "-c", loop], capture_output=True, text=True, timeout=60, env={"PATH": path}, check=False
    )


def test_there_are_such_loops_and_each_question_is_asked() -> None:
    assert {word for loop in LOOPS for word in ASKED if word in loop} == set(ASKED)


@pytest.mark.parametrize("shell", slow_but(SHELLS, "sh"))
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: next(word for word in ASKED if word in loop))
def test_a_wait_is_over_when_it_may_be_and_ends_with_a_sentence_when_it_lasts(
    loop: str, shell: str, tmp_path: Path
) -> None:
    (waits, over) = next(answers for word, answers in ASKED.items() if word in loop)
    well = waited(loop, shell, [waits, waits, over], tmp_path)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    ill = waited(loop, shell, [waits], tmp_path)
    assert ill.returncode != 0 and re.fullmatch(r"Not yet\. .*NODE.*\. Run this again to wait longer\.\n", ill.stderr)
