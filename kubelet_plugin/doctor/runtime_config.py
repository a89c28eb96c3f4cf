"""What configurations of containerd and CRI-O say of CDI. Pure: texts of files in, values out.

Source: containerd's docs/cri/config.md of 1.7 and 2.x; crio.conf(5).
"""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kubelet_plugin.doctor.seen import RuntimeSeen

CONTAINERD, CRIO = "containerd", "cri-o"

_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""Of containerd 2 and of 1; 2 reads a file of 1 (`version = 2`) as well."""


def containerd_seen(texts: Mapping[str, str], version: str | None) -> RuntimeSeen:
    """From its files in the order in which they are merged, main file first. `version` is None when not known."""
    file = next(iter(texts), "")
    try:
        merged = _merged(tomllib.loads(text) for text in texts.values())
    except tomllib.TOMLDecodeError as error:
        return RuntimeSeen(CONTAINERD, file, version, problem=f"is not valid TOML: {error}")
    if version is None and merged.get("version") == 3:
        version = "2"  # the format that came with it, without a minor version
    plugins = merged.get("plugins")
    sections = [_table(plugins, name) for name in _SECTIONS]
    cdi = next((section["enable_cdi"] for section in sections if isinstance(section.get("enable_cdi"), bool)), None)
    dirs = next(
        (section["cdi_spec_dirs"] for section in sections if isinstance(section.get("cdi_spec_dirs"), list)), None
    )
    default = next(
        (name for section in sections if (name := _table(section, "containerd").get("default_runtime_name"))), None
    )
    return RuntimeSeen(CONTAINERD, file, version, cdi, _strings(dirs), str(default) if default else None)


def imports(text: str) -> tuple[str, ...]:
    """Patterns of the files that a containerd configuration imports."""
    try:
        found = tomllib.loads(text).get("imports")
    except tomllib.TOMLDecodeError:
        return ()
    return _strings(found) or ()


def crio_seen(texts: Mapping[str, str], version: str | None) -> RuntimeSeen:
    """From its files in their order; CDI cannot be switched off."""
    file = next(iter(texts), "")
    try:
        merged = _merged(tomllib.loads(text) for text in texts.values())
    except tomllib.TOMLDecodeError as error:
        return RuntimeSeen(CRIO, file, version, problem=f"is not valid TOML: {error}")
    runtime = _table(_table(merged, "crio"), "runtime")
    default = runtime.get("default_runtime")
    return RuntimeSeen(CRIO, file, version, True, _strings(runtime.get("cdi_spec_dirs")), str(default or "") or None)


def _merged(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            before = found.get(key)
            together = isinstance(before, dict) and isinstance(value, dict)
            found[key] = _merged((cast(dict[str, Any], before), value)) if together else value
    return found


def _table(parent: Any, name: str) -> dict[str, Any]:
    found = parent.get(name) if isinstance(parent, dict) else None
    return found if isinstance(found, dict) else {}


def _strings(value: Any) -> tuple[str, ...] | None:
    return tuple(str(item) for item in value) if isinstance(value, list) else None
