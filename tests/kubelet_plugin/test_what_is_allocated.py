"""What the published counters allow, the hardware accepts; and neither claims that come nor claims that go change a
slice or leave a trace. Random claims on every simulated GPU model, allocated as the scheduler does and prepared by the
real service over simulated NVML, kernel and programs."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.allocation import exactly
from support.inventories import policy
from support.nodes import a_node
from support.rows import slow_but
from support.whole_node import OWN, WholeNode, whole_node

from dra_driver.api.policy import PublishingPolicy, Rule
from dra_driver.api.resource import Allocation, Device, ResourceClaim
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures


@asynccontextmanager
async def plugin(
    folder: Path, profile: str, policy: PublishingPolicy, features: ServerFeatures
) -> AsyncIterator[WholeNode]:
    """Two GPUs are published, so that claims get in each other's way; Ampere ones were put into MIG mode by hand."""
    node = a_node(folder, profile)
    for index in range(2 if profile in AMPERE else 0):
        node.host.set_mig(index, 1)
    two = {"uuids": [gpu.uuid for gpu in node.host.state.gpus[:2]]}
    policy = policy.model_copy(update={"publish": [Rule.model_validate({"gpus": two})]})
    async with whole_node(folder, node, policy, features) as wired:
        yield wired


def check_described(file: Path, device: Device) -> None:
    """Containers read what is published; of a MIG device that was made for the claim its UUID, too."""
    (request,) = json.loads(file.read_bytes())["requests"]
    ((attributes, published),) = [
        (described["attributes"], device.to_wire()["attributes"]) for described in request["devices"]
    ]
    assert attributes | published == attributes
    if extra := attributes.keys() - published.keys():
        assert extra == {"uuid"} and attributes["uuid"]["string"].startswith("MIG-")


def a_claim_like(device: Device, number: int, chance: random.Random) -> ResourceClaim:
    """A claim that asks for a device of this kind, and for a random part of one that is shared."""
    kind = [
        f"{OWN}.{name} == '{device.attributes[name].string}'"
        for name in ("type", "profile")
        if name in device.attributes
    ]
    fields: dict[str, Any] = {}
    wishes = _wishes(device, chance)
    if wishes:
        fields["capacity"] = {"requests": wishes}
    obj = {
        "metadata": {"name": f"claim-{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {"devices": {"requests": [exactly("gpu", *kind, class_name="any", **fields)]}},
    }
    return ResourceClaim.of(obj)


def _wishes(device: Device, chance: random.Random) -> Mapping[str, str]:
    if not device.allow_multiple_allocations:
        return {}
    ways = {"memory": f"{chance.randrange(1, 9)}Gi", "cores": str(chance.randrange(1, 60)), "shares": "1"}
    return {name: amount for name, amount in ways.items() if name in device.capacity and chance.random() < 0.7}


NO_SHARES = replace(ALL_FEATURES, consumable=False)
STEPS = 30
AMPERE = ("a30", "dgx-a100-40", "dgx-a100-80")
VIRTUAL: list[dict[str, Any]] = [{}]
WORLDS: dict[str, tuple[str, PublishingPolicy]] = {
    **{
        profile: (profile, policy(mig=[{"mode": "Dynamic"}], passthrough=VIRTUAL))
        for profile in ("hgx-h200", "dgx-b200", "gb200", "gh200", "h100-nvl", "rtx-pro-6000", *AMPERE)
    },
    "parts": ("dgx-h100", policy(mig=[{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb", "2c.3g.40gb"]}])),
    "shared partitions": (
        "dgx-h100",
        policy(
            mig=[{"mode": "Dynamic", "profiles": ["1g.10gb", "3g.*"]}],
            sharing=[{"devices": "mig", "strategy": "TimeSlicing", "replicas": 4}],
        ),
    ),
    "shares": (
        "t4",
        policy(sharing=[{"strategy": "TimeSlicing", "replicas": 4, "interval": "Long"}], passthrough=VIRTUAL),
    ),
    "separate shares": (
        "t4",
        policy(sharing=[{"strategy": "TimeSlicing", "replicas": 3, "interval": "Short"}], passthrough=VIRTUAL),
    ),
    "daemons in partitions": (
        "dgx-h100",
        policy(
            mig=[{"mode": "Dynamic", "profiles": ["3g.*"]}],
            sharing=[{"devices": "mig", "strategy": "MPS", "replicas": 2}],
        ),
    ),
    "memory and compute": (
        "l40s",
        policy(sharing=[{"strategy": "MPS", "capacity": ["memory", "cores"]}]),
    ),
}


QUICK = ("gb200", "shared partitions")


@pytest.mark.parametrize("world", slow_but(WORLDS, *QUICK))
async def test_what_is_allocated_is_prepared_and_leaves_nothing_behind(tmp_path: Path, world: str) -> None:
    profile, rules = WORLDS[world]
    chance = random.Random(world)
    features = NO_SHARES if world.startswith("separate") else ALL_FEATURES
    async with plugin(tmp_path, profile, rules, features) as node:
        before, slices = node.node.host.snapshots(), await node.slices()
        devices = [Device.of(device) for item in slices for device in item["spec"].get("devices", ())]
        kinds = {tuple(str(device.attributes.get(name)) for name in ("type", "profile")): device for device in devices}
        outcomes: list[Allocation | None] = []
        for number in range(STEPS):
            if node.held and chance.random() < 0.35:
                await node.unprepare(chance.choice(list(node.held)))
                continue
            claim = a_claim_like(chance.choice(list(kinds.values())), number, chance)
            allocation = node.allocated(slices, claim)
            outcomes.append(allocation)
            if allocation is not None:
                ref = await node.prepare(claim, allocation)
                (device,) = (device for device in devices if device.name == allocation.devices.results[0].device)
                check_described(tmp_path / "metadata" / f"{ref.uid}_gpu.json", device)
        assert node.held and None in outcomes
        assert await node.slices() == slices
        for ref in list(node.held):
            await node.unprepare(ref)
        assert node.node.host.snapshots() == before
        assert await node.slices() == slices
        assert not [*(tmp_path / "cdi").iterdir(), *(tmp_path / "metadata").iterdir()]
