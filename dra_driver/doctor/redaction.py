"""Removes secrets from the objects and lines of a bundle, and, on request, names. Pure.

Secrets are never read. But values of environment variables, annotations, data of ConfigMaps, headers of probes, command
lines and logs may contain credentials. Values without a known meaning for a support case are removed, the others are
searched for text that looks like a credential. It is better to remove too much than too little.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.doctor.cluster import POLICY_FILE

REDACTED = "<redacted>"

_DROPPED = frozenset(("managedFields", "selfLink", "binaryData"))
_OUR_ANNOTATIONS = (
    "dra.gpu/",
    "confirm.dra.gpu/",
    "resource.kubernetes.io/",
    "resource.k8s.io/",
    "checksum/",
    "deprecated.daemonset.template.generation",
    "deployment.kubernetes.io/",
    "kubernetes.io/config.mirror",
    "meta.helm.sh/",
    "nvidia.com/",
    "node.alpha.kubernetes.io/ttl",
)
"""Prefixes of annotations whose values are kept."""

_WORDS = (
    r"passw(?:or)?d|pwd|passphrase|secret|token|api[-_.]?key|access[-_.]?key(?:[-_.]?id)?|private[-_.]?key|key[-_.]?data"
    r"|credentials?|authorization|cookie|auth"
)
_SENSITIVE_KEY = re.compile(rf".*(?:{_WORDS})", re.IGNORECASE)
# Both patterns begin where a word begins: from each of its characters, they would look at the rest of the word again.
_NAMED = re.compile(
    rf"""(?<![\w.-])(?P<name>(?:\\?["'])?[\w.-]*(?:{_WORDS})(?:\\?["'])?\s*[:=]\s*)"""
    r"""(?P<value>\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|(?:bearer|basic)\s+[^\s,;&"'\\]+|[^\s,;&}"'\\]+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"(?<![\w-])(?=\w*-)(?P<name>[\w-]*(?:{_WORDS}|key)\s+)(?P<value>[^\s-]\S*)", re.IGNORECASE)
_MENTION = re.compile(rf"{_WORDS}|key", re.IGNORECASE)
"""What every match of the two patterns above contains; much faster than these."""
_LONE_FLAG = re.compile(rf"--?[\w-]*(?:{_WORDS}|key)", re.IGNORECASE)
_CREDENTIALS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?s:-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z))",
        r"(?i:\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?",
        r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
        r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}",
        r"\bxox[abeprs]-[\w-]{8,}",
        r"\bAIza[\w-]{30,}",
        r"\bnvapi-[\w-]{16,}|\bhf_[A-Za-z0-9]{16,}|\bsk-[\w-]{20,}",
        r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b",
    )
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")


def redacted_text(text: str) -> str:
    """Without everything that looks like a credential; for whole texts, in which a private key has many lines."""
    for pattern in _CREDENTIALS:
        text = pattern.sub(REDACTED, text)
    if _MENTION.search(text) is None:
        return text
    return _FLAG.sub(_without_value, _NAMED.sub(_without_value, text))


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark) and value.endswith(mark)), "")
    return f"{match['name']}{quote}{REDACTED}{quote}"


class LineRedactor:
    """For the lines of a log: also removes the lines between the ends of a private key."""

    def __init__(self) -> None:
        self._inside_key = False

    def line(self, line: str) -> str | None:
        """The redacted line; None for a line in the middle of a private key."""
        if self._inside_key:
            end = _KEY_ENDS.search(line)
            if end is None:
                return None
            self._inside_key = False
            return redacted_text(line[end.end() :])
        begin = _KEY_BEGINS.search(line)
        if begin is not None and _KEY_ENDS.search(line, begin.end()) is None and "\\n" not in line:
            self._inside_key = True
        return redacted_text(line)


def redacted(obj: JsonObject) -> JsonObject:
    """An API object without secrets, managed fields and values of foreign annotations."""
    cleaned: JsonObject = _value("", obj)
    if cleaned.get("kind") == "ConfigMap":
        data = cleaned.get("data") or {}
        cleaned["data"] = {name: text if name == POLICY_FILE else REDACTED for name, text in data.items()}
    return cleaned


def _value(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _entries(key, value)
    if isinstance(value, list):
        if key in ("env", "httpHeaders"):
            return [_named_value(item) for item in value]
        if key in ("args", "command"):
            return list(_words(value))
        return [_value(key, item) for item in value]
    if not isinstance(value, str):
        return value
    if key == "caBundle" and value:
        return REDACTED
    if value and _is_sensitive(key):
        return REDACTED
    return _redacted_value(value) if len(value) <= _LONGEST_REMEMBERED else redacted_text(value)


_LONGEST_REMEMBERED = 256
"""Objects have the same short values again and again: products, versions, amounts."""
_redacted_value = lru_cache(1 << 16)(redacted_text)


_is_sensitive = lru_cache(1 << 12)(_SENSITIVE_KEY.fullmatch)


def _entries(key: str, value: JsonObject) -> JsonObject:
    if key == "annotations":
        return {
            name: redacted_text(text) if isinstance(text, str) and name.startswith(_OUR_ANNOTATIONS) else REDACTED
            for name, text in value.items()
            if name != "kubectl.kubernetes.io/last-applied-configuration"
        }
    return {name: _value(name, item) for name, item in value.items() if name not in _DROPPED}


def _named_value(entry: Any) -> Any:
    """An environment variable or header: its name and the source of its value, but not the value."""
    if not isinstance(entry, dict):
        return REDACTED
    return {name: REDACTED if name == "value" else _value(name, item) for name, item in entry.items()}


def _words(words: list[Any]) -> Iterator[Any]:
    """A command line: the word after a flag for a secret is redacted."""
    after_flag = False
    for word in words:
        if not isinstance(word, str):
            yield _value("", word)
            continue
        yield REDACTED if after_flag else redacted_text(word)
        after_flag = _LONE_FLAG.fullmatch(word) is not None


# -- names

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
    *(f"gpu-dra-{part}" for part in ("kubelet-plugin", "controller", "webhook", "imex-daemon", "cuda-check", "driver")),
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
        text = _UUID.sub(lambda match: self._uuid(match[1].lower(), match[0].lower()), text)
        text = _DEVICE.sub(lambda match: self._device(match[1], match[2]), text)
        text = _ADDRESS.sub(lambda match: f"address-{self._number('address', match[0])}", text)
        return _HASHED.sub(lambda match: f"address-{self._number('address', match[0])}", text)

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
        return self._names.get(name) or _UUID.sub(lambda match: self._uuid(match[1].lower(), match[0].lower()), name)

    def _matching(self) -> re.Pattern[str]:
        if self._pattern is None:
            words: Iterable[str] = sorted({*self._names, *_KEPT_WORDS}, key=lambda word: (-len(word), word))
            self._pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, words))})(?![A-Za-z0-9])")
        return self._pattern

    def _renamed(self, match: re.Match[str]) -> str:
        return self._names.get(match[0], match[0])

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
