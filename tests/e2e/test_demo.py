"""The first thing a newcomer runs works, in both publisher modes, and its exit status tells the truth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver import bundled


def dractl(*arguments: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_driver.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.parametrize("publisher", ["controller", "node"])
def test_the_demo_runs_every_example_and_leaves_nothing(publisher: str) -> None:
    done = dractl("demo", "-o", "json", "--publisher", publisher)
    assert done.returncode == 0, done.stderr
    outcomes = {outcome["example"]: outcome for outcome in json.loads(done.stdout)}
    assert set(outcomes) == {path.name for path in bundled.EXAMPLES_FOLDER.iterdir() if path.is_dir()}
    for outcome in outcomes.values():
        assert outcome["error"] is None
        assert any(container["devices"] for container in outcome["containers"])
        for container in outcome["containers"]:
            assert len({path for path in container["deviceNodes"] if path[11:].isdigit()}) == len(container["devices"])
            assert ("NVIDIA_VISIBLE_DEVICES=void" in container["environment"]) == bool(container["devices"])


def test_the_demo_says_which_example_failed_and_exits_with_1(tmp_path: Path) -> None:
    """A claim that no device can satisfy: the reason is the scheduler's, and the rest was cleaned up."""
    (tmp_path / "impossible.yaml").write_text(
        """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: too-many}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 9}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  resourceClaims: [{name: gpu, resourceClaimName: too-many}]
  containers: [{name: main, image: "ubuntu:24.04", resources: {claims: [{name: gpu}]}}]
"""
    )
    done = dractl("demo", "-f", str(tmp_path), "--nodes", "t4", "--timeout", "3", "-o", "json")
    assert done.returncode == 1, done.stderr
    (outcome,) = json.loads(done.stdout)
    assert "pod waits" in outcome["error"]
    assert "after deletion" not in outcome["error"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--nodes", "h100!"], "--nodes: 'h100!' is not PROFILE or PROFILE:NUMBER"),
        (["demo", "-f", "/nowhere"], "/nowhere: there is no such folder"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_status_2(arguments: list[str], says: str) -> None:
    done = dractl(*arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
