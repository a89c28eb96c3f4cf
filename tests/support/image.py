"""What the Dockerfile installs, installed here: a wheel of the project in a virtual environment without pip."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENTRY_POINTS = ("gpu-dra-kubelet-plugin", "gpu-dra-controller", "gpu-dra-imex-daemon", "dractl", "kubectl-dra")
LARGEST_MIB = 250
"""Of the installed tree, compiled files included; the base image is not ours."""


@dataclass(frozen=True)
class Installed:
    """The virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def command(self, name: str) -> Sequence[str]:
        return [str(self.folder / "bin" / name)]

    def mib(self) -> float:
        files = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files) / 2**20


def installed(root: Path, folder: Path) -> Installed:
    """With the options of the Dockerfile; a wheel that is missing fails."""
    wheels, target = folder / "wheels", folder / "venv"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(root)])
    _run([sys.executable, "-m", "venv", "--without-pip", str(target)])
    (wheel,) = wheels.glob("gpu_dra_driver-*.whl")
    where = ["--python", str(target / "bin" / "python")]
    _run([*pip, *where, "install", "--only-binary", ":all:", f"{wheel}[cli,otel,webhook]"])
    _run([str(target / "bin" / "python"), "-m", "compileall", "-q", "-j", "2", str(target / "lib")])
    return Installed(target)


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r"\n+", "\n", done.stdout + done.stderr)[-3000:]
        raise AssertionError(f"{' '.join(words)}\n{said}")
