"""What runs in a cluster for GPUs: device plugins, parts of the GPU Operator, and node labels of autoscalers. Pure.

DaemonSets of device plugins, feature discovery and the MIG manager see all GPUs of their nodes and never get claims.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, list_in, map_in, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import MigrationFinding, finding

_PLUGIN = re.compile(
    r"k8s-device-plugin|(nvidia|gpu|hami|volcano)[^:@]*device-plugin|device-plugin[^:@]*(nvidia|gpu)|gpushare[^:@]*plugin"
)
_PLUMBING = re.compile(
    rf"{_PLUGIN.pattern}|gpu-feature-discovery|mig-manager|mig-parted|mps-control-daemon|container-toolkit|gpu-operator"
)
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


def is_plumbing(spec: JsonObject) -> bool:
    """Whether any container of a pod's spec is one of these; an image under another name is known by its volume."""
    folders = (value_at(item, ("hostPath", "path")) for item in list_in(spec.get("volumes")) if isinstance(item, dict))
    return any(_PLUMBING.search(image) for image in _images(spec)) or any(
        isinstance(folder, str) and folder.rstrip("/") == _SOCKETS for folder in folders
    )


def is_plugin_image(image: str) -> bool:
    """Whether it is a device plugin for GPUs of NVIDIA."""
    return _PLUGIN.search(image) is not None


def plugin_settings(daemon_set: JsonObject) -> PluginSettings | None:
    """None: it is no device plugin."""
    spec = value_at(daemon_set, ("spec", "template", "spec"))
    for number, image in enumerate(_images(map_in(spec))):
        if is_plugin_image(image):
            given = _given(value_at(spec, ("containers", number)))
            root = given.get("nvidia-driver-root")
            return PluginSettings(number, given.get("mig-strategy"), root if root and root.startswith("/") else None)
    return None


def _images(spec: Mapping[str, object]) -> Iterator[str]:
    for container in maps_in(spec.get("containers")):
        yield str(container.get("image") or "")


def _given(container: JsonObject) -> dict[str, str]:
    """By the flag's name; a flag goes before the variable of the same meaning."""
    given: dict[str, str] = {}
    for item in list_in(container.get("env")):
        if isinstance(item, dict) and isinstance(item.get("value"), str):
            given[str(item.get("name")).lower().replace("_", "-")] = item["value"]
    words = [str(word) for key in ("command", "args") for word in list_in(container.get(key))]
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (equals or not following.startswith("-")):
            given[name] = value if equals else following
    return given


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the GPU Operator that needs attention. `at` is below the spec of a ClusterPolicy."""

    at: Path
    applies: Callable[[object], bool]
    """To the value there, None if there is none."""
    code: FindingCode
    message: str
    advice: str | None = None
    severity: Severity | None = None


def _is_not_off(value: object) -> bool:
    return value is not False


_PARTS = (
    _Part(
        ("devicePlugin", "enabled"), _is_not_off, codes.DOUBLE_ALLOCATION,
        "the GPU Operator runs the device plugin on all GPU nodes",
        'Label the nodes that move with `nvidia.com/gpu.deploy.device-plugin: "false"`, node by node as the cut-over '
        "plan says; at the end set `spec.devicePlugin.enabled: false`.",
    ),
    _Part(
        ("migManager", "config", "name"), bool, codes.MIG_LAYOUT,
        "the MIG manager keeps layouts on nodes with the label nvidia.com/mig.config", None, Severity.WARNING,
    ),
    _Part(
        ("migManager", "gpuClientsConfig", "name"), bool, codes.NO_COUNTERPART,
        "the MIG manager stops clients before it changes a layout; the driver changes nothing that is in use",
    ),
    _Part(
        ("cdi", "enabled"), lambda value: value is False, codes.PLUGIN_SETTING,
        "CDI is off; the driver gives devices to containers only by CDI", "Set `spec.cdi.enabled: true`.",
    ),
    _Part(
        ("gfd", "enabled"), lambda value: value is False, codes.PLUGIN_SETTING,
        "GPU Feature Discovery is off: labels of GPUs are stale, or another tool sets them", "Check what sets them.",
    ),
    _Part(
        ("sandboxWorkloads", "enabled"), lambda value: value is True, codes.VIRTUAL_MACHINE,
        "nodes may be for virtual machines, by the label nvidia.com/gpu.workload.config",
    ),
    _Part(
        ("dcgmExporter", "enabled"), _is_not_off, codes.PLUGIN_SETTING,
        "metrics of dcgm-exporter name the pods of claims only with its DRA support switched on",
        "Set `KUBERNETES_ENABLE_DRA` of dcgm-exporter to true.", Severity.INFO,
    ),
)  # fmt: skip


def parts_of_operator(document: Document, spec: JsonObject) -> Iterator[MigrationFinding]:
    """`spec` is that of the ClusterPolicy."""
    for part in _PARTS:
        off = part.at[0] == "migManager" and value_at(spec, ("migManager", "enabled")) is False
        if part.applies(value_at(spec, part.at)) and not (off and part.code is codes.MIG_LAYOUT):
            path: Path = ("spec", part.at[0])
            yield finding(part.code, document, path, part.message, advice=part.advice, severity=part.severity)


_GPU = "nvidia.com/gpu"
_GPU_LABELS: Mapping[str, str] = {
    "k8s.amazonaws.com/accelerator": "AWS",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure",
    "cluster-api/accelerator": "Cluster API",
    "cloud.google.com/gke-accelerator": "Google Cloud",
}
"""By which the autoscaler knows nodes with GPUs, by cloud."""
_GOOGLE_DRIVER = "cloud.google.com/gke-gpu-dra-driver"


def labels_of_nodes(nodes: Iterable[Document]) -> Iterator[MigrationFinding]:
    """One for each label. The autoscaler takes a node with it for unready while `nvidia.com/gpu` is not there."""
    seen: set[str] = set()
    for document in nodes:
        labels = map_in(value_at(document.obj, ("metadata", "labels")))
        capacity = map_in(value_at(document.obj, ("status", "capacity")))
        if not any(str(key).startswith("nvidia.com/") for key in (*labels, *capacity)):
            continue
        for label in sorted(_GPU_LABELS.keys() & labels.keys()):
            if label in seen or labels.get(_GOOGLE_DRIVER) == "true":
                continue
            seen.add(label)
            message = (
                f"the Cluster Autoscaler ({_GPU_LABELS[label]}) recognizes nodes with GPUs by this label, and treats a "
                f"node without {_GPU} as not ready; nodes of the driver have none"
            )
            advice = (
                f"Label the nodes of the driver `{_GOOGLE_DRIVER}: \"true\"`, which autoscalers support from 1.35 on."
                if label.startswith("cloud.google.com")
                else "If it manages these nodes, remove the label from the node groups of the driver."
            )  # fmt: skip
            yield finding(codes.AUTOSCALER, document, ("metadata", "labels", label), message, advice=advice)
