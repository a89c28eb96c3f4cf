"""What our publisher makes of a simulated machine: the devices of its slices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from support.nodes import a_node

from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.diff import CreateSlice, NodeRef, new_object, slice_writes, wanted_pool
from dra_driver.slices.features import ALL_FEATURES
from dra_driver.slices.layout import Places, slice_layout
from kubelet_plugin.commands.simulate import act
from kubelet_plugin.facts.monitor import HealthFile, HealthMonitor
from kubelet_plugin.reporting.reporter import wanted_spec


async def published_slices(
    folder: Path,
    profile: str,
    node: NodeRef,
    policy: PublishingPolicy,
    *,
    labels: Mapping[str, str] = MappingProxyType({}),
    acts: Sequence[Sequence[str]] = (),
) -> list[JsonObject]:
    """The ResourceSlices that the publisher would create for a new simulated host on which `acts` happened first."""
    machine = a_node(folder, profile)
    for name, *given in acts:
        act(machine.host.root, name, given, None)
    monitor = HealthMonitor(machine.discovery(), HealthFile(folder), lambda: policy.health)
    inventory = NodeInventorySpec.of(wanted_spec(node.name, await monitor.observe(), {}))
    described = described_devices(inventory, policy, labels, GPU_DRIVER, ALL_FEATURES)
    pool = wanted_pool(GPU_DRIVER, node, slice_layout(described.gpus, Places(), ALL_FEATURES))
    writes = slice_writes(pool, ())
    return [new_object(pool, write) for write in writes if isinstance(write, CreateSlice)]


async def published_devices(folder: Path, profile: str, node_name: str) -> tuple[Device, ...]:
    """Discovery on a new simulated host of this profile, and the devices that the default policy makes of it."""
    facts = await a_node(folder, profile).discovery().observe()
    inventory = NodeInventorySpec.of(wanted_spec(node_name, facts, {}))
    return described_devices(inventory, PublishingPolicy(), {}, GPU_DRIVER, ALL_FEATURES).devices
