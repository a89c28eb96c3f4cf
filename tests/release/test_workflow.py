"""The release workflow, step by step, with programs in place of registries that write down what they are asked."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver import __version__
from release.chart import metadata
from release.image import REPOSITORY

WORKFLOW = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yaml").read_text())
JOBS: dict[str, Any] = WORKFLOW["jobs"]
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]
NIGHTLY = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "nightly.yaml").read_text())
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
    "make": "",
    # Makes an environment, whose Python writes down what it is asked, too.
    "python3": """mkdir -p build/python/bin
printf '#!/bin/sh\\necho python "$@" >> "$ASKED"\\n' > build/python/bin/python
chmod +x build/python/bin/python""",
    # Of GitHub's machines: the one filter that the workflow uses.
    "jq": f"""exec {sys.executable} -c '
import json, sys
print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$3" """,
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
    # Where upload-artifact and download-artifact would put it.
    (folder / "build").mkdir()
    for step in (step for step in STEPS if "run" in step):
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
    packaged = f"-m release.chart --image ghcr.io/team/gpu-dra-driver --digest {IMAGE_DIGEST} --runbooks {page}"
    assert f"python {packaged}" in asked, "which is the image that was pushed"
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


def test_what_may_push_and_sign_runs_only_what_is_pinned_by_a_hash() -> None:
    assert WORKFLOW["permissions"] == {}
    assert JOBS["check"]["permissions"] == {"contents": "read"}
    assert JOBS["publish"]["permissions"] == {"contents": "write", "packages": "write", "id-token": "write"}
    assert JOBS["publish"]["needs"] == "check"
    scripts = "\n".join(step.get("run", "") for step in JOBS["publish"]["steps"])
    assert not re.findall(r"\.ci/run|^ *make ", scripts, re.MULTILINE), "their tools are the newest that fit"
    assert re.findall(r"pip install (.*)", scripts) == [
        "--require-hashes --only-binary :all: --requirement requirements.txt"
    ]


def test_actions_are_pinned() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and [action for action in used if not re.fullmatch(r"\S+@[0-9a-f]{40}", action)] == []


def test_every_target_that_it_makes_is_in_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    used = re.findall(r"^ *make (\w+)", "\n".join(step.get("run", "") for step in STEPS), re.MULTILINE)
    assert {"sbom", "scan"} == set(used) <= set(targets)


def test_the_command_that_packages_the_chart_has_the_options_that_it_is_given(tmp_path: Path) -> None:
    script = next(step["run"] for step in STEPS if "release.chart" in step.get("run", ""))
    options = re.findall(r"--\w+ ", script[script.index("release.chart") : script.index("helm")])
    words = [
        word
        for option, value in zip(options, ("r.example/x", IMAGE_DIGEST, "https://p.example"), strict=True)
        for word in (option.strip(), value)
    ]
    subprocess.run([sys.executable, "-m", "release.chart", *words, "--target", tmp_path], cwd=REPOSITORY, check=True)
    assert (tmp_path / f"gpu-dra-driver-{TAG.removeprefix('v')}.tgz").is_file()


def test_the_version_of_the_chart_is_that_of_the_programs() -> None:
    assert metadata()["version"] == metadata()["appVersion"] == __version__


def test_vulnerabilities_are_looked_for_before_a_release_and_each_night() -> None:
    nightly = [step for job in NIGHTLY["jobs"].values() for step in job["steps"]]
    for steps in (STEPS, nightly):
        assert {"run": "make scan"} in steps
    assert NIGHTLY["permissions"] == {"contents": "read"}


CURL = """#!/bin/sh
for url; do :; done
case "$url" in
*.sha256) printf '%s' "$(sha256sum "$PUBLISHED/kube-apiserver" | cut -d ' ' -f 1)";;
*/SHA256SUMS) cd "$PUBLISHED" && sha256sum *.tar.gz;;
*) cp "$SENT/${url##*/}" .;;
esac
"""
"""Like curl, of two folders: hashes are of what was published, files are what was sent."""


@pytest.mark.parametrize("altered", ["", "kube-apiserver", "etcd"])
def test_the_api_server_of_the_night_is_what_its_project_published(tmp_path: Path, altered: str) -> None:
    job = NIGHTLY["jobs"]["contracts"]
    assert job["steps"][-1] == {"run": "make test ARGS=tests/contracts"}
    for folder, text in (("published", "true"), ("sent", "altered")):
        made = tmp_path / folder / f"etcd-{job['env']['ETCD']}-linux-amd64"
        made.mkdir(parents=True)
        (made / "etcd").write_text(text if altered == "etcd" else "true")
        (made.parent / "kube-apiserver").write_text(text if altered == "kube-apiserver" else "true")
        subprocess.run(["tar", "-czf", f"{made}.tar.gz", "-C", made.parent, made.name], check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "curl").write_text(CURL)
    (tmp_path / "bin" / "curl").chmod(0o755)
    assets = tmp_path / "assets"
    environment = {
        **job["env"],
        "KUBEBUILDER_ASSETS": str(assets),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PUBLISHED": str(tmp_path / "published"),
        "SENT": str(tmp_path / ("sent" if altered else "published")),
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", job["steps"][1]["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not altered), done.stderr
    assert (os.access(assets / "kube-apiserver", os.X_OK) and (assets / "etcd").exists()) == (not altered)
