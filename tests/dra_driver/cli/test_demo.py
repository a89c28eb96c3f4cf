"""Which examples `dractl demo` runs on nodes that somebody names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from dra_driver.cli.simulated.demo import _unfit, fitting_examples, scenarios_in
from dra_driver.cli.simulated.scenario import Scenario, apply, read_scenario, wait_running
from dra_driver.errors import InvalidInput, NotFound
from dra_driver.kube.client import Kube
from dra_driver.simulation.cluster import parse_nodes

FOUND = scenarios_in(None)


def fitting(nodes: str) -> frozenset[str]:
    return fitting_examples(FOUND, parse_nodes(nodes))


def test_on_a_rack_the_domain_runs_and_what_needs_other_gpus_does_not() -> None:
    rack = fitting("gb200:2")
    assert {"compute-domain-two-trays", "one-gpu", "nvlink-pair", "extended-resource"} <= rack
    assert rack.isdisjoint({"mig-by-hand", "diagnose-an-unhealthy-gpu", "passthrough"})
    assert "compute-domain-two-trays" not in fitting("gb200:1")


def test_without_nvlink_there_is_no_pair_and_without_imex_no_domain() -> None:
    small = fitting("t4")
    assert {"one-gpu", "extended-resource"} <= small
    assert small.isdisjoint({"nvlink-pair", "compute-domain-two-trays", "mig-on-demand"})


@pytest.mark.parametrize("minor", [34, 35])
def test_an_older_kubernetes_is_not_asked_for_what_it_drops_or_does_not_offer(minor: int) -> None:
    reasons = _unfit(FOUND, parse_nodes("dgx-h100"), minor)
    drops = {name for name, why in reasons.items() if why == f"Kubernetes 1.{minor} drops a part of it by default"}
    assert drops == {"shares-memory-and-cores", "diagnose-an-unhealthy-gpu"}
    lacks = {name for name, why in reasons.items() if "does not offer" in why}
    assert lacks >= {"extended-resource"}
    assert {"one-gpu", "mps-one-claim", "preference-list", "admin-monitoring"}.isdisjoint(reasons)


def scenario_of(folder: Path, *documents: dict[str, Any]) -> Scenario:
    (folder / "all.yaml").write_text(yaml.safe_dump_all(documents))
    return read_scenario(folder)


def test_items_of_a_list_are_manifests(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    assert scenario_of(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [pod]}).documents == (pod,)


def test_a_kind_of_another_group_is_another_kind(tmp_path: Path) -> None:
    """Knative has a Service, too."""
    ours = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    theirs = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "b"}}
    scenario = scenario_of(tmp_path, theirs, ours)
    assert scenario.foreign == ("Service.serving.knative.dev",)
    assert [document["metadata"]["name"] for document in scenario.documents] == ["a"]


def test_a_manifest_for_kubectl_create_gets_a_name(tmp_path: Path) -> None:
    (pod,) = scenario_of(
        tmp_path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "train-"}}
    ).documents
    assert pod["metadata"]["name"] == "train-demo"
    with pytest.raises(InvalidInput, match=r"a Pod has no metadata\.name"):
        scenario_of(tmp_path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {}}})


async def test_a_version_that_is_not_served_is_named_with_the_one_that_is(kube: Kube, tmp_path: Path) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}]}}
    old = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(InvalidInput, match=r"v1alpha3: write `apiVersion: resource\.k8s\.io/v1`"):
        await apply(kube, scenario_of(tmp_path, old))
    lost = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "none"}, "spec": {}}
    with pytest.raises(NotFound, match="namespaces"):
        await apply(kube, scenario_of(tmp_path, lost))


async def test_pods_that_a_job_makes_later_are_not_among_those_that_run(tmp_path: Path) -> None:
    """A pod is made for each completion, one after the other, so a list that is read again has one without a node."""
    spec = {"completions": 2, "template": {"spec": {}}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "two"}, "spec": spec}
    runs = {"spec": {"nodeName": "a"}, "status": {"phase": "Running"}}
    lists = iter([[runs], [runs, {"spec": {}}]])

    async def pods(*_: object, **__: object) -> Any:
        return SimpleNamespace(items=next(lists))

    async def is_up(*_: object) -> Any:
        return {**job, "status": {"ready": 1, "active": 1}}

    async def wait(condition: Any, *_: object) -> None:
        assert await condition()

    store, kube = SimpleNamespace(revision=1), SimpleNamespace(list=pods, get=is_up)
    cluster = cast(Any, SimpleNamespace(kube=kube, server=SimpleNamespace(store=store), wait=wait))
    assert await wait_running(cluster, scenario_of(tmp_path, job), 1.0) == (runs,)
