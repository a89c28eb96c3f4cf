"""The first thing a newcomer runs works, in both publisher modes, and its exit status tells the truth."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT
from support.plugin import short_folder
from support.rows import slow_but

from dra_driver import bundled
from dra_driver.cli.__main__ import run_dractl
from dra_driver.cli.simulated.demo import gpu_files, scenarios_in
from dra_driver.errors import InvalidInput


def dractl(*arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dra_driver.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.mark.parametrize("publisher", slow_but(["controller", "node"], "controller"))
def test_the_demo_runs_every_example_and_leaves_nothing(publisher: str) -> None:
    done = dractl("demo", "-o", "json", "--publisher", publisher)
    assert done.returncode == 0, done.stderr
    outcomes = {outcome["example"]: outcome for outcome in json.loads(done.stdout)}
    assert set(outcomes) == {path.name for path in bundled.FEATURES_FOLDER.iterdir() if path.is_dir()}
    for name, nodes in (("compute-domain-two-trays", 2), ("nvlink-domain-gang", 4)):
        domains = outcomes[name]
        if publisher == "controller":
            assert len({container["node"] for container in domains["containers"]}) == nodes
            for container in domains["containers"]:
                assert "/dev/nvidia-caps-imex-channels/channel0" in container["deviceNodes"]
        else:
            assert domains["skipped"] == "ComputeDomains need the controller" and not domains["containers"]
            del outcomes[name]
    for outcome in outcomes.values():
        assert outcome["error"] is None
        assert any(container["devices"] for container in outcome["containers"])
        for container in outcome["containers"]:
            gpus = {path for path in container["deviceNodes"] if path[11:].isdigit() or path[10:].isdigit()}
            assert len(gpus) == len([name for name in container["devices"] if "/channel-" not in name])
            assert ("NVIDIA_VISIBLE_DEVICES=void" in container["environment"]) == bool(container["devices"])
    if publisher == "controller":
        assert_readme_shows(outcomes)


def assert_readme_shows(outcomes: Mapping[str, Any]) -> None:
    """The table on the README's first screen is of this demo: each row is one of its containers."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition("`make demo` prints, shortened:\n\n```text\n")[2].partition("\n```")[0]
    header, *rows, verdict = block.splitlines()
    ends = [header.index(name) for name in ("CONTAINER", "NODE", "GPUS", "SEES")]
    example = ""
    for row in rows:
        cells = [row[start:end].strip() for start, end in pairwise([0, *ends, None])]
        example = cells[0] or example
        shown = [
            (
                container["container"],
                container["node"],
                _devices(container["devices"], cells[3]),
                gpu_files(container["deviceNodes"]),
            )
            for container in outcomes[example]["containers"]
        ]
        assert _apart_from_chance(cells[1:]) in [_apart_from_chance(cells) for cells in shown], row
    assert re.match(r"All (\d+) examples ran in ", verdict)[1] == str(len(outcomes))  # type: ignore[index]


def _apart_from_chance(cells: Sequence[str]) -> list[str]:
    """Pods of one example come in any order, so which GPU and which part of it each of them gets varies."""
    container, node, device, files = cells
    return [container, node, re.sub(r"gpu-[0-9a-f]{8}|(?:-\d+)+(?= )", "", device), re.sub(r"\d[\d,-]*", "N", files)]


def _devices(names: Sequence[str], written: str) -> str:
    """What the table says of these devices, whose products the data do not have: the rest of what is `written`."""
    number, _, product = written.partition(" x ")
    if product:
        return f"{len(names)} x {product}" if number.isdigit() else ""
    return f"{names[0].rpartition('/')[2]} {written.partition(' ')[2]}" if len(names) == 1 else ""


