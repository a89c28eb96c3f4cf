"""Network devices beside the GPUs of a simulated node, published as DRANET does; nothing prepares them.

With them, claims for a GPU and a network device on one PCIe root can be allocated. Source of names and attributes:
DRANET's `pkg/apis` and its documentation of ResourceSlices.
"""

from collections.abc import Sequence

from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.api.resource import ResourceSlice

NIC_DRIVER = "dra.net"
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def nic_slice(node: str, slices: Sequence[ResourceSlice]) -> JsonObject:
    """A slice with an RDMA device at each PCIe root at which the node's slices have a GPU."""
    attributes = [
        device.attributes or {} for item in slices if item.spec.node_name == node for device in item.spec.devices or ()
    ]
    roots = sorted({str(known[_PCIE_ROOT].string) for known in attributes if _PCIE_ROOT in known})
    devices = [
        {
            "name": f"rdma{index}",
            "attributes": {
                f"{NIC_DRIVER}/ifName": {"string": f"rdma{index}"},
                f"{NIC_DRIVER}/rdma": {"bool": True},
                _PCIE_ROOT: {"string": root},
            },
        }
        for index, root in enumerate(roots)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": f"{node}-{NIC_DRIVER}"},
        "spec": {"driver": NIC_DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }
