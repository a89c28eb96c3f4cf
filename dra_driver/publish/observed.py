"""The slices of one driver as the watch shows them, ahead of it by our own writes.

A reconciler that looks at the watch alone would repeat a write whose event is still under way. So the server's answer
to a write counts at once, until the watch has caught up; and a slice that we deleted is gone at once. The event of a
write may also come before its answer: then it is no reason to look at the pool again.
"""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Mirror, MirrorChange, Watches
from dra_driver.quantity import whole_number
from dra_driver.slices.diff import CreateSlice, ObservedSlice, UpdateSlice, observed_slice
from dra_driver.slices.features import ServerFeatures, kept_features, list_probe, probe

_REMEMBERED_DELETIONS = 4096


class PoolChanged(Protocol):
    def __call__(self, pool: str, *, lost: bool) -> None:
        """Look at `pool` again. `lost`: a slice is gone that we did not delete."""


class ObservedSlices:
    """All slices of `driver`, or those of one node; used from one event loop.

    `unseen_s` is how long the watch may take to show a slice that we created; one that it does not show then was
    deleted unseen.
    """

    def __init__(
        self, watches: Watches, driver: str, node_name: str | None, on_change: PoolChanged, *, unseen_s: float = 60.0
    ) -> None:
        selector = f"spec.driver={driver}" if node_name is None else f"spec.driver={driver},spec.nodeName={node_name}"
        self.mirror = Mirror(
            watches,
            RESOURCE_SLICES,
            keep=self._observed,
            field_selector=selector,
            on_change=self._saw,
        )
        self._on_change = on_change
        self._unseen_s = unseen_s
        self._pools: dict[str, dict[str, ObservedSlice]] = {}
        self._gone: dict[str, bool] = {}
        """UIDs of slices that are gone, the latest last, and whether it was us who deleted them."""
        self._unseen: dict[str, asyncio.TimerHandle] = {}
        self._writing: dict[_Contents, str | None] = {}
        """What is being written, and the UID of the object in which the watch showed it before the answer."""

    def of_pool(self, pool: str) -> tuple[ObservedSlice, ...]:
        return tuple(self._pools.get(pool, {}).values())

    def pools(self) -> Collection[str]:
        return self._pools.keys()

    @contextmanager
    def writing(self, pool: str, write: CreateSlice | UpdateSlice) -> Iterator[None]:
        """Around the request and `wrote`. The first event that shows what is written is not reported. The pool is
        reported at the end if that event was of another object (a creation whose answer was lost), or if the write
        failed after it.
        """
        contents = (pool, write.slice.digest, write.generation, write.count)
        self._writing[contents] = None
        try:
            yield
        finally:
            if self._writing.pop(contents) is not None:
                self._on_change(pool, lost=False)

    def wrote(self, obj: JsonObject, digest: str | None = None) -> ObservedSlice:
        """Take note of the server's answer to a creation or an update; `digest` is that of its contents, if known."""
        item = self._observed(obj, digest)
        if self._writing.get(_contents(item)) == item.uid:
            self._writing[_contents(item)] = None
        if item.uid in self._gone:
            return item
        if item.name not in self._pools.get(item.pool, {}):
            self._expect(item)
        self._remember(item)
        return item

    def deleting(self, item: ObservedSlice) -> None:
        """Take note of a deletion before it is asked for: its event may arrive before the answer."""
        self._bury(item.uid, by_us=True)

    def deleted(self, item: ObservedSlice) -> None:
        self._forget(item)

    def not_deleted(self, item: ObservedSlice) -> None:
        """The server refused: the slice is still there."""
        self._gone.pop(item.uid, None)

    def close(self) -> None:
        for timer in self._unseen.values():
            timer.cancel()

    def _observed(self, obj: JsonObject, digest: str | None = None) -> ObservedSlice:
        """Our own writes are seen twice: in the answer and in an event. Both are the same item."""
        pool, name = ((obj.get("spec") or {}).get("pool") or {}).get("name", ""), obj["metadata"]["name"]
        known = self._pools.get(pool, {}).get(name)
        if known is not None and known.resource_version == obj["metadata"].get("resourceVersion"):
            return known
        return observed_slice(obj, digest)

    def _saw(self, change: MirrorChange[ObservedSlice]) -> None:
        before, after = change.before, change.after
        if before is not None and (after is None or after.uid != before.uid):
            by_us = self._gone.get(before.uid, False)
            self._bury(before.uid, by_us=by_us)
            self._forget(before)
            self._on_change(before.pool, lost=not by_us)
        if after is None:
            return
        self._is_seen(after.name)
        known = self._pools.get(after.pool, {}).get(after.name)
        if after.uid in self._gone or (known is not None and known.uid == after.uid and not _is_newer(after, known)):
            return
        self._remember(after)
        if after.ours and self._writing.get(_contents(after), after.uid) is None:
            self._writing[_contents(after)] = after.uid
        else:
            self._on_change(after.pool, lost=False)

    def _remember(self, item: ObservedSlice) -> None:
        self._pools.setdefault(item.pool, {})[item.name] = item

    def _forget(self, item: ObservedSlice) -> None:
        self._is_seen(item.name)
        pool = self._pools.get(item.pool, {})
        if item.name in pool and pool[item.name].uid == item.uid:
            del pool[item.name]
            if not pool:
                del self._pools[item.pool]

    def _bury(self, uid: str, *, by_us: bool) -> None:
        self._gone[uid] = by_us
        while len(self._gone) > _REMEMBERED_DELETIONS:
            del self._gone[next(iter(self._gone))]

    def _is_seen(self, name: str) -> None:
        timer = self._unseen.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _expect(self, item: ObservedSlice) -> None:
        self._unseen[item.name] = asyncio.get_running_loop().call_later(self._unseen_s, self._never_seen, item)

    def _never_seen(self, item: ObservedSlice) -> None:
        self._unseen.pop(item.name, None)
        if self.mirror.failure is not None:
            self._expect(item)
        elif ("", item.name) not in self.mirror.objects:
            self._forget(item)
            self._on_change(item.pool, lost=True)


