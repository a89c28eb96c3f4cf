"""Upstream's allocator beside ours: builds it with our small Go program, and writes what it answers.

    python benchmarks/upstream/make.py KUBERNETES FOLDER [--random N] [--seed N] [--only TEXT] [--again]

KUBERNETES is a checkout of kubernetes/kubernetes at a release. FOLDER is outside of the repository, because what is
written there is upstream's: `table.json` for `GPU_DRA_TEST_ALLOCATOR_TABLE`, `times.json` for `GPU_DRA_UPSTREAM_TIMES`.
`--again` measures what is in `times.json` once more and keeps the lower times. Needs `go`, in PATH.

The source stays as it is: an overlay of the Go compiler adds `table.go` and `times_test.go`.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cases import cases

_STRUCTURED = "k8s.io/dynamic-resource-allocation/structured"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubernetes", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--random", type=int, default=2_500, help="how many random cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    times = folder / "times.json"
    if not arguments.again:
        _build(arguments.kubernetes.resolve(), folder)
        _run(folder, "TestTable", TABLE=folder / "table.json")
        table = json.loads((folder / "table.json").read_text())
        wanted = [
            *cases(arguments.random, arguments.seed),
            *(case | {"name": f"table/{case['name']}"} for case in table),
        ]
        times.write_text(json.dumps([case for case in wanted if arguments.only in case["name"]]))
    before = json.loads(times.read_text())
    _run(folder, "TestTimes", CASES=times, TIMES=folder / "now.json")
    _keep_lower(before, now := json.loads((folder / "now.json").read_text()))
    times.write_text(json.dumps(now))
    (folder / "now.json").unlink()
    print(f"{len(now)} cases with times in {times}")


def _build(kubernetes: Path, folder: Path) -> None:
    own, structured = Path(__file__).parent.resolve(), kubernetes / "staging/src" / _STRUCTURED
    testing = structured / "internal/allocatortesting"
    checked = (testing / "allocator_testing.go").read_text()
    (folder / "allocator_testing.go").write_text(
        checked.replace("func RunTestAllocator(", "func checkedRunTestAllocator(")
    )
    replaced = {
        testing / "allocator_testing.go": folder / "allocator_testing.go",
        testing / "table.go": own / "table.go",
        structured / "times_test.go": own / "times_test.go",
    }
    overlay = {"Replace": {str(path): str(by) for path, by in replaced.items()}}
    (folder / "overlay.json").write_text(json.dumps(overlay))
    command = [
        "go",
        "test",
        "-c",
        "-overlay",
        str(folder / "overlay.json"),
        "-o",
        str(folder / "allocator.test"),
        _STRUCTURED,
    ]
    subprocess.run(command, cwd=kubernetes, env=os.environ | {"CGO_ENABLED": "0"}, check=True)


def _run(folder: Path, test: str, **files: Path) -> None:
    # One thread, so that the garbage collector's helpers on idle processors don't count.
    environment = os.environ | {"GOMAXPROCS": "1"} | {name: str(path) for name, path in files.items()}
    command = [str(folder / "allocator.test"), "-test.run", f"^{test}$", "-test.timeout", "2h"]
    subprocess.run(command, env=environment, check=True)


def _keep_lower(before: list[Any], now: list[Any]) -> None:
    for old, new in zip(before, now, strict=True):
        if "go" in old:
            new["go"]["ns"] = min(old["go"]["ns"], new["go"]["ns"])


if __name__ == "__main__":
    main()
