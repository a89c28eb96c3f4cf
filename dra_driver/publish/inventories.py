"""What is kept of a NodeInventory between two looks at it: who owns it, its sign of life, and its facts, packed.

Facts of eight GPUs are some 100 kB as decoded objects and under 2 kB like this; they are needed only when something
changes, so they are decoded then.
"""

import json
import zlib
from dataclasses import dataclass

from dra_driver.api.inventory import MOST_READ_BYTES, NodeInventorySpec, NodeInventoryStatus, confirmation_annotation
from dra_driver.api.meta import NODES, JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.slices.diff import NodeRef


@dataclass(frozen=True, slots=True)
class KeptInventory:
    """`owner_uid` is None when no Node owns the inventory; `registration` when `driver` is not registered."""

    name: str
    resource_version: str
    owner_uid: str | None
    registration: str | None
    asked: str | None
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
        spec = NodeInventorySpec.of(json.loads(zlib.decompress(self.packed)), about=self._about())
        if spec.node_name != self.name:
            raise InvalidInput(f"speaks for another node: {spec.node_name!r}", about=self._about(), field="nodeName")
        return spec

    def status(self) -> NodeInventoryStatus:
        """Empty if there is none, or none that makes sense: then it is written again."""
        if self.packed_status is None:
            return NodeInventoryStatus()
        try:
            return NodeInventoryStatus.of(json.loads(zlib.decompress(self.packed_status)))
        except InvalidInput:
            return NodeInventoryStatus()

    def _about(self) -> str:
        return f"NodeInventory {self.name}"


def kept_inventory(obj: JsonObject, driver: str) -> KeptInventory:
    """Never raises: what makes no sense is found by `facts`."""
    metadata = obj["metadata"]
    spec = obj.get("spec")
    text = _text(spec)
    annotations = metadata.get("annotations") or {}
    owners = [
        owner["uid"]
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("kind") == NODES.kind and owner.get("name") == metadata["name"]
    ]
    return KeptInventory(
        name=metadata["name"],
        resource_version=metadata["resourceVersion"],
        owner_uid=owners[0] if owners else None,
        registration=_registration(spec, driver),
        asked=annotations.get(confirmation_annotation(driver)),
        packed=zlib.compress(text, level=1) if len(text) <= MOST_READ_BYTES else b"",
        size=len(text),
        packed_status=zlib.compress(_text(obj["status"]), level=1) if obj.get("status") else None,
    )


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _registration(spec: object, driver: str) -> str | None:
    entries = spec.get("registrations") if isinstance(spec, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("driver") == driver and isinstance(entry.get("time"), str):
            time: str = entry["time"]
            return time
    return None
