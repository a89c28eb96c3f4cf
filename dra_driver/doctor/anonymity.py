"""Replaces names of nodes, namespaces, pods and claims, UUIDs, serial numbers and addresses in a bundle. Pure.

It first learns all names and then replaces them, so that an object has the same new name everywhere: in objects, names
of files, messages and logs. Values that the checks need stay: `apiVersion`, reasons, this driver's own words. A name
that is also part of another word is replaced there, too: it is better to replace too much than too little.
"""

import re
from collections.abc import Iterable
from typing import Any

from dra_driver.api.meta import JsonObject

_KEPT_NAMESPACES = frozenset(("default", "kube-system", "kube-public", "kube-node-lease"))
_KEPT_KEYS = frozenset(
    (
        *("apiVersion", "kind", "apiGroup", "apiGroups", "apiVersions", "resource", "resources", "verb", "operator"),
        *("effect", "type", "reason", "status", "phase", "operations", "policy", "allocationMode", "fieldPath"),
        *("image", "imageID", "deviceClassName", "driver", "extendedResourceName", "productName"),
        *("check", "verdict", "trouble", "program", "version", "release", "permission", "time"),
    )
)
"""Fields whose values are not names."""

_PUBLIC_KINDS = frozenset(("DeviceClass", "CustomResourceDefinition"))
"""Kinds that are compared literally with those of a release, and have no private names."""

_KEPT_WORDS = (
    *("gpu.nvidia.com", "compute-domain.nvidia.com", "nvidia.com/gpu", "resource.nvidia.com", "dra.gpu"),
    *(
        "gpu-dra-kubelet-plugin",
        "gpu-dra-controller",
        "gpu-dra-webhook",
        "gpu-dra-imex-daemon",
        "gpu-dra-cuda-check",
        "gpu-dra-driver",
    ),
    *("kubelet-plugin", "nvidia-device-plugin", "nodes", "pods", "namespaces", "claims"),
)
_UUID = re.compile(r"\b([0-9a-fA-F]{8})-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_DEVICE = re.compile(r"\bgpu-([0-9a-f]{8})([0-9a-f]*)(?![0-9a-z.])")
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_ADDRESS = re.compile(rf"(?<![\d.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\d.])")
_HASHED = re.compile(r"(?<![A-Za-z0-9])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![A-Za-z0-9.:])")
"""IPv6 addresses. PCI addresses have only two colons."""


class Anonymity:
    """First `learn` all names, then replace them."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, name: str | None) -> None:
        """Replaces `name` with `<kind>-<number>` from now on. `kind` is a word, such as node or pod."""
        if not name or name in self._names or name in _KEPT_NAMESPACES or name in _KEPT_WORDS:
            return
        self._names[name] = f"{kind}-{self._number(kind, name)}"
        self._pattern = None

    def learn_object(self, obj: JsonObject) -> None:
        """Learns its name, if its kind has private names, and the names in its known fields."""
        metadata, spec = obj.get("metadata") or {}, obj.get("spec") or {}
        kind = _NAMED_KINDS.get(str(obj.get("kind")))
        if kind is not None:
            self.learn(kind, metadata.get("name"))
        self.learn("namespace", metadata.get("namespace"))
        self.learn("node", spec.get("nodeName"))
        for item in (obj.get("status") or {}).get("reservedFor") or ():
            self.learn("pod", item.get("name"))
        for item in spec.get("gpus") or ():
            self.learn("serial", item.get("serial"))
        for item in spec.get("devices") or () if isinstance(spec.get("devices"), list) else ():
            serial = (item.get("attributes") or {}).get("serial") or {}
            self.learn("serial", serial.get("string"))

    def text(self, text: str) -> str:
        text = self._matching().sub(self._renamed, text)
        text = _UUID.sub(lambda found: self._uuid(found[1].lower(), found[0].lower()), text)
        text = _DEVICE.sub(lambda found: self._device(found[1], found[2]), text)
        text = _ADDRESS.sub(lambda found: f"address-{self._number('address', found[0])}", text)
        return _HASHED.sub(lambda found: f"address-{self._number('address', found[0])}", text)

    def value(self, value: Any, key: str = "") -> Any:
        """An object or a part of it; `key` is the name of the field that has it."""
        if isinstance(value, dict) and value.get("kind") in _PUBLIC_KINDS:
            return value
        if key in _KEPT_KEYS and not isinstance(value, dict):
            return value
        if isinstance(value, dict):
            return {self._key(name): self.value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _key(self, name: str) -> str:
        """Names of fields stay; a learned name or a UUID as a key does not."""
        return self._names.get(name) or _UUID.sub(lambda found: self._uuid(found[1].lower(), found[0].lower()), name)

    def _matching(self) -> re.Pattern[str]:
        if self._pattern is None:
            words: Iterable[str] = sorted({*self._names, *_KEPT_WORDS}, key=lambda word: (-len(word), word))
            self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, words))})(?![A-Za-z0-9])")
        return self._pattern

    def _renamed(self, found: re.Match[str]) -> str:
        return self._names.get(found[0], found[0])

    def _number(self, kind: str, name: str) -> int:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(name, len(numbers) + 1)

    def _uuid(self, first: str, whole: str) -> str:
        """The name of a GPU's device has the first eight digits of its UUID, also after the replacement."""
        return f"{self._number('uuid', first):08x}-0000-4000-8000-{self._number('whole', whole):012x}"

    def _device(self, first: str, rest: str) -> str:
        more = f"{self._number('rest', rest):x}" if rest else ""
        return f"gpu-{self._number('uuid', first):08x}{more}"


_NAMED_KINDS = {
    "Node": "node",
    "NodeInventory": "node",
    "Pod": "pod",
    "Namespace": "namespace",
    "ResourceClaim": "claim",
    "ResourceClaimTemplate": "template",
    "ComputeDomain": "domain",
}
