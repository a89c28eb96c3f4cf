"""Wanted and observed slices of one pool to the writes that make them equal: as few as possible, in a safe order.

A reader (scheduler, autoscaler) takes the slices of the highest generation it sees and believes them when their number
is the count they carry. So a reader must never see a complete pool with unwanted contents, however few of
the writes happen. Two ways lead there:

- *Within the generation*, when a single write completes the change: one slice differs, or slices are missing and all
  others are right. Surplus slices are deleted afterwards; until the last one is gone the number is wrong, not the
  contents.
- *With the next generation* in all other cases: every slice is rewritten or created with it. From the first write on
  readers see an incomplete pool, from the last one the wanted pool; what is obsolete goes when no reader looks at it.

Both need that all slices of the generation agree on their count, otherwise it is always the next generation.
Contents are compared by a digest of their normal form, because the server rewrites quantities and adds defaults.
Source: KEP-4381 on pools and generations; how the scheduler gathers pools (structured allocator of 1.34 to 1.37).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from dra_driver.api.meta import JsonObject, Model
from dra_driver.api.resource import CounterSet, Device
from dra_driver.quantity import canonical_quantity
from dra_driver.slices.layout import Places, SliceContents

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "gpu-dra-driver"
"""Value of the label that says: this slice may be deleted when its pool has no inventory."""

_GENERATED_BASE = 58
"""The API server cuts `generateName` to this and adds five random characters."""
_RANDOM = 5
_LAST_GENERATION = 2**63 - 1
_OPTIONAL_SPEC = ("devices", "sharedCounters", "perDeviceNodeSelection", "partitionTypeAttribute", "skipNodeOperations")


@dataclass(frozen=True, slots=True)
class NodeRef:
    """The node that a pool belongs to: its name is the pool's, and it owns the slices."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WantedSlice:
    """Devices and counter sets as they go over the wire, and the digest of what is wanted.

    `accepted` is the digest of what a server that drops fields makes of it, once that is known: it counts as wanted.
    """

    index: int
    contents: JsonObject
    """The optional fields of the slice's spec; no `devices` where there are none."""
    digest: str
    accepted: str | None = None

    def is_stored_as(self, digest: str) -> bool:
        return digest in (self.digest, self.accepted)


@dataclass(frozen=True, slots=True)
class WantedPool:
    """What the pool of one driver on one node should be; at least one slice."""

    driver: str
    node: NodeRef
    slices: tuple[WantedSlice, ...]


