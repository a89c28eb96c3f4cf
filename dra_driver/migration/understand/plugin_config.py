"""The device plugin's configuration file (`version: v1`): how it names, partitions and shares the GPUs of a node.

Read as the device plugin reads it: what it has no field for is reported, and so are settings that it reads and ignores,
such as names that are chosen there (`resources`, `rename`, `devices`). Pure.
Source: NVIDIA's device plugin 0.20, `api/config/v1`; reference on migration sources, section 6.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, list_in, map_in, path_text, value_at
from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import MigrationFinding, finding

type Strategy = Literal["TimeSlicing", "MPS"]

GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE = "nvidia.com/mig-"
MOST_REPLICAS = 128
"""Of a device in our sharing rules; a device plugin has no such limit."""
MIG_STRATEGIES = ("none", "single", "mixed")


@dataclass(frozen=True, slots=True)
class PluginSharing:
    """How devices of one resource are shared. `replicas` None: it is not known into how many."""

    strategy: Strategy | None
    """None: not known."""
    replicas: int | None
    renamed: bool = False
    """Shares have a name of their own, `<name>.shared`."""
    one_only: bool = False
    """Requests for more than one were refused."""

    def name_of(self, resource: str) -> str:
        """Of shares of the resource's devices."""
        return f"{resource}.shared" if self.renamed else resource


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """One named configuration. `sharing` is by the resource's name before it is renamed."""

    name: str
    mig_strategy: str | None = None
    sharing: Mapping[str, PluginSharing] | None = None
    """None: the file says nothing of sharing, which is no sharing."""
    driver_root: str | None = None
    findings: tuple[MigrationFinding, ...] = ()


def is_plugin_config(obj: object) -> bool:
    """Whether it looks like one; other files have `version: v1`, too."""
    known = {"flags", "resources", "sharing", "imex"}
    return isinstance(obj, dict) and obj.get("version") == "v1" and not obj.get("kind") and bool(known & obj.keys())


def plugin_config(name: str, obj: JsonObject, document: Document, at: Path) -> PluginConfig:
    """`at` is the path of the document's field that has the configuration, as text or as it is; empty for all of it."""
    return _Reader(name, obj, document, at).config()


_NEED = "Give these devices to the containers that need them in another way."


@dataclass(frozen=True, slots=True)
class _NotCarried:
    """A setting with an effect on workloads that is not carried over. `message` can name its {value}."""

    path: Path
    message: str
    advice: str | None = None
    only: object = None
    """For this value only; None: for all values."""
    code: FindingCode = codes.PLUGIN_SETTING


