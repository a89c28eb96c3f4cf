"""How long commands take that people wait for: `dractl --help`, and `dractl explain -f` on one node of eight GPUs.

    python benchmarks/startup.py [--rounds N]

The best of several rounds: the first ones read files from disk and compile modules. CPU time is what a quiet machine
with one core to spare would need.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from _measured import PYTHON, cost

LIMITS_S = {"dractl --help": 0.3, "dractl explain -f": 0.6}
HELP_LIMIT = 8
"""How many times as long as a Python that does nothing the help may take."""


def manifests() -> list[dict[str, Any]]:
    """A claim that does not fit on a node with eight GPUs."""
    devices = [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}} for number in range(8)]
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 9}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "node-1"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, "devices": devices},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "nine"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    dractl = [PYTHON, "-m", "dra_driver.cli"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "objects.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests()}))
        commands = {"dractl --help": [*dractl, "--help"], "dractl explain -f": [*dractl, "explain", "-f", str(path)]}
        for name, command in commands.items():
            spent = cost(command, rounds, expected=(0, 1))
            print(f"{name:20} {spent.processor_s:.2f} s CPU, {spent.wall_s:.2f} s in all (wanted: {LIMITS_S[name]} s)")
        nothing_s = cost([PYTHON, "-c", "pass"], rounds).processor_s
        help_s = cost([*dractl, "--help"], rounds).processor_s
        print(f"dractl --help takes {help_s / nothing_s:.1f} times as long as an empty Python (wanted: {HELP_LIMIT})")


if __name__ == "__main__":
    main()