@dataclass(frozen=True, slots=True)
class ObservedSlice:
    """What is remembered of a slice in the cluster. `index` is None for a name that we did not generate."""

    name: str
    uid: str
    resource_version: str
    pool: str
    node_name: str | None
    generation: int
    count: int
    index: int | None
    ours: bool
    """Carries our label."""
    digest: str
    device_names: str
    """By line: a node with all partitions has 208, and one text takes a third of the memory of so many."""
    counter_sets: tuple[str, ...]
    taints: tuple[tuple[str, str, str, str, str], ...]
    """Device, key, value, effect, time added."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.device_names.splitlines())


@dataclass(frozen=True, slots=True)
class CreateSlice:
    slice: WantedSlice
    generation: int
    count: int


@dataclass(frozen=True, slots=True)
class UpdateSlice:
    observed: ObservedSlice
    slice: WantedSlice
    generation: int
    count: int


@dataclass(frozen=True, slots=True)
class DeleteSlice:
    observed: ObservedSlice


type SliceWrite = CreateSlice | UpdateSlice | DeleteSlice


def wanted_pool(driver: str, node: NodeRef, layout: Mapping[int, SliceContents]) -> WantedPool:
    slices = []
    for index, contents in sorted(layout.items()):
        fields = _Fields(devices=contents.devices or None, shared_counters=contents.counter_sets or None)
        wire = fields.to_wire()
        slices.append(WantedSlice(index, wire, _digest(driver, node, wire)))
    return WantedPool(driver, node, tuple(slices))


class _Fields(Model):
    """Of the spec of a slice: hundreds of devices are encoded at once."""

    devices: tuple[Device, ...] | None
    shared_counters: tuple[CounterSet, ...] | None


def observed_slice(obj: JsonObject, digest: str | None = None) -> ObservedSlice:
    """What to remember of a slice as the server sent it; `digest` is that of its contents, if known.

    Never raises: what is odd is just not what is wanted.
    """
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    pool, devices = spec.get("pool") or {}, spec.get("devices") or []
    node_name = spec.get("nodeName")
    return ObservedSlice(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        pool=pool.get("name", ""),
        node_name=node_name,
        generation=pool.get("generation", 0),
        count=pool.get("resourceSliceCount", 0),
        index=_index(metadata["name"], spec.get("driver", ""), node_name or ""),
        ours=(metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER,
        digest=digest or contents_digest(obj),
        device_names="\n".join(str(device.get("name", "")) for device in devices),
        counter_sets=tuple(counter_set.get("name", "") for counter_set in spec.get("sharedCounters") or ()),
        taints=tuple(
            (device.get("name", ""), taint["key"], taint.get("value") or "", taint["effect"], taint["timeAdded"])
            for device in devices
            for taint in device.get("taints") or ()
            if taint.get("timeAdded")
        ),
    )


def places(observed: Iterable[ObservedSlice]) -> Places:
    """Where things are now, in the slices of the highest generation."""
    slices = [item for item in observed if item.index is not None]
    newest = max((item.generation for item in slices), default=0)
    devices: dict[str, int] = {}
    counter_sets: dict[str, int] = {}
    for item in sorted(slices, key=lambda item: item.name):
        if item.generation == newest and item.index is not None:
            for name in item.devices:
                devices.setdefault(name, item.index)
            for name in item.counter_sets:
                counter_sets.setdefault(name, item.index)
    return Places(devices, counter_sets)


def is_complete(observed: Sequence[ObservedSlice]) -> bool:
    """Whether readers see a pool at all: the slices of the highest generation are as many as each of them says."""
    newest = max((item.generation for item in observed), default=0)
    current = [item for item in observed if item.generation == newest]
    return bool(current) and all(item.count == len(current) for item in current)


def slice_writes(wanted: WantedPool, observed: Sequence[ObservedSlice]) -> tuple[SliceWrite, ...]:
    """The writes that turn `observed`, all slices of this driver and pool, into `wanted`, in the order to do them.

    Empty when nothing differs. Every prefix of them is safe in the sense of this module's docstring, and after an
    interruption the rest is found again from what is observed then.
    """
    count = len(wanted.slices)
    newest = max((item.generation for item in observed), default=0)
    chosen = _chosen(wanted, observed, count)
    current = [item for item in observed if item.generation == newest]
    surplus = [item for item in current if chosen.get(item.index) is not item]
    missing = [item for item in wanted.slices if (have := chosen.get(item.index)) is None or have.generation != newest]
    wrong = [
        item
        for item in wanted.slices
        if (have := chosen.get(item.index)) and have.generation == newest and not item.is_stored_as(have.digest)
    ]
    stays = all(item.count == count for item in current) and (
        (not missing and len(wrong) <= 1) or (bool(current) and not wrong and not surplus)
    )
    obsolete = [DeleteSlice(item) for item in _by_age(observed) if chosen.get(item.index) is not item]
    if stays:
        return (*_puts(missing + wrong, chosen, newest, count), *obsolete)
    if newest == _LAST_GENERATION:
        # Nothing can come after it, so it must go first.
        return tuple(DeleteSlice(item) for item in _by_age(observed))
    return (*_puts(wanted.slices, chosen, newest + 1, count), *obsolete)


def removals(observed: Sequence[ObservedSlice]) -> tuple[DeleteSlice, ...]:
    """The writes that take our slices of a pool away, oldest generation first: no older one comes to light."""
    return tuple(DeleteSlice(item) for item in _by_age(observed) if item.ours)


def _chosen(
    wanted: WantedPool, observed: Sequence[ObservedSlice], count: int
) -> dict[int | None, ObservedSlice | None]:
    """For each wanted index the slice that becomes it. Two publishers that see the same choose the same."""
    chosen: dict[int | None, ObservedSlice | None] = {}
    for item in wanted.slices:
        best: ObservedSlice | None = None
        for have in sorted(observed, key=lambda have: have.name):
            usable = have.index == item.index and have.node_name == wanted.node.name
            if usable and (best is None or _merit(have, item, count) > _merit(best, item, count)):
                best = have
        chosen[item.index] = best
    return chosen


def _merit(have: ObservedSlice, item: WantedSlice, count: int) -> tuple[int, bool, bool]:
    return have.generation, item.is_stored_as(have.digest), have.count == count


def _puts(
    slices: Iterable[WantedSlice],
    chosen: Mapping[int | None, ObservedSlice | None],
    generation: int,
    count: int,
) -> tuple[SliceWrite, ...]:
    """Updates before creations: what exists gets right first, what completes the pool comes last."""
    updates: list[SliceWrite] = []
    creations: list[SliceWrite] = []
    for item in slices:
        have = chosen.get(item.index)
        if have is None:
            creations.append(CreateSlice(item, generation, count))
        else:
            updates.append(UpdateSlice(have, item, generation, count))
    return (*updates, *creations)


def _by_age(observed: Iterable[ObservedSlice]) -> list[ObservedSlice]:
    return sorted(observed, key=lambda item: (item.generation, item.name))


def new_object(pool: WantedPool, write: CreateSlice) -> JsonObject:
    """The object to create."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": _generate_name(write.slice.index, pool.driver, pool.node.name),
            "labels": {MANAGED_BY: MANAGER},
            "ownerReferences": [_owner(pool.node)],
        },
        "spec": {
            "driver": pool.driver,
            "nodeName": pool.node.name,
            "pool": _pool(pool, write.generation, write.count),
            **write.slice.contents,
        },
    }


