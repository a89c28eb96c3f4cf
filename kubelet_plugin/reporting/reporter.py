"""Keeps this node's NodeInventory in the cluster up to date.

Three kinds of news enter: facts of `kubelet_plugin.facts.monitor`, the kubelet's registrations
(`Reporter.registered`), and changes of the object by other clients, including a publisher's question whether this
plugin still runs. `wanted_spec` decides the content of the object. The object is written only when the API server has
other content: an idle node costs one open watch.

During a rolling update two plugins report the same node. They want the same content, so neither undoes the other, and
registration times only grow. When their versions differ and they do not want the same, each repair waits longer than
the one before, until the older plugin is gone.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import structlog

from dra_driver.api.inventory import (
    MOST_BYTES,
    MOST_GPUS,
    MOST_PROBLEMS,
    HealthFacts,
    NodeInventorySpec,
    Problem,
    Registration,
    confirmation_annotation,
    summary_of,
)
from dra_driver.api.meta import NODE_INVENTORIES, NODES, JsonObject, Model, micro_time
from dra_driver.errors import Conflict, DriverError, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Change, Reflector
from dra_driver.quantity import whole_number
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.monitor import MonitoredFacts

_log = structlog.get_logger(__name__)

_TICK = timedelta(microseconds=1)
_CREDIBLE_AHEAD = timedelta(days=1)
"""Clocks differ, but not by days: a time further ahead in the object is not a registration."""
_COMPLAIN_AGAIN_S = 600.0
_SHORT = 40
"""Characters of a health message in an inventory that would be too large."""
_QUIET_S = 600.0
"""After as long without interference, the next repair is quick again."""


class Reporter:
    """The NodeInventory of one node; lives in one event loop, `run` runs until cancelled.

    `prepares_for_binding`: see `NodeInventorySpec`. `retry` paces attempts after errors, `repair` those to undo what
    another client wrote.
    """

    def __init__(
        self,
        kube: Kube,
        node_name: str,
        discovery: MonitoredFacts,
        *,
        prepares_for_binding: bool = False,
        retry: Backoff | None = None,
        repair: Backoff | None = None,
    ) -> None:
        self._kube = kube
        self._node_name = node_name
        self._key = ("", node_name)
        self._discovery = discovery
        self._prepares_for_binding = prepares_for_binding
        self._listeners: list[Callable[[JsonObject], None]] = []
        self._retry = retry or Backoff(first_s=0.5, longest_s=60.0)
        self._repair = repair or Backoff(first_s=0.2, longest_s=300.0)
        self._reflector = Reflector(
            kube, NODE_INVENTORIES, field_selector=f"metadata.name={node_name}", on_change=self._saw
        )
        self._work = asyncio.Event()
        self._written: JsonObject | None = None
        """The API server's last answer to a write or read of this plugin, while the watch is still behind it."""
        self._accepted: tuple[JsonObject, JsonObject] | None = None
        """The last spec that was sent, and what the server made of it: an older CRD drops fields that it lacks."""
        self._owner_uid: str | None = None
        self._repair_due: float | None = None
        self._repaired: float | None = None
        self._registered: dict[str, datetime] = {}
        self._bumps: dict[str, datetime] = {}
        self._complaint: tuple[str, float] = "", 0.0
        """What was logged last, and when: a node may be gone for days."""

    def registered(self, driver: str, when: datetime | None = None) -> None:
        """The kubelet has registered `driver` (NotifyRegistrationStatus): its heartbeat is renewed."""
        self._bumps[driver] = when or datetime.now(UTC)
        self._work.set()

    def follow(self, listener: Callable[[JsonObject], None]) -> None:
        """Call `listener` with the inventory as it is known, and as the watch shows it from now on."""
        self._listeners.append(listener)
        if (inventory := self._observed()) is not None:
            listener(inventory)

    async def run(self) -> None:
        unsubscribe = self._discovery.subscribe(lambda facts: self._work.set())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._keep_true())
        finally:
            unsubscribe()

    async def _keep_true(self) -> None:
        await self._reflector.synced.wait()
        self._work.set()
        stale = False
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                if stale:
                    await self._read_again()
                stale = False
                await self._settle()
            except DriverError as error:
                wait_s = max(self._retry.next_s(), error.retry_after_s or 0.0)
                stale = isinstance(error, Conflict)
                if not stale:
                    self._complain(str(error), wait_s)
                self._work.set()
                await asyncio.sleep(wait_s)
            else:
                self._retry.reset()
                if self._complaint[0]:
                    _log.info("the NodeInventory is true again", node=self._node_name)
                self._complaint = "", 0.0

    def _complain(self, error: str, wait_s: float) -> None:
        """Log what is wrong when it is new, and again after a while."""
        known, at = self._complaint
        if known != error or time.monotonic() - at >= _COMPLAIN_AGAIN_S:
            self._complaint = error, time.monotonic()
            retry_s = round(wait_s, 1)
            _log.warning("the NodeInventory cannot be kept true", node=self._node_name, error=error, retry_s=retry_s)

    async def _settle(self) -> None:
        """Make the object equal to what is wanted, with one write or none."""
        observed = self._observed()
        spec = self._wanted(observed)
        if observed is not None and self._owner_uid is None:
            self._owner_uid = await self._node_uid()
        if observed is not None and self._is_true(observed, spec):
            return
        # The wanted spec has not changed since it was written, so another client has changed the object.
        if self._accepted is not None and self._accepted[0] == spec and not self._may_repair():
            return
        if observed is not None:
            await self._replace(observed, spec)
            return
        # The object went with its owner, or before it: ask again who the node is.
        self._owner_uid = await self._node_uid()
        self._remember(spec, await self._kube.create(NODE_INVENTORIES, self._object(spec, {})))

    def _may_repair(self) -> bool:
        """Whether it is time to undo another client's change; if not, the work continues when it is."""
        loop = asyncio.get_running_loop()
        if self._repair_due is None:
            if self._repaired is not None and loop.time() - self._repaired > _QUIET_S:
                self._repair.reset()
            wait_s = self._repair.next_s()
            self._repair_due = loop.time() + wait_s
            loop.call_later(wait_s, self._work.set)
        if loop.time() < self._repair_due:
            return False
        self._repair_due, self._repaired = None, loop.time()
        return True

    async def _replace(self, observed: JsonObject, spec: JsonObject) -> None:
        try:
            answer = await self._kube.replace(NODE_INVENTORIES, self._object(spec, observed["metadata"]))
        except NotFound:
            self._know(None)
            raise Conflict("it was deleted meanwhile", about=f"NodeInventory {self._node_name}") from None
        self._remember(spec, answer)

    async def _read_again(self) -> None:
        try:
            self._know(await self._kube.get(NODE_INVENTORIES, self._node_name))
        except NotFound:
            self._know(None)

    def _remember(self, spec: JsonObject, answer: JsonObject) -> None:
        stored = answer.get("spec", {})
        if stored != spec and (self._accepted is None or self._accepted[0] != spec):
            _log.warning(
                "the cluster drops some of what this plugin reports; is the NodeInventory CRD of an older release?",
                node=self._node_name,
            )
        self._accepted = (spec, stored)
        self._know(answer)

    def _know(self, obj: JsonObject | None) -> None:
        """Take over what the server said outside the watch, so that the next list is compared with it."""
        self._written = obj
        if obj is None:
            self._reflector.objects.pop(self._key, None)
        else:
            self._reflector.objects[self._key] = obj

    def _observed(self) -> JsonObject | None:
        return self._written or self._reflector.objects.get(self._key)

    def _saw(self, change: Change) -> None:
        """The watch moved. It may still report a state from before our last write."""
        if self._written is not None:
            known = change.after if change.after is not None else change.before
            same_object = known is not None and known["metadata"]["uid"] == self._written["metadata"]["uid"]
            if same_object and (change.after is None or not _is_older(change.after, self._written)):
                self._written = None
        if change.after is not None:
            for listener in self._listeners:
                listener(change.after)
        self._work.set()

    def _wanted(self, observed: JsonObject | None) -> JsonObject:
        seen = _registrations(observed, datetime.now(UTC) + _CREDIBLE_AHEAD)
        for driver in self._registered.keys() & seen.keys():
            if _is_asked(observed, driver, seen[driver]):
                self._bumps.setdefault(driver, datetime.now(UTC))
        for driver, when in self._bumps.items():
            self._registered[driver] = self._later(driver, when, seen)
        self._bumps.clear()
        drivers = seen.keys() | self._registered.keys()
        latest = {driver: max(self._times(driver, seen)) for driver in drivers}
        return wanted_spec(
            self._node_name, self._discovery.facts, latest, prepares_for_binding=self._prepares_for_binding
        )

    def _later(self, driver: str, when: datetime, seen: dict[str, datetime]) -> datetime:
        """`when`, or just after all times that were known before: clocks can be set back, heartbeats cannot."""
        return max([when, *(known + _TICK for known in self._times(driver, seen))])

    def _times(self, driver: str, seen: dict[str, datetime]) -> list[datetime]:
        return [times[driver] for times in (seen, self._registered) if driver in times]

    def _object(self, spec: JsonObject, metadata: JsonObject) -> JsonObject:
        """Labels and annotations of others stay; the owner is the node that lives now."""
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": self._node_name, "uid": self._owner_uid}
        return {
            "apiVersion": NODE_INVENTORIES.api_version,
            "kind": NODE_INVENTORIES.kind,
            "metadata": {**metadata, "name": self._node_name, "ownerReferences": [owner]},
            "spec": spec,
        }

    def _is_true(self, observed: JsonObject, spec: JsonObject) -> bool:
        owners = [owner.get("uid") for owner in observed["metadata"].get("ownerReferences") or ()]
        stored = self._accepted[1] if self._accepted is not None and self._accepted[0] == spec else spec
        return owners == [self._owner_uid] and observed.get("spec") in (spec, stored)

    async def _node_uid(self) -> str:
        node = await self._kube.get(NODES, self._node_name)
        uid: str = node["metadata"]["uid"]
        return uid


