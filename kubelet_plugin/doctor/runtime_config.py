"""What the configuration of containerd or CRI-O says about CDI. Pure: texts of files in, values out.

Source: containerd's docs/cri/config.md of 1.7 and 2.x; crio.conf(5).
"""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kubelet_plugin.doctor.seen import RuntimeSeen

CONTAINERD, CRIO = "containerd", "cri-o"

_SECTIONS = (
    ("plugins", "io.containerd.cri.v1.runtime"),
    ("plugins", "io.containerd.grpc.v1.cri"),
    ("crio", "runtime"),
)
"""Of containerd 2, of containerd 1, whose files 2 reads as well, and of CRI-O."""


def runtime_seen(name: str, texts: Mapping[str, str], version: str | None) -> RuntimeSeen:
    """From its files in the order in which they are merged, main file first. `version` is None if it is not known."""
    file = next(iter(texts), "")
    try:
        merged = _merged(tomllib.loads(text) for text in texts.values())
    except tomllib.TOMLDecodeError as error:
        return RuntimeSeen(name, file, version, problem=f"is not valid TOML: {error}")
    if name == CONTAINERD and version is None and merged.get("version") == 3:
        version = "2"  # the format of containerd 2, without a minor version
    sections = [_table(_table(merged, group), section) for group, section in _SECTIONS]
    switches = (section.get("enable_cdi") for section in sections)
    folders = (section.get("cdi_spec_dirs") for section in sections)
    defaults = (
        _table(section, "containerd").get("default_runtime_name") or section.get("default_runtime")
        for section in sections
    )
    return RuntimeSeen(
        name,
        file,
        version,
        # CRI-O has no switch for CDI.
        True if name == CRIO else next((value for value in switches if isinstance(value, bool)), None),
        next((_strings(value) for value in folders if isinstance(value, list)), None),
        next((str(value) for value in defaults if value), None),
    )


def imports(text: str) -> tuple[str, ...]:
    """Patterns of the files that a containerd configuration imports."""
    try:
        patterns = tomllib.loads(text).get("imports")
    except tomllib.TOMLDecodeError:
        return ()
    return _strings(patterns) if isinstance(patterns, list) else ()


def _merged(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            before = merged.get(key)
            together = isinstance(before, dict) and isinstance(value, dict)
            merged[key] = _merged((cast(dict[str, Any], before), value)) if together else value
    return merged


def _table(parent: dict[str, Any], name: str) -> dict[str, Any]:
    table = parent.get(name)
    return table if isinstance(table, dict) else {}


def _strings(values: list[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
