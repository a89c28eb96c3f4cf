"""Manages ComputeDomains: their objects, nodes and status. Runs in the controller's leader. `cluster` watches the
cluster and returns the state of one domain, `dra_driver.domains.domain_plan` decides, and `keeper` writes, for each
domain that changed. All state is in the cluster.
"""
