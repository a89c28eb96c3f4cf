"""Lines of pages that wait: each ends by itself, well or with a sentence that says where to look."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.rows import slow_but

DOCS = Path(__file__).parents[2] / "docs"
LINES = [
    line
    for page in (DOCS / "gpu-operator.md", DOCS / "install.md", DOCS / "upgrade.md")
    for line in page.read_text().splitlines()
    if "sleep" in line and "kubectl" in line
]
ASKED = {
    "allocatable": ("8", "0"),
    "resourceclaims": ("gpu.nvidia.com NODE;", "gpu.nvidia.com NODE-2;"),
    "resourceslices": ("resourceslice/node-a", ""),
}
"""By a word of the question: an answer with which the wait goes on, and one with which it is over."""
SHELLS = [shell for shell in ("sh", "bash", "zsh") if shutil.which(shell)]


def waited(line: str, shell: str, answers: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
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
        [shell, "-c", line], capture_output=True, text=True, timeout=60, env={"PATH": path}, check=False
    )


def test_there_are_such_lines_and_each_question_is_asked() -> None:
    assert {word for line in LINES for word in ASKED if word in line} == set(ASKED)


@pytest.mark.parametrize("shell", slow_but(SHELLS, "sh"))
@pytest.mark.parametrize("line", LINES, ids=lambda line: next(word for word in ASKED if word in line))
def test_a_wait_is_over_when_it_may_be_and_ends_with_a_sentence_when_it_lasts(
    line: str, shell: str, tmp_path: Path
) -> None:
    (waits, over) = next(answers for word, answers in ASKED.items() if word in line)
    well = waited(line, shell, [waits, waits, over], tmp_path)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "")
    ill = waited(line, shell, [waits], tmp_path)
    assert ill.returncode != 0 and re.fullmatch(r"Not yet\. .*NODE.*\. Type this line again to wait on\.\n", ill.stderr)
