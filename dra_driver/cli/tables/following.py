"""Typed copies of what a cluster has: read once, or following it, for `dractl top` and `dractl get -w`."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from dra_driver.api.core import Key
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.cli.reading.session import listed
from dra_driver.cli.tables.seen import READ_AS, Objects, Selection
from dra_driver.errors import NotFound, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Mirror, MirrorChange
from dra_driver.runtime.tasks import end_tasks
from dra_driver.terminal import print_message

_LOOK_S = 0.05


async def read_objects(
    kube: Kube,
    kinds: Sequence[Resource],
    required: Collection[Resource],
    *,
    read_as: Mapping[Resource, Callable[[JsonObject], Any]] = READ_AS,
    selected: Mapping[Resource, Selection] = MappingProxyType({}),
    say: bool = True,
) -> Objects:
    """All objects of these kinds, or those that are `selected`. Kinds that are not `required` are empty if they do not
    exist, or, with a message, if they may not be read. Raises ClusterError."""
    left_out: set[str] = set()
    """Taint rules are of two versions, but one message is enough."""

    async def read(kind: Resource) -> Sequence[Any]:
        namespace, labels = selected.get(kind, (None, None))
        items = await listed(kube, kind, namespace, labels)
        if isinstance(items, list):
            return [typed for item in items if (typed := read_as[kind](item)) is not None]
        if kind in required:
            raise items
        if say and not isinstance(items, NotFound) and kind.plural not in left_out:
            left_out.add(kind.plural)
            print_message(f"{kind.plural} are left out: {items.message}")
        return ()

    return dict(zip(kinds, await asyncio.gather(*map(read, kinds)), strict=True))


class Following:
    """Follows objects of these kinds. `on_change` is called for each change, with the object before and after it, and
    must not block."""

    def __init__(
        self,
        kube: Kube,
        read_as: Mapping[Resource, Callable[[JsonObject], Any]],
        *,
        selected: Mapping[Resource, Selection] = MappingProxyType({}),
        on_change: Callable[[Resource, Key, Any, Any], None] = lambda kind, key, before, after: None,
    ) -> None:
        self.changed = asyncio.Event()
        self.mirrors: dict[Resource, Mirror[Any]] = {}
        for kind, read in read_as.items():
            namespace, labels = selected.get(kind, (None, None))

            def noted(change: MirrorChange[Any], kind: Resource = kind) -> None:
                on_change(kind, change.key, change.before, change.after)
                self.changed.set()

            self.mirrors[kind] = Mirror(
                kube, kind, keep=read, namespace=namespace, label_selector=labels, on_change=noted
            )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(mirror.run()) for mirror in self.mirrors.values()]
        try:
            yield
        finally:
            await end_tasks(*tasks)

    def reading(self) -> list[str]:
        """Kinds that were neither read nor refused so far."""
        return [
            kind.plural
            for kind, mirror in self.mirrors.items()
            if not mirror.synced.is_set() and mirror.failure is None
        ]

    def notes(self, required: Collection[Resource]) -> list[str]:
        """What is still read, which required kinds cannot be read, and which no longer follow the cluster."""
        reading = self.reading()
        failing = {kind: mirror for kind, mirror in self.mirrors.items() if mirror.failure is not None}
        lost = {kind.plural: mirror.failure for kind, mirror in failing.items() if mirror.synced.is_set()}
        stopped = sorted(kind for kind, failure in lost.items() if isinstance(failure, Unreachable))
        return [
            *([f"reading {', '.join(reading)}"] if reading else []),
            *(
                f"{kind.plural} cannot be read: {mirror.failure}"
                for kind, mirror in failing.items()
                if kind in required and not mirror.synced.is_set()
            ),
            *([f"no news of {', '.join(stopped)}: the API server does not answer"] if stopped else []),
            *(
                f"no news of {kind}: {failure.message}"
                for kind, failure in sorted(lost.items())
                if failure is not None and kind not in stopped
            ),
        ]

    async def until_read(self, required: Collection[Resource]) -> None:
        """Until each kind was read, or cannot be read. Raises ClusterError if that is a required one.

        From then on garbage is collected again, of what comes later.
        """
        while self.reading():  # noqa: ASYNC110 - a mirror has no event for its failure
            await asyncio.sleep(_LOOK_S)
        for kind in required:
            failure = self.mirrors[kind].failure
            if failure is not None and not self.mirrors[kind].synced.is_set():
                raise failure
        gc.freeze()
        gc.enable()

    def of(self, kind: Resource) -> list[Any]:
        return [item for item in self.mirrors[kind].objects.values() if item is not None]

    def objects(self) -> Objects:
        return {kind: self.of(kind) for kind in self.mirrors}
