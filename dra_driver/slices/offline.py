"""What a node would publish by each of our drivers, when nothing is published yet. For commands that ask no cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra_driver.api.inventory import Limitation, NodeInventorySpec
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.devices.limitations import limitations_of
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.diff import CreateSlice, NodeRef, new_object, wanted_pool
from dra_driver.slices.domains import domain_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures
from dra_driver.slices.layout import Places, slice_layout

DRIVERS = ((GPU_DRIVER, described_devices), (COMPUTE_DOMAIN_DRIVER, domain_devices))
"""Each of our drivers, and what decides its devices."""


@dataclass(frozen=True, slots=True)
class PublishedPool:
    """The node's pool of one driver. `slices` are ResourceSlices as they would be created."""

    driver: str
    devices: tuple[Device, ...]
    slices: tuple[JsonObject, ...]
    limitations: tuple[Limitation, ...]


def published_offline(
    inventory: NodeInventorySpec,
    policy: PublishingPolicy,
    labels: Mapping[str, str],
    node_uid: str,
    features: ServerFeatures = ALL_FEATURES,
) -> tuple[PublishedPool, ...]:
    """GPUs first; channels and daemons of ComputeDomains only where the node has some. `labels` are the node's."""
    publisheds = []
    for driver, describe in DRIVERS:
        description = describe(inventory, policy, labels, driver, features)
        if driver == GPU_DRIVER or description.devices:
            node = NodeRef(inventory.node_name, node_uid)
            pool = wanted_pool(driver, node, slice_layout(description.gpus, Places(), features))
            slices = tuple(new_object(pool, CreateSlice(slice_, 1, len(pool.slices))) for slice_ in pool.slices)
            limitations = limitations_of(description.notes, policy, driver, node.name)
            publisheds.append(PublishedPool(driver, description.devices, slices, limitations))
    return tuple(publisheds)


def inventories_of(inventory: NodeInventorySpec, published: Iterable[PublishedPool]) -> list[JsonObject]:
    """The NodeInventory as a publisher would leave it, if there is anything that the node does not offer."""
    limitations = [limitation.to_wire() for item in published for limitation in item.limitations]
    if not limitations:
        return []
    return [
        {
            "apiVersion": NODE_INVENTORIES.api_version,
            "kind": NODE_INVENTORIES.kind,
            "metadata": {"name": inventory.node_name},
            "spec": {"nodeName": inventory.node_name},
            "status": {"limitations": limitations},
        }
    ]
