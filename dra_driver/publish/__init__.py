"""The reconciler that makes the cluster's ResourceSlices equal to what inventories and policy say.

`PoolPublisher` is hosted by the controller, for all nodes, and by a node plugin with `--publisher node`, for its own:

    publisher = PoolPublisher(kube, driver_name, policy=policy, node_name=None)   # or the node's name
    await publisher.run()                                                         # until cancelled

Both read NodeInventory objects, so both follow one rule about wiped slices (`life`). `observed` is the watch of slices
ahead by our own writes, `inventories` what is kept of inventories, `pools` the reconciler.
"""

from dra_driver.publish.pools import Narrator, PoolPublisher

__all__ = ["Narrator", "PoolPublisher"]