def wanted_spec(
    node_name: str, facts: NodeFacts, registered: dict[str, datetime], *, prepares_for_binding: bool = False
) -> JsonObject:
    """What the NodeInventory of `node_name` should say, as it goes over the wire: at most `MOST_BYTES`, with a problem
    that names what is left out. Same input, same output."""
    few = len(facts.gpus) <= MOST_GPUS and len(facts.problems) <= MOST_PROBLEMS
    binds = prepares_for_binding or None
    spec = _wire(node_name, facts if few else _fitted(facts), registered, binds)
    return spec if _bytes(spec) <= MOST_BYTES else _wire(node_name, _fitted(facts), registered, binds)


def _fitted(facts: NodeFacts) -> NodeFacts:
    """Short messages, and the first GPUs and problems. What a policy decides by stays whole: a GPU that does not fit is
    not offered at all."""
    short = [gpu.model_copy(update={"health": _in_short(gpu.health)}) for gpu in facts.gpus[:MOST_GPUS]]
    gpus = short[: _how_many_fit(short, MOST_BYTES // 2)]
    problems = facts.problems[: min(_how_many_fit(facts.problems, MOST_BYTES // 4), MOST_PROBLEMS - 1)]
    parts = ["the ends of health messages"]
    if without := [gpu.pci_bus_id for gpu in facts.gpus[len(gpus) :]]:
        parts.append(f"{len(without)} of {len(facts.gpus)} GPUs, which are not offered: {', '.join(without)}")
    if more := len(facts.problems) - len(problems):
        parts.append(f"{more} problems")
    message = f"An inventory has at most {MOST_BYTES // 1024} KiB. Left out: {'; '.join(reversed(parts))}."
    return replace(
        facts,
        gpus=tuple(gpus),
        problems=(Problem(subject="NodeInventory", reason="TooLarge", message=message), *problems),
    )


def _in_short(health: HealthFacts) -> HealthFacts:
    conditions = [each.model_copy(update={"message": each.message[:_SHORT]}) for each in health.conditions]
    return health.model_copy(update={"conditions": conditions})


def _how_many_fit(items: Sequence[Model], most: int) -> int:
    sizes = accumulate(_bytes(item.to_wire()) for item in items)
    return sum(size <= most for size in sizes)


def _bytes(wire: JsonObject) -> int:
    return len(json.dumps(wire, ensure_ascii=False).encode(errors="replace"))


def _wire(
    node_name: str, facts: NodeFacts, registered: dict[str, datetime], prepares_for_binding: bool | None
) -> JsonObject:
    return NodeInventorySpec(
        node_name=node_name,
        boot_id=facts.boot_id,
        driver=facts.driver,
        gpus=list(facts.gpus),
        imex=facts.imex,
        problems=list(facts.problems),
        warnings=list(facts.warnings),
        registrations=[
            Registration(driver=driver, time=micro_time(when)) for driver, when in sorted(registered.items())
        ],
        prepares_for_binding=prepares_for_binding,
        summary=summary_of(facts.driver, facts.gpus, facts.problems),
    ).to_wire()


def _registrations(observed: JsonObject | None, latest: datetime) -> dict[str, datetime]:
    """Registration times in the object; one that cannot be read, or is later than `latest`, is not a heartbeat."""
    entries = ((observed or {}).get("spec") or {}).get("registrations")
    times = {}
    for entry in entries if isinstance(entries, list) else ():
        try:
            parsed = datetime.fromisoformat(entry["time"])
            if isinstance(entry.get("driver"), str) and parsed.tzinfo is not None and parsed <= latest:
                times[entry["driver"]] = parsed.astimezone(UTC)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return times


def _is_asked(observed: JsonObject | None, driver: str, current: datetime) -> bool:
    """Whether a publisher doubts the time that is true now: see `confirmation_annotation`."""
    annotations = (observed or {}).get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(confirmation_annotation(driver)) == micro_time(current))


def _is_older(item: JsonObject, other: JsonObject) -> bool:
    """By resourceVersion, which orders the versions of one object (Kubernetes API concepts, from 1.35 promised)."""
    first, second = (whole_number(str(obj["metadata"]["resourceVersion"])) for obj in (item, other))
    return first is not None and second is not None and first < second
