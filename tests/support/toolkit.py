"""Hook programs of NVIDIA's container toolkit: what releases of it answered, and programs that somebody built.

`hook_answers.yaml` has the layout of each answer without its prose; `GPU_DRA_TEST_TOOLKIT` names a folder of programs,
`<release>/nvidia-cdi-hook` and `<release>/nvidia-ctk`, which the record is compared with.
`PYTHONPATH=tests python -m support.toolkit` writes it from these.
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubelet_plugin.hardware.host_programs import Ask, ProgramOutput, asking

RECORD = Path(__file__).with_name("hook_answers.yaml")
FOLDER = Path(os.environ["GPU_DRA_TEST_TOOLKIT"]) if os.environ.get("GPU_DRA_TEST_TOOLKIT") else None

NEEDED = pytest.mark.skipif(FOLDER is None, reason="GPU_DRA_TEST_TOOLKIT names no folder of hook programs")

COMMANDS = (
    "create-symlinks",
    "update-ldcache",
    "enable-cuda-compat",
    "disable-device-node-modification",
    "update-application-profile",
)
_LINE = re.compile(
    r"( +)((?:--?)?[a-z][a-z-]*(?:, (?:--?)?[a-z][a-z-]*)*(?: (?:value|string)(?: \[.*?\])?)?)(\s{2,}).*"
)


def questions(program: str) -> tuple[tuple[str, ...], ...]:
    """Everything that may be asked of a program, by its name."""
    hook = ("hook",) if program == "nvidia-ctk" else ()
    return (("--version",), (*hook, "--help"), *((*hook, command, "--help") for command in (*COMMANDS, "no-such-hook")))


def programs() -> list[Path]:
    """Those that somebody built, oldest first."""
    if FOLDER is None:
        return []
    paths = [path for pattern in ("*/nvidia-cdi-hook", "*/nvidia-ctk") for path in FOLDER.glob(pattern)]
    return sorted(paths, key=lambda path: ([int(part) for part in path.parent.name.split(".")], path.name))


@cache
def recorded() -> Mapping[str, Mapping[str, Any]]:
    """Answers by `<release>/<program>`, then by question: exit status and output."""
    answers: Mapping[str, Mapping[str, Any]] = yaml.safe_load(RECORD.read_text())
    return answers


def recorded_ask(release: str, program: str) -> Ask:
    """Answers as that program did; a question that was not recorded is a mistake of the test."""
    answers = recorded()[f"{release}/{program}"]

    def ask(words: Sequence[str]) -> ProgramOutput:
        status, output = answers[" ".join(words[1:])]
        return ProgramOutput(status, output)

    return ask


def answers_of(path: Path) -> dict[str, list[Any]]:
    ask = asking(Path("/"))
    answers = {words: ask([str(path), *words]) for words in questions(path.name)}
    return {" ".join(words): [answer.status, without_prose(answer.output)] for words, answer in answers.items()}


def without_prose(text: str) -> str:
    """Headings, and the names of commands and flags, in their columns."""
    lines = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            lines.append(f"{match[1]}{match[2]}{match[3]}...")
        elif line.isupper() or re.search(r" version \d", line):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    record = {f"{path.parent.name}/{path.name}": answers_of(path) for path in programs()}
    RECORD.write_text(
        "# Written by `python -m support.toolkit` from programs of these releases.\n"
        + yaml.safe_dump(record, sort_keys=False, width=200, default_style=None)
    )
