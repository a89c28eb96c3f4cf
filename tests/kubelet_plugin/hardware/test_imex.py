"""The IMEX daemon that a node runs by itself, asked as the node plugin asks it."""

from pathlib import Path

import pytest
from support.imex import ImexNode, addresses, until

from dra_driver.api.inventory import ImexFacts
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.imex import HostDaemon, foreign_daemon_problem, foreign_daemons, imex_facts
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.state import Layout


@pytest.mark.parametrize("layout", list(PLACES))
def test_the_daemons_program_is_found_wherever_the_driver_has_its_programs(tmp_path: Path, layout: Layout) -> None:
    host = create_host(tmp_path, "gb200", layout=layout)
    facts = imex_facts(HostFiles(tmp_path), str(host.driver_root))
    assert facts is not None and facts.program


def _process(host: SimulatedHost, pid: int, comm: str, cgroup: str, environ: str = "PATH=/usr/bin\0") -> None:
    folder = host.path(f"/proc/{pid}")
    folder.mkdir(parents=True)
    for name, text in (("comm", f"{comm}\n"), ("cgroup", f"{cgroup}\n"), ("environ", environ)):
        (folder / name).write_text(text)


_POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope"


def test_daemons_of_the_node_are_found_with_their_units_and_ours_are_left_out(tmp_path: Path) -> None:
    host = create_host(tmp_path, "gb200")
    files = HostFiles(tmp_path)
    assert foreign_daemon_problem(files) is None
    _process(host, 7000, "nvidia-imex", _POD, "GPU_DRA_NODE_NAME=a\0GPU_DRA_POD_IP=10.0.0.1\0")
    _process(host, 7001, "nvidia-imex-ctl", "0::/system.slice/nvidia-imex.service")
    assert foreign_daemon_problem(files) is None
    _process(host, 812, "nvidia-imex", "0::/system.slice/nvidia-imex.service")
    _process(host, 900, "nvidia-imex", _POD)
    _process(host, 95, "nvidia-imex", "12:memory:/user.slice\n1:name=systemd:/user.slice/session-1.scope")
    assert foreign_daemons(files) == (
        "nvidia-imex (95, of no unit)",
        "nvidia-imex (812, nvidia-imex.service)",
        "nvidia-imex (900, in a pod)",
    )


@pytest.mark.parametrize(("profile", "is_reported"), [("gb200", True), ("dgx-h100", False)])
def test_the_inventory_says_so_where_domains_can_be(tmp_path: Path, profile: str, is_reported: bool) -> None:
    host = create_host(tmp_path, profile)
    files = HostFiles(tmp_path)
    _process(host, 812, "nvidia-imex", "0::/system.slice/nvidia-imex.service")
    source = NvmlSource(SimulatedNvml(tmp_path), "/")
    hardware = Hardware(files, lambda: source, imex_problem=lambda: foreign_daemon_problem(files))
    problems = [(problem.subject, problem.reason) for problem in hardware.look().problems]
    assert problems == ([("IMEX", "ForeignDaemon")] if is_reported else [])


def test_a_daemon_of_the_host_is_ready_when_it_says_so_and_not_before_it_runs(tmp_path: Path) -> None:
    root = create_host(tmp_path / "host", "gb200").root
    files = HostFiles(root)
    daemon = HostDaemon(files, DriverPrograms(files, lambda: find_driver_root(files)), "/run/imex/commands")
    facts = imex_facts(files, "/")
    assert facts is not None and facts.usable
    problem = daemon.problem()
    assert problem is not None and "not ready" in problem

    (address,) = addresses(1)
    node = ImexNode(root, tmp_path / "imex", address, {"zero": address})
    node.list_nodes("zero")
    folder = files.path("/run/imex")
    folder.mkdir(parents=True, exist_ok=True)
    config = node.place.config
    config.write_text(config.read_text() + f"IMEX_CMD_UNIX_DOMAIN_PATH={folder}/commands\n")
    with node.running():
        until(lambda: daemon.state() == "READY", "the daemon is not ready")
        assert daemon.problem() is None
    assert daemon.problem() is not None


def test_a_long_reason_why_the_hosts_daemon_does_not_answer_fits_into_the_inventory(tmp_path: Path) -> None:
    """An API server would refuse the inventory, and no GPU of the node would be published."""
    root = create_host(tmp_path / ("long" * 60) / "host", "gb200").root
    files = HostFiles(root)
    state = HostDaemon(files, DriverPrograms(files, lambda: find_driver_root(files)), "/run/imex.sock").state()
    facts = imex_facts(files, "/")
    assert facts is not None
    assert state.startswith("it does not answer")
    assert ImexFacts.of({**facts.to_wire(), "state": state}).state == state
