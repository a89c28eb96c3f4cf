"""Keeps ComputeDomains: their objects, their nodes, their status. Hosted by the controller's leader.

`cluster` follows what there is and shows one domain at a time, `dra_driver.domains.plan` decides, `actions` does it,
and `keeper` lets them meet for each domain that something happened to. Nothing is remembered that is not in the
cluster.
"""
