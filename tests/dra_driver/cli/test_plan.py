"""The cluster of the examples: its nodes, and one policy made of many."""

from pathlib import Path

import pytest

from dra_driver.api.gpupolicy import rules_among
from dra_driver.cli.simulated.scenario import nodes_of, read_scenario
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


def test_policies_of_an_example_are_gpu_policies_that_are_applied_first(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    (tmp_path / "b.yaml").write_text(
        "apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\nwithhold: [{nodes: {names: [a]}}]\n---\n"
        "apiVersion: dra.gpu/v1alpha1\nkind: GpuPolicy\nmetadata: {name: b}\nspec: {mig: {mode: Dynamic}}\n"
    )
    scenario = read_scenario(tmp_path)
    assert [document["kind"] for document in scenario.documents] == ["GpuPolicy", "GpuPolicy", "Pod"]
    rules = rules_among(scenario.documents)
    assert not rules.publishes_node("a", {}) and rules.mig[0].mode == "Dynamic"


def test_a_policy_with_a_mistake_is_refused_with_its_field(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    (tmp_path / "b.yaml").write_text(
        "apiVersion: dra.gpu/v1alpha1\nkind: GpuPolicy\nmetadata: {name: b}\nspec: {mig: {mode: dynamic}}\n"
    )
    with pytest.raises(InvalidInput, match=r"GpuPolicy b: spec\.mig\.mode"):
        read_scenario(tmp_path)


def test_kinds_that_the_simulated_cluster_has_are_applied_and_others_are_named(tmp_path: Path) -> None:
    """What others need comes first, the rest in the order of the file."""
    kinds = (
        ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet"),
        ("batch/v1", "Job"),
        ("v1", "Service"),
        ("v1", "ConfigMap"),
        ("batch.volcano.sh/v1alpha1", "Job"),
    )
    documents = (f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n" for version, kind in kinds)
    (tmp_path / "a.yaml").write_text("---\n".join(documents))
    scenario = read_scenario(tmp_path)
    assert scenario.foreign == ("LocalQueue.kueue.x-k8s.io",)
    assert [document["apiVersion"] for document in scenario.documents] == [
        "v1",
        "jobset.x-k8s.io/v1alpha2",
        "batch/v1",
        "v1",
        "batch.volcano.sh/v1alpha1",
    ]