_NOT_CARRIED = (
    *(
        _NotCarried(("flags", key), f"every container with a GPU got {nodes}; with claims none does", _NEED, True)
        for key, nodes in (
            ("gdrcopyEnabled", "/dev/gdrdrv"), ("gdsEnabled", "/dev/nvidia-fs*"), ("mofedEnabled", "/dev/infiniband"),
        )
    ),
    _NotCarried(
        ("flags", "deviceDiscoveryStrategy"), "is tegra, for integrated GPUs",
        "Keep the device plugin on these nodes.", "tegra",
    ),
    _NotCarried(
        ("flags", "deviceDiscoveryStrategy"), "is vfio, for GPUs of virtual machines",
        "See passthrough in the policy.", "vfio",
    ),
    _NotCarried(
        ("flags", "plugin", "sharedDevicesAllocationPolicy"),
        "is {value}; the order in which the scheduler takes shares of several GPUs cannot be set",
        code=codes.NO_COUNTERPART,
    ),
    _NotCarried(
        ("imex", "channelIDs"), "every container with a GPU got an IMEX channel; with claims none does",
        "Request one with a ComputeDomain in the workloads that use NVLink across nodes.",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Reader:
    _name: str
    _obj: JsonObject
    _document: Document
    _at: Path
    _findings: list[MigrationFinding] = field(default_factory=list)

    def config(self) -> PluginConfig:
        flags = self._section("flags")
        for setting in _NOT_CARRIED:
            value = value_at(self._obj, setting.path)
            if value not in (None, [], "") and setting.only in (None, value):
                message = setting.message.replace("{value}", str(value))
                self._say(setting.code, setting.path, message, advice=setting.advice)
        self._resources(self._section("resources"))
        return PluginConfig(
            self._name,
            self._mig_strategy(flags),
            self._sharing(),
            _text(flags.get("nvidiaDriverRoot")),
            tuple(self._findings),
        )

    def _say(self, code: FindingCode, path: Path, message: str, *, advice: str | None = None) -> None:
        title = f"{path_text(path)}{f' of configuration {self._name}' if self._name else ''}"
        self._findings.append(finding(code, self._document, self._at or path, f"{title}: {message}", advice=advice))

    def _section(self, *path: str) -> JsonObject:
        value = value_at(self._obj, path)
        if value is not None and not isinstance(value, dict):
            self._say(codes.UNREADABLE, path, "is not a mapping; it is ignored")
        return map_in(value)

    def _mig_strategy(self, flags: Mapping[str, Any]) -> str | None:
        value = flags.get("migStrategy")
        if value is not None and value not in MIG_STRATEGIES:
            self._say(codes.UNREADABLE, ("flags", "migStrategy"), f"{value!r} is none of {', '.join(MIG_STRATEGIES)}")
            return None
        return value

    # -- resources and sharing

    def _resources(self, resources: Mapping[str, Any]) -> None:
        for kind, standard in (("gpus", GPU_RESOURCE), ("mig", "nvidia.com/mig-<profile>")):
            for index, entry in enumerate(list_in(resources.get(kind))):
                path = ("resources", kind, index)
                name, pattern = _text(value_at(entry, ("name",))), _text(value_at(entry, ("pattern",)))
                if name is None or pattern is None:
                    self._say(codes.UNREADABLE, path, "is not a mapping with pattern and name; it is ignored")
                elif _qualified(name) != GPU_RESOURCE:
                    message = f"{pattern!r} has the name {name}, but the device plugin still calls it {standard}"
                    self._say(codes.IGNORED_BY_PLUGIN, path, message)

    def _sharing(self) -> Mapping[str, PluginSharing] | None:
        sharing = self._section("sharing")
        ways: list[tuple[str, Strategy]] = [("timeSlicing", "TimeSlicing"), ("mps", "MPS")]
        given = [(key, strategy) for key, strategy in ways if sharing.get(key)]
        if len(given) == 2:
            self._say(codes.UNREADABLE, ("sharing",), "timeSlicing and mps exclude each other; neither is taken")
            return None
        if not given:
            return None
        key, strategy = given[0]
        return dict(self._shared(self._section("sharing", key), key, strategy))

    def _shared(self, section: JsonObject, key: str, strategy: Strategy) -> Iterator[tuple[str, PluginSharing]]:
        by_default = section.get("renameByDefault") is True
        # With MPS, requests for several replicas are refused by default.
        one_only = section.get("failRequestsGreaterThanOne", strategy == "MPS") is True
        for index, entry in enumerate(list_in(section.get("resources"))):
            path = ("sharing", key, "resources", index)
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                self._say(codes.UNREADABLE, path, "is not a mapping with a name; it is ignored")
                continue
            name = _qualified(entry["name"])
            replicas = entry.get("replicas")
            if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 2:
                self._say(codes.INVALID_AMOUNT, (*path, "replicas"), f"{replicas!r} is not a whole number above 1")
                continue
            if replicas > MOST_REPLICAS:
                message = f"{replicas} replicas; the driver offers a device to {MOST_REPLICAS} claims"
                advice = "Offer it by memory instead (`capacity: [memory]`), or without a limit (`unlimited: true`)."
                self._say(codes.PLUGIN_SETTING, path, message, advice=advice)
            of_mig = name.startswith(MIG_RESOURCE)
            if not of_mig and name != GPU_RESOURCE:
                message = f"no device is called {name}, so the device plugin ignores it"
                self._say(codes.IGNORED_BY_PLUGIN, (*path, "name"), message)
                continue
            if entry.get("devices") not in (None, "all"):
                message = "the device plugin ignores this and shares all devices"
                self._say(codes.IGNORED_BY_PLUGIN, (*path, "devices"), message)
            rename = entry.get("rename")
            if rename is not None and not (by_default and _qualified(str(rename)) == f"{name}.shared"):
                message = f"{rename!r}: the device plugin knows no names but its own"
                self._say(codes.IGNORED_BY_PLUGIN, (*path, "rename"), message)
            if strategy == "MPS" and of_mig:
                message = f"{name} by MPS: the device plugin does not share MIG devices by MPS"
                self._say(codes.PLUGIN_SETTING, path, message)
            else:
                yield name, PluginSharing(strategy, replicas, by_default, one_only)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _qualified(name: str) -> str:
    return name if "/" in name else f"nvidia.com/{name}"
