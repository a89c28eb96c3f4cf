"""The IMEX daemon that a node runs by itself, asked as the node plugin asks it."""

from pathlib import Path

import pytest
from support.imex import ImexNode, addresses, until

from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.imex import HostDaemon, imex_facts
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation.driver_files import PLACES
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.state import Layout


@pytest.mark.parametrize("layout", list(PLACES))
def test_the_daemons_program_is_found_wherever_the_driver_has_its_programs(tmp_path: Path, layout: Layout) -> None:
    host = create_host(tmp_path, "gb200", layout=layout)
    facts = imex_facts(HostFiles(tmp_path), str(host.driver_root))
    assert facts is not None and facts.program


def test_a_daemon_of_the_host_is_ready_when_it_says_so_and_not_before_it_runs(tmp_path: Path) -> None:
    root = create_host(tmp_path / "host", "gb200").root
    files = HostFiles(root)
    daemon = HostDaemon(files, DriverPrograms(files, lambda: find_driver_root(files)))
    found = imex_facts(files, "/")
    assert found is not None and found.usable
    problem = daemon.problem()
    assert problem is not None and "not ready" in problem

    (address,) = addresses(1)
    node = ImexNode(root, tmp_path / "imex", address, {"zero": address})
    node.list_nodes("zero")
    folder = files.path("/etc/nvidia-imex")
    folder.mkdir(parents=True, exist_ok=True)
    config = node.place.config
    config.write_text(config.read_text() + f"IMEX_CMD_UNIX_DOMAIN_PATH={folder}/imex_ctrl.sock\n")
    with node.running():
        until(lambda: daemon.state() == "READY", "the daemon is not ready")
        assert daemon.problem() is None
    assert daemon.problem() is not None
