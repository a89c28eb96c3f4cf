"""The driver of `compute-domain.nvidia.com`: channels for the pods of a ComputeDomain, and the domain's daemons.

Nothing here changes hardware: what a claim has is an entry of the journal and a CDI file.
"""
