"""Pools, one at a time: what is wanted, what is there, the writes between them.

Nothing is written when nothing differs, and what a write changed is known at once, so no pool is ever written twice for
one reason. Pools fail, wait and are retried on their own. An inventory that cannot be understood leaves its pool as it
is, and its status says why. What is published depends on what the API server keeps, so that is found out before the
first pool, again every few hours, and when a write shows that it changed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dra_driver.api.inventory import Limitation, NodeInventorySpec, confirmation_annotation
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.devices.limitations import LimitationCause, Note, limitations_of
from dra_driver.errors import ClusterError, Conflict, InvalidInput, NotFound, Rejected
from dra_driver.kube.events import News
from dra_driver.kube.watch import Backoff, Mirror, MirrorChange, Watches
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.publish.decisions import with_offered
from dra_driver.publish.inventories import KeptInventory, Life, LifeVerdict, kept_inventory
from dra_driver.publish.live import Changed, Decision, PolicySource
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.observed import ObservedSlices, server_features
from dra_driver.publish.statuses import InventoryStatuses
from dra_driver.runtime.tracing import AS_WANTED, OFF, POOL, Tracer
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.diff import (
    CreateSlice,
    DeleteSlice,
    ObservedSlice,
    SliceWrite,
    WantedPool,
    WantedSlice,
    is_complete,
    is_stored_as_sent,
    lost_fields,
    new_object,
    places,
    removals,
    slice_writes,
    update_patch,
    wanted_pool,
)
from dra_driver.slices.features import ServerFeatures
from dra_driver.slices.layout import slice_layout

_WORKERS = 16
"""Pools that are written at the same time: a thousand nodes are published in seconds, an API server is not flooded."""
_ASK_AFTER_S = 2.0
"""A plugin that kubelet registers again within this time need not be asked whether it lives."""
_PROBE_EVERY_S = 4 * 3600.0
"""Feature gates change when an API server restarts, without notice."""
_PROBE_PAUSE_S = 10.0
"""A server that alters every slice must not be asked after every write."""


type Describe = Callable[[NodeInventorySpec, PublishingPolicy, Mapping[str, str], str, ServerFeatures], Description]
"""From a node's inventory, the policy, the node's labels, the driver's name and what the server keeps, to devices."""


@dataclass(frozen=True, slots=True)
class Figures:
    """`waiting`: pools that are not published because nothing proves that their plugin lives."""

    pools: int
    devices: int
    waiting: int
    pending: int
    retries: int


@dataclass(frozen=True, slots=True)
class PoolState:
    """One pool, for metrics. `published_at`: when it was last found or made as wanted; None: not by this process.

    `failing`: it could not be looked at or written the last time. `generation` is None without slices.
    """

    name: str
    generation: int | None
    published_at: datetime | None
    failing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is published: the devices of `driver` on all nodes, or on `node_name` alone.

    `policies` makes where the rules come from, when a publisher starts. `describe` makes devices of them.
    `labels_matter`: it reads the labels of nodes, even if the policy does not.
    `beside` are the drivers whose publishers write in the status of the same inventories. `list_attributes`: attributes
    may be lists if the API server stores them. `binding_conditions`: the controller names the claims that wait for
    these.
    """

    driver: str
    policies: Callable[[Watches, Changed], PolicySource]
    describe: Describe = described_devices
    labels_matter: bool = False
    node_name: str | None = None
    beside: Collection[str] = ()
    list_attributes: bool = False
    binding_conditions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingListeners:
    """Who learns what happens. `tell` takes Events about nodes that cannot follow the policy. `described` takes the
    wanted devices of a pool at each look, whether or not they are in the cluster already."""

    narrator: Narrator = field(default_factory=Narrator)
    tracer: Tracer = OFF
    tell: Callable[[News], None] | None = None
    described: Callable[[str, Sequence[Device]], None] = lambda pool, devices: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`workers` limits concurrent writes, `retry` makes the pauses after failures."""

    workers: int = _WORKERS
    ask_after_s: float = _ASK_AFTER_S
    probe_every_s: float = _PROBE_EVERY_S
    retry: Callable[[], Backoff] = lambda: Backoff(first_s=0.1, longest_s=120.0)


def _now() -> datetime:
    return datetime.now(UTC)


