"""Prepares the devices of `compute-domain.nvidia.com`: channels for the pods of a ComputeDomain, and their daemons.

Nothing here changes hardware: what a claim has is a record and a CDI file, so there are neither holds nor locks. `main`
hosts it beside the GPUs' service where the feature gate is on and the node has IMEX channels; `service` is the door.
"""
