"""Files of records go where names of models go: `--nodes`, `cluster.yaml`, and claims that are explained offline."""

from pathlib import Path

import pytest

from dra_driver.api.policy import PublishingPolicy
from dra_driver.cli.reading.files import objects_of_node
from dra_driver.cli.simulated.scenario import nodes_of
from dra_driver.doctor.node_part import NodePlaces
from dra_driver.errors import InvalidInput
from dra_driver.simulation.cluster import parse_nodes
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.recorded.format import write_record


def test_nodes_of_a_file_are_called_after_it_and_are_told_apart(tmp_path: Path) -> None:
    nodes = parse_nodes(f"{tmp_path}/My_Node.tar.gz:2,t4")
    assert [node.name for node in nodes] == ["my-node-1", "my-node-2", "t4-1"]
    assert [node.profile for node in nodes] == [f"{tmp_path}/My_Node.tar.gz"] * 2 + ["t4"]
    with pytest.raises(InvalidInput, match="two files give nodes called node-1"):
        parse_nodes(f"{tmp_path}/node.tar.gz,{tmp_path}/other/node.tgz")


def test_a_plan_finds_the_file_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{profile: node.tar.gz, count: 2}]")
    nodes = nodes_of(tmp_path)
    assert nodes is not None
    assert [(node.name, node.profile, node.index) for node in nodes] == [
        ("node-1", str(tmp_path / "node.tar.gz"), 0),
        ("node-2", str(tmp_path / "node.tar.gz"), 1),
    ]


def test_what_such_nodes_publish_is_known_offline(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "t4")
    made = NodeRecorder(NodePlaces(host_root=host.root, simulate="t4"), ask_programs=False)
    write_record(made.record(release="", keep_names=False), tmp_path / "node.tar.gz")
    objects = [objects_of_node(node, PublishingPolicy.EVERYTHING) for node in parse_nodes(f"{tmp_path}/node.tar.gz:2")]
    slices = [[obj for obj in of_node if obj["kind"] == "ResourceSlice"] for of_node in objects]
    uuids = [
        device["attributes"]["uuid"]["string"]
        for of_node in slices
        for slice_ in of_node
        for device in slice_["spec"]["devices"]
    ]
    assert len(uuids) == len(set(uuids)) == 8
    assert [each[0]["spec"]["nodeName"] for each in slices] == ["node-1", "node-2"]


def test_a_file_that_is_not_there_is_a_mistake_of_who_named_it(tmp_path: Path) -> None:
    (node,) = parse_nodes(f"{tmp_path}/node.tar.gz")
    with pytest.raises(InvalidInput, match="make one on a node with `dractl record`"):
        objects_of_node(node, PublishingPolicy.EVERYTHING)
