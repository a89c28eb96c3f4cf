"""The release workflow, step by step, with programs in place of registries that write down what they are asked."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from release.chart import metadata
from release.image import REPOSITORY

WORKFLOW = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yaml").read_text())
(JOB,) = WORKFLOW["jobs"].values()
TAG = f"v{metadata()['version']}"
IMAGE_DIGEST, CHART_DIGEST = f"sha256:{'1a' * 32}", f"sha256:{'2b' * 32}"

PROGRAMS = {
    "docker": f"""case "$*" in
*stdin*) cat > /dev/null;;
*--push*) echo '{{"containerimage.digest": "{IMAGE_DIGEST}"}}' > build/pushed.json;;
esac""",
    "helm": f"""case "$*" in *stdin*) cat > /dev/null;; push*) echo Digest: {CHART_DIGEST};; esac""",
    "cosign": "",
    "gh": "",
    "sudo": "",
    "make": """case "$1" in chart) touch "build/gpu-dra-driver-${TAG#v}.tgz";; esac""",
    # Of GitHub's machines: the one filter that the workflow uses.
    "jq": """python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$3" """,
}
"""Each writes its name and its arguments to `asked`, and then does this."""


def run(folder: Path, tag: str = TAG) -> tuple[list[str], str | None]:
    """What was asked of the programs, in order, up to the first step that fails; its errors, None if none does."""
    programs = folder / "bin"
    programs.mkdir()
    for name, does in PROGRAMS.items():
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> "$ASKED"\n{does}\n')
    for name in (".ci/run", "charts/gpu-dra-driver/Chart.yaml"):
        (folder / name).parent.mkdir(parents=True)
    (folder / ".ci" / "run").write_text('#!/bin/sh\necho .ci/run >> "$ASKED"\n')
    chart = (REPOSITORY / "charts" / "gpu-dra-driver" / "Chart.yaml").read_text()
    (folder / "charts" / "gpu-dra-driver" / "Chart.yaml").write_text(chart)
    for program in (*programs.iterdir(), folder / ".ci" / "run"):
        program.chmod(0o755)
    asked, variables = folder / "asked", folder / "variables"
    asked.touch()
    variables.touch()
    environment = {"TAG": tag, "IMAGE": "ghcr.io/Team/gpu-dra-driver", "CHARTS": "ghcr.io/Team/charts"}
    environment |= {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "team/driver"}
    environment |= {"ASKED": str(asked), "GITHUB_ENV": str(variables), "REGISTRY_USER": "u", "REGISTRY_PASSWORD": "p"}
    for step in JOB["steps"]:
        if "run" not in step:
            continue
        later = dict(line.split("=", 1) for line in variables.read_text().splitlines())
        # As GitHub runs a step.
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**environment, **later, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return asked.read_text().splitlines(), done.stderr
    return asked.read_text().splitlines(), None


def test_what_was_checked_is_pushed_and_what_was_pushed_is_signed(tmp_path: Path) -> None:
    asked, errors = run(tmp_path)
    version = TAG.removeprefix("v")
    assert errors is None, asked
    assert asked[0] == ".ci/run"
    pushes = [number for number, line in enumerate(asked) if "--push" in line or line.startswith("helm push")]
    assert [asked.index(f"make {name}") < pushes[0] for name in ("sbom", "scan")] == [True, True]
    assert f"--tag ghcr.io/team/gpu-dra-driver:{version} ." in asked[pushes[0]]
    page = f"https://github.example/team/driver/blob/{TAG}/docs/runbooks.md"
    assert f"make chart IMAGE=ghcr.io/team/gpu-dra-driver RUNBOOKS={page}" in asked, (
        "which is the image that was pushed"
    )
    assert asked[pushes[1]] == f"helm push build/gpu-dra-driver-{version}.tgz oci://ghcr.io/team/charts"
    signed = [line for line in asked if line.startswith("cosign")]
    assert signed == [
        f"cosign sign --yes ghcr.io/team/gpu-dra-driver@{IMAGE_DIGEST}",
        "cosign attest --yes --type cyclonedx --predicate build/sbom.cdx.json "
        f"ghcr.io/team/gpu-dra-driver@{IMAGE_DIGEST}",
        f"cosign sign --yes ghcr.io/team/charts/gpu-dra-driver@{CHART_DIGEST}",
    ]
    assert asked[-1].startswith(f"gh release create {TAG} --verify-tag")
    assert not [line for line in asked if line.endswith(" p")], "the password is not an argument"


def test_a_tag_that_is_not_the_version_of_the_chart_releases_nothing(tmp_path: Path) -> None:
    asked, errors = run(tmp_path, tag="v9.9.9")
    assert asked == []
    assert errors == f"the tag is v9.9.9, the version of the chart {metadata()['version']}\n"


def test_without_a_digest_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "helm", "echo Error: denied >&2")
    asked, errors = run(tmp_path)
    assert errors is not None
    assert asked and not [line for line in asked if line.startswith(("cosign", "gh"))]


def test_actions_are_pinned_and_the_workflow_may_do_no_more_than_it_needs() -> None:
    used = [step["uses"] for step in JOB["steps"] if "uses" in step]
    assert [one for one in used if not re.fullmatch(r"\S+@[0-9a-f]{40}", one)] == []
    assert WORKFLOW["permissions"] == {"contents": "write", "packages": "write", "id-token": "write"}


def test_every_target_that_it_makes_is_in_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    steps: list[dict[str, Any]] = JOB["steps"]
    used = re.findall(r"^ *make (\w+)", "\n".join(step.get("run", "") for step in steps), re.MULTILINE)
    assert {"sbom", "scan", "chart"} == set(used) <= set(targets)


def test_the_version_of_the_chart_is_that_of_the_programs() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert f"\nversion = {json.dumps(metadata()['version'])}\n" in project
    assert metadata()["version"] == metadata()["appVersion"]
