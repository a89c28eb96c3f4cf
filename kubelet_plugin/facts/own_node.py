"""This node's Node object: its labels and annotations, by which its GPUs are released, and its container runtime.

One watch follows it for all parts of the plugin. What was read last counts while the API server is away.
"""

import asyncio
from collections.abc import Callable

import structlog

from dra_driver.api.inventory import Problem
from dra_driver.api.meta import NODES, JsonObject
from dra_driver.cdi.model import GROUPS_SINCE, readable_version, reads
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Change, Reflector
from dra_driver.runtime.tasks import until

_log = structlog.get_logger(__name__)

_PATIENCE_S = 5.0


class OwnNode:
    """`metadata` and `runtime` (`containerd://1.7.27`) are None until the object was read for the first time."""

    def __init__(self, name: str, metadata: JsonObject | None = None, runtime: str | None = None) -> None:
        self.name = name
        self.metadata = metadata
        self.runtime = runtime
        self._read = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def readable_cdi(self) -> str | None:
        """The highest CDI version that its container runtime reads; None when that is not known of it. Raises
        NodeNotReady while it is not known which runtime it is: a file that it cannot read would keep containers from
        starting."""
        if self.runtime is None:
            raise NodeNotReady(
                "the node's container runtime has not been read from the API server yet", about=f"node {self.name}"
            )
        return readable_version(self.runtime)

    def runtime_warnings(self) -> tuple[Problem, ...]:
        """What containers of this node go without because of its container runtime."""
        readable = readable_version(self.runtime or "")
        if reads(readable, GROUPS_SINCE):
            return ()
        message = (
            f"{self.runtime} reads CDI files up to version {readable}, and groups of device nodes need {GROUPS_SINCE}:"
            " programs that become another user in their container cannot open /dev/dri; upgrade to containerd 1.7.16"
            " or CRI-O 1.30, or newer"
        )
        return (Problem(subject="container runtime", reason="OldCdi", message=message),)

    async def follow(self, kube: Kube) -> None:
        """Until cancelled."""
        await Reflector(kube, NODES, field_selector=f"metadata.name={self.name}", on_change=self._saw).run()

    async def first_read(self) -> None:
        """Waits for it a few seconds; the plugin also works without."""
        if not await until(self._read, _PATIENCE_S):
            _log.warning("the Node object of this node has not been read yet", node=self.name)

    def _saw(self, change: Change) -> None:
        if change.after is None:
            self.metadata = {}
        else:
            info = (change.after.get("status") or {}).get("nodeInfo")
            runtime = info.get("containerRuntimeVersion") if isinstance(info, dict) else None
            self.metadata, self.runtime = change.after["metadata"], str(runtime or "")
            self._read.set()
        for listener in self._listeners:
            listener()
