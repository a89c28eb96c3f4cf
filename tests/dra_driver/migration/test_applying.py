"""What the plan has typed to bring workloads into their new form, and back.

The commands are given to bash, and `kubectl` is a stand-in that knows what there is: it refuses what the API server
refuses (to change a Job), and keeps what `kubectl apply` keeps (a limit that it does not know to have made).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.migration.cutover.commands import Act, CutoverPlan, Results, Stage
from dra_driver.migration.cutover.cutover_plan import cutover
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, ObjectRef, Options, StrategyOption
from dra_driver.migration.understand.offering import DevicePlugin, GpuHolder, GpuNode, Installed, Offering
from dra_driver.names import GPU_DRIVER

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

POD = {"containers": [{"name": "main", "image": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


def manifest(kind: str, name: str, version: str = "apps/v1", namespace: str | None = "team") -> str:
    template = {"metadata": {"labels": {"app": name}}, "spec": POD}
    specs: dict[str, Any] = {
        "Pod": POD,
        "Job": {"template": {"spec": {**POD, "restartPolicy": "Never"}}},
        "CronJob": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}},
    }
    spec = specs.get(kind, {"selector": {"matchLabels": {"app": name}}, "template": template})
    return yaml.safe_dump(
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    )


FILES = {
    "web.yaml": manifest("Deployment", "web"),
    "search.yaml": manifest("StatefulSet", "search"),
    "train.yaml": manifest("Job", "train", "batch/v1"),
    "index.yaml": manifest("CronJob", "index", "batch/v1"),
    "shell.yaml": manifest("Pod", "shell", "v1"),
    "idle.yaml": manifest("Deployment", "idle"),
    "done.yaml": manifest("Job", "done", "batch/v1"),
    "absent.yaml": manifest("Job", "absent", "batch/v1"),
}
OWNERS = {
    "web": ObjectRef("Deployment", "team", "web"),
    "search": ObjectRef("StatefulSet", "team", "search"),
    "train": ObjectRef("Job", "team", "train"),
    "index": ObjectRef("Job", "team", "index-29344123"),
    "shell": None,
}


def offering(*names: str) -> Offering:
    """Two nodes; the Deployment has pods on both."""
    holders = tuple(GpuHolder("team", name, OWNERS[name], by_claim=False) for name in names)
    web = GpuHolder("team", "web-2", OWNERS["web"], by_claim=False)
    nodes = (
        GpuNode("a", {"nvidia.com/gpu": 8}, False, holders),
        GpuNode("b", {"nvidia.com/gpu": 8}, False, (web,) * 9),
    )
    return Offering(nodes, (DevicePlugin(Installed.DAEMON_SET, "kube-system", "plugin"),))


def migrated(files: dict[str, str]) -> Migration:
    sources = [ManifestText(name, text) for name, text in files.items()]
    return migrate(sources, Options(strategy=StrategyOption.CLAIMS))


def applied(stages: Sequence[Stage]) -> list[str]:
    return [
        command
        for stage in stages
        for step in stage.steps
        if step.act is Act.APPLY
        for command in step.commands
        if "helm" not in command
    ]


KUBECTL = """
import json, sys

words = sys.argv[1:]
with open({world!r}) as world:
    objects = json.load(world)
flags = [word for word in words if word not in ("-n", "team")]


def read(file):
    sys.path.append({packages!r})
    import yaml

    with open(0 if file == "-" else file) as text:
        found = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]
    assert found, "no objects passed to apply"
    return found


def key(one):
    return one["kind"].lower() + "/" + one["metadata"]["name"]


def form(one):
    return "new" if "resourceClaims" in json.dumps(one) else "old"


match flags[0]:
    case "get" if flags[1] == "-f":
        print("\\n".join(name for name in map(key, read(flags[2])) if name in objects))
    case "get" if flags[1] == "pods":
        print("")
    case "get":
        kept = objects.get(flags[1].split(".")[0] + "/" + flags[2])
        if "last-applied" in words[-1]:
            print("yes" if kept and kept["known"] else "")
        elif kept:
            print(flags[2], "Complete" if kept["done"] else "")
    case "delete":
        objects.pop(flags[1].split(".")[0] + "/" + flags[2], None)
    case "apply":
        refused = []
        for one in read(words[-1]):
            name, now = key(one), objects.get(key(one))
            if one["kind"] == "ResourceClaimTemplate":
                continue
            if "set-last-applied" in words:
                assert now, name + " not found"
                now["known"] = True
            elif now is None:
                objects[name] = {{"form": form(one), "known": True, "done": False}}
            else:
                if one["kind"] in ("Pod", "Job") and now["form"] != form(one):
                    refused.append(name + ": field is immutable")
                    continue
                now["form"] = form(one) if now["known"] or now["form"] == form(one) else "both"
                now["known"] = True
