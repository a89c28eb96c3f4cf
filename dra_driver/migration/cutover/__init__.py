"""The plan that takes a cluster from the device plugin to the driver, node by node."""