@pytest.mark.slow
def test_the_applications_run_and_leave_nothing() -> None:
    """A whole rack among them."""
    done = dractl("demo", "-f", str(bundled.APPS_FOLDER), "-o", "json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    outcomes = {outcome["example"]: outcome["containers"] for outcome in json.loads(done.stdout)}
    assert set(outcomes) == {path.name for path in bundled.APPS_FOLDER.iterdir() if path.is_dir()}
    assert len({container["node"] for container in outcomes["nvl72-jobset"]}) == 18
    assert sum(container["devices"] != [] for container in outcomes["ray-cluster"]) == 2


def test_the_demo_says_which_example_failed_and_exits_with_1(tmp_path: Path) -> None:
    """A claim that no device can satisfy: the reason is the scheduler's, the rest was cleaned up, and the time limit is
    not awaited."""
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
    done = dractl("demo", "-f", str(tmp_path), "--nodes", "t4", "--timeout", "900", "-o", "json")
    assert done.returncode == 1, done.stderr
    (outcome,) = json.loads(done.stdout)
    assert "pod waits" in outcome["error"]
    assert "after deletion" not in outcome["error"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "--nodes", "h100!"], "--nodes: 'h100!' is not PROFILE or PROFILE:NUMBER"),
        (["demo", "--nodes", "t5"], "--nodes: 't5' is none of a10,"),
        (["demo", "--publisher", "nobody"], "'nobody' is not one of 'controller', 'node'"),
        (["demo", "--timeout", "-1"], "--timeout"),
        (["cluster", "--port", "99999"], "--port"),
        (["inventory", "--host", "t4:x"], "simulated node t4:x: 'x' is not the number of a node"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_status_2(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in mistake(arguments, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["demo", "-f", "/nowhere"], "/nowhere: there is no such folder"),
        (["demo", "-f", "/etc/passwd"], "/etc/passwd: is a file: name the folder that contains it"),
        (["demo", "--nodes", "/nowhere"], "record /nowhere: does not exist"),
        (["cluster", "--folder", "/dev/null"], "/dev/null: this folder cannot be made: Not a directory"),
        (["cluster", "--policy", "/nowhere"], "policy /nowhere: cannot be read: No such file or directory"),
        (["inventory", "--policy", "/nowhere"], "policy /nowhere: cannot be read: No such file or directory"),
        (["inventory", "--host", "/nowhere"], "record /nowhere: does not exist"),
        (["doctor", "--from", "/nowhere"], "file /nowhere: cannot be read: No such file or directory"),
        (["record", "--archive", "/nowhere/x"], "file /nowhere/x: cannot be made"),
        (["record", "--simulate", "t4", "--host-root", "/dev/null"], "/dev/null: cannot be made: File exists"),
        (["gpus", "status", "--kubelet-root", "/nowhere"], "/nowhere/plugins/gpu.nvidia.com: does not exist"),
    ],
)
def test_a_file_that_cannot_be_read_or_made_is_named_in_one_line_with_status_3(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = mistake(arguments, monkeypatch, capsys, status=3)
    assert says in printed and " -o" not in printed


def mistake(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int = 2
) -> str:
    """What the console script says, in this process: to start one takes a second each time."""
    monkeypatch.setattr(sys, "argv", ["dractl", *arguments])
    with pytest.raises(SystemExit) as ended:
        run_dractl()
    assert ended.value.code == status
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    return " ".join(printed.split())


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (b"- a\n- b\n", r"wrong\.yaml:1:1: is a list, not an object with apiVersion and kind"),
        (b"kind: Pod\n", r"wrong\.yaml:1: a document has no apiVersion and kind"),
        (b"apiVersion: v1\nkind: Pod\n", "a Pod has no metadata"),
        (b"apiVersion: v1\nkind: Pod\nmetadata: 7\n", "a Pod has no metadata"),
        (b"a: b\n---\na: [\n", r"wrong\.yaml:4:1: is not YAML"),
        (b"[" * 5000, "nesting depth"),
        (b"\xff\xfe\x00", "is UTF-16; save it as UTF-8"),
    ],
)
def test_manifests_that_cannot_be_sent_are_refused_before_anything_starts(
    tmp_path: Path, manifest: bytes, says: str
) -> None:
    (tmp_path / "wrong.yaml").write_bytes(manifest)
    with pytest.raises(InvalidInput, match=says):
        scenarios_in(tmp_path)


@pytest.mark.parametrize("command", slow_but(["demo", "tour"], "demo"))
def test_sigterm_leaves_nothing(command: str) -> None:
    with short_folder() as folder:
        running = subprocess.Popen(
            [sys.executable, "-m", "dra_driver.cli", command],
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while not list(folder.glob("dractl-*/nodes")) and time.monotonic() < deadline:
            time.sleep(0.05)
        running.terminate()
        running.communicate(timeout=60)
        assert running.returncode == (143 if command == "demo" else 0)
        assert list(folder.iterdir()) == []


def test_an_archive_of_something_else_is_no_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "record.tar.gz", "w:gz") as tar:
        tar.add(__file__, "record/something")
    printed = mistake(["doctor", "--from", str(tmp_path / "record.tar.gz")], monkeypatch, capsys)
    assert "is not a bundle of `dractl bundle`: it has no description of one" in printed


def test_a_folder_has_one_cluster_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second one would overwrite the kubeconfig of the first."""
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "simulation.log").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        printed = mistake(["cluster", "--folder", str(tmp_path)], monkeypatch, capsys)
    assert "a simulated cluster is running in this folder; end it, or name another folder" in printed


def test_a_folder_that_cannot_have_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").touch()
    printed = mistake(["cluster", "--folder", str(tmp_path)], monkeypatch, capsys, status=3)
    assert f"{tmp_path}: this folder cannot be made: File exists" in printed


def test_a_port_that_is_taken_is_a_mistake_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in mistake(["cluster", "--port", str(port)], monkeypatch, capsys)


def test_without_its_extra_dractl_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None; from dra_driver.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "error: dractl is not installed with all it needs: run pip install '.[cli]' in the driver's source code"
    ]


def test_node_plugin_and_controller_start_where_only_the_base_is_installed() -> None:
    program = "import sys; sys.modules.update(typer=None, rich=None); import kubelet_plugin.main, controller.main"
    subprocess.run([sys.executable, "-c", program], check=True)
