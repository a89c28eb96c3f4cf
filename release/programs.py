"""What is installed on the base image: the project and the packages it needs, as the Dockerfile installs them.

Packages are those whose hashes are in `requirements*.txt`, as wheels of the image's architecture; nothing is compiled.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from release.debian import ARCHITECTURES, PYTHON, CannotBuild, interpreter

PLACE = Path("opt/gpu-dra")
"""The virtual environment, below the root of the image."""

_SITE_PACKAGES = PLACE / "lib" / f"python{PYTHON}" / "site-packages"
_LOCKED = ("--require-hashes", "--only-binary", ":all:")
_MANYLINUX = ("_2_34", "_2_28", "_2_17", "2014")
"""Of the wheels that run on the base's glibc, 2.41."""


@dataclass(frozen=True)
class PythonPackage:
    """An installed Python package."""

    name: str
    version: str


def build_wheel(repository: Path, work: Path) -> Path:
    """The wheel of the project, built with the packages of `requirements-build.txt` and no others."""
    build, wheels = work / "build", work / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(build))
    pip = [*_PIP, "--python", str(build / "bin" / "python")]
    _run(*pip, "install", "--no-deps", *_LOCKED, "--requirement", str(repository / "requirements-build.txt"))
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(repository))
    (wheel,) = wheels.glob("*.whl")
    return wheel


def write_programs(root: Path, architecture: str, wheel: Path, repository: Path) -> tuple[PythonPackage, ...]:
    """The virtual environment in `root`, which may be empty otherwise; answers its packages by name."""
    target, place = root / _SITE_PACKAGES, root / PLACE
    machine = ARCHITECTURES[architecture].split("-", 1)[0]
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in _MANYLINUX]
    chosen = [*platforms, f"--python-version={PYTHON}", "--implementation=cp", "--no-compile", f"--target={target}"]
    _run(*_PIP, "install", "--no-deps", *_LOCKED, *chosen, "--requirement", str(repository / "requirements.txt"))
    # By name: pip would write down the path of a file.
    ours = ["--no-index", f"--find-links={wheel.parent}", wheel.name.split("-", 1)[0]]
    _run(*_PIP, "install", "--no-deps", "--only-binary=:all:", "--upgrade", *chosen, *ours)
    _write_environment(place, target / "bin")
    packages = (PythonPackage(package.metadata["Name"], package.version) for package in installed(target))
    return tuple(sorted(packages, key=lambda package: package.name.lower()))


def installed(folder: Path) -> Sequence[Distribution]:
    return list(distributions(path=[str(folder)]))


def _write_environment(place: Path, scripts: Path) -> None:
    """What `venv` writes; scripts begin with the interpreter that pip ran with, and get that of the environment."""
    (place / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n")
    (place / "bin").mkdir()
    for name in ("python", "python3", f"python{PYTHON}"):
        (place / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")
    for script in sorted(scripts.iterdir()):
        first, _, rest = script.read_text().partition("\n")
        if first.startswith("#!") and "python" in first:
            target = place / "bin" / script.name
            target.write_text(f"#!/{PLACE}/bin/python\n{rest}")
            target.chmod(0o755)
    shutil.rmtree(scripts)


def write_hook(root: Path, program: Path) -> None:
    """`nvidia-cdi-hook`, where the plugin looks for it."""
    target = root / PLACE / "libexec" / "nvidia-cdi-hook"
    target.parent.mkdir(parents=True)
    shutil.copyfile(program, target)
    target.chmod(0o755)


def compile_modules(base: Path, root: Path, folder: Path, architecture: str) -> None:
    """Compiles all modules below `folder` of `root` with the Python of `base`, whose architecture is this machine's.

    Containers have read-only file systems, so each start would compile again. Compiled modules are the same on every
    architecture. They do not depend on times of files, which an archive does not keep (PEP 552).
    """
    # One process: those that compileall starts would not find the base's libraries.
    options = ["-q", "-j", "1", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    # `-B`: what compileall itself imports is compiled as the rest, too, and not by the time of its file.
    command = [*interpreter(base, architecture), "-B", "-m", "compileall", *options, str(root / folder)]
    home = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0"}
    _run(*command, environment=home)


_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def _run(*words: str, environment: dict[str, str] | None = None) -> None:
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise CannotBuild(f"{' '.join(words[:6])} … failed: {(done.stdout + done.stderr).strip()[-2000:]}")
