"""Every example of partitions, shares and passthrough gets what its README promises, on the cluster of the examples."""

from collections import Counter
from pathlib import Path

import pytest
from support.published import published_slices
from support.rows import rows
from support.scheduling import Desk

from dra_driver.api.gpupolicy import rules_among
from dra_driver.api.meta import (
    GPU_POLICIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.cli.simulated.scenario import Scenario, nodes_of, read_scenario
from dra_driver.simulation.cluster import SimulatedNode
from dra_driver.slices.diff import NodeRef

_KINDS = {resource.kind: resource for resource in (RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, PODS)}

NODES_BY_EXAMPLE = {
    "diagnose-an-unhealthy-gpu": "a30-1",
    "mig-by-hand": "a30-1",
    "mig-on-demand": "dgx-h100-1",
    "mps-on-mig": "a30-1",
    "mps-one-claim": "dgx-h100-1",
    "passthrough": "rtx-pro-6000-1",
    "shares-memory-and-cores": "hgx-h200-1",
    "shares-of-mig": "dgx-a100-80-1",
    "shares-time-sliced": "l40s-1",
    "time-slicing-one-claim": "dgx-h100-1",
}


async def publish(cluster: Desk, folder: Path, node: SimulatedNode, scenario: Scenario) -> None:
    """The node of the examples' cluster, with what the example's policy makes of it."""
    await cluster.node(node.name, labels=dict(node.labels))
    uid = (await cluster.kube.get(NODES, node.name))["metadata"]["uid"]
    slices = await published_slices(
        folder,
        node.profile,
        NodeRef(node.name, uid),
        rules_among(scenario.documents),
        labels=dict(node.labels),
        acts=node.acts,
    )
    for item in slices:
        await cluster.kube.create(RESOURCE_SLICES, item)


async def run(cluster: Desk, folder: Path, example: str) -> dict[str, list[JsonObject]]:
    """The allocation results that each pod of the example got, once all of them have a node."""
    scenario = read_scenario(FEATURES_FOLDER / example)
    nodes = {node.name: node for node in nodes_of(FEATURES_FOLDER) or ()}
    await publish(cluster, folder, nodes[NODES_BY_EXAMPLE[example]], scenario)
    pods = []
    for document in scenario.documents:
        if document["kind"] == GPU_POLICIES.kind:
            continue
        created = await cluster.kube.create(_KINDS[document["kind"]], document, namespace="default")
        pods += [created] if document["kind"] == "Pod" else []
    for pod in pods:
        assert await cluster.scheduled(pod["metadata"]["name"]) == NODES_BY_EXAMPLE[example]
    claims = (await cluster.kube.list(RESOURCE_CLAIMS)).items
    return {
        pod["metadata"]["name"]: [
            result
            for claim in claims
            if any(user["uid"] == pod["metadata"]["uid"] for user in claim["status"]["reservedFor"])
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]
        for pod in pods
    }


def devices(got: dict[str, list[JsonObject]]) -> dict[str, str]:
    """Pod to the name of its one device, without what identifies the GPU."""
    names = {pod: result["device"] for pod, (result,) in got.items()}
    return {pod: name[12:].lstrip("-") or "whole GPU" for pod, name in names.items()}


@rows("example", sorted(NODES_BY_EXAMPLE))
def test_the_readme_says_how_to_run_it_and_what_the_administrator_does(example: str) -> None:
    readme = (FEATURES_FOLDER / example / "README.md").read_text()
    has_policy = (FEATURES_FOLDER / example / "policy.yaml").is_file()
    file = f"examples/features/{example}/{example}.yaml" if has_policy else f"examples/features/{example}"
    assert f"kubectl apply -f {file}\n" in readme
    assert f"kubectl delete -f {file}\n" in readme
    assert ("[policy.yaml](policy.yaml)" in readme) == has_policy
    assert (f"kubectl apply -f examples/features/{example}/policy.yaml\n" in readme) == has_policy
    if has_policy:
        (label,) = (line for line in readme.splitlines() if "kubectl label node NODE" in line)
        key, _, value = label.split()[-1].partition("=")
        nodes = {node.name: node for node in nodes_of(FEATURES_FOLDER) or ()}
        assert dict(nodes[NODES_BY_EXAMPLE[example]].labels) == {key: value}


async def test_mig_by_hand_gets_the_device_that_was_made(cluster: Desk, tmp_path: Path) -> None:
    assert devices(await run(cluster, tmp_path, "mig-by-hand")) == {"mig-by-hand": "mig-2g12gb-0"}


async def test_mig_on_demand_gets_partitions_that_fit_together(cluster: Desk, tmp_path: Path) -> None:
    got = devices(await run(cluster, tmp_path, "mig-on-demand"))
    assert got["small-1"].startswith("mig-1g10gb-") and got["small-2"].startswith("mig-1g10gb-")
    assert got["large"].startswith("mig-3g40gb-")
    assert got["part-1"].startswith("mig-1c3g40gb-") and got["part-2"].startswith("mig-1c3g40gb-")
    assert len(set(got.values())) == 5


@pytest.mark.parametrize("example", ["mps-one-claim", "mps-on-mig", "time-slicing-one-claim"])
async def test_two_pods_of_one_claim_have_the_same_device(cluster: Desk, example: str, tmp_path: Path) -> None:
    got = await run(cluster, tmp_path, example)
    first, second = got.values()
    assert first == second
    assert len(first) == 1


async def test_five_time_sliced_shares_are_of_two_gpus_four_of_the_first(cluster: Desk, tmp_path: Path) -> None:
    got = await run(cluster, tmp_path, "shares-time-sliced")
    assert sorted(Counter(result["device"] for (result,) in got.values()).values()) == [1, 4]
    assert all(result["consumedCapacity"]["shares"] == "1" for (result,) in got.values())
    assert len({result["shareID"] for (result,) in got.values()}) == 5


async def test_memory_and_cores_are_consumed_as_asked_for_and_fit_on_one_gpu(cluster: Desk, tmp_path: Path) -> None:
    got = await run(cluster, tmp_path, "shares-memory-and-cores")
    consumed = {pod: result["consumedCapacity"] for pod, (result,) in got.items()}
    assert {pod: (result["cores"], result["memory"]) for pod, result in consumed.items()} == {
        "half": ("50", "8Gi"),
        "quarter-1": ("25", "3Gi"),
        "quarter-2": ("25", "3Gi"),
    }
    assert len({result["device"] for (result,) in got.values()}) == 1


async def test_an_a100_serves_28_claims_by_seven_partitions_of_four_shares(cluster: Desk, tmp_path: Path) -> None:
    got = await run(cluster, tmp_path, "shares-of-mig")
    assert sorted(Counter(devices(got).values()).values()) == [1, 4]
    pods = [
        document for document in read_scenario(FEATURES_FOLDER / "shares-of-mig").documents if document["kind"] == "Pod"
    ]
    for number in range(6, 30):
        more = {**pods[0], "metadata": {"name": f"mig-share-{number}"}}
        await cluster.kube.create(PODS, more, namespace="default")
    for number in range(6, 29):
        await cluster.scheduled(f"mig-share-{number}")
    assert await cluster.waiting("mig-share-29")
    used = Counter(
        result["device"]
        for claim in (await cluster.kube.list(RESOURCE_CLAIMS)).items
        if claim.get("status", {}).get("allocation")
        for result in claim["status"]["allocation"]["devices"]["results"]
    )
    assert sorted(used.values()) == [4] * 7


async def test_passthrough_takes_the_whole_gpu(cluster: Desk, tmp_path: Path) -> None:
    got = await run(cluster, tmp_path, "passthrough")
    assert devices(got) == {"passthrough": "vfio"}


async def test_only_who_tolerates_its_taint_gets_the_sick_gpu(cluster: Desk, tmp_path: Path) -> None:
    (sick,) = (await run(cluster, tmp_path, "diagnose-an-unhealthy-gpu"))["diagnose"]
    slices = (await cluster.kube.list(RESOURCE_SLICES)).items
    tainted = [
        device["name"] for item in slices for device in item["spec"].get("devices") or () if device.get("taints")
    ]
    assert tainted == [sick["device"]]
