"""Removes secrets from the objects and lines of a bundle. Pure.

Secrets are never read. But values of environment variables, annotations, data of ConfigMaps, headers of probes, command
lines and logs may contain credentials. Values without a known meaning for a support case are removed, the others are
searched for text that looks like a credential. It is better to remove too much than too little.
"""

import re
from collections.abc import Iterator
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
_NAMED = re.compile(
    rf"""(?P<name>(?:\\?["'])?[\w.-]*(?:{_WORDS})(?:\\?["'])?\s*[:=]\s*)"""
    r"""(?P<value>\\?"(?:[^"\\]|\\[^"])*\\?"|'[^']*'|(?:bearer|basic)\s+[^\s,;&"'\\]+|[^\s,;&}"'\\]+)""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"(?P<name>--?[\w-]*(?:{_WORDS}|key)\s+)(?P<value>[^\s-]\S*)", re.IGNORECASE)
_LONE_FLAG = re.compile(rf"--?[\w-]*(?:{_WORDS}|key)", re.IGNORECASE)
_CREDENTIALS = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
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
_CREDENTIALS = (re.compile(_CREDENTIALS[0].pattern, re.DOTALL), *_CREDENTIALS[1:])
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")


def redacted_text(text: str) -> str:
    """Without everything that looks like a credential; for whole texts, in which a private key has many lines."""
    for pattern in _CREDENTIALS:
        text = pattern.sub(REDACTED, text)
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
    found: JsonObject = _value("", obj)
    if found.get("kind") == "ConfigMap":
        data = found.get("data") or {}
        found["data"] = {name: text if name == POLICY_FILE else REDACTED for name, text in data.items()}
    return found


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
    return REDACTED if value and _SENSITIVE_KEY.fullmatch(key) else redacted_text(value)


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
