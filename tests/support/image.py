"""What the Dockerfile installs, installed here: a wheel of the project in a virtual environment without pip."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

ENTRY_POINTS = ("gpu-dra-kubelet-plugin", "gpu-dra-controller", "gpu-dra-imex-daemon", "dractl", "kubectl-dra")
EXTRAS = "[cli,otel,webhook]"
ARCHITECTURES = ("x86_64", "aarch64")
LARGEST_MIB = 250
"""Of the installed tree, compiled files included; the base image is not ours."""

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


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

    def without_wheel(self, architecture: str) -> str:
        """What pip says of packages that have no wheel for it; empty where all have one. Asks the index."""
        wanted = [
            f"{one.metadata['Name']}=={one.version}"
            for one in distributions(path=[str(path) for path in self.folder.glob("lib/python*/site-packages")])
            if one.metadata["Name"] != "gpu-dra-driver" and "Root-Is-Purelib: false" in (one.read_text("WHEEL") or "")
        ]
        assert wanted, "packages with compiled parts are among them"
        platforms = [f"manylinux{glibc}_{architecture}" for glibc in ("2014", "_2_17", "_2_28")]
        words = ["install", "--dry-run", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", "nowhere"]
        where = [f"--platform={one}" for one in platforms]
        done = subprocess.run(
            [*_PIP, *words, *where, *wanted], capture_output=True, text=True, cwd=self.folder, check=False
        )
        return done.stderr if done.returncode else ""


def installed(root: Path, folder: Path) -> Installed:
    """With the options of the Dockerfile; a wheel that is missing fails."""
    wheels, target = folder / "wheels", folder / "venv"
    _run([*_PIP, "--quiet", "wheel", "--no-deps", "--wheel-dir", str(wheels), str(root)])
    _run([sys.executable, "-m", "venv", "--without-pip", str(target)])
    (wheel,) = wheels.glob("gpu_dra_driver-*.whl")
    where = ["--python", str(target / "bin" / "python")]
    _run([*_PIP, "--quiet", *where, "install", "--only-binary", ":all:", f"{wheel}{EXTRAS}"])
    _run([str(target / "bin" / "python"), "-m", "compileall", "-q", "-j", "2", str(target / "lib")])
    return Installed(target)


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r"\n+", "\n", done.stdout + done.stderr)[-3000:]
        raise AssertionError(f"{' '.join(words)}\n{said}")
