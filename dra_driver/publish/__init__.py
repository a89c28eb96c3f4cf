"""The reconciler that makes the cluster's ResourceSlices match inventories and policy.

`PoolPublisher` is hosted by the controller, for all nodes, and by a node plugin with `--publisher node`, for its own:

    publisher = PoolPublisher(Watches(kube), Publication(driver=name, policies=source))      # or with node_name
    await publisher.run()                                                                    # until cancelled

Both read NodeInventory objects, so both follow the same rule for wiped slices (`life`). `observed` is the watch of
slices plus the publisher's own latest writes, `inventories` the stored parts of inventories, `live` follows the
GpuPolicies, `decisions` says what of them holds for a node and when, `pools` is the reconciler.
"""

from dra_driver.publish.live import LivePolicies
from dra_driver.publish.pools import Narrator, Pace, PoolPublisher, Publication, PublishingListeners

__all__ = ["LivePolicies", "Narrator", "Pace", "PoolPublisher", "Publication", "PublishingListeners"]
