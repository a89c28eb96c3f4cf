"""The device plugin's configuration file (`version: v1`): how it names, partitions and shares the GPUs of a node.

Read as the device plugin reads it: what it has no field for is reported, and so are settings that it reads and ignores,
such as names that are chosen there (`resources`, `rename`, `devices`). Pure.
Source: NVIDIA's device plugin 0.20, `api/config/v1`; reference on migration sources, section 6.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import (
    IGNORED_BY_PLUGIN,
    INVALID_AMOUNT,
    NO_COUNTERPART,
    PLUGIN_SETTING,
    UNREADABLE,
    FindingCode,
    FindingSeverity,
)
from dra_driver.migration.model import MigrationFinding, Path, finding

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


_KNOWN: Mapping[str, frozenset[str]] = {
    "": frozenset({"version", "flags", "resources", "sharing", "imex", "health"}),
    "flags": frozenset(
        {
            "migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot", "gdrcopyEnabled",
            "gdsEnabled", "mofedEnabled", "useNodeFeatureAPI", "deviceDiscoveryStrategy", "plugin", "gfd",
        }
    ),
    "flags.plugin": frozenset(
        {
            "passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath",
            "containerDriverRoot", "sharedDevicesAllocationPolicy", "cdiFeatureFlags",
        }
    ),
    "sharing": frozenset({"timeSlicing", "mps"}),
}  # fmt: skip

_EXTRA_NODES = {
    "gdrcopyEnabled": "/dev/gdrdrv",
    "gdsEnabled": "/dev/nvidia-fs*",
    "mofedEnabled": "/dev/infiniband",
}


class _Reader:
    def __init__(self, name: str, obj: JsonObject, document: Document, at: Path) -> None:
        self._name = name
        self._obj = obj
        self._document = document
        self._at = at
        self._findings: list[MigrationFinding] = []

    def config(self) -> PluginConfig:
        flags = self._section(self._obj, "flags")
        plugin = self._section(flags, "plugin", "flags")
        for where, section in (("", self._obj), ("flags", flags), ("flags.plugin", plugin)):
            self._unknown(where, section)
        self._flags(flags)
        self._plugin(plugin)
        resources = self._section(self._obj, "resources")
        self._resources(resources)
        self._imex(self._section(self._obj, "imex"))
        return PluginConfig(
            self._name,
            self._mig_strategy(flags),
            self._sharing(),
            _text(flags.get("nvidiaDriverRoot")),
            tuple(self._findings),
        )

    def _say(
        self,
        code: FindingCode,
        where: str,
        message: str,
        *,
        advice: str | None = None,
        severity: FindingSeverity | None = None,
    ) -> None:
        title = f"{where} of configuration {self._name}" if self._name else where
        text = f"{title}: {message}"
        path = self._at or _path(where)
        self._findings.append(finding(code, self._document, path, text, advice=advice, severity=severity))

    def _section(self, parent: Mapping[str, Any], key: str, where: str = "") -> JsonObject:
        value = parent.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._say(UNREADABLE, f"{where}.{key}" if where else key, "is not a mapping; it is passed over")
            return {}
        return value

    def _unknown(self, where: str, section: Mapping[str, Any]) -> None:
        for key in sorted(map(str, section.keys() - _KNOWN[where])):
            self._say(PLUGIN_SETTING, f"{where}.{key}" if where else key, "is no setting that is known here")

    # -- flags

    def _mig_strategy(self, flags: Mapping[str, Any]) -> str | None:
        value = flags.get("migStrategy")
        if value is not None and value not in MIG_STRATEGIES:
            self._say(UNREADABLE, "flags.migStrategy", f"{value!r} is none of {', '.join(MIG_STRATEGIES)}")
            return None
        return value

    def _flags(self, flags: Mapping[str, Any]) -> None:
        for key, nodes in _EXTRA_NODES.items():
            if flags.get(key) is True:
                self._say(
                    PLUGIN_SETTING, f"flags.{key}", f"every container with a GPU got {nodes}; with claims none does",
                    advice="Give these devices to the containers that need them in another way.",
                )  # fmt: skip
        strategy = flags.get("deviceDiscoveryStrategy")
        if strategy in ("tegra", "vfio"):
            what = "integrated GPUs" if strategy == "tegra" else "GPUs for virtual machines"
            advice = (
                "Keep the device plugin on these nodes." if strategy == "tegra" else "See passthrough in the policy."
            )
            self._say(PLUGIN_SETTING, "flags.deviceDiscoveryStrategy", f"is {strategy}, for {what}", advice=advice)
        idle = [key for key in ("failOnInitError", "nvidiaDevRoot", "mpsRoot", "useNodeFeatureAPI") if key in flags]
        idle += ["gfd"] if flags.get("gfd") else []
        if idle:
            said = ", ".join(f"flags.{key}" for key in idle)
            self._say(
                PLUGIN_SETTING, said, "no effect on what workloads get; not carried over", advice="Nothing to do.",
                severity=FindingSeverity.INFO,
            )  # fmt: skip

    def _plugin(self, plugin: Mapping[str, Any]) -> None:
        strategies = plugin.get("deviceListStrategy")
        listed = [strategies] if isinstance(strategies, str) else strategies or []
        where = "flags.plugin.deviceListStrategy"
        if isinstance(listed, list) and listed and not any(str(item).startswith("cdi") for item in listed):
            names = ", ".join(map(str, listed))
            self._say(
                PLUGIN_SETTING, where, f"{names}: nothing shows that the container runtime reads CDI",
                advice="See that CDI is on in the container runtime (containerd 2 has it on): `dractl doctor` looks.",
            )  # fmt: skip
        policy = plugin.get("sharedDevicesAllocationPolicy")
        if policy is not None:
            self._say(
                NO_COUNTERPART, "flags.plugin.sharedDevicesAllocationPolicy",
                f"is {policy}; the order in which the scheduler takes shares of several GPUs cannot be set",
            )  # fmt: skip
        idle = sorted(
            {"passDeviceSpecs", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath", "containerDriverRoot"}
            & plugin.keys()
        )
        if idle:
            said = ", ".join(f"flags.plugin.{key}" for key in idle)
            self._say(
                PLUGIN_SETTING, said, "no effect on what workloads get; not carried over", advice="Nothing to do.",
                severity=FindingSeverity.INFO,
            )  # fmt: skip

    def _imex(self, imex: Mapping[str, Any]) -> None:
        channels = imex.get("channelIDs")
        if channels not in (None, []):
            self._say(
                PLUGIN_SETTING, "imex.channelIDs",
                "every container with a GPU got an IMEX channel; with claims none does",
                advice="Ask for one by a ComputeDomain in the workloads that use NVLink across nodes.",
            )  # fmt: skip

    # -- resources and sharing

    def _resources(self, resources: Mapping[str, Any]) -> None:
        for kind, standard in (("gpus", GPU_RESOURCE), ("mig", "nvidia.com/mig-<profile>")):
            for index, entry in enumerate(_listed(resources.get(kind))):
                where = f"resources.{kind}[{index}]"
                name, pattern = _text(_field(entry, "name")), _text(_field(entry, "pattern"))
                if name is None or pattern is None:
                    self._say(UNREADABLE, where, "is not a mapping with pattern and name; it is passed over")
                elif _qualified(name) != GPU_RESOURCE:
                    self._say(
                        IGNORED_BY_PLUGIN, where,
                        f"{pattern!r} has the name {name}, but the device plugin still calls it {standard}",
                    )  # fmt: skip

    def _sharing(self) -> Mapping[str, PluginSharing] | None:
        sharing = self._section(self._obj, "sharing")
        self._unknown("sharing", sharing)
        ways: list[tuple[str, Strategy]] = [("timeSlicing", "TimeSlicing"), ("mps", "MPS")]
        given = [(key, strategy) for key, strategy in ways if sharing.get(key)]
        if len(given) == 2:
            self._say(UNREADABLE, "sharing", "timeSlicing and mps exclude each other; neither is taken")
            return None
        if not given:
            return None
        key, strategy = given[0]
        return dict(self._shared(self._section(sharing, key, "sharing"), key, strategy))

    def _shared(self, section: JsonObject, key: str, strategy: Strategy) -> Iterator[tuple[str, PluginSharing]]:
        by_default = section.get("renameByDefault") is True
        # Of MPS, requests for several replicas are refused unless somebody allows them.
        one_only = section.get("failRequestsGreaterThanOne", strategy == "MPS") is True
        for index, entry in enumerate(_listed(section.get("resources"))):
            where = f"sharing.{key}.resources[{index}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                self._say(UNREADABLE, where, "is not a mapping with a name; it is passed over")
                continue
            name = _qualified(entry["name"])
            replicas = entry.get("replicas")
            if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 2:
                self._say(INVALID_AMOUNT, f"{where}.replicas", f"{replicas!r} is not a whole number above 1")
                continue
            if replicas > MOST_REPLICAS:
                self._say(
                    PLUGIN_SETTING, where, f"{replicas} replicas; the driver offers a device to {MOST_REPLICAS} claims",
                    advice="Offer it by memory instead (`capacity: [memory]`), or without a limit (`unlimited: true`).",
                )  # fmt: skip
            of_mig = name.startswith(MIG_RESOURCE)
            if not of_mig and name != GPU_RESOURCE:
                self._say(
                    IGNORED_BY_PLUGIN,
                    f"{where}.name",
                    f"no device is called {name}, so the device plugin passes it over",
                )
                continue
            self._entry(entry, where, name, by_default)
            if strategy == "MPS" and of_mig:
                self._say(PLUGIN_SETTING, where, f"{name} by MPS: the device plugin does not share MIG devices by MPS")
                continue
            yield name, PluginSharing(strategy, replicas, by_default, one_only)

    def _entry(self, entry: JsonObject, where: str, name: str, by_default: bool) -> None:
        if entry.get("devices") not in (None, "all"):
            self._say(IGNORED_BY_PLUGIN, f"{where}.devices", "the device plugin ignores this and shares all devices")
        rename = entry.get("rename")
        if rename is not None and not (by_default and _qualified(str(rename)) == f"{name}.shared"):
            self._say(IGNORED_BY_PLUGIN, f"{where}.rename", f"{rename!r}: the device plugin knows no names but its own")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _path(where: str) -> Path:
    """Of `a.b[0].c`; of a list of paths, the first."""
    parts: list[str | int] = []
    for part in where.split(",")[0].split("."):
        name, _, rest = part.partition("[")
        parts.append(name)
        if rest:
            parts.append(int(rest.rstrip("]")))
    return tuple(parts)


def _field(entry: object, key: str) -> object:
    return entry.get(key) if isinstance(entry, dict) else None


def _qualified(name: str) -> str:
    return name if "/" in name else f"nvidia.com/{name}"
