"""A bundle without names: of nodes, namespaces, pods, claims, and UUIDs, serial numbers and addresses. Pure.

Names are learnt first and replaced then, so that the same thing has the same new name everywhere: in objects, in their
names of files, in messages and logs. What the checks need to understand an object stays: `apiVersion`, reasons, our own
words. A name that is also part of another word is replaced there, too; too much rather than too little.
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
"""Whose values have meanings of their own."""

_NOBODYS = frozenset(("DeviceClass", "CustomResourceDefinition"))
"""Kinds that name nobody, and are compared with those of a release to the letter."""

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
"""IPv6 addresses, more or less; PCI addresses have two colons."""


class Anonymity:
    """`learn` all names, then replace."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, kind: str, name: str | None) -> None:
        """From now on `name` is `<kind>-<number>`. `kind` is a word: node, pod, namespace, claim."""
        if not name or name in self._names or name in _KEPT_NAMESPACES or name in _KEPT_WORDS:
            return
        self._names[name] = f"{kind}-{self._number(kind, name)}"
        self._pattern = None

    def learn_object(self, obj: JsonObject) -> None:
        """Its own name, where its kind is one of users, and all names of others that it is known to carry."""
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
        """An object or a part of one; `key` is what it is called there."""
        if isinstance(value, dict) and value.get("kind") in _NOBODYS:
            return value
        if key in _KEPT_KEYS and not isinstance(value, dict):
            return value
        if isinstance(value, dict):
            return {self._key(name): self.value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _key(self, name: str) -> str:
        """Names of fields stay; a UUID or a name of ours as a key does not."""
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
        """A GPU's device has the first eight digits of its UUID in its name, and keeps to that."""
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
