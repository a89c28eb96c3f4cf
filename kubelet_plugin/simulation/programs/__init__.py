"""The driver's programs on a simulated node: nvidia-smi, nvidia-modprobe, MPS, IMEX, as processes that can be killed.

`kubelet_plugin.simulation.host` installs `script(...)` where the driver would have put the program. Each run
gets a Python of its own, without site packages: these modules import nothing but the standard library and each other,
and start in some tens of milliseconds. What they change is the node's state file, as hardware remembers it.
"""

import shlex
import sys
from pathlib import Path

_FUNCTIONS = {
    "nvidia-smi": "smi.main",
    "nvidia-modprobe": "modprobe.main",
    "nvidia-cuda-mps-control": "mps_control.main",
    "nvidia-imex": "imex.main",
    "nvidia-imex-ctl": "imex_ctl.main",
    "simulated-cuda-check": "cuda.check",
}
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import {name}; sys.exit({name}(sys.argv[1:]))"


def script(program: str, host_root: Path, note: str = "") -> str | None:
    """The text of the executable file for `program` of the node below `host_root`; None when it is not simulated."""
    if program not in _FUNCTIONS:
        return None
    module, _, name = _FUNCTIONS[program].partition(".")
    start = _START.format(module=f"{__name__}.{module}", name=name)
    packages = Path(__file__).resolve().parents[3]
    words = (sys.executable, "-S", "-E", "-c", start, str(packages), str(host_root.absolute()))
    return f'#!/bin/sh\n# simulated {program} {note}\nexec {shlex.join(words)} "$@"\n'
