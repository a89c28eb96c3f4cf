"""The commands of the plan name files that are there, wherever results go."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.dractl import run

LIMITS = {"limits": {"nvidia.com/gpu": "1"}}
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
AROUND: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-a"},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-1",
            "namespace": "team",
            "labels": {"pod-template-hash": "1"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": True}],
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "main", "image": "a", "resources": LIMITS}]},
    },
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "web.yaml").write_text(DEPLOYMENT)
    (tmp_path / "around.yaml").write_text(yaml.safe_dump_all(AROUND))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(plan: dict[str, Any], way: str) -> list[str]:
    steps = (step for stage in plan["cutover"][way] for step in stage["steps"])
    return [command for step in steps for command in step["commands"]]


def files(lines: list[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"kubectl apply(?: set-\S+ --\S+)? -f ([^\s;]+)", line)}


GIVEN = ("--with", "around.yaml", "--strategy", "claims")


def test_with_a_folder_results_are_applied_from_there_and_originals_put_back(folder: Path) -> None:
    run("migrate", "web.yaml", *GIVEN, "--to", "out")
    plan = json.loads((folder / "out" / "report.json").read_text())
    assert files(commands(plan, "forward")) == {"web.yaml", "out/manifests/web.yaml"}
    assert files(commands(plan, "back")) == {"web.yaml"}
    assert (folder / "out" / "manifests" / "web.yaml").exists()
    values = {name for line in commands(plan, "forward") for name in re.findall(r"helm .* -f (\S+)", line)}
    assert values == {"out/values-cutover.yaml", "out/values.yaml"}
    assert all((folder / name).exists() for name in values)


def test_in_place_originals_come_from_version_control(folder: Path) -> None:
    plan = json.loads(run("migrate", "web.yaml", *GIVEN, "--in-place", "--report", "json").stdout)
    assert files(commands(plan, "forward")) == {"web.yaml"}
    assert "from version control" in "".join(commands(plan, "forward"))
    assert files(commands(plan, "back")) == set()


def test_the_original_of_standard_input_lies_beside_its_result(folder: Path) -> None:
    run("migrate", "-", *GIVEN, "--to", "out", typed=DEPLOYMENT)
    plan = json.loads((folder / "out" / "report.json").read_text())
    assert files(commands(plan, "forward")) == {"out/manifests/stdin.yaml", "out/before/stdin.yaml"}
    assert files(commands(plan, "back")) == {"out/before/stdin.yaml"}
    assert (folder / "out" / "before" / "stdin.yaml").read_text() == DEPLOYMENT


def test_before_anything_is_written_the_first_command_writes_it(folder: Path) -> None:
    plan = json.loads(run("migrate", "web.yaml", *GIVEN, "--report", "json").stdout)
    first, *rest = commands(plan, "forward")
    assert first.endswith("migrate web.yaml --with around.yaml --strategy claims --to new/")
    assert "new/manifests/web.yaml" in files(rest)


def test_without_slices_the_plan_begins_with_a_look_at_them(folder: Path) -> None:
    def looks(*around: str) -> bool:
        plan = json.loads(run("migrate", "web.yaml", *GIVEN, *around, "--report", "json").stdout)
        return any(
            "kubectl get resourceslices --field-selector spec.driver=" in text for text in commands(plan, "forward")[:2]
        )

    assert looks()
    pool = {"name": "nic", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nic.example.com", "nodeName": "node-a", "pool": pool, "devices": []}
    seen = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "nic"}, "spec": spec}
    (folder / "slices.yaml").write_text(yaml.safe_dump(seen))
    assert not looks("--with", "slices.yaml")
