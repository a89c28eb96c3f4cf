"""Which devices claims get: kube-scheduler's decision as pure functions.

    catalog = Catalog([PublishedSlice(ResourceSlice.of(one)) for one in slices], Behaviour.of(36))
    snapshot = Snapshot(catalog, classes, Usage.of(allocations))
    result = allocate([claim], NodeView("node-1"), snapshot)

`result` is `Allocated`, with an allocation for each claim, or `NotAllocatable`, with a reason. What holds for a cluster
at one moment is in the snapshot; the catalog of its slices can be used until one of them changes.
"""

from dra_driver.allocation.behaviour import CURRENT, Behaviour
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, NotAllocatable, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.allocation.trace import Cause, Listener, Refusal

__all__ = [
    "CURRENT",
    "Allocated",
    "Behaviour",
    "Catalog",
    "Cause",
    "Listener",
    "NodeView",
    "NotAllocatable",
    "PublishedSlice",
    "Refusal",
    "Snapshot",
    "Usage",
    "allocate",
]
