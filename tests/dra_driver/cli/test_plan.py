"""The cluster of the examples: its nodes, and one policy made of many."""

from pathlib import Path

import pytest

from dra_driver.cli.scenario import nodes_of, policy_of
from dra_driver.errors import InvalidInput

HEAD = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}


def test_nodes_are_numbered_by_profile_and_carry_labels_and_acts(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "nodes:\n"
        "- {profile: t4, count: 2}\n"
        "- {profile: a30, labels: {x: 'y'}, acts: [mig-mode 0 on]}\n"
        "- {profile: t4, labels: {a: b}}\n"
    )
    nodes = nodes_of(tmp_path)
    assert nodes is not None
    assert [(node.name, node.index, node.labels) for node in nodes] == [
        ("t4-1", 0, ()),
        ("t4-2", 1, ()),
        ("a30-1", 0, (("x", "y"),)),
        ("t4-3", 2, (("a", "b"),)),
    ]
    assert nodes[2].acts == (("mig-mode", "0", "on"),)


def test_a_folder_without_a_plan_wants_no_special_nodes(tmp_path: Path) -> None:
    assert nodes_of(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["nodes: []", "nodes: [{profil: t4}]", "- a", "nodes: [", "nodes: [{profile: t4, count: 0}]"]
)
def test_a_wrong_plan_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"cluster\.yaml"):
        nodes_of(tmp_path)


def test_policies_are_put_one_after_the_other() -> None:
    one = {**HEAD, "withhold": [{"nodes": {"names": ["a"]}}]}
    other = {**HEAD, "withhold": [{"nodes": {"names": ["b"]}}], "health": {"evict": True}}
    policy = policy_of([one, other])
    assert [rule.nodes and rule.nodes.names for rule in policy.withhold] == [["a"], ["b"]]
    assert policy.health.evict


def test_policies_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two examples say different things"):
        policy_of([{**HEAD, "health": {"evict": True}}, {**HEAD, "health": {"validate": True}}])


def test_no_policies_are_the_default_policy() -> None:
    assert policy_of([]).publish is None
