"""Manages ComputeDomains: their objects, nodes and status. Runs in the controller's leader. `cluster` watches the
cluster and returns the state of one domain, `dra_driver.domains.plan` decides, `actions` writes, and `keeper` calls
them for each domain that changed. All state is in the cluster.
"""
