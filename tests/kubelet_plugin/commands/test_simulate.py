"""What `dractl simulate` does is seen by whoever looks at the node, and nonsense is refused in a line."""

from pathlib import Path

import pytest
from support.nodes import Node, a_node

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import gpu_device_names
from kubelet_plugin.commands.simulate import ACTIONS, act, simulate
from kubelet_plugin.simulation.host import open_simulated


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path, "a30")


def test_a_mig_device_made_by_hand_is_there_and_one_taken_away_is_not(node: Node) -> None:
    root = node.host.root
    act(root, "mig-mode", ["0", "on"], None)
    act(root, "make-mig", ["0", "1g.6gb", "3"], None)
    assert [instance.start for instance in node.host.state.gpus[0].instances] == [3]
    act(root, "destroy-mig", ["0", "3"], None)
    assert node.host.state.gpus[0].instances == []


def test_a_lost_gpu_is_lost_until_it_returns(node: Node) -> None:
    act(node.host.root, "lose-gpu", ["1"], None)
    assert len(node.hardware.look().gpus) == 3
    act(node.host.root, "return-gpu", ["1"], None)
    assert len(node.hardware.look().gpus) == 4


@pytest.mark.parametrize(("number", "action"), [("79", 2), ("95", 1), ("94", 0), ("31", 0)])
def test_with_an_xid_the_driver_asks_for_what_the_catalog_says_until_it_is_done(
    node: Node, number: str, action: int
) -> None:
    name = gpu_device_names(gpu.uuid for gpu in node.host.state.gpus)[node.host.state.gpus[1].uuid]
    act(node.host.root, "xid", [name, number], None)
    assert [gpu.health.recovery_action for gpu in node.host.state.gpus] == [0, action, 0, 0]
    act(node.host.root, "reset", [node.host.state.gpus[1].uuid], None)
    assert node.host.state.gpus[1].health.recovery_action == 0


def test_a_node_is_found_by_name_beside_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    host = open_simulated(tmp_path / "nodes" / "t4-1" / "host", "t4")
    simulate("t4-1", "xid", ["0", "13"])
    assert [event.data for event in host.state.events] == [13]
    with pytest.raises(InvalidInput, match=r"\$KUBECONFIG has t4-1"):
        simulate("t4-2", "xid", ["0", "13"])


def test_the_way_out_names_the_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(str(tmp_path / "host"), "xid", ["0", "79"], "t4")
    assert capsys.readouterr().err.endswith(f"To make it healthy: dractl simulate {tmp_path / 'host'} reboot\n")


def test_an_xid_and_a_boot_are_told(node: Node) -> None:
    act(node.host.root, "xid", ["2", "79"], None)
    assert [(event.type, event.data) for event in node.host.state.events] == [(8, 79)]
    before = node.hardware.look().boot_id
    act(node.host.root, "reboot", [], None)
    assert node.hardware.look().boot_id != before


def test_what_a_gpu_says_of_itself_is_read_with_the_next_look(node: Node) -> None:
    act(node.host.root, "health", ["1", "remap-failed", "1"], None)
    facts = node.hardware.look()
    assert [facts.health[gpu.uuid].remap_failed for gpu in facts.gpus] == [False, True, False, False]


def test_a_host_that_is_not_there_is_made_when_its_profile_is_given(tmp_path: Path) -> None:
    act(tmp_path / "new", "xid", ["0", "13"], "t4:1")
    assert (tmp_path / "new" / "sim" / "state.json").is_file()


@pytest.mark.parametrize("ends", ["reset", "reboot"])
def test_a_pending_mode_takes_effect_with_a_reset_or_a_reboot(node: Node, ends: str) -> None:
    assert "will be on after its reset" in act(node.host.root, "mig-mode", ["0", "on", "pending"], None)
    assert [gpu.mig.current for gpu in node.host.state.gpus if gpu.mig is not None][:1] == [0]
    act(node.host.root, ends, ["0"] if ends == "reset" else [], None)
    assert [gpu.mig.current for gpu in node.host.state.gpus if gpu.mig is not None][:1] == [1]


def test_a_gpu_that_a_program_uses_is_not_reset(node: Node) -> None:
    node.host.attach_client(0)
    with pytest.raises(NodeNotReady, match="the hardware refuses"):
        act(node.host.root, "reset", ["0"], None)


def test_a_program_opens_a_gpu_and_lets_it_go(node: Node) -> None:
    text = act(node.host.root, "open-gpu", ["0"], None)
    (client,) = node.host.state.gpus[0].clients
    assert (client.name, client.kind) == ("dcgm-exporter", "monitor") and f"close-gpu {client.pid}" in text
    act(node.host.root, "open-gpu", ["0", "nvsm"], None)
    assert [client.name for client in node.host.state.gpus[0].clients] == ["dcgm-exporter", "nvsm"]
    act(node.host.root, "close-gpu", [str(client.pid)], None)
    assert [client.name for client in node.host.state.gpus[0].clients] == ["nvsm"]


def test_a_board_resets_all_gpus_together_or_each_alone(node: Node) -> None:
    act(node.host.root, "resets", ["together"], None)
    assert node.host.state.driver.resets == "together"
    act(node.host.root, "resets", ["alone"], None)
    assert node.host.state.driver.resets == "nvml"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["explode"], "no such action; there are xid"),
        (["xid", "0"], "takes GPU NUMBER"),
        (["xid", "0", "x"], "is not an Xid"),
        (["xid", "9", "79"], "the node has 4 GPUs"),
        (["xid", "gpu-0", "79"], "the node has gpu-[0-9a-f]{8}, gpu-"),
        (["mig-mode", "0", "maybe"], "wants on or off"),
        (["mig-mode", "0", "on", "later"], "takes `pending` or nothing"),
        (["reset", "9"], "the node has 4 GPUs"),
        (["open-gpu", "9"], "the node has 4 GPUs"),
        (["close-gpu", "dcgm"], "is not a process"),
        (["resets", "never"], "wants alone or together"),
        (["health", "0", "mood", "1"], "there are uncorrected_errors"),
        (["destroy-mig", "0", "2"], "has no GPU instance at memory slice 2"),
        (["make-mig", "0", "9g.1gb"], "9g.1gb"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(node: Node, given: list[str], message: str) -> None:
    before = node.host.snapshots()
    with pytest.raises(InvalidInput, match=message):
        act(node.host.root, given[0], given[1:], None)
    assert node.host.snapshots() == before


def test_what_the_hardware_refuses_is_said_to_be_refused_by_it(node: Node) -> None:
    with pytest.raises(NodeNotReady, match="the hardware refuses"):
        act(node.host.root, "make-mig", ["0", "1g.6gb"], None)


def test_a_folder_that_is_no_host_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not the folder of a simulated node"):
        act(tmp_path, "xid", ["0", "79"], None)


def test_every_action_says_how_many_arguments_it_wants() -> None:
    assert {name: action.wanted for name, action in ACTIONS.items()} == {
        "xid": (2, 2),
        "lose-gpu": (1, 1),
        "return-gpu": (1, 1),
        "health": (3, 3),
        "mig-mode": (2, 3),
        "reset": (1, 1),
        "open-gpu": (1, 2),
        "close-gpu": (1, 1),
        "resets": (1, 1),
        "make-mig": (2, 3),
        "destroy-mig": (2, 2),
        "reboot": (0, 0),
    }
