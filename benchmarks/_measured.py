"""What measurements share: processor time and memory of processes, and the file in which a run is recorded.

A record has rows of figures, each with its unit and a value for each column. `docs/from_code/figures.py` makes the
tables of the pages from these files.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dra_driver.terminal import print_table

PYTHON = os.environ.get("GPU_DRA_BENCH_PYTHON", sys.executable)
"""What runs the driver's programs. `image_python.py` writes one that is the image's."""

type Figures = Mapping[str, Mapping[str, Any]]
"""By row: `unit`, and values by column."""


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process; with the field `VmHWM` its maximum."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    processor_s: float
    wall_s: float


def cost(
    command: Sequence[str],
    rounds: int,
    *,
    expected: Container[int] = (0,),
    before: Callable[[], object] = lambda: None,
) -> Cost:
    """The best of some rounds: the first ones read files from the disk and compile modules. `before` runs before each.

    Raises RuntimeError with the command's errors if its status is not among those expected.
    """
    costs = []
    for _ in range(rounds):
        before()
        used, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        ended = subprocess.run(command, capture_output=True)
        wall_s, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode not in expected:
            raise RuntimeError(f"{' '.join(command)}: status {ended.returncode}: {ended.stderr.decode()[-2000:]}")
        costs.append((after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, wall_s))
    return Cost(*(round(min(values), 3) for values in zip(*costs, strict=True)))


def _python_version() -> str:
    code = "import platform; print(platform.python_version())"
    version = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return version if sys.executable == PYTHON else f"{version} of the image"


def write_record(path: Path, figures: Figures, *, kubernetes: str, peer: str | None = None, **more: Any) -> None:
    """`kubernetes` is the version of the API server, or says that it is simulated. `more` stands beside the date."""
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], check=True, capture_output=True, text=True)
    versions = {
        "ours": commit.stdout.strip(),
        **({} if peer is None else {"peer": peer}),
        "kubernetes": kubernetes,
        "python": _python_version(),
        "processors": str(os.cpu_count()),
    }
    record = {"date": datetime.now(UTC).date().isoformat(), **more, "versions": versions, "figures": figures}
    path.write_text(json.dumps(record, indent=2) + "\n")


class Record:
    """The figures of one script: each column is printed when it is measured, and the file is written again."""

    def __init__(self, units: Mapping[str, str], path: Path | None, *, kubernetes: str, **more: Any) -> None:
        """`kubernetes` and `more` as for `write_record`."""
        self._rows: dict[str, dict[str, Any]] = {name: {"unit": unit} for name, unit in units.items()}
        self._path = path
        self._versions = {"kubernetes": kubernetes, **more}

    def add(self, column: str, figures: Mapping[str, float]) -> None:
        """A row that is missing in the figures does not apply."""
        for name, value in figures.items():
            self._rows[name][column] = round(value, 2 if value < 10 else 1)
        table = [(name, f"{row[column]:,}", row["unit"]) for name, row in self._rows.items() if column in row]
        print_table((column.upper(), "", ""), table)
        if self._path is not None:
            write_record(self._path, self._rows, **self._versions)
