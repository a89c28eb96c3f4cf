"""Slices that are like one that was read before: most nodes of a cluster have the same GPUs. Pure.

A slice is compared with earlier ones as plain JSON, which takes a tenth of the time of typing it. One that is alike
shares the earlier one's answers, and is typed only if something looks at its own devices.

Two slices are alike if they are equal but for these:

- names: of the slice, of its node and its pool, and of the devices, in any way; with generation and other metadata;
- values of attributes that are texts in the later one (`uuid`, `serial`, `pciBusID`).

So they agree in all that decides about a device besides those texts: the number of devices and their order, types and
other values of attributes, capacities with their policies, counters, taints, conditions, and whether a device can be
shared. `look` adds the texts that a question reads, and two slices with one look have one answer to it:

- A selector reads the attributes that it names (`reads_of`), and a constraint its own attribute. The other parts of a
  search know devices only as objects in an order.
- Names matter for what claims hold, for taint rules, and for two devices of one name. Those who ask must see to it that
  there is nothing of this kind.
- Nodes matter for slices that are not for one node alone. Such a slice is like no other one.

Python also finds 1, 1.0 and `true` equal. Typing reads them as the same value, but for policies of capacities and node
selectors, in which only texts are valid.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from dra_driver.allocation.selection import reads_of
from dra_driver.allocation.snapshot import PublishedSlice, Snapshot
from dra_driver.api.meta import JsonObject, ObjectMeta
from dra_driver.api.resource import Attribute, Device, ResourceClaim, ResourceSlice
from dra_driver.cel.device import unreadable_attribute
from dra_driver.cel.errors import CelError
from dra_driver.errors import InvalidInput

_MOST_MODELS = 16
"""Of one driver with one number of devices; each is compared with in turn."""

type _Texts = Mapping[str, Mapping[str, str]]
"""Attributes of a device that differ from those of the model's device, as JSON."""


class AlikeSlice(PublishedSlice):
    """One that is like its model."""

    def __init__(self, model: PublishedSlice, obj: JsonObject, metadata: ObjectMeta, texts: Sequence[_Texts]) -> None:
        spec = obj["spec"]
        self._model = model
        self._metadata = metadata
        self._devices: Sequence[JsonObject] = spec.get("devices", _NO_DEVICES)
        self._texts = texts
        self.name = metadata.name
        self.pool = (model.pool[0], spec["pool"]["name"])
        self.generation = spec["pool"]["generation"]
        self.node_name = spec["nodeName"]
        self.slices_of_pool = model.slices_of_pool
        self.has_counters = model.has_counters

    @cached_property
    def slice(self) -> ResourceSlice:
        """The model's, with what is different."""
        spec = self._model.spec
        known = spec.devices or ()
        changed: dict[str, Any] = {
            "node_name": self.node_name,
            "pool": spec.pool.model_copy(update={"name": self.pool[1], "generation": self.generation}),
            "devices": spec.devices and list(map(_device_like, known, self._devices, self._texts)),
        }
        return self._model.slice.model_copy(
            update={"metadata": self._metadata, "spec": spec.model_copy(update=changed)}
        )

    @property
    def model(self) -> PublishedSlice:
        return self._model

    def look(self, attributes: Collection[str]) -> Hashable:
        differing = [
            (index, name, texts[name]["string"])
            for index, texts in enumerate(self._texts)
            for name in texts
            if name in attributes
        ]
        return self._model, tuple(sorted(differing))

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(device["name"] for device in self._devices)

    @cached_property
    def drawn(self) -> frozenset[Any]:
        return self._model.drawn


def _device_like(model: Device, obj: JsonObject, texts: _Texts) -> Device:
    own = {name: Attribute.of(text) for name, text in texts.items()}
    return model.model_copy(update={"name": obj["name"], "attributes": {**model.attributes, **own}})


class AlikeSlices:
    """The slices that others are compared with."""

    def __init__(self) -> None:
        self._models: dict[Hashable, list[tuple[PublishedSlice, JsonObject]]] = defaultdict(list)

    def like(self, obj: JsonObject) -> PublishedSlice | None:
        """The slice, if it is like one of the models. What is not valid is like none, because they are."""
        models = self._models.get(_key(obj), [])
        for place, (model, other) in enumerate(models):
            texts = _texts(obj, other)
            if texts is None:
                continue
            if place:
                models.insert(0, models.pop(place))  # the next one is probably of the same kind
            try:
                return AlikeSlice(model, obj, ObjectMeta.of(obj.get("metadata")), texts)
            except InvalidInput:
                return None  # typing all of it says where the mistake is
        return None

    def add(self, published: PublishedSlice, obj: JsonObject) -> None:
        """Later slices are compared with this one, if others can be like it."""
        key = _key(obj)
        if key is not None and len(self._models[key]) < _MOST_MODELS and _can_be_model(published, obj):
            self._models[key].insert(0, (published, obj))


