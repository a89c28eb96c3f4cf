"""The rules by which Kubernetes reads, converts and validates objects of resource.k8s.io, and the schemas of its types.

The webhook, `dractl check`, the migration and the simulated API server use them. Pure.
"""
