"""The reconciler that makes the cluster's ResourceSlices match inventories and policy.

`PoolPublisher` is hosted by the controller, for all nodes, and by a node plugin with `--publisher node`, for its own:

    publisher = PoolPublisher(kube, driver_name, policy=policy, node_name=None)   # or the node's name
    await publisher.run()                                                         # until cancelled

Both read NodeInventory objects, so both follow the same rule for wiped slices (`life`). `observed` is the watch of
slices plus the publisher's own latest writes, `inventories` the stored parts of inventories, `pools` the reconciler.
"""

from dra_driver.publish.pools import Narrator, PoolPublisher

__all__ = ["Narrator", "PoolPublisher"]
