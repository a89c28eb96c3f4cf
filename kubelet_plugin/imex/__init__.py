"""The parts of the supervisor of an IMEX daemon, which runs in a pod of its own on each node of a ComputeDomain.

`kubelet_plugin.commands.imex_entry` is the door. The supervisor reads its domain, and writes nothing to the cluster:
what it has
to say is said by its pod's readiness.
"""
