"""Mutates the safety core, a small change at a time, and runs the tests that cover the changed line: `make mutants`.

What no test notices is printed, unless `harmless.yaml` names it with a reason. One process imports everything and
collects the tests; for each mutant it forks a child, which puts the changed code into the functions that are there and
runs the quickest tests first, up to the first failure. Files that tests hand to other processes are those of a copy.
"""

import argparse
import gc
import mmap
import os
import pickle
import signal
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from shutil import rmtree
from types import CodeType, FunctionType

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.run import copied
from mutants.mutations import Mutant, mutants_of

_SERVICE = tuple(
    f"tests/kubelet_plugin/test_{name}.py"
    for name in (
        "service_guards", "service_holds", "service_machine", "claim_operations", "what_is_allocated", "lent_gpus",
        "config_refusals", "slow_gpus", "device_metadata", "fabric_partitions", "mode_changes",
    )
)  # fmt: skip

CORE: Mapping[str, Sequence[str]] = {
    "kubelet_plugin/prepare/*.py": (
        "tests/kubelet_plugin/prepare",
        "tests/kubelet_plugin/effects",
        "tests/kubelet_plugin/domains/test_domain_claims.py",
        "tests/kubelet_plugin/proof",
        "tests/kubelet_plugin/claims",
        "tests/kubelet_plugin/facts/test_discovery.py",
        *_SERVICE,
    ),
    "kubelet_plugin/prepare/claim_reads.py": ("tests/kubelet_plugin/reporting", "tests/kubelet_plugin/prepare"),
    "kubelet_plugin/prepare/listener.py": (
        "tests/kubelet_plugin/reporting", "tests/kubelet_plugin/test_claim_operations.py",
    ),
    "kubelet_plugin/effects/*.py": ("tests/kubelet_plugin/effects", "tests/kubelet_plugin/test_service_holds.py"),
    "kubelet_plugin/effects/mode_reset.py": (
        "tests/kubelet_plugin/effects", "tests/kubelet_plugin/test_mode_changes.py",
    ),
    "kubelet_plugin/effects/host_program.py": tuple(
        f"tests/kubelet_plugin/effects/test_{name}.py" for name in ("host_program", "on_host", "mps_in_container")
    ),
    "kubelet_plugin/hardware/hook_program.py": ("tests/kubelet_plugin/hardware/test_hook_program.py",),
    "kubelet_plugin/claims/service.py": (
        "tests/kubelet_plugin/claims", "tests/kubelet_plugin/test_given_up_calls.py", *_SERVICE,
    ),
    "kubelet_plugin/domains/service.py": ("tests/kubelet_plugin/domains",),
    "dra_driver/publish/*.py": ("tests/dra_driver/publish",),
    "dra_driver/publish/preview.py": ("tests/dra_driver/publish", "tests/dra_driver/cli/test_policy.py"),
    "dra_driver/kube/leader.py": ("tests/dra_driver/kube/test_leader.py",),
    "dra_driver/kube/workqueue.py": ("tests/dra_driver/kube/test_workqueue.py",),
    "controller/replica.py": ("tests/controller/test_replica.py",),
    "controller/slices.py": ("tests/controller/test_replica.py",),
    "dra_driver/kube/watch.py": ("tests/dra_driver/kube/test_watch.py", "tests/controller/test_replica.py"),
}  # fmt: skip
"""The files, and the tests nearest to them; of two patterns, the later."""
_HARMLESS = Path(__file__).with_name("harmless.yaml")
_HANGS_S = 15.0
_terminal = 1
_SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@dataclass
class Covered:
    """What one test ran: lines by file."""

    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=dict)