type _Contents = tuple[str, str, int, int]
"""Pool, digest, generation of the pool, and its number of slices."""


def _contents(item: ObservedSlice) -> _Contents:
    return item.pool, item.digest, item.generation, item.count


def _is_newer(item: ObservedSlice, other: ObservedSlice) -> bool:
    """By resourceVersion, which orders the versions of one object (promised from Kubernetes 1.35 on)."""
    first, second = whole_number(item.resource_version), whole_number(other.resource_version)
    return first is None or second is None or first > second


_INVALID = 422


async def server_features(
    kube: Kube, driver: str, node: str | None, *, lists: bool = False, binding: bool = False
) -> ServerFeatures:
    """Asks once, a second time where the server does not know counter sets in slices of their own, and with `lists`
    once more for list attributes.

    `binding`: whether devices may have binding conditions if the server stores them. `node`: see
    `dra_driver.slices.features.probe`. Raises ClusterError when the server gives no answer, or does not let us create
    slices.
    """
    answer = await _created(kube, probe(driver, node, counters_apart=True))
    apart = answer is not None
    if answer is None:
        answer = await kube.create(RESOURCE_SLICES, probe(driver, node, counters_apart=False), dry_run=True)
    features = kept_features(answer, counters_apart=apart)
    return replace(
        features,
        list_attributes=lists and await _created(kube, list_probe(driver, node)) is not None,
        binding=binding and features.binding,
    )


async def _created(kube: Kube, sent: JsonObject) -> JsonObject | None:
    """The server's answer to the creation in a dry run; None if the object is invalid for it."""
    try:
        return await kube.create(RESOURCE_SLICES, sent, dry_run=True)
    except Rejected as error:
        if error.status != _INVALID:
            raise
        return None
