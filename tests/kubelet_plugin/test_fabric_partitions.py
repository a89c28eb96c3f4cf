"""Claims on nodes whose NVSwitches are shared: the real services over a simulated Fabric Manager, NVML and kernel."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.allocation import exactly
from support.nodes import a_node
from support.rows import slow_but
from support.whole_node import OWN, WholeNode, whole_node

from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Allocation, Device, ResourceClaim
from dra_driver.errors import DriverError
from dra_driver.features import Gates
from dra_driver.names import ClaimRef

GATES = Gates.parse("FabricManagerPartitioning=true")
EVERY = [(board, kind) for board in ("dgx-h100", "hgx-h200", "dgx-b200", "dgx-a100-80") for kind in ("gpu", "vfio")]


def policy(**rules: Any) -> PublishingPolicy:
    return PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **rules}, about="test")


VIRTUAL = policy(passthrough=[{}])


def a_claim(name: str, count: int, *, partition: int | None = None, kind: str = "gpu") -> ResourceClaim:
    constraints = [] if partition is None else [{"matchAttribute": f"gpu.nvidia.com/partition{partition}"}]
    request = exactly("gpus", f"{OWN}.type == '{kind}'", class_name="any", count=count)
    return ResourceClaim.of(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": [request], "constraints": constraints}},
        }
    )


def devices(slices: Sequence[JsonObject]) -> list[Device]:
    return [Device.of(device) for item in slices for device in item["spec"].get("devices", ())]


async def prepared(node: WholeNode, claim: ResourceClaim) -> ClaimRef:
    allocation = node.allocated(await node.slices(), claim)
    assert allocation is not None, f"{claim.metadata.name} is not allocated"
    return await node.prepare(claim, allocation)


async def refusal(node: WholeNode, claim: ResourceClaim, allocation: Allocation) -> DriverError:
    with pytest.raises(DriverError) as caught:
        await node.prepare(claim, allocation)
    return caught.value


def shared(folder: Path, profile: str = "hgx-h200") -> Any:
    node = a_node(folder, profile)
    node.host.share_switches()
    return node


@pytest.mark.parametrize(("profile", "kind"), slow_but(EVERY, ("hgx-h200", "gpu"), ("dgx-a100-80", "vfio")))
async def test_gpus_of_one_partition_are_allocated_and_connected_until_the_claim_goes(
    tmp_path: Path, profile: str, kind: str
) -> None:
    node = shared(tmp_path, profile)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        before, slices = node.host.snapshots(), await plugin.slices()
        held = []
        for number, size in enumerate((4, 2, 1)):
            ref = await prepared(plugin, a_claim(str(number), size, partition=size, kind=kind))
            held.append(ref)
            active = [part for part in node.host.state.fabric_manager.partitions if part.active]
            assert sorted(len(part.gpus) for part in active) == sorted((4, 2, 1)[: number + 1])
            assert await plugin.slices() == slices
        for ref in held:
            await plugin.unprepare(ref)
        assert node.host.active_partitions() == []
        assert node.host.snapshots() == before and await plugin.slices() == slices