class Campaign:
    """A pytest plugin that runs the collected tests in its own order, in children."""

    def __init__(self, root: Path, files: Sequence[Path], contexts: Path | None, patience_s: float) -> None:
        self.root = root
        self.files = files
        self._contexts = contexts
        self._patience_s = patience_s
        self.counts = {"mutants": 0, "killed": 0, "harmless": 0, "survived": 0}
        self._failed = False
        self._items: dict[str, pytest.Item] = {}
        names = {str(file.relative_to(root)) for file in files}
        self._harmless = {mutant for mutant in _harmless() if mutant[0] in names}
        self._met: set[tuple[str, str, str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()
        self._items = {item.nodeid: item for item in session.items}
        functions = _functions(self.files)
        gc.freeze()  # or each child would copy all that is there
        covered = self._covered(functions)
        for file in self.files:
            mutants = list(mutants_of(file.read_text()))
            _say(f"{file.relative_to(self.root)}: {len(mutants)} changes")
            for mutant in mutants:
                self._try(file, mutant, functions, covered)
        return True

    def report(self) -> int:
        for mutant in sorted(self._harmless - self._met):
            _say(f"harmless.yaml names what is no mutant any more: {' '.join(mutant)}")
        _say(", ".join(f"{count} {what}" for what, count in self.counts.items()))
        return 1 if self.counts["survived"] or self._harmless != self._met else 0

    def _try(self, file: Path, mutant: Mutant, functions: "_Functions", covered: dict[str, Covered]) -> None:
        name = str(file.relative_to(self.root))
        self.counts["mutants"] += 1
        if (name, *mutant.key) in self._harmless:
            self._met.add((name, *mutant.key))
            self.counts["harmless"] += 1
            return
        tests = [test for test, known in covered.items() if not known.lines.get(name, set()).isdisjoint(mutant.lines)]
        # What no test runs in this process may be a program of its own: CORE names it, and the tests that start it.
        tests = tests or [test for test in covered if test.startswith(tuple(CORE.get(name, ())))]
        nearest = f"/test_{file.stem}.py::"
        tests.sort(key=lambda test: (nearest not in test, covered[test].seconds))
        until = list(accumulate(covered[test].seconds for test in tests))
        chosen = tests[: max(1, bisect_right(until, self._patience_s))]
        killed = bool(tests) and self._killed(
            file, mutant, functions, chosen, [covered[test].seconds for test in chosen]
        )
        self.counts["killed" if killed else "survived"] += 1
        if not killed:
            where, old, new = mutant.key
            place = f"{name}:{mutant.lines.start} {where}"
            _say(f"SURVIVED {len(chosen)} of {len(tests)} tests  {place}: {old}  =>  {new}")

    def _killed(
        self, file: Path, mutant: Mutant, functions: "_Functions", tests: Sequence[str], seconds: Sequence[float]
    ) -> bool:
        """Whether a test fails, or hangs: takes much longer than its `seconds`."""
        before, times = file.read_bytes(), file.stat()
        file.write_text(mutant.text)

        def run(steps: "_Steps") -> int:
            functions.change(file, mutant)
            return 1 if self._fails(tests, steps) else 0

        try:
            return _in_child(run, [_HANGS_S + 10 * usual for usual in seconds]) != 0
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _fails(self, tests: Sequence[str], steps: "_Steps | None" = None) -> bool:
        """Whether one of them fails; in a child, a step for each."""
        for number, name in enumerate(tests):
            if steps is not None:
                steps.current = number
            item = self._items[name]
            following = self._items[tests[number + 1]] if number + 1 < len(tests) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return True
        return False

    def _covered(self, functions: "_Functions") -> dict[str, Covered]:
        if self._contexts is not None and self._contexts.exists():
            known: dict[str, Covered] = pickle.loads(self._contexts.read_bytes())
            return {name: lines for name, lines in known.items() if name in self._items}
        answer = Path(tempfile.mkstemp(dir=_SCRATCH)[1])

        def run(steps: "_Steps") -> int:
            answer.write_bytes(pickle.dumps(dict(self._measured(functions))))
            return 0

        if _in_child(run, [3600]) != 0:
            raise SystemExit("the tests cannot be run as they are")
        content = answer.read_bytes()
        answer.unlink()
        if self._contexts is not None:
            self._contexts.write_bytes(content)
        return pickle.loads(content)  # type: ignore[no-any-return]

    def _measured(self, functions: "_Functions") -> Iterator[tuple[str, Covered]]:
        monitoring, now = sys.monitoring, Covered()
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutants")

        def ran(code: CodeType, line: int) -> object:
            now.lines.setdefault(os.path.relpath(code.co_filename, self.root), set()).add(line)
            return monitoring.DISABLE

        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, ran)
        for code in functions.codes():
            monitoring.set_local_events(monitoring.COVERAGE_ID, code, monitoring.events.LINE)
        for name in self._items:
            now = Covered()
            monitoring.restart_events()
            begun = time.monotonic()
            if self._fails([name]):
                _say(f"left out, because it fails as it is: {name}")
                self._failed = False
                continue
            now.seconds = time.monotonic() - begun
            yield name, now


def _harmless() -> Iterator[tuple[str, str, str, str]]:
    """File, function, old and new text."""
    for file, functions in yaml.safe_load(_HARMLESS.read_text()).items():
        for where, reasons in functions.items():
            yield from ((file, where, old, new) for changes in reasons.values() for old, new in changes)


class _Functions:
    """The functions of some files, as they are in this process."""

    def __init__(self, by_place: dict[tuple[str, str, int], list[FunctionType]]) -> None:
        self._by_place = by_place

    def codes(self) -> Iterator[CodeType]:
        for functions in self._by_place.values():
            yield from _nested(functions[0].__code__)

    def change(self, file: Path, mutant: Mutant) -> None:
        """Let the outermost function around the mutant do what the changed text says."""
        (code,) = (
            code
            for code in _nested(compile(mutant.text, str(file), "exec"))
            if (code.co_qualname, code.co_firstlineno) == (mutant.where, mutant.begins)
        )
        for function in self._by_place[str(file), mutant.where, mutant.begins]:
            function.__code__ = code


def _functions(files: Sequence[Path]) -> _Functions:
    names = set(map(str, files))
    by_place: dict[tuple[str, str, int], list[FunctionType]] = {}
    for candidate in gc.get_objects():
        if isinstance(candidate, FunctionType) and candidate.__code__.co_filename in names:
            code = candidate.__code__
            by_place.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(candidate)
    return _Functions(by_place)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


class _Steps:
    """Which step a child is at, seen by its parent."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 4)

    @property
    def current(self) -> int:
        return int.from_bytes(self._shared[:4])

    @current.setter
    def current(self, number: int) -> None:
        self._shared[:4] = number.to_bytes(4)


def _in_child(run: Callable[[_Steps], int], limits_s: Sequence[float]) -> int:
    """The status of a forked child in a process group of its own, which ends with it; not 0 if a step takes longer than
    its limit."""
    scratch = tempfile.mkdtemp(dir=_SCRATCH, prefix="mutant-")
    steps = _Steps()
    child = os.fork()
    if not child:
        status = 3
        try:
            os.setsid()
            tempfile.tempdir = os.environ["TMPDIR"] = scratch
            status = run(steps)
        finally:
            os._exit(status)
    try:
        step, begun = 0, time.monotonic()
        while time.monotonic() - begun < limits_s[step]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            if steps.current != step:
                step, begun = steps.current, time.monotonic()
            time.sleep(0.005)
        os.killpg(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        rmtree(scratch, ignore_errors=True)


def _say(line: str) -> None:
    os.write(_terminal, f"{line}\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutates the safety core and runs its tests.")
    parser.add_argument("words", nargs="*", help="only files with these words in their paths, in this order")
    parser.add_argument("--contexts", type=Path, help="where to keep which test ran which line, for the next run")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds of tests for one mutant: of its module first, then the quickest",
    )
    options = parser.parse_args()
    global _terminal
    _terminal = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pytest reports each test of each child
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=_SCRATCH) as folder:
        root = copied(Path(folder))
        nearest_tests = {file: nearest for pattern, nearest in CORE.items() for file in sorted(root.glob(pattern))}
        files = [
            file for word in options.words or [""] for file in nearest_tests if word in str(file.relative_to(root))
        ]
        tests = dict.fromkeys(test for file in files for test in nearest_tests[file])
        os.chdir(root)
        os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, folder)
        campaign = Campaign(root, files, options.contexts, options.patience)
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[campaign])
        return campaign.report() if status == 0 else int(status)


if __name__ == "__main__":
    sys.exit(main())
