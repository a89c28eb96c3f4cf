"""What makes GPUs available in the old way and is no workload: device plugins, feature discovery, MIG manager. Pure.

Their DaemonSets see all GPUs of their nodes, and go when the driver comes; they are never given claims.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import value_at

_PLUMBING = re.compile(
    r"k8s-device-plugin|nvidia[^:@]*device-plugin|gpu[^:@]*device-plugin|gpu-feature-discovery|mig-manager|mig-parted"
    r"|mps-control-daemon|container-toolkit|gpu-operator|(hami|vgpu|volcano)[^:@]*device-plugin|gpushare[^:@]*plugin"
)
_PLUGIN = re.compile(r"device-plugin|gpushare[^:@]*plugin")
_SOCKETS = "/var/lib/kubelet/device-plugins"
"""Where device plugins tell kubelet that they are there; who has this folder of the host is one."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What the flags and variables of a device plugin's container say; they go before its configuration file.

    None: not said.
    """

    container: int
    """Position among the containers of its pod."""
    mig_strategy: str | None = None
    driver_root: str | None = None


def is_operand(document: Document, spec: JsonObject) -> bool:
    """Whether the GPU Operator makes it, by manifests of its own: their images are not said, and their DaemonSets have
    names and labels of nodes that nobody else has. Source: `assets` of NVIDIA/gpu-operator."""
    selector = spec.get("nodeSelector")
    deployed = any(str(key).startswith(_DEPLOYED) for key in (selector if isinstance(selector, dict) else ()))
    named = document.kind == "DaemonSet" and document.name.startswith(("nvidia-", "gpu-feature-discovery"))
    return (deployed and named) or any(image == _FILLED_IN for image in _images(spec))


_DEPLOYED = "nvidia.com/gpu.deploy."
_FILLED_IN = "FILLED BY THE OPERATOR"


def is_plumbing(spec: JsonObject) -> bool:
    """Whether any container of a pod's spec is one of these; an image under another name is known by its volume."""
    folders = (value_at(one, ("hostPath", "path")) for one in _listed(spec.get("volumes")) if isinstance(one, dict))
    return any(_PLUMBING.search(image) for image in _images(spec)) or any(
        isinstance(one, str) and one.rstrip("/") == _SOCKETS for one in folders
    )


def plugin_settings(daemon_set: JsonObject) -> PluginSettings | None:
    """None: it is no device plugin."""
    spec = value_at(daemon_set, ("spec", "template", "spec"))
    for number, image in enumerate(_images(spec) if isinstance(spec, dict) else ()):
        if _PLUMBING.search(image) and _PLUGIN.search(image):
            given = _given(value_at(spec, ("containers", number)))
            root = given.get("nvidia-driver-root")
            return PluginSettings(number, given.get("mig-strategy"), root if root and root.startswith("/") else None)
    return None


def _images(spec: Mapping[str, object]) -> Iterator[str]:
    for one in _listed(spec.get("containers")):
        yield str(one.get("image") or "") if isinstance(one, dict) else ""


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _given(container: JsonObject) -> dict[str, str]:
    """By the flag's name; a flag goes before the variable of the same meaning."""
    found: dict[str, str] = {}
    for one in _listed(container.get("env")):
        if isinstance(one, dict) and isinstance(one.get("value"), str):
            found[str(one.get("name")).lower().replace("_", "-")] = one["value"]
    words = [str(word) for key in ("command", "args") for word in _listed(container.get(key))]
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (equals or not following.startswith("-")):
            found[name] = value if equals else following
    return found
