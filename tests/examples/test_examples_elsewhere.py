"""Examples of workloads and of other drivers, offline: each is right, and its pods get what its README says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.dractl import run
from support.rows import slow_but

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.checking.knowledge import (
    inventory_of_model,
    objects_of_inventory,
    with_shared_switches,
)
from dra_driver.terminal import Status

GPUS, CHANNELS, NICS = "gpu.nvidia.com", "compute-domain.nvidia.com", "dra.net"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"

DOMAINS = {
    "compute-domain-two-trays": ("gb200:2", "gb200:1,dgx-h100:4", [4, 4]),
    "nvlink-domain-gang": ("gb200:4", "gb200:3", [4, 4, 4, 4]),
}
"""Nodes that fit, some that do not, and the GPUs of each pod."""


def allocated(example: str, *options: str) -> list[tuple[str, list[Any]]]:
    """Node and allocated devices of each pod; node is empty where it does not fit."""
    placed = json.loads(run("allocate", "-f", str(FEATURES_FOLDER / example), "-o", "json", *options).stdout)
    return [
        (pod["node"] or "", [result for claim in pod["claims"] for result in claim["allocation"]["devices"]["results"]])
        for pod in placed
    ]


@pytest.mark.parametrize(
    "example",
    slow_but(sorted({*DOMAINS, "fabric-partition", "gpu-and-nic-one-pcie-root"}), "gpu-and-nic-one-pcie-root"),
)
def test_the_check_has_nothing_to_say(example: str) -> None:
    checked = run("check", "--strict", str(FEATURES_FOLDER / example))
    assert (checked.exit_code, checked.stdout) == (Status.DONE, "")


@pytest.mark.parametrize("example", sorted(DOMAINS))
def test_each_pod_of_a_domain_gets_its_gpus_and_a_channel_on_a_node_of_its_own(example: str) -> None:
    fitting, small, gpus = DOMAINS[example]
    pods = allocated(example, "--nodes", fitting)
    assert [sum(result["driver"] == GPUS for result in results) for _, results in pods] == gpus
    assert all(sum(result["driver"] == CHANNELS for result in results) == 1 for _, results in pods)
    assert len({node for node, _ in pods}) == len(pods)
    assert "" in {node for node, _ in allocated(example, "--nodes", small)}
    readme = (FEATURES_FOLDER / example / "README.md").read_text()
    assert example == "compute-domain-two-trays" or f"-f examples/features/{example} --nodes {fitting}\n" in readme


def test_four_gpus_of_a_fabric_partition_are_on_a_node_that_shares_its_switches_or_nowhere(tmp_path: Path) -> None:
    inventory = with_shared_switches(inventory_of_model("hgx-h200"))
    assert inventory is not None
    file = tmp_path / "slices.yaml"
    file.write_text(yaml.safe_dump_all(objects_of_inventory(inventory, "node-1", PublishingPolicy.EVERYTHING, {})))
    ((node, results),) = allocated("fabric-partition", "--slices", str(file))
    places = {gpu.name: gpu.module_id for gpu in inventory.gpus}
    assert node == "node-1"
    assert sorted(places[result["device"]] for result in results) in ([1, 2, 3, 4], [5, 6, 7, 8])
    assert allocated("fabric-partition", "--nodes", "hgx-h200:2,dgx-h100")[0][0] == ""


def nics(node: str, roots: list[str], *, rdma: bool = True) -> JsonObject:
    """As DRANET publishes them, beside one that can do no RDMA."""
    devices: list[JsonObject] = [
        {"name": f"nic-{number}", "attributes": {"dra.net/rdma": {"bool": rdma}, PCIE_ROOT: {"string": root}}}
        for number, root in enumerate(roots)
    ]
    devices.append({"name": "cni0", "attributes": {"dra.net/ifName": {"string": "cni0"}}})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-nics"},
        "spec": {"driver": NICS, "nodeName": node, "pool": pool, "devices": devices},
    }


def roots_of(slices: list[JsonObject]) -> dict[str, str]:
    """By device."""
    return {
        device["name"]: device["attributes"][PCIE_ROOT]["string"]
        for slice_ in slices
        for device in slice_["spec"]["devices"]
        if PCIE_ROOT in device["attributes"]
    }


def test_a_gpu_comes_with_a_network_device_of_its_pcie_root_or_not_at_all(tmp_path: Path) -> None:
    gpus = objects_of_inventory(inventory_of_model("dgx-h100"), "node-1", PublishingPolicy.EVERYTHING, {})
    some = sorted(roots_of(gpus).values())[:2]
    file = tmp_path / "slices.yaml"
    near = [*gpus, nics("node-1", some)]
    file.write_text(yaml.safe_dump_all(near))
    pods = allocated("gpu-and-nic-one-pcie-root", "--slices", str(file))
    roots = roots_of(near)
    for node, results in pods:
        assert (node, sorted(result["driver"] for result in results)) == ("node-1", [NICS, GPUS])
        assert len({roots[result["device"]] for result in results}) == 1
    assert len(pods) == 2
    for wrong in (nics("node-1", ["pci0000:ff"]), nics("node-1", some, rdma=False)):
        file.write_text(yaml.safe_dump_all([*gpus, wrong]))
        assert {node for node, _ in allocated("gpu-and-nic-one-pcie-root", "--slices", str(file))} == {""}