class PoolPublisher:
    """Publishes pools. See the docstring of the package."""

    def __init__(
        self,
        watches: Watches,
        publication: Publication,
        listeners: PublishingListeners | None = None,
        pace: Pace | None = None,
    ) -> None:
        listeners, pace = listeners or PublishingListeners(), pace or Pace()
        driver, node_name = publication.driver, publication.node_name
        kube = self._kube = watches.kube
        self._watches = watches
        self.driver = driver
        changed = Changed(self._nodes_changed, pool=lambda pool: self._queue.add(pool, soon=True))
        self.policies = publication.policies(watches, changed)
        self._describe = publication.describe
        self._labels_matter = publication.labels_matter or self.policies.labels_matter
        self._narrator = listeners.narrator
        self._described = listeners.described
        self._tracer = listeners.tracer
        self._pace = pace
        self._lists = publication.list_attributes
        self._ask = partial(
            server_features, kube, driver, node_name, lists=self._lists, binding=publication.binding_conditions
        )
        self._features: ServerFeatures | None = None
        self._features_doubted = asyncio.Event()
        self._queue = WorkQueue(pace.retry)
        self._slices = ObservedSlices(watches, driver, node_name, self._slices_changed)
        by_name = None if node_name is None else f"metadata.name={node_name}"
        self._statuses = InventoryStatuses(
            kube, driver, listeners.tell, _now, publication.beside, look_again=self._queue.add
        )
        self._inventories = Mirror(
            watches, NODE_INVENTORIES, keep=kept_inventory, field_selector=by_name, on_change=self._changed
        )
        self._labels = (
            Mirror(watches, NODES, keep=_labels, field_selector=by_name, on_change=self._relabelled)
            if self._labels_matter
            else None
        )
        self._lives: dict[str, Life] = {}
        self._ask_at: dict[str, tuple[str, float]] = {}
        self._accepted: dict[str, dict[str, str]] = {}
        """By pool: the digest of what was sent to the digest of what the server made of it."""
        self.first_pass = asyncio.Event()
        """Set when every pool was looked at once."""
        self._reported: dict[tuple[str, str], tuple[str, ...]] = {}
        self._published_at: dict[str, datetime] = {}
        self._failing: set[str] = set()

    @property
    def mirrors(self) -> tuple[Mirror[Any], ...]:
        """What must be synced before anything is written; without label selectors the nodes are not needed."""
        always: tuple[Mirror[Any], ...] = (self._slices.mirror, self._inventories, *self.policies.mirrors)
        return always if self._labels is None else (*always, self._labels)

    @property
    def follows(self) -> bool:
        """Whether the cluster was read completely once."""
        return all(mirror.synced.is_set() for mirror in self.mirrors)

    @property
    def ready(self) -> bool:
        """Whether it follows the cluster, and the API server said what it keeps."""
        return self._features is not None and self.follows

    def figures(self) -> "Figures":
        """Counts for metrics; goes through all pools."""
        slices = [item for pool in self._slices.pools() for item in self._slices.of_pool(pool)]
        return Figures(
            pools=len(self._slices.pools()),
            devices=sum(len(item.devices) for item in slices),
            # A plugin that has not registered is no question yet; where the driver has nothing to do it never does.
            waiting=sum(not life.granted and life.doubted is not None for life in self._lives.values()),
            pending=len(self._queue),
            retries=self._queue.retries,
        )

    def pool_states(self) -> "list[PoolState]":
        """Of all pools with slices, and of those that should have some; sorted by name."""
        names = sorted({*self._slices.pools(), *self._published_at, *self._failing})
        return [
            PoolState(
                name,
                max((item.generation for item in self._slices.of_pool(name)), default=None),
                self._published_at.get(name),
                name in self._failing,
            )
            for name in names
        ]

    async def run(self) -> None:
        """Keep the pools as they should be, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watches.run())
            group.create_task(self.publish())

    async def publish(self) -> None:
        """Write what should be otherwise, until cancelled, once the cluster is read: the watches must run."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._find_features()
                group.create_task(self._watch_features())
                for mirror in self.mirrors:
                    await mirror.synced.wait()
                group.create_task(self._queue.work(self._handle, self._pace.workers))
                await self._queue.idle.wait()
                self.first_pass.set()
        finally:
            self._slices.close()

    async def _find_features(self) -> None:
        """Until the server has answered. What it kept before stays true in the meantime."""
        backoff = self._pace.retry()
        while True:
            try:
                features = await self._ask()
            except ClusterError as error:
                pause_s = backoff.next_s(error.retry_after_s or 0.0)
                self._narrator.server_unknown(error, pause_s)
                await asyncio.sleep(pause_s)
                continue
            if features != self._features:
                self._features = features
                self._narrator.server_keeps(features)
                self._nodes_changed(lambda node, labels: True)
            return

    async def _watch_features(self) -> None:
        while True:
            await asyncio.sleep(min(_PROBE_PAUSE_S, self._pace.probe_every_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._features_doubted.wait(), self._pace.probe_every_s)
            self._features_doubted.clear()
            await self._find_features()

    def _nodes_changed(self, selected: Callable[[str, Mapping[str, str]], bool]) -> None:
        for _, pool in self._inventories.objects:
            if selected(pool, self._node_labels(pool)):
                self._queue.add(pool)

    def _changed(self, change: MirrorChange[KeptInventory]) -> None:
        if change.after is None or self._statuses.has_news(change.after):
            self._queue.add(change.key[1], soon=not change.listed)

    def _relabelled(self, change: MirrorChange[Mapping[str, str]]) -> None:
        if change.before != change.after:
            self._queue.add(change.key[1], soon=not change.listed)

    def _slices_changed(self, pool: str, *, lost: bool) -> None:
        if lost and pool in self._lives:
            self._lives[pool] = self._lives[pool].lost_slices()
        self._queue.add(pool, soon=self._slices.mirror.synced.is_set())

    async def _handle(self, pool: str) -> None:
        try:
            with self._tracer.span("publish", {POOL: pool}) as span:
                as_wanted = await self._publish(pool)
                span.tell({AS_WANTED: as_wanted})
            if as_wanted:
                self._published_at[pool] = _now()
            self._failing.discard(pool)
        except InvalidInput as error:
            reason = error
            self._failing.add(pool)
            self._tell_once((pool, "inventory"), (str(error),), lambda: self._narrator.not_understood(pool, reason))
        except (Conflict, NotFound):
            # The watch is about to show what changed; the pause lets it.
            self._failing.add(pool)
            self._queue.retry(pool)
            return
        except ClusterError as error:
            self._failing.add(pool)
            if self._lists and isinstance(error, Rejected):
                # A server whose gate for lists was switched off refuses attributes that are lists.
                self._features_doubted.set()
            self._narrator.refused(pool, error, self._queue.retry(pool, error.retry_after_s or 0.0))
            return
        self._queue.succeeded(pool)

    async def _publish(self, pool: str) -> bool:
        """Whether the pool is now as wanted; a pool that is not wanted, or whose plugin may be gone, is not."""
        inventory = self._inventories.objects.get(("", pool))
        observed = self._slices.of_pool(pool)
        if inventory is None:
            await self._withdraw(pool, observed)
            return False
        life = self._lives.get(pool, Life())
        registration = inventory.registrations.get(self.driver)
        self._lives[pool] = life.found_complete(registration) if is_complete(observed) else life
        if not observed and not await self._plugin_lives(inventory):
            # The facts are not published now, so they need not be looked at.
            return False
        status = inventory.status()
        try:
            facts = inventory.facts()
            decision = await self.policies.decide(facts, status.policy, self._node_labels(pool))
            if decision is None:
                return False
            if not decision.rules.publishes_node(pool, self._node_labels(pool)):
                if await self._statuses.write(inventory, status, (), decision.policy) or decision.policy is None:
                    await self._withdraw(pool, observed)
                return False
            wanted, limitations, description = self._wanted(inventory, facts, decision, observed)
        except InvalidInput as error:
            note = Note(LimitationCause.NOT_UNDERSTOOD, f"the inventory is not understood: {error}")
            await self._statuses.write(
                inventory, status, limitations_of([note], PublishingPolicy.EVERYTHING, self.driver, pool)
            )
            raise
        # The plugin must know what a device is before a claim can get it.
        if decision.policy is not None and not await self._statuses.write(
            inventory, status, limitations, with_offered(decision.policy, description)
        ):
            return False
        writes = slice_writes(wanted, observed)
        creates = any(isinstance(write, CreateSlice) for write in writes)
        if creates and not await self._plugin_lives(inventory):
            return False
        for write in writes:
            await self._do(wanted, write)
        if decision.policy is None:
            await self._statuses.write(inventory, status, limitations)
        return True

    async def _withdraw(self, pool: str, observed: Sequence[ObservedSlice]) -> None:
        self._lives.pop(pool, None)
        self._ask_at.pop(pool, None)
        for subject in ("inventory", "fields"):
            self._reported.pop((pool, subject), None)
        self._accepted.pop(pool, None)
        self._published_at.pop(pool, None)
        self._statuses.forget(pool)
        for write in removals(observed):
            await self._delete(pool, write)

    def _wanted(
        self, inventory: KeptInventory, facts: NodeInventorySpec, decision: Decision, observed: Sequence[ObservedSlice]
    ) -> tuple[WantedPool, tuple[Limitation, ...], Description]:
        pool, node = inventory.name, inventory.node()
        features = self._features
        assert features is not None, "pools are checked once the features are known"
        description = self._describe(facts, decision.rules, self._node_labels(pool), self.driver, features)
        limitations = limitations_of(description.notes, decision.rules, self.driver, pool)
        notes = tuple(map(str, limitations))
        self._described(pool, description.devices)
        self._tell_once((pool, "inventory"), notes, lambda: self._narrator.understood(pool, notes))
        wanted = wanted_pool(self.driver, node, slice_layout(description.gpus, places(observed), features))
        known = self._accepted.get(pool, {})
        slices = tuple(replace(item, accepted=known.get(item.digest)) for item in wanted.slices)
        self._accepted[pool] = {item.digest: item.accepted for item in slices if item.accepted is not None}
        return replace(wanted, slices=slices), limitations, description

    async def _plugin_lives(self, inventory: KeptInventory) -> bool:
        """Whether slices may be created; if that is in doubt, the plugin is asked, after a moment."""
        pool = inventory.name
        registration = inventory.registrations.get(self.driver)
        life, verdict = self._lives[pool].judged(registration, inventory.asked.get(self.driver), _now())
        self._lives[pool] = life
        if verdict is not LifeVerdict.ASK or registration is None:
            self._ask_at.pop(pool, None)
            return verdict is LifeVerdict.CREATE
        time = asyncio.get_running_loop().time()
        doubted, ask_at = self._ask_at.get(pool, ("", 0.0))
        if doubted != registration:
            ask_at = time + self._pace.ask_after_s
            self._ask_at[pool] = (registration, ask_at)
        if time < ask_at:
            self._queue.add_after(pool, ask_at - time)
            return False
        self._narrator.asking(pool)
        question = {confirmation_annotation(self.driver): registration}
        metadata = {"resourceVersion": inventory.resource_version, "annotations": question}
        await self._kube.merge_patch(NODE_INVENTORIES, pool, {"metadata": metadata})
        return False

    async def _do(self, pool: WantedPool, write: SliceWrite) -> None:
        if isinstance(write, DeleteSlice):
            await self._delete(pool.node.name, write)
            return
        with self._slices.writing(pool.node.name, write):
            if isinstance(write, CreateSlice):
                sent = new_object(pool, write)
                stored = await self._kube.create(RESOURCE_SLICES, sent)
            else:
                sent = update_patch(pool, write)
                stored = await self._kube.merge_patch(RESOURCE_SLICES, write.observed.name, sent)
            item = self._slices.wrote(stored, write.slice.digest if is_stored_as_sent(pool, sent, stored) else None)
        verb = "create" if isinstance(write, CreateSlice) else "update"
        self._narrator.wrote(pool.node.name, verb, len(item.devices))
        if not write.slice.is_stored_as(item.digest):
            self._accept(pool.node.name, write.slice, item, sent, stored)

    async def _delete(self, pool: str, write: DeleteSlice) -> None:
        item = write.observed
        self._slices.deleting(item)
        try:
            await self._kube.delete(RESOURCE_SLICES, item.name, uid=item.uid, resource_version=item.resource_version)
        except NotFound:
            pass
        except BaseException:
            self._slices.not_deleted(item)
            raise
        self._slices.deleted(item)
        self._narrator.wrote(pool, "delete", 0)

    def _accept(
        self, pool: str, item: WantedSlice, stored_item: ObservedSlice, sent: JsonObject, stored: JsonObject
    ) -> None:
        """The server made something else of it, and will again: from now on that is what is wanted."""
        self._accepted[pool][item.digest] = stored_item.digest
        fields = lost_fields(sent, stored) or ("the server added fields that were not sent",)
        self._tell_once((pool, "fields"), fields, lambda: self._narrator.lost_fields(pool, fields))
        self._features_doubted.set()

    def _node_labels(self, node: str) -> Mapping[str, str]:
        return {} if self._labels is None else self._labels.objects.get(("", node), {})

    def _tell_once(self, subject: tuple[str, str], what: tuple[str, ...], tell: Callable[[], None]) -> None:
        """The same thing about the same subject is said once, until something else is true of it."""
        if self._reported.get(subject, ()) == what:
            return
        self._reported[subject] = what
        tell()


def _labels(node: JsonObject) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}
