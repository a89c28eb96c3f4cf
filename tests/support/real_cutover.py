"""A cut-over plan followed to the letter on a real cluster, and how its workloads stand meanwhile; see tests/e2e."""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.chart_values import merged
from support.dractl import run
from support.real_chart import ROOT, VALUES
from support.real_cluster import KUBECONFIG, get, kubectl, until
from support.real_device_plugin import held

OURS = {"image": VALUES["image"]}


@dataclass
class Operator:
    """A person with a shell in the folder that `dractl migrate -o` wrote, who types what the report says."""

    folder: Path
    after: dict[str, Callable[[], None]]
    """What happens to them just after a step of this kind, once; or of this node, as `NODE/ACT`."""

    def __post_init__(self) -> None:
        (self.folder / "charts").symlink_to(ROOT / "charts")
        (self.folder / "bin").mkdir()
        for name, module in (("helm", "support.helm_words"), ("dractl", "dra_driver.cli.__main__")):
            words = self.folder / "bin" / name
            words.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
            words.chmod(words.stat().st_mode | stat.S_IXUSR)
        for name in ("values.yaml", "values-cutover.yaml"):
            file = self.folder / name
            file.write_text(yaml.safe_dump(merged(yaml.safe_load(file.read_text()), OURS)))

    def stages(self, way: str) -> list[Any]:
        stages: list[Any] = json.loads((self.folder / "report.json").read_text())["cutover"][way]
        return stages

    def nodes(self) -> list[str]:
        """In the order in which they go over."""
        return [stage["node"] for stage in self.stages("forward") if stage["node"]]

    def follow(self, way: str, *, of: slice = slice(None), until_act: str | None = None) -> None:
        """All stages of the way, or some."""
        for stage in self.stages(way)[of]:
            for step in stage["steps"]:
                if step["act"] == until_act:
                    return
                self._do(step)
                for when in (f"{stage['node']}/{step['act']}", step["act"]):
                    self.after.pop(when, lambda: None)()

    def _do(self, step: dict[str, Any]) -> None:
        for command in step["commands"]:
            with (self.folder / "typed.log").open("a") as log:
                log.write(f"{time.strftime('%T')} {command}\n")
            environment = {
                **os.environ,
                "KUBECONFIG": KUBECONFIG,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
            }
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=180,
            )
            assert done.returncode == 0, f"{step['what']}\n{command}\n{done.stdout}\n{done.stderr}"


def migrated(folder: Path, after: dict[str, Callable[[], None]], *sources: str, strategy: tuple[str, ...]) -> Operator:
    """Reads the cluster, and the manifests or the workloads of the cluster, and writes into `folder`."""
    done = run("migrate", *sources, "--cluster", "--kubeconfig", KUBECONFIG, *strategy, "--to", str(folder))
    assert (folder / "report.json").exists(), done.output
    return Operator(folder, after)


def pods() -> dict[str, list[dict[str, Any]]]:
    """Those that run, by workload."""
    by_app: dict[str, list[dict[str, Any]]] = {}
    for pod in get("pods")["items"]:
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
            by_app.setdefault(pod["metadata"].get("labels", {}).get("app", pod["metadata"]["name"]), []).append(pod)
    return by_app


def have_gpus(by: str, wanted: Mapping[str, int]) -> bool:
    """Whether as many pods of each workload run as are wanted, and each has a GPU by that way."""
    holders = {pod for users in getattr(held(), by).values() for pod in users}
    by_app = pods()
    running = {f"default/{pod['metadata']['name']}" for name in wanted for pod in by_app.get(name, ())}
    return all(len(by_app.get(name, ())) == number for name, number in wanted.items()) and running <= holders


def settled(by: str, wanted: Mapping[str, int], timeout_s: float = 150) -> None:
    try:
        until(lambda: have_gpus(by, wanted), f"every workload has its GPU {by}", timeout_s)
    except AssertionError:
        raise AssertionError(f"{held()}\n{kubectl('get', 'pods,resourceclaims', '-A', '-o', 'wide')}") from None
