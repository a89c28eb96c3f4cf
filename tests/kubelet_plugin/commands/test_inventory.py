"""`dractl inventory` shows what a node has, on a screen of 100 columns, and as data."""

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from support.mishaps import unload_driver
from support.nodes import Node, a_node
from support.rows import slow_but
from typer.testing import CliRunner, Result

from dra_driver.api.inventory import NodeInventory
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cdi.inject import decode
from dra_driver.cdi.model import problems_of
from dra_driver.errors import InvalidInput
from dra_driver.terminal import messages
from kubelet_plugin.commands.inventory import _Node, _print, _report, inventory
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.simulation.profiles import profile_names

app = typer.Typer()
app.command()(inventory)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("profile", slow_but(profile_names(), "dgx-h100", "gb200", "t4"))
def test_every_kind_of_node_fits_a_hundred_columns_with_a_line_for_each_gpu(profile: str) -> None:
    result = run("--host", profile)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert sum(line.startswith("gpu-") for line in result.stdout.splitlines()) in (1, 4, 8)


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_as_data_it_is_what_plugin_and_controller_would_write(form: str, load: Callable[[str], Any]) -> None:
    data = load(run("--host", "gb200:3", "-o", form).stdout)
    inventory = NodeInventory.of(data["inventory"])
    assert (inventory.metadata.name, len(inventory.spec.gpus)) == ("gb200-3", 4)
    assert inventory.spec.summary.clique.endswith(".32766")
    names = [gpu.name for gpu in inventory.spec.gpus]
    gpus, domains = data["slices"]
    assert [device["name"] for device in gpus["spec"]["devices"]] == names
    assert (domains["spec"]["driver"], domains["spec"]["pool"]["name"]) == ("compute-domain.nvidia.com", "gb200-3")
    assert [device["name"] for device in domains["spec"]["devices"]] == ["daemon-0", "channel-0"]
    cdi = decode(json.dumps(data["cdi"]))
    assert problems_of(cdi) == ()
    assert [device.name.removeprefix("00000000-0000-0000-0000-000000000000-") for device in cdi.devices] == names
    assert data["notes"] == []


def test_in_the_plugins_pod_it_looks_at_the_host_and_not_at_the_container(tmp_path: Path) -> None:
    """The kernel's files of the simulated host are there, and its library is no library."""
    host = a_node(tmp_path).host
    result = CliRunner().invoke(
        app, ["--driver-root", "/"], env={"GPU_DRA_HOST_ROOT": str(host.root), "GPU_DRA_NODE_NAME": "node-7"}
    )
    assert result.exit_code == 3
    assert f"{host.library_folder}/libnvidia-ml.so" in result.output
    assert "8 NVIDIA GPUs are on the PCI bus" in result.output


POLICY = """
apiVersion: dra.gpu/v1alpha1
kind: PublishingPolicy
mig: [{mode: Dynamic, profiles: ["1g.10gb", "3g.*"]}]
sharing: [{devices: mig, profiles: ["1g.*"], strategy: TimeSlicing, replicas: 4}]
passthrough: [{nodes: {labelSelector: {matchLabels: {virt: "true"}}}}]
"""


def test_with_a_policy_devices_are_counted_by_kind(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    result = run("--host", "dgx-h100", "--policy", str(tmp_path / "policy.yaml"))
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["mig", "1g.10gb", "time-slicing", "none", "9.8", "GiB", "56"] in rows
    assert ["mig", "3g.40gb", "exclusive", "hardware", "39.5", "GiB", "16"] in rows
    assert ["gpu", "-", "exclusive", "hardware", "79.6", "GiB", "8"] in rows
    assert "80 devices in 3 slice(s)" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "this node has none; add some with --label" in result.stderr
    labeled = run("--host", "dgx-h100", "--policy", str(tmp_path / "policy.yaml"), "--label", "virt=true")
    assert labeled.stderr == "" and any(line.startswith("vfio") for line in labeled.stdout.splitlines())
    wrong = run("--host", "t4", "--label", "virt")
    assert isinstance(wrong.exception, InvalidInput) and "is not KEY=VALUE" in str(wrong.exception)


def test_an_unknown_profile_is_a_users_mistake() -> None:
    for host in ("h100", "t4:x"):
        assert isinstance(run("--host", host).exception, InvalidInput)


def test_a_driver_root_for_a_simulated_machine_is_a_users_mistake() -> None:
    with pytest.raises(InvalidInput, match="--driver-root: a simulated node's profile"):
        inventory("t4", driver_root="/opt/driver")


def test_this_machine_is_done_with_a_driver_and_unreachable_without() -> None:
    result = run("--host", "real")
    assert result.exit_code == (0 if "Driver " in result.stdout else 3)


def shown(node: Node) -> str:
    """What the command prints for `node`, line breaks aside."""
    target = _Node("node-a", node.hardware, DriverInstallation(node.files))
    with redirect_stdout(StringIO()) as out, messages.capture() as err:
        _print(_report(target, PublishingPolicy.EVERYTHING, {}))
    return out.getvalue() + err.get().replace("\n", " ")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path)


def test_problems_are_listed_with_their_reasons(node: Node) -> None:
    node.host.lose_gpu(2)
    text = shown(node)
    assert "GPU 0000:52:00.0: GpuIsLost: " in text
    assert "7 devices in 1 slice" in text


def test_a_pending_mig_change_is_shown_as_such(node: Node) -> None:
    node.host.set_mig(0, 0, 1)
    assert "off>on" in shown(node)


def test_gpus_that_are_not_published_are_listed_with_the_reason(node: Node) -> None:
    node.host.set_mig(0, 1)
    text = shown(node)
    assert "7 devices in 1 slice" in text
    assert "nothing is offered because the GPU is in MIG mode" in text


def test_half_a_driver_root_says_what_containers_would_lack(node: Node) -> None:
    for library in node.host.path(node.host.library_folder).glob("libcuda.so*"):
        library.unlink()
    text = shown(node)
    assert "containers cannot use these GPUs: " in text
    assert "libcuda.so" in text


def test_without_a_driver_there_is_one_complaint(node: Node) -> None:
    unload_driver(node.host)
    text = shown(node)
    assert "driver: DriverNotLoaded: " in text
    assert "containers cannot use" not in text
