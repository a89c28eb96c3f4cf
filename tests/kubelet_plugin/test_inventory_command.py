"""`dractl inventory` shows what a node has, on a screen of 100 columns, and as data."""

import json
from pathlib import Path

import pytest
import typer
import yaml
from support.nodes import a_node
from typer.testing import CliRunner, Result

from dra_driver.api.inventory import NodeInventory
from dra_driver.errors import InvalidInput
from kubelet_plugin.inventory_command import _print, inventory
from kubelet_plugin.simulation.state import profile_names

app = typer.Typer()
app.command()(inventory)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("profile", profile_names())
def test_every_kind_of_node_fits_a_hundred_columns_with_a_line_for_each_gpu(profile: str) -> None:
    result = run("--host", profile)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert sum(line.startswith("gpu-") for line in result.stdout.splitlines()) in (1, 4, 8)


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_as_data_it_is_the_object_that_the_plugin_would_write(form: str, load: object) -> None:
    result = run("--host", "gb200:3", "-o", form)
    assert callable(load)
    found = NodeInventory.of(load(result.stdout)["inventory"])
    assert (found.metadata.name, len(found.spec.gpus)) == ("gb200-3", 4)
    assert found.spec.summary.clique.endswith(".32766")


def test_an_unknown_profile_is_a_users_mistake() -> None:
    for host in ("h100", "t4:x"):
        assert isinstance(run("--host", host).exception, InvalidInput)


def test_this_machine_is_done_with_a_driver_and_unreachable_without() -> None:
    result = run("--host", "real")
    assert result.exit_code == (0 if "Driver " in result.stdout else 3)


def test_problems_are_listed_with_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = a_node(tmp_path)
    node.host.lose_gpu(2)
    _print(node.hardware.look())
    shown = capsys.readouterr()
    assert "GPU 0000:52:00.0: GpuIsLost: " in shown.err.replace("\n", "")
    assert "0000:52:00.0" not in shown.out


def test_a_pending_mig_change_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = a_node(tmp_path)
    node.host.set_mig(0, 0, 1)
    _print(node.hardware.look())
    assert "off>on" in capsys.readouterr().out