with open({world!r}, "w") as world:
    json.dump(objects, world)
if flags[0] == "apply" and refused:
    sys.exit("; ".join(refused))
"""
THERE = (
    "deployment/web",
    "statefulset/search",
    "job/train",
    "cronjob/index",
    "pod/shell",
    "deployment/idle",
    "job/done",
)


@dataclass
class Shell:
    folder: Path
    typed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        binaries = self.folder / "bin"
        binaries.mkdir()
        script = KUBECTL.format(world=str(self.folder / "world.json"), packages=str(Path(yaml.__file__).parents[1]))
        (binaries / "kubectl").write_text(f"#!{sys.executable} -IS\n{script}")
        (binaries / "kubectl").chmod(0o755)
        # Half of them were not made with `kubectl apply`.
        world = {
            name: {"form": "old", "known": index % 2 == 1, "done": name == "job/done"}
            for index, name in enumerate(THERE)
        }
        (self.folder / "world.json").write_text(json.dumps(world))

    def run(self, commands: Sequence[str]) -> None:
        for command in commands:
            self.typed.append(command)
            environment = {
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            }
            done = subprocess.run(
                ["bash", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    def forms(self) -> dict[str, str]:
        return {name: answer["form"] for name, answer in json.loads((self.folder / "world.json").read_text()).items()}


def write(folder: Path, migration: Migration, new: dict[str, str]) -> None:
    for result in migration.files:
        for file, text in ((result.file, result.before), (new.get(result.file, result.file), result.after)):
            if file != "-":
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(text)


NEW = {name: f"new/manifests/{name}" for name in FILES}
NEW_FORM = {**dict.fromkeys(THERE, "new"), "job/done": "old"}


def test_every_workload_of_the_cluster_comes_into_its_new_form_once_and_back(tmp_path: Path) -> None:
    """What is done is not run again, what is not in the cluster is not brought there, and no old limit stays."""
    migration = migrated(FILES)
    write(tmp_path, migration, NEW)
    plan = cutover(offering(*OWNERS), migration, GPU_DRIVER, Results(NEW))
    shell = Shell(tmp_path)
    shell.run(applied(plan.forward))
    assert shell.forms() == NEW_FORM
    shell.run(applied(plan.back))
    assert shell.forms() == dict.fromkeys(THERE, "old")


def test_originals_of_a_cluster_and_of_standard_input_lie_beside_the_results(tmp_path: Path) -> None:
    files = {"-": "---\n".join(FILES[name] for name in ("web.yaml", "train.yaml"))}
    migration = migrated(files)
    results = Results({"-": "new/manifests/stdin.yaml"}, {"-": "new/before/stdin.yaml"})
    write(tmp_path, migration, dict(results.new))
    (tmp_path / "new" / "before").mkdir()
    (tmp_path / "new" / "before" / "stdin.yaml").write_text(files["-"])
    shell = Shell(tmp_path)
    plan = cutover(offering("web", "train"), migration, GPU_DRIVER, results)
    shell.run(applied(plan.forward))
    assert shell.forms()["job/train"] == shell.forms()["deployment/web"] == "new"
    shell.run(applied(plan.back))
    assert shell.forms()["job/train"] == shell.forms()["deployment/web"] == "old"
    notes = [step.note for stage in plan.forward for step in stage.steps if step.act is Act.APPLY]
    assert any("Job train cannot be changed" in note and "starts again" in note for note in notes)


def test_in_a_file_of_several_each_is_looked_at_and_what_is_missing_is_no_hindrance(tmp_path: Path) -> None:
    """A Job of it that is done does not run again, and there is one that the cluster does not have."""
    names = ("web.yaml", "train.yaml", "done.yaml", "absent.yaml")
    migration = migrated({"all.yaml": "---\n".join(FILES[name] for name in names)})
    results = Results({"all.yaml": "new/manifests/all.yaml"})
    write(tmp_path, migration, dict(results.new))
    plan = cutover(offering("web", "train"), migration, GPU_DRIVER, results)
    shell = Shell(tmp_path)
    shell.run(applied(plan.forward))
    seen = shell.forms()
    assert [seen[name] for name in ("deployment/web", "job/train", "job/done", "job/absent")] == [
        "new",
        "new",
        "old",
        "new",
    ]
    shell.run(applied(plan.back))
    assert {seen["job/done"], *(shell.forms()[name] for name in ("deployment/web", "job/train"))} == {"old"}
    notes = " ".join(step.note for stage in plan.forward for step in stage.steps)
    assert "A finished one is left unchanged, which `kubectl apply` reports as an error" in notes
    assert "also objects that are not in the cluster" in notes


def test_whoever_stops_after_a_node_goes_back_by_the_stages_of_that_node(tmp_path: Path) -> None:
    """A file is applied with the first node where it has pods, and put back with the same."""
    migration = migrated({name: FILES[name] for name in ("web.yaml", "train.yaml")})
    plan = cutover(offering("web", "train"), migration, GPU_DRIVER, Results(NEW))
    write(tmp_path, migration, NEW)
    shell = Shell(tmp_path)
    for node in ("a", "b"):
        shell.run(applied([stage for stage in plan.forward if stage.node == node]))
        shell.run(applied([stage for stage in plan.back if stage.node == node]))
        assert set(shell.forms().values()) == {"old"}
    lines = applied(plan.forward)
    assert sum("apply -f new/manifests/web.yaml" in line for line in lines) == 1


def step(plan: CutoverPlan, act: Act) -> list[str]:
    return [
        command
        for stage in plan.forward
        for planned in stage.steps
        if planned.act is act
        for command in planned.commands
    ]


def test_before_anything_is_written_the_plan_says_how(tmp_path: Path) -> None:
    migration = migrated({"web.yaml": FILES["web.yaml"]})
    later = Results({"web.yaml": "new/manifests/web.yaml"}, {}, "new/", write="dractl migrate web.yaml --to new/")
    plan = cutover(offering("web"), migration, GPU_DRIVER, later)
    assert plan.forward[0].steps[0].commands == ("dractl migrate web.yaml --to new/",)
    assert any(line.endswith("-f new/values-cutover.yaml") for line in step(plan, Act.INSTALL))
    in_place = Results(values_written=False, originals_exist=False)
    plan = cutover(offering("web"), migration, GPU_DRIVER, in_place)
    for command in step(plan, Act.WRITE):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert yaml.safe_load((tmp_path / "values-cutover.yaml").read_text()) == plan.values


def test_for_what_has_no_command_a_person_is_told() -> None:
    """Patches are not manifests, and what was written over is in version control at best."""
    kustomized = {
        "app/kustomization.yaml": "resources: [web.yaml]\n",
        "app/web.yaml": FILES["web.yaml"],
        "other/kustomization.yaml": "resources: [../app]\n",
    }
    plan = cutover(offering("web"), migrated(kustomized), GPU_DRIVER, Results())
    steps = [
        planned
        for stage in plan.forward
        for planned in stage.steps
        if planned.act is Act.APPLY and not planned.commands
    ]
    assert any("app/web.yaml" in planned.what and "by hand" in planned.what for planned in steps)
    del kustomized["other/kustomization.yaml"]
    kustomized["app/kustomization.yaml"] = "namespace: ml\nresources: [web.yaml]\n"
    new = {name: f"new/manifests/{name.removeprefix('app/')}" for name in kustomized}
    plan = cutover(offering("web"), migrated(kustomized), GPU_DRIVER, Results(new))
    assert [line for line in applied(plan.forward) if "-k" in line] == ["kubectl apply -k new/manifests"]
    assert not applied([stage for stage in plan.forward if "Before" in stage.title]), "not before its node"
    assert "kubectl apply -k app" in applied(plan.back)
    in_place = Results(originals_exist=False)
    back = cutover(offering("web"), migrated({"web.yaml": FILES["web.yaml"]}), GPU_DRIVER, in_place).back
    assert not applied(back)
    assert any("web.yaml" in planned.what for stage in back for planned in stage.steps if planned.act is Act.APPLY)


def test_a_job_that_starts_others_is_changed_in_place() -> None:
    """Its pods come from later jobs; deleting it would delete those that run."""
    group = {"template": {"spec": POD}}
    spec = {"schedule": "@daily", "jobTemplate": {"rayClusterSpec": {"headGroupSpec": group}}}
    obj = {"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": {"name": "nightly", "namespace": "team"}}
    migration = migrated({"cron.yaml": yaml.safe_dump({**obj, "spec": spec})})
    plan = cutover(offering("web"), migration, GPU_DRIVER, Results())
    (command,) = [command for command in applied(plan.forward) if "cron.yaml" in command]
    assert "delete" not in command
