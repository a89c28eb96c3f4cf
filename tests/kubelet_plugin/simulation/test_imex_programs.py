"""nvidia-imex and nvidia-imex-ctl of simulated nodes: what they refuse, and what they say of each other."""

import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.imex import ImexNode, addresses, until

from kubelet_plugin.simulation.host import create_host


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_host(tmp_path_factory.mktemp("node") / "host", "gb200").root


@pytest.fixture
def alone(host: Path, tmp_path: Path) -> ImexNode:
    """Number 0 of a list of two, the other unknown."""
    (address,) = addresses(1)
    node = ImexNode(host, tmp_path / "imex", address, {"zero": address})
    node.list_nodes("zero", "one")
    return node


def _add(text: str) -> Callable[[ImexNode], None]:
    def change(node: ImexNode) -> None:
        node.place.config.write_text(node.place.config.read_text() + text)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(_add("SERVERPORT=1\n"), "unknown configuration key SERVERPORT", id="unknown key"),
        pytest.param(
            _add("SERVER_PORT=70000\n"), "invalid value '70000' of SERVER_PORT", id="bad port", marks=pytest.mark.slow
        ),
        pytest.param(_add("DAEMONIZE=no\n"), "invalid value 'no' of DAEMONIZE", id="bad switch"),
        pytest.param(_add("LOG_LEVEL 4\n"), "is not KEY=VALUE", id="no setting", marks=pytest.mark.slow),
        pytest.param(
            _add("IMEX_CMD_UNIX_DOMAIN_PATH=\n"),
            "IMEX_CMD_ENABLED needs",
            id="commands from nowhere",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda node: node.place.config.unlink(), "cannot open configuration file", id="no configuration"),
        pytest.param(lambda node: node.place.nodes.unlink(), "cannot open node configuration file", id="no list"),
        pytest.param(lambda node: node.list_nodes(), "has no nodes", id="empty list", marks=pytest.mark.slow),
        pytest.param(
            lambda node: node.list_nodes("zero", "one", "one"),
            "has a node twice",
            id="a node twice",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda node: node.list_nodes("one", "two"), "is not among the nodes", id="not in the list"),
        pytest.param(
            lambda node: node.know({"one": node.address + "9"}),
            "is not among the nodes",
            id="own name unknown",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda node: _add("BIND_INTERFACE_IP=203.0.113.7\n")(node) or node.list_nodes("203.0.113.7"),
            "cannot listen",
            id="an address of another machine",
        ),
    ],
)
def test_it_does_not_start_with(alone: ImexNode, change: Callable[[ImexNode], None], expected: str) -> None:
    change(alone)
    assert expected in alone.refusal()


def test_it_does_not_start_without_the_capability(alone: ImexNode) -> None:
    assert "no permission to manage the fabric" in alone.refusal(SIMULATED_DEVICES="/dev/nvidia0")


def test_it_does_not_start_where_its_port_is_taken(alone: ImexNode) -> None:
    with socket.create_server((alone.address, 50000)):
        assert "cannot listen" in alone.refusal()


def test_it_does_not_start_without_the_driver(tmp_path: Path) -> None:
    node = create_host(tmp_path / "host", "gb200")
    with node.edit() as state:
        state.driver.loaded = False
    (address,) = addresses(1)
    imex = ImexNode(node.root, tmp_path / "imex", address, {"zero": address})
    imex.list_nodes("zero")
    assert "cannot open the NVIDIA driver" in imex.refusal()


def test_control_says_when_nobody_answers_and_refuses_what_it_does_not_know(alone: ImexNode) -> None:
    status, output = alone.control("-c", str(alone.place.config), "-q")
    assert status == 1 and output.startswith("UNAVAILABLE\n")
    assert alone.control("-c", str(alone.place.config), "-z") == (1, "Unknown option: -z\n")
    assert alone.control("-c", str(alone.place.config))[0] == 1


def test_peers_find_each_other_and_new_addresses_disturb_nobody_else(host: Path, tmp_path: Path) -> None:
    """Three of four names are known; the third moves to another address, and the first two stay connected."""
    first, second, third, moved = addresses(4)
    names = ("zero", "one", "two", "three")
    known = {"zero": first, "one": second}
    nodes = [ImexNode(host, tmp_path / name, known[name], known) for name in known]
    late, anew = (ImexNode(host, tmp_path / address, address, known | {"two": address}) for address in (third, moved))
    for node in (*nodes, late, anew):
        node.list_nodes(*names)
    first_node, second_node = nodes
    with ExitStack() as stack:
        processes = [stack.enter_context(node.running()) for node in nodes]

        def tell(address: str) -> None:
            for node, process in zip(nodes, processes, strict=True):
                node.know(known | {"two": address})
                process.send_signal(signal.SIGUSR1)

        until(
            lambda: first_node.connections() == ["CONNECTED", "CONNECTED", "NEVER_CONNECTED", "NEVER_CONNECTED"], "two"
        )
        with late.running():
            tell(third)
            until(
                lambda: second_node.connections()[2] == first_node.connections()[2] == "CONNECTED", "the third is there"
            )
            assert first_node.domain()["status"] == "DEGRADED"
            assert first_node.domain()["nodes"]["3"]["status"] == "UNAVAILABLE"
        until(lambda: first_node.connections()[2] == "DISCONNECTED", "the third is gone")
        with anew.running():
            tell(moved)
            until(lambda: second_node.connections()[2] == first_node.connections()[2] == "CONNECTED", "it is back")
        assert first_node.log().count("Connection established to node 1") == 1
        table = first_node.control("-c", str(first_node.place.config), "-N")[1].splitlines()
        assert table[1:4] == [
            "Nodes:",
            "Node #0   * zero * READY                - Version: 580.126.09",
            "Node #1   - one - READY                - Version: 580.126.09",
        ]
        assert [line.split() for line in table[7:12]] == [
            ["Nodes", "From\\To", "0", "1", "2", "3"],
            ["0", "C", "C", "D", "N"],
            ["1", "C", "C", "D", "N"],
            ["2", "I", "I", "I", "I"],
            ["3", "I", "I", "I", "I"],
        ]
        processes[1].terminate()
        assert processes[1].wait(timeout=20) == 0


def test_peers_of_another_version_or_another_list_are_not_connected(host: Path, tmp_path: Path) -> None:
    first, second, third = addresses(3)
    known = {"zero": first, "one": second, "two": third}
    other = create_host(tmp_path / "other", "gb200", 1)
    with other.edit() as state:
        state.driver.version = "570.124.06"
    nodes = [
        ImexNode(host, tmp_path / "zero", first, known),
        ImexNode(other.root, tmp_path / "one", second, known),
        ImexNode(host, tmp_path / "two", third, known),
    ]
    for node, names in zip(
        nodes, (("zero", "one", "two"), ("zero", "one", "two"), ("two", "one", "zero")), strict=True
    ):
        node.list_nodes(*names)
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node.running())
        until(lambda: nodes[0].connections() == ["CONNECTED", "VERSION_MISMATCH", "NODE_MAP_MISMATCH"], "both refused")
        table = nodes[0].control("-c", str(nodes[0].place.config), "-N")[1].splitlines()
        assert table[7].split() == ["0", "C", "!V!", "!M!"]
