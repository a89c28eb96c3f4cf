"""Faults made by hand, one or more for each package, and the test that must fail for each: `make faults`.

A fault is an edit of a few words: `old` is exactly once in the sources, in any file, and `new` takes its place.
Its test is named without a file, so a move of the code or of the test changes nothing here. Each fault is applied in a
copy of the working tree, and its test runs there. A refactoring that makes tests fewer must still find every fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PACKAGES = ("dra_driver", "kubelet_plugin", "controller", "release")
_FAULTS = Path(__file__).with_name("faults.yaml")
_TESTS_FAILED = 1
_NOT_ENDED = 124
_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Fault:
    fault: str
    old: str
    new: str
    test: str
    """Name of a test function, after `test_x.py::` where several files have one of that name."""


def faults() -> list[Fault]:
    return [Fault(**fields) for fields in yaml.safe_load(_FAULTS.read_text())]


class Tree:
    """The sources and tests of a working tree, by file. Nothing is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sources = {file: file.read_text() for name in PACKAGES for file in sorted((root / name).rglob("*.py"))}
        self._tests: dict[str, list[str]] = {}
        """Node ids by name of the function."""
        for file in sorted((root / "tests").rglob("test_*.py")):
            node_id = holder = str(file.relative_to(root))
            for match in re.finditer(
                r"^(?:class (Test\w*)|(?: {4})?(?:async )?def (test_\w+)\()", file.read_text(), re.M
            ):
                if match[1]:
                    holder = f"{node_id}::{match[1]}"
                else:
                    own = holder if match[0].startswith(" ") else node_id
                    self._tests.setdefault(match[2], []).append(f"{own}::{match[2]}")

    def problem(self, fault: Fault) -> str | None:
        """Why the fault cannot be tried; None when it can."""
        places = [(file, text.count(fault.old)) for file, text in self._sources.items() if fault.old in text]
        if not places:
            return f"its text is in no file any more: {fault.old!r}"
        if sum(count for _, count in places) > 1:
            listed = ", ".join(f"{file.relative_to(self.root)} ({count})" for file, count in places)
            return f"its text is there more than once: {listed}"
        tests = self._named(fault)
        return None if len(tests) == 1 else f"there are {len(tests)} tests named {fault.test}, not one"

    def edited(self, fault: Fault) -> tuple[Path, str]:
        """The file that the fault is in, and its text with the fault."""
        file, text = next((file, text) for file, text in self._sources.items() if fault.old in text)
        return file, text.replace(fault.old, fault.new)

    def node_id(self, fault: Fault) -> str:
        (node_id,) = self._named(fault)
        return node_id

    def _named(self, fault: Fault) -> list[str]:
        file, _, name = fault.test.rpartition("::")
        return [
            node_id for node_id in self._tests.get(name, ()) if not file or node_id.split("::")[0].endswith(f"/{file}")
        ]


def copied(folder: Path) -> Path:
    """A copy of all files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def pytest(root: Path, *arguments: str) -> tuple[int, str]:
    """Status and output of a run in `root`, which imports the packages that are there, in other processes, too."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    limit_s = _TIMEOUT_S * len(arguments)
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return _NOT_ENDED, f"not ended after {limit_s} s"
    return done.returncode, done.stdout + done.stderr


def try_fault(tree: Tree, fault: Fault) -> str | None:
    """Why the fault counts as not found; None when its test fails."""
    if (problem := tree.problem(fault)) is not None:
        return problem
    file, text = tree.edited(fault)
    before, times = file.read_bytes(), file.stat()
    file.write_text(text)
    try:
        status, output = pytest(tree.root, tree.node_id(fault))
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    if status == _TESTS_FAILED:
        return None
    return f"{tree.node_id(fault)} ended with status {status}:\n{output[-2000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Applies each fault to a copy, and runs the test that must fail.")
    parser.add_argument("words", nargs="*", help="only faults with one of these words in what they are or edit")
    words = parser.parse_args().words
    chosen = [fault for fault in faults() if not words or any(word in f"{fault.fault} {fault.old}" for word in words)]
    if not chosen:
        print(f"no fault has one of these words: {' '.join(words)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Tree(copied(Path(folder)))
        there = [fault for fault in chosen if tree.problem(fault) is None]
        status, output = pytest(tree.root, *dict.fromkeys(map(tree.node_id, there)))
        if status != 0:
            print(f"without any fault, the tests end with status {status}:\n{output[-4000:]}")
            return 1
        missed = 0
        for fault in chosen:
            begun = time.monotonic()
            why = try_fault(tree, fault)
            missed += why is not None
            print(
                f"{'found ' if why is None else 'MISSED'} {time.monotonic() - begun:5.1f} s  {fault.fault}", flush=True
            )
            if why is not None:
                print(f"       {why}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} faults found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