def update_patch(pool: WantedPool, write: UpdateSlice) -> JsonObject:
    """The merge patch, guarded by resourceVersion; labels and annotations of others stay.

    Taints keep the time since when they are there.
    """
    spec: JsonObject = dict.fromkeys(_OPTIONAL_SPEC)
    spec |= {"pool": _pool(pool, write.generation, write.count)} | write.slice.contents
    if devices := write.slice.contents.get("devices"):
        times = {taint[:4]: taint[4] for taint in write.observed.taints}
        spec["devices"] = [_with_taint_times(device, times) for device in devices]
    return {
        "metadata": {
            "resourceVersion": write.observed.resource_version,
            "labels": {MANAGED_BY: MANAGER},
            "ownerReferences": [_owner(pool.node)],
        },
        "spec": spec,
    }


def is_stored_as_sent(pool: WantedPool, sent: JsonObject, stored: JsonObject) -> bool:
    """Whether the server's answer to `sent`, an object or a patch, has its contents as they are, and no others.

    False if it only means the same. Much quicker than a digest of the answer.
    """
    wanted = {name: value for name, value in sent["spec"].items() if value is not None}
    spec, metadata = stored.get("spec") or {}, stored["metadata"]
    place = {"driver": pool.driver, "nodeName": pool.node.name}
    return (
        spec == {**place, **wanted}
        and metadata.get("ownerReferences") == sent["metadata"]["ownerReferences"]
        and (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER
    )


def _with_taint_times(device: JsonObject, times: Mapping[tuple[str, str, str, str], str]) -> JsonObject:
    if not device.get("taints"):
        return device
    taints = []
    for taint in device["taints"]:
        since = times.get((device["name"], taint["key"], taint.get("value") or "", taint["effect"]))
        taints.append({**taint, "timeAdded": since} if since and not taint.get("timeAdded") else taint)
    return {**device, "taints": taints}


def _pool(pool: WantedPool, generation: int, count: int) -> JsonObject:
    return {"name": pool.node.name, "generation": generation, "resourceSliceCount": count}


def _owner(node: NodeRef) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}


def _generate_name(index: int, driver: str, node: str) -> str:
    return f"{index:05x}-{driver}-{node}-"


