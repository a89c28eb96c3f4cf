"""Whether a node's NVLink fabric can be used, from the registration of its GPUs."""

from typing import Any

import pytest
from support.inventories import gpu
from support.rows import rows

from dra_driver.api.inventory import FabricFacts, GpuFacts
from dra_driver.devices.fabric import NodeFabric, fabric_of

RACK = "11111111-2222-4333-8444-555555555555"


def registered(number: int, **facts: Any) -> GpuFacts:
    values = {"state": "Completed", "clusterUUID": RACK, "cliqueID": 1, **facts}
    return gpu(number, fabric=FabricFacts.model_validate(values))


def test_gpus_of_one_clique_are_in_it() -> None:
    assert fabric_of([registered(0), registered(1)]) == NodeFabric(f"{RACK}.1")


@pytest.mark.parametrize("gpus", [[], [gpu(0)], [registered(0, clusterUUID=None, cliqueID=None)]])
def test_without_a_fabric_beyond_the_machine_there_is_no_clique_and_no_problem(gpus: list[GpuFacts]) -> None:
    assert fabric_of(gpus) == NodeFabric()


@rows(
    "other, reason",
    [
        (registered(1, state="NotStarted"), "FabricNotRegistered"),
        (registered(1, state="InProgress"), "FabricNotRegistered"),
        (registered(1, status=999), "FabricRefused"),
        (registered(1, cliqueID=2), "MixedCliques"),
        (registered(1, clusterUUID=None, cliqueID=None), "MixedCliques"),
        (gpu(1), "MixedCliques"),
        (registered(1, health="Unhealthy"), "FabricUnhealthy"),
    ],
)
def test_one_gpu_that_differs_makes_the_fabric_of_its_node_unusable(other: GpuFacts, reason: str) -> None:
    fabric = fabric_of([registered(0), other])
    assert fabric.reason == reason
    assert fabric.problem
