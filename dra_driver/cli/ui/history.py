"""What changed on GPUs while pages followed the cluster: claims, taints, and whether they are published. Pure.

Kubernetes keeps Events for an hour, and no earlier version of an object. This is kept in the memory of the server of
the pages, as long as it runs.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from dra_driver.cli.tables.seen import NodeOverview
from dra_driver.cli.tables.usage import PublishedGpu

MOST = 20_000
"""Changes of all nodes; the oldest go first."""
MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class GpuChange:
    """`earlier`: it came while the cluster was not followed, some time before `seen`."""

    seen: datetime
    node: str
    gpu: str
    uuid: str
    text: str
    earlier: bool = False


type _Facts = frozenset[tuple[str, str]]
"""Of a GPU: its name, its claims and its taints, each with its kind."""

_WORDS = (
    ("name", True, "is published"),
    ("name", False, "is no longer published"),
    ("claim", False, "claim {} released it"),
    ("taint", False, "no longer tainted {}"),
    ("taint", True, "tainted {}"),
    ("claim", True, "claim {} got it"),
)
"""Of a kind of fact that came (True) or went, in the order in which changes of one time are shown."""


def _facts(gpu: PublishedGpu) -> _Facts:
    facts = (("name", [gpu.name]), ("claim", gpu.claims), ("taint", gpu.taints))
    return frozenset((kind, value) for kind, values in facts for value in values)


class GpuHistory:
    """Compares what is seen with what was seen last."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        """Since when all changes are known: when the cluster was seen first, or the last change that was forgotten."""
        self._nodes: Mapping[str, NodeOverview] = {}
        """A node that did not change is the same value."""
        self._paused = False
        self._gpus: dict[str, Mapping[str, _Facts]] = {}
        self._changes: deque[GpuChange] = deque(maxlen=MOST)

    def pause(self) -> None:
        """The cluster is not followed until it is seen again."""
        self._nodes, self._paused = {}, True

    def saw(self, nodes: Mapping[str, NodeOverview], now: datetime) -> None:
        """All nodes as they are now."""
        first = self.since is None
        self.since = self.since or now
        for node_name in sorted(nodes.keys() | self._gpus.keys()):
            node = nodes.get(node_name)
            if node is not None and node is self._nodes.get(node_name):
                continue
            before = self._gpus.pop(node_name, {})
            after = {gpu.uuid: _facts(gpu) for gpu in node.gpus} if node is not None else {}
            if after:
                self._gpus[node_name] = after
            if not first:
                for uuid, name, text in _differences(before, after):
                    if len(self._changes) == self._changes.maxlen:
                        self.since = self._changes[0].seen
                    self._changes.append(GpuChange(now, node_name, name, uuid, text, self._paused))
        self._nodes, self._paused = dict(nodes), False

    def of(self, node: str, uuid: str | None = None) -> list[GpuChange]:
        """The latest of one node, or of one of its GPUs, newest first."""
        own = (change for change in reversed(self._changes) if change.node == node and uuid in (None, change.uuid))
        return list(islice(own, MOST_SHOWN))


def _differences(before: Mapping[str, _Facts], after: Mapping[str, _Facts]) -> Iterator[tuple[str, str, str]]:
    """UUID, name and what changed."""
    for uuid in sorted(before.keys() | after.keys()):
        old, new = before.get(uuid, frozenset()), after.get(uuid, frozenset())
        name = next(value for kind, value in new or old if kind == "name")
        for kind, came, words in _WORDS:
            for value in sorted(value for of, value in (new - old if came else old - new) if of == kind):
                yield uuid, name, words.format(value)