def _index(name: str, driver: str, node: str) -> int | None:
    digits = name.partition("-")[0]
    if len(digits) < 5 or not set(digits) <= set("0123456789abcdef"):
        return None
    index = int(digits, 16)
    base = _generate_name(index, driver, node)[:_GENERATED_BASE]
    return index if name.startswith(base) and len(name) == len(base) + _RANDOM else None


def contents_digest(obj: JsonObject) -> str:
    """A digest of everything about a slice that we decide, except generation and count, in its normal form."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    contents = {key: value for key, value in spec.items() if key != "pool"}
    contents["pool"] = (spec.get("pool") or {}).get("name")
    contents["owners"] = metadata.get("ownerReferences")
    contents["label"] = (metadata.get("labels") or {}).get(MANAGED_BY)
    return blake2b(to_json(_normal(contents)), digest_size=16).hexdigest()


def _digest(driver: str, node: NodeRef, contents: JsonObject) -> str:
    pool = WantedPool(driver, node, ())
    return contents_digest(new_object(pool, CreateSlice(WantedSlice(0, contents, ""), 1, 1)))


_QUANTITIES = frozenset({"value", "default", "min", "max", "step"})


def _normal(fields: JsonObject, amounts: bool = False) -> JsonObject:
    """Sorted, without what means the same as nothing; quantities in canonical form; without the times of taints.

    `amounts`: in a capacity or counter, where strings are quantities.
    """
    result: JsonObject = {}
    for key in sorted(fields):
        item = fields[key]
        if key == "attributes":
            # Nearly all of a slice. What the server keeps of one attribute, it keeps as it is.
            item = {name: item[name] for name in sorted(item or ())}
        elif isinstance(item, str):
            if key == "timeAdded":
                continue
            if amounts and key in _QUANTITIES:
                item = _canonical(item)
        elif key in ("capacity", "counters"):
            item = {name: _normal_amount(item[name]) for name in sorted(item or ())}
        elif isinstance(item, dict):
            item = _normal(item, amounts)
        elif isinstance(item, list):
            if amounts and key == "validValues":
                item = [_canonical(entry) for entry in item]
            else:
                item = [_normal(entry, amounts) if isinstance(entry, dict) else entry for entry in item]
        if item is not None and item != {} and item != []:
            result[key] = item
    return result


def _normal_amount(amount: JsonObject) -> JsonObject:
    if amount.keys() == {"value"}:  # as nearly always
        return {"value": _canonical(amount["value"])}
    return _normal(amount, amounts=True)


@lru_cache(maxsize=4096)
def _canonical(text: str) -> str:
    # The same few amounts are in all slices of a cluster.
    try:
        return canonical_quantity(text)
    except ValueError:
        return text


_GATES = {
    "taints": "DRADeviceTaints",
    "perDeviceNodeSelection": "DRAPartitionableDevices",
    "sharedCounters": "DRAPartitionableDevices",
    "consumesCounters": "DRAPartitionableDevices",
    "bindingConditions": "DRADeviceBindingConditions",
    "bindingFailureConditions": "DRADeviceBindingConditions",
    "bindsToNode": "DRADeviceBindingConditions",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
}


def lost_fields(sent: JsonObject, stored: JsonObject) -> tuple[str, ...]:
    """Which kinds of fields the server's answer has not as they were sent, each with the feature gate to blame.

    `sent` may be a patch. Empty when nothing was lost. Source: kubernetes-dra reference of dropped fields by gate.
    """
    results: set[str] = set()
    _compare(_normal(sent.get("spec") or {}), _normal(stored.get("spec") or {}), "", results)
    return tuple(sorted(f"{name} ({_GATES[name]} is off?)" if name in _GATES else name for name in results))


def _compare(sent: Any, stored: Any, name: str, results: set[str]) -> None:
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            _compare(value, stored.get(key), key, results)
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) == len(stored):
        for item, other in zip(sent, stored, strict=True):
            _compare(item, other, name, results)
    elif sent != stored:
        results.add(name)
