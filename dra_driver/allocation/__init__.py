"""Which devices claims get: kube-scheduler's decision as pure functions.

    catalog = Catalog([PublishedSlice(ResourceSlice.of(obj)) for obj in slices])
    snapshot = Snapshot(catalog, classes, Usage.of(allocations))
    result = allocate([claim], NodeView("node-1"), snapshot)

`result` is `Allocated`, with an allocation for each claim, or `NotAllocatable`, with a reason. The snapshot has what is
true of a cluster at one moment; the catalog of its slices can be used until one of them changes. A `World` is made of
objects as the API has them; `dra_driver.explain` says why something in it waits.
"""

from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.offline import Placed, allocate_all
from dra_driver.allocation.requests import Cause, Refusal
from dra_driver.allocation.search import Allocated, NotAllocatable, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.allocation.world import World

__all__ = [
    "CURRENT",
    "Allocated",
    "Behavior",
    "Catalog",
    "Cause",
    "NodeView",
    "NotAllocatable",
    "Placed",
    "PublishedSlice",
    "Refusal",
    "Snapshot",
    "Usage",
    "World",
    "allocate",
    "allocate_all",
    "world_of",
]
