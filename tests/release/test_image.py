"""`make image` makes what the Dockerfile makes, on a base of Debian's packages."""

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
from support.image import ENTRY_POINTS

from release.debian import ARCHITECTURES, PYTHON, ROOTS, CannotBuild, Package, interpreter, mirrors
from release.image import REPOSITORY, RUNS, Trees, build, compile_trees, write_trees
from release.programs import PLACE, PythonPackage, build_wheel
from release.sbom import bill_of_materials

_UNCHECKED = (1).to_bytes(4, "little")
"""The flags of a compiled module that is used whatever its source is. Source: PEP 552."""
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def test_it_runs_as_the_dockerfile_says() -> None:
    (variables,) = re.findall(r"^ENV (PATH=/opt/gpu-dra.*)$", DOCKERFILE, re.MULTILINE)
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
    labels = dict(re.findall(r'(org\.opencontainers\S+)="(.*?)"', DOCKERFILE))
    path, *others = variables.split()
    assert (RUNS["User"], RUNS["Cmd"], RUNS["Labels"]) == (user, json.loads(command), labels)
    assert RUNS["Env"][1:] == others
    assert RUNS["Env"][0].startswith(path.removesuffix("$PATH")) and path.startswith(f"PATH=/{PLACE}/bin")


def test_hooks_are_there_for_every_architecture_or_nothing_is_built(tmp_path: Path) -> None:
    (tmp_path / "hooks" / "amd64").mkdir(parents=True)
    (tmp_path / "hooks" / "amd64" / "nvidia-cdi-hook").touch()
    with pytest.raises(CannotBuild, match=r"arm64/nvidia-cdi-hook is missing: HOOKS"):
        build(tmp_path, tmp_path / "build", mirror=None, hooks=tmp_path / "hooks", name="x")
    assert not (tmp_path / "build").exists()


def test_a_machine_without_apt_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        CannotBuild, match=r"apt-get and dpkg-deb not found.*Debian or Ubuntu machine, or build the Docker"
    ):
        mirrors(None)


def test_the_list_names_each_package_once_by_its_url_and_not_the_project() -> None:
    libc = {
        architecture: (Package("libstdc++6", "1:2~rc1+b2", architecture), Package("tzdata", "2026f", "all"))
        for architecture in ARCHITECTURES
    }
    python = [PythonPackage("gpu-dra-driver", "1"), PythonPackage("PyYAML", "6.0.3")]
    bill = bill_of_materials("gpu-dra-driver", "1", libc, python)
    assert [component["purl"] for component in bill["components"]] == [
        "pkg:deb/debian/libstdc%2B%2B6@1%3A2~rc1%2Bb2?arch=amd64&distro=debian-trixie",
        "pkg:deb/debian/libstdc%2B%2B6@1%3A2~rc1%2Bb2?arch=arm64&distro=debian-trixie",
        "pkg:deb/debian/tzdata@2026f?arch=all&distro=debian-trixie",
        "pkg:pypi/pyyaml@6.0.3",
    ]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Of this machine's architecture. Needs a package index and a Debian mirror."""
    if os.environ.get("GPU_DRA_TEST_INSTALL") != "1":
        pytest.skip("`make image-check` runs it: GPU_DRA_TEST_INSTALL is not 1")
    try:
        from_mirrors = mirrors(os.environ.get("MIRROR"))
    except CannotBuild as error:
        pytest.skip(str(error))
    work = tmp_path_factory.mktemp("image")
    made = write_trees(work / HERE, HERE, build_wheel(REPOSITORY, work), from_mirrors)
    compile_trees([made], made, HERE)
    return made


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_program_starts_with_the_images_own_python_and_libraries(name: str, trees: Trees) -> None:
    script = trees.programs / PLACE / "bin" / name
    assert script.read_text().startswith(f"#!/{PLACE}/bin/python\n")
    packages = trees.programs / PLACE / "lib" / f"python{PYTHON}" / "site-packages"
    variables = {"PYTHONHOME": str(trees.base / "usr"), "PYTHONPATH": str(packages), "LD_BIND_NOW": "1"}
    command = [*interpreter(trees.base, HERE), str(script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


def test_the_tree_has_what_was_locked_and_is_compiled(trees: Trees) -> None:
    locked = dict(
        re.findall(r"^([\w.-]+)==(\S+)(?: ;.*'(?!win32).*| \\)$", (REPOSITORY / "requirements.txt").read_text(), re.M)
    )
    there = {distribution.name.lower().replace("_", "-"): distribution.version for distribution in trees.python}
    assert there.pop("gpu-dra-driver")
    assert there == {name: version for name, version in locked.items() if name in there}
    assert set(locked) - set(there) <= {"colorama"}
    assert {package.name for package in trees.debian} >= set(ROOTS)
    for root in (trees.base, trees.programs):
        modules = [path for path in root.rglob("*.py") if path.name != "sitecustomize.py"]
        uncompiled = [module for module in modules if not list(module.parent.glob(f"__pycache__/{module.stem}.*.pyc"))]
        assert modules and not [module for module in uncompiled if "/share/" not in str(module)]
        by_time = [compiled for compiled in root.rglob("*.pyc") if compiled.read_bytes()[4:8] != _UNCHECKED]
        assert not by_time, "each start compiles these again, because an archive does not keep times of files"
