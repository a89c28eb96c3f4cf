"""The image, as far as it can be checked where no registry is reached: the same install, the same entry points."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import toolkit
from support.image import ARCHITECTURES, ENTRY_POINTS, EXTRAS, LARGEST_MIB, LOCKED, Installed, installed, without_wheel

from kubelet_plugin.hardware.hook_program import IN_IMAGE

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

type Render = Any


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Installed into a clean virtual environment. Needs a package index, as the Dockerfile does."""
    if os.environ.get("GPU_DRA_TEST_INSTALL") != "1":
        pytest.skip("`make image-check` runs it: GPU_DRA_TEST_INSTALL is not 1")
    return installed(ROOT, tmp_path_factory.mktemp("image"))


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_entry_point_starts(name: str, tree: Installed) -> None:
    done = subprocess.run([*tree.command(name), "--help"], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


def test_it_has_what_goes_with_the_programs(tree: Installed) -> None:
    script = "from dra_driver import bundled; print(*sorted(p.name for p in bundled.DEVICE_CLASSES_FOLDER.iterdir()))"
    done = subprocess.run([tree.python, "-c", script], capture_output=True, text=True, cwd="/", check=True)
    assert "gpu.nvidia.com.yaml" in done.stdout
    there = {path.name for path in tree.folder.rglob("*") if path.is_dir()}
    assert not there & {"pytest", "mypy", "hypothesis", "helm_sdkpy"}


def test_the_tree_is_small(tree: Installed) -> None:
    print(f"installed tree: {tree.mib():.0f} MiB")
    assert tree.mib() < LARGEST_MIB


def test_the_image_copies_what_the_package_is_made_of() -> None:
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M))
    words = {word for line in copied for word in line.split()}
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert words == let_through
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} <= words


def test_what_is_copied_is_there() -> None:
    sources = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M) for word in line.split()]
    assert sources and [word for word in sources if not (ROOT / word).exists()] == []


def test_the_base_is_an_argument_for_every_stage() -> None:
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) == ["${GO}", "${BASE}", "${BASE}"]


def test_bases_are_pinned_by_digest() -> None:
    bases = re.findall(r"^ARG (BASE|GO)=(\S+)$", DOCKERFILE, re.M)
    assert [name for name, image in bases if re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", image)] == [
        "BASE",
        "GO",
    ]
    assert "# syntax=" not in DOCKERFILE, "a frontend of another image is one more base"


@pytest.mark.parametrize("digest", ["sha256:" + "5a" * 32, ""])
def test_the_pins_are_renewed_by_make_bases_or_stay(digest: str, tmp_path: Path) -> None:
    for name in ("Makefile", "Dockerfile"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {digest}\n')
    docker.chmod(0o755)
    environment = {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["make", "bases"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    pins = [f"python:3.13-slim-bookworm@{digest}", f"golang:1.25-bookworm@{digest}"]
    if digest:
        assert done.stdout.split() == pins
        assert re.findall(r"^ARG (?:BASE|GO)=(\S+)$", (tmp_path / "Dockerfile").read_text(), re.M) == pins
    else:
        assert done.returncode != 0 and "python:3.13-slim-bookworm: no digest; Docker" in done.stderr
        assert (tmp_path / "Dockerfile").read_text() == DOCKERFILE


def test_the_sbom_lists_what_is_locked(tree: Installed) -> None:
    subprocess.run(["make", "sbom"], cwd=ROOT, check=True, capture_output=True)
    listed = json.loads((ROOT / "build" / "sbom.cdx.json").read_text())["components"]
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.M)
    assert sorted((part["name"], part["version"]) for part in listed) == sorted(locked)


def test_the_hook_program_of_the_image_is_pinned_and_is_one_that_was_tried() -> None:
    pinned = dict(re.findall(r"^ARG (TOOLKIT\w*)=(\S+)$", DOCKERFILE, re.M))
    assert f"{pinned['TOOLKIT'].removeprefix('v')}/nvidia-cdi-hook" in toolkit.recorded()
    assert re.fullmatch(r"h1:[A-Za-z0-9+/]{43}=", pinned["TOOLKIT_SUM"])
    assert 'grep -F "${TOOLKIT_SUM}"' in DOCKERFILE


def test_the_plugin_finds_the_hook_program_where_the_image_has_it() -> None:
    (target,) = re.findall(r"^COPY --from=hook /hook (\S+)$", DOCKERFILE, re.M)
    assert Path(target) / "nvidia-cdi-hook" == Path("/opt/gpu-dra") / IN_IMAGE.relative_to(sys.prefix)


def test_nothing_is_installed_where_it_runs_and_nothing_is_built_as_somebody_else() -> None:
    """The second stage has what the first has made, and no programs that make things."""
    _, build, run = (part.splitlines() for part in re.split(r"^FROM .*$", DOCKERFILE, flags=re.M)[1:])
    words = [line.split()[0] for line in run if line and not line.startswith(("#", " "))]
    assert words == ["LABEL", "COPY", "COPY", "ENV", "RUN", "USER", "CMD"]
    assert next(line for line in run if line.startswith("RUN")).startswith("RUN python -m compileall ")
    copied = [line for line in run if line.startswith("COPY")]
    assert copied == ["COPY --from=build /opt/gpu-dra /opt/gpu-dra", "COPY --from=hook /hook /opt/gpu-dra/libexec"]
    assert any("pip uninstall --yes pip" in line for line in build)


def test_the_check_installs_what_the_image_installs() -> None:
    extras = re.findall(r"gpu-dra-driver(\[[a-z,]+\])", DOCKERFILE)
    assert extras == [EXTRAS]
    installs = re.findall(r"pip install (.*?) \\\n", DOCKERFILE)
    from_index = [f"{' '.join(LOCKED)} --requirement requirements{which}.txt" for which in ("-build", "")]
    assert installs == [*from_index, f'--no-index --find-links /wheels "gpu-dra-driver{EXTRAS}"']
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == set(ENTRY_POINTS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_there_are_wheels_for_every_architecture(architecture: str, tree: Installed) -> None:
    """Of everything that is locked, with a hash that is listed: nothing is compiled there either."""
    assert without_wheel(ROOT / "requirements.txt", architecture) == ""


def test_the_image_runs_as_the_user_of_the_chart(render: Render) -> None:
    """By number: with `runAsNonRoot` and no `runAsUser` kubelet takes the image's user, and refuses a name."""
    (container,) = render().object("Deployment")["spec"]["template"]["spec"]["containers"]
    context = container["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in DOCKERFILE


def test_the_chart_runs_what_the_image_has(render: Render) -> None:
    release = render()
    pods = [release.object(kind)["spec"]["template"]["spec"] for kind in ("DaemonSet", "Deployment")]
    pods += [job["spec"]["template"]["spec"] for job in release.hooks if job["kind"] == "Job"]
    commands = [container["command"] for pod in pods for container in pod["containers"]]
    assert {tuple(command) for command in commands} <= {
        *((name,) for name in ENTRY_POINTS),
        ("python", "-m", "controller.uninstall"),
    }
    subprocess.run([sys.executable, "-m", "controller.uninstall", "--help"], check=True, capture_output=True)


def test_the_chart_asks_for_the_version_that_is_built(render: Render) -> None:
    (container,) = render().object("DaemonSet")["spec"]["template"]["spec"]["containers"]
    chart = yaml.safe_load((ROOT / "charts" / "gpu-dra-driver" / "Chart.yaml").read_text())
    assert container["image"] == f"gpu-dra-driver:{chart['appVersion']}"