def _key(obj: JsonObject) -> Hashable:
    """Equal for slices that are alike; None for what can be like none."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return None
    driver, devices = spec.get("driver"), spec.get("devices", _NO_DEVICES)
    return (driver, len(devices)) if isinstance(driver, str) and isinstance(devices, list) else None


_NO_DEVICES: list[Any] = []


def _can_be_model(published: PublishedSlice, obj: JsonObject) -> bool:
    spec = published.spec
    return (
        not spec.per_device_node_selection
        # Beside devices, counters belong to the slice, by its name.
        and not (spec.devices and spec.shared_counters)
        and all(_is_plain(device, spec.driver) for device in spec.devices or ())
        # It names its node, and Python writes all of it as JSON has it.
        and _texts(obj, obj) is not None
    )


def _is_plain(device: Device, driver: str) -> bool:
    """Whether the order of attributes makes no difference: each can be read, and none is written in two ways."""
    names = {name.removeprefix(f"{driver}/") for name in device.attributes}
    return unreadable_attribute(device, lists=False) is None and len(names) == len(device.attributes)


def _texts(obj: JsonObject, model: JsonObject) -> Sequence[_Texts] | None:
    """By device, what differs from the model; None if it is not alike. Both have one `_key`."""
    spec, other = obj["spec"], model["spec"]
    if not (spec.keys() == other.keys() and isinstance(spec.get("nodeName"), str)):
        return None
    if not all(value == other[field] for field, value in spec.items() if field not in _OWN):
        return None
    if not _is_same_pool(spec["pool"], other["pool"]):
        return None
    texts: list[_Texts] = []
    for device, known in zip(spec.get("devices", _NO_DEVICES), other.get("devices", _NO_DEVICES), strict=True):
        differing = _texts_of_device(device, known)
        if differing is None:
            return None
        texts.append(differing)
    return texts


_OWN = ("devices", "nodeName", "pool")


def _is_same_pool(pool: object, other: JsonObject) -> bool:
    return (
        isinstance(pool, dict)
        and isinstance(pool.get("name"), str)
        and type(pool.get("generation")) is int
        and {**pool, "name": "", "generation": 0} == {**other, "name": "", "generation": 0}
    )


def _texts_of_device(device: object, known: JsonObject) -> _Texts | None:
    if not (isinstance(device, dict) and len(device) == len(known)):
        return None
    own, other = device.get("attributes", _NO_ATTRIBUTES), known.get("attributes", _NO_ATTRIBUTES)
    if not (isinstance(own, dict) and len(own) == len(other)):
        return None
    try:
        # What was read from one text is mostly the same object, which is seen at once.
        for field, value in device.items():
            if value is not known[field] and field not in ("name", "attributes") and value != known[field]:
                return None
        texts = {name: value for name, value in own.items() if value is not other[name] and value != other[name]}
    except KeyError:
        return None  # it has another field or attribute
    return texts if isinstance(device["name"], str) and all(map(_is_text, texts.values())) else None


_NO_ATTRIBUTES: JsonObject = {}


def _is_text(attribute: object) -> bool:
    return isinstance(attribute, dict) and len(attribute) == 1 and isinstance(attribute.get("string"), str)


def attributes_read(claims: Sequence[ResourceClaim], snapshot: Snapshot) -> frozenset[str] | None:
    """Names of attributes that decide which devices the claims get, with their domain and without. None if selectors
    may read any, and if the claims are not valid."""
    names: set[str] = set()
    try:
        requests = snapshot.requests(claims)
        expressions = {item for claim in requests for each in claim for wanted in each for item in wanted.expressions}
        for expression in expressions:
            reads = reads_of(expression)
            if reads is None:
                return None
            names.update(name for read in reads for name in (read.id, f"{read.domain}/{read.id}"))
    except (InvalidInput, CelError):
        return None
    for claim in claims:
        for constraint in claim.spec.devices.constraints:
            name = constraint.match_attribute or constraint.distinct_attribute or ""
            names.update((name, name.rpartition("/")[2]))
    return frozenset(names)
