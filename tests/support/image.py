"""What the Dockerfile installs, installed here: a wheel of the project in a virtual environment without pip."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENTRY_POINTS = (
    "gpu-dra-kubelet-plugin",
    "gpu-dra-controller",
    "gpu-dra-imex-daemon",
    "gpu-dra-cuda-check",
    "dractl",
    "kubectl-dra",
)
EXTRAS = "[cli,otel,webhook]"
ARCHITECTURES = ("x86_64", "aarch64")
LOCKED = ("--require-hashes", "--only-binary", ":all:")
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


def without_wheel(requirements: Path, architecture: str) -> str:
    """What pip says where a package has no wheel for it with a hash that is listed; else empty. Asks the index."""
    where = [f"--platform=manylinux{glibc}_{architecture}" for glibc in ("2014", "_2_17", "_2_28")]
    words = ["install", "--dry-run", "--quiet", "--no-deps", *LOCKED, "--target", "nowhere", *where]
    named = [*words, "--requirement", str(requirements)]
    done = subprocess.run([*_PIP, *named], capture_output=True, text=True, cwd="/", check=False)
    return done.stderr if done.returncode else ""


def installed(root: Path, folder: Path) -> Installed:
    """With the options of the Dockerfile; a wheel that is missing fails, or has another hash."""
    wheels, build, target = folder / "wheels", folder / "build", folder / "venv"
    for made, requirements in ((build, "requirements-build.txt"), (target, "requirements.txt")):
        _run([sys.executable, "-m", "venv", "--without-pip", str(made)])
        _run(
            [*_pip_of(made), "install", "--no-compile", "--no-deps", *LOCKED, "--requirement", str(root / requirements)]
        )
    _run([*_pip_of(build), "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(root)])
    _run(
        [
            *_pip_of(target),
            "install",
            "--no-compile",
            "--no-index",
            "--find-links",
            str(wheels),
            f"gpu-dra-driver{EXTRAS}",
        ]
    )
    _run([str(target / "bin" / "python"), "-m", "compileall", "-q", "-j", "2", str(target / "lib")])
    return Installed(target)


def _pip_of(environment: Path) -> list[str]:
    """That of the tests, for one that has none."""
    return [*_PIP, "--quiet", "--python", str(environment / "bin" / "python")]


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        output = re.sub(r"\n+", "\n", done.stdout + done.stderr)[-3000:]
        raise AssertionError(f"{' '.join(words)}\n{output}")
