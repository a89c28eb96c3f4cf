"""What is kept of a NodeInventory between two looks at it: who owns it, its registration, and its facts, packed.

Facts of eight GPUs are some 100 kB as decoded objects and under 2 kB like this; they are needed only when something
changes, so they are decoded then.

`Life` decides whether slices of a pool may be created: only for a plugin that lives.

kubelet wipes the slices of a node when it starts, and those of one driver 30 s after the driver's last connection went
away. Publishers put them back for a plugin that lives and must not for one that is dead, and a wipe looks the same in
both cases. The proof is the registration time in the node's inventory, which the plugin renews whenever kubelet
registers it, and when asked (`dra_driver.api.inventory.confirmation_annotation`). The rule:

1. A complete pool needs no proof: kubelet would have wiped it. From then on its slices may be created and changed.
2. A slice that was deleted by others ends that, and so do publishers that start and find the pool not complete.
3. Then slices are created on either of two proofs that the plugin lived after the slices were gone:
   a. a registration younger than 15 s that no earlier restoration was based on: a wipe that follows a death comes at
      least 30 s after the last registration, so this loss cannot be one, in whichever order its news and the
      registration's arrive (a starting kubelet may register plugins before it has wiped); clocks may differ by 15 s;
   b. an answer: the publisher wrote the doubtful time into the annotation, guarded by the inventory's
      resourceVersion, and the time has changed since. No clocks are compared, so no skew can fool it.
4. Without a registration nothing is created or asked: the plugin will register.

A dead plugin answers nothing; it costs one question. A plugin whose clock is wrong costs one question and answers it.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from pydantic_core import from_json, to_json

from dra_driver.api.core import moment
from dra_driver.api.inventory import MOST_READ_BYTES, NodeInventorySpec, NodeInventoryStatus, confirmation_annotation
from dra_driver.api.meta import NODES, JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.slices.diff import NodeRef


@dataclass(frozen=True, slots=True)
class KeptInventory:
    """`owner_uid` is None when no Node owns the inventory."""

    name: str
    resource_version: str
    owner_uid: str | None
    registrations: Mapping[str, str]
    """By driver, those that are registered."""
    asked: Mapping[str, str]
    """By driver: the registration after which it was asked whether its plugin lives."""
    packed: bytes
    size: int
    """Bytes of the spec as JSON. Of one that is too large, nothing is packed."""
    packed_status: bytes | None = None

    def node(self) -> NodeRef:
        """Raises InvalidInput."""
        if self.owner_uid is None:
            raise InvalidInput("no Node owns it, so slices would outlive the node", about=self._about())
        return NodeRef(self.name, self.owner_uid)

    def facts(self) -> NodeInventorySpec:
        """Raises InvalidInput that lists what cannot be understood."""
        if self.size > MOST_READ_BYTES:
            raise InvalidInput(f"has {self.size} bytes; at most {MOST_READ_BYTES} are read", about=self._about())
        spec = NodeInventorySpec.of(from_json(zlib.decompress(self.packed)), about=self._about())
        if spec.node_name != self.name:
            raise InvalidInput(f"speaks for another node: {spec.node_name!r}", about=self._about(), field="nodeName")
        return spec

    def status(self) -> NodeInventoryStatus:
        """Empty if there is none, or none that makes sense: then it is written again."""
        if self.packed_status is None:
            return NodeInventoryStatus()
        return NodeInventoryStatus.or_none(from_json(zlib.decompress(self.packed_status))) or NodeInventoryStatus()

    def _about(self) -> str:
        return f"NodeInventory {self.name}"


def kept_inventory(obj: JsonObject) -> KeptInventory:
    """Never raises: `facts` reports what is invalid."""
    metadata = obj["metadata"]
    spec = obj.get("spec")
    text = to_json(spec)
    owners = [
        owner["uid"]
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("kind") == NODES.kind and owner.get("name") == metadata["name"]
    ]
    return KeptInventory(
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        owner_uid=owners[0] if owners else None,
        registrations=_registrations(spec),
        asked={
            key.removeprefix(_QUESTION): value
            for key, value in (metadata.get("annotations") or {}).items()
            if key.startswith(_QUESTION)
        },
        packed=zlib.compress(text, level=1) if len(text) <= MOST_READ_BYTES else b"",
        size=len(text),
        packed_status=zlib.compress(to_json(obj["status"]), level=1) if obj.get("status") else None,
    )


_QUESTION = confirmation_annotation("")


def _registrations(spec: object) -> dict[str, str]:
    """The first one of each driver."""
    entries = spec.get("registrations") if isinstance(spec, dict) else None
    return {
        entry["driver"]: entry["time"]
        for entry in (reversed(entries) if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("driver"), str) and isinstance(entry.get("time"), str)
    }


FRESH = timedelta(seconds=15)
"""More than news needs to get here, and half of the 30 s that kubelet waits before it wipes: the rest is for clocks."""


class LifeVerdict(Enum):
    CREATE = auto()
    ASK = auto()
    """Nothing proves that the plugin lives: write its registration time into the annotation."""
    WAIT = auto()
    """Not registered, or asked already: the inventory will change, or never."""


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of the plugin behind one pool; times are those of its registrations, as they are written."""

    granted: bool = False
    spent: str | None = None
    """The registration on which slices were created, or with which they were found complete."""
    doubted: str | None = None
    """The registration that was the latest when a question became necessary."""

    def found_complete(self, registration: str | None) -> "Life":
        return self if self.granted else Life(granted=True, spent=registration)

    def lost_slices(self) -> "Life":
        return replace(self, granted=False)

    def judged(self, registration: str | None, asked: str | None, now: datetime) -> "tuple[Life, LifeVerdict]":
        """Whether slices may be created. `asked` is the annotation's value."""
        if self.granted:
            return self, LifeVerdict.CREATE
        if registration is None:
            return self, LifeVerdict.WAIT
        answered = self.doubted is not None and asked == self.doubted and registration != self.doubted
        unspent = registration not in (self.spent, self.doubted)
        if answered or (unspent and _is_fresh(registration, now)):
            return Life(granted=True, spent=registration), LifeVerdict.CREATE
        return replace(self, doubted=registration), LifeVerdict.WAIT if asked == registration else LifeVerdict.ASK


def _is_fresh(registration: str, now: datetime) -> bool:
    time = moment(registration)
    return time is not None and abs(now - time) < FRESH
