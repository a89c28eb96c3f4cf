"""Which Kubernetes a test runs on. Contracts hold for the features of the newest version, wherever they exist.

So older servers get the gates that are on in the newest one; what a version has by default is asked for with
`own_defaults`. A test that needs a gate which a version lacks is skipped there, with the gate's name.
"""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from dra_driver.kubernetes import CURRENT, GATES, minor_of

SIMULATED = "SIMULATED_KUBERNETES"
"""The version of simulated servers under contract, as 1.34; default: the newest."""


def simulated_minor() -> int:
    return minor_of(os.environ.get(SIMULATED, f"1.{CURRENT}"))


@cache
def real_minor(assets: Path) -> int:
    """Of the kube-apiserver in the folder; it says `Kubernetes v1.34.9`."""
    command = [str(assets / "kube-apiserver"), "--version"]
    return minor_of(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def gates_on(minor: int, wanted: Mapping[str, bool]) -> dict[str, bool]:
    """What to switch on a server 1.`minor`, so that it has the newest version's defaults but for `wanted`.

    Skips the test when it wants a gate that this version does not have.
    """
    for name, value in wanted.items():
        if value and GATES[name].stage(minor) == "absent":
            pytest.skip(f"Kubernetes 1.{minor} has no feature gate {name}")
    everywhere = {name: gate.default(CURRENT) for name, gate in GATES.items()} | dict(wanted)
    return {
        name: value
        for name, value in everywhere.items()
        if GATES[name].stage(minor) != "absent" and value != GATES[name].default(minor)
    }
