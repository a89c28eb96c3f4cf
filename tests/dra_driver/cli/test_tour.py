"""The tour: its steps are about what there is, a command that fails ends it, and Enter goes on."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.cli.overview import commands
from dra_driver.cli.simulated.tour import STEPS, TourCommand, _carry_out, _enter
from dra_driver.errors import NodeNotReady
from dra_driver.simulation.cluster import SimulatedCluster
from dra_driver.terminal import Status


def test_each_command_is_ours_or_kubectl_s_and_names_examples_that_there_are() -> None:
    known = {command.name for command in commands()}
    lines = [command.line.split() for step in STEPS for command in step.commands]
    assert {line[0] for line in lines} == {"dractl", "kubectl"}
    assert {line[1] for line in lines if line[0] == "dractl"} <= known
    named = {word.rpartition("/")[2] for line in lines for word in line if word.startswith("examples/features/")}
    assert named and all((FEATURES_FOLDER / name).is_dir() for name in named)


async def test_a_command_that_ends_otherwise_than_it_should_ends_the_tour(tmp_path: Path) -> None:
    cluster = SimulatedCluster(tmp_path, ())
    await _carry_out(TourCommand("exit 1", status=Status.NO), cluster)
    with pytest.raises(NodeNotReady, match="`exit 3` ended with exit status 3"):
        await _carry_out(TourCommand("exit 3"), cluster)


async def test_commands_run_in_the_folder_of_the_cluster_with_its_kubeconfig_and_this_dractl(tmp_path: Path) -> None:
    cluster = SimulatedCluster(tmp_path, ())
    await _carry_out(TourCommand('echo "$PWD $KUBECONFIG $(command -v dractl)" > answer'), cluster)
    dractl = Path(sys.executable).parent / "dractl"
    assert (tmp_path / "answer").read_text() == f"{tmp_path} {tmp_path}/kubeconfig {dractl}\n"


async def test_without_kubectl_a_command_that_only_shows_something_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    await _carry_out(TourCommand("kubectl logs one-gpu"), SimulatedCluster(tmp_path, ()))
    assert "kubectl is not installed here" in " ".join(capfd.readouterr().err.split())


async def test_enter_goes_on_and_the_end_of_input_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        waiting = asyncio.create_task(_enter())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        os.write(writer, b"\n")
        assert await waiting
        os.close(writer)
        assert not await _enter()
