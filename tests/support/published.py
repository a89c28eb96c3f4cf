"""What our publisher makes of a simulated machine: the devices of its slices."""

from pathlib import Path

from support.nodes import a_node

from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.features import ALL_FEATURES
from kubelet_plugin.reporter import wanted_spec


async def published_devices(folder: Path, profile: str, node_name: str) -> tuple[Device, ...]:
    """Discovery on a new simulated host of this profile, and the devices that the default policy makes of it."""
    facts = await a_node(folder, profile).discovery().observe()
    inventory = NodeInventorySpec.of(wanted_spec(node_name, facts, {}))
    return described_devices(inventory, PublishingPolicy(), {}, GPU_DRIVER, ALL_FEATURES).devices
