"""Which devices claims get: kube-scheduler's decision as pure functions.

    catalog = Catalog([PublishedSlice(ResourceSlice.of(one)) for one in slices], Behaviour.of(36))
    snapshot = Snapshot(catalog, classes, Usage.of(allocations))
    result = allocate([claim], NodeView("node-1"), snapshot)

`result` is `Allocated`, with an allocation for each claim, or `NotAllocatable`, with a reason. What holds for a cluster
at one moment is in the snapshot; the catalog of its slices can be used until one of them changes.

Above it stand worlds, made of objects as the API has them, and answers about them (docs/library.md); their names are
imported when they are used, because schedulers do not need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dra_driver.allocation.behaviour import CURRENT, Behaviour
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, NotAllocatable, allocate
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.allocation.trace import Cause, Listener, Refusal

if TYPE_CHECKING:
    from dra_driver.allocation.explain import Answer, Explanation, explain_claim, explain_pod
    from dra_driver.allocation.loading import world_of
    from dra_driver.allocation.offline import Placed, allocate_all
    from dra_driver.allocation.wording import sentences, summary
    from dra_driver.allocation.world import World

__all__ = [
    "CURRENT",
    "Allocated",
    "Answer",
    "Behaviour",
    "Catalog",
    "Cause",
    "Explanation",
    "Listener",
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
    "explain_claim",
    "explain_pod",
    "sentences",
    "summary",
    "world_of",
]

_LATER = {
    "explain": ("Answer", "Explanation", "explain_claim", "explain_pod"),
    "offline": ("Placed", "allocate_all"),
    "wording": ("sentences", "summary"),
    "loading": ("world_of",),
    "world": ("World",),
}
"""By module."""


def __getattr__(name: str) -> object:
    for module, names in _LATER.items():
        if name in names:
            found: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
