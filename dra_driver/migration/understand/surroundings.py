"""What is known of the cluster beside the workloads: configurations, nodes, devices; and what resources mean there.

Enters from `migrate`, with all documents; those that are none of these sources are passed over. Pure.
Sources: the device plugin's configuration in ConfigMaps, Helm values or files of its own; ClusterPolicy and GPUCluster
of the GPU Operator; layouts of mig-parted; HAMi's configuration; Nodes; ResourceSlices.

A cluster has one answer. What was given only for that (`--with`, `--cluster`) goes before what is among the files that
are migrated. If several sources define the same thing differently, the last one counts, and a finding names the others.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.api.untyped import Path, list_in, map_in, value_at
from dra_driver.errors import InvalidInput
from dra_driver.grouping import grouped
from dra_driver.migration import codes
from dra_driver.migration.model import MigrationFinding, Options, finding, title_of
from dra_driver.migration.understand.meaning import (
    Hami,
    Meaning,
    MigLayout,
    View,
    as_said,
    layout_of,
    own_names,
    uniform_profile,
    view_of_config,
    view_of_node,
)
from dra_driver.migration.understand.offering import labels_of_nodes, parts_of_operator, plugin_settings
from dra_driver.migration.understand.plugin_config import (
    MIG_STRATEGIES,
    PluginConfig,
    is_plugin_config,
    plugin_config,
)
from dra_driver.migration.understand.purposes import Purposes
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import and_more
from dra_driver.quantity import Quantity

_FEW = 3


def read(documents: Sequence[Document], options: Options, beside: Collection[Document] = ()) -> Meaning:
    """From all documents; those that are none of these sources are ignored. `beside` are those that were given only
    for this (`--with`, `--cluster`), and go before the others."""
    sources = _Sources(beside=frozenset(beside))
    for document in documents:
        sources.take(document)
    return sources.meaning(documents, options)


def says_nothing(document: Document) -> bool:
    """Whether a document is none of these sources."""
    sources = _Sources()
    sources.take(document)
    return sources == _Sources()


@dataclass(frozen=True, slots=True)
class Given[T]:
    """What a document says."""

    document: Document
    says: T
    at: Path = ()


@dataclass
class _Sources:
    """Collects what documents say, before it is put together."""

    configs: list[Given[PluginConfig]] = field(default_factory=list)
    beside: frozenset[Document] = frozenset()
    """What was given for what it says."""
    operator_configs: list[Given[tuple[str, str | None]]] = field(default_factory=list)
    """ConfigMap and default configuration, as the ClusterPolicy or Helm values say."""
    mig_strategies: list[Given[str]] = field(default_factory=list)
    flag_strategies: list[Given[str]] = field(default_factory=list)
    """As the device plugin's own flags say, which go before its configuration."""
    layouts: list[Given[MigLayout]] = field(default_factory=list)
    default_layouts: list[Given[str]] = field(default_factory=list)
    """Of nodes that name none, as the ClusterPolicy or Helm values say."""
    nodes: list[Document] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    slice_memory: set[Quantity] = field(default_factory=set)
    hamis: list[Given[Hami]] = field(default_factory=list)
    cut_on_demand: bool = False
    driver_roots: set[str] = field(default_factory=set)
    findings: list[MigrationFinding] = field(default_factory=list)

    def take(self, document: Document) -> None:
        obj = document.obj
        match document.kind:
            case "ConfigMap":
                self._config_map(document)
            case "ClusterPolicy" if document.api_version.startswith("nvidia.com/"):
                self._cluster_policy(document)
            case "GPUCluster" if document.api_version.startswith("nvidia.com/"):
                message = "the GPU Operator runs its DRA stack here, so no other DRA driver for GPUs can run beside it"
                self.findings.append(finding(codes.ALREADY_DRA, document, ("spec", "draDriver"), message))
            case "DaemonSet":
                self._daemon_set(document)
            case "DeviceClass" if document.api_version.startswith("resource.k8s.io/"):
                self._device_class(document)
            case "Node":
                self.nodes.append(document)
            case "ResourceSlice":
                self._slice(document)
            case "" if is_plugin_config(obj):
                self._plugin(document, "", obj, ())
            case "" if "mig-configs" in obj:
                self._layouts(document, obj, ())
            case "" if _is_helm_values(obj):
                self._helm_values(document)

    # -- texts inside of documents

    def _config_map(self, document: Document) -> None:
        for key, text in map_in(document.obj.get("data")).items():
            if isinstance(text, str) and _LOOKS_LIKE.search(text):
                self._inner(document, str(key), text, ("data", str(key)))

    def _inner(self, document: Document, name: str, text: str, at: Path) -> None:
        try:
            obj = yaml.safe_load(text)
        except yaml.YAMLError as error:
            message = f"{name} looks like a configuration of GPUs and is not YAML: {str(error).splitlines()[0]}"
            self.findings.append(finding(codes.UNREADABLE, document, at, message))
            return
        if is_plugin_config(obj):
            self._plugin(document, name, obj, at)
        elif isinstance(obj, dict) and "mig-configs" in obj:
            self._layouts(document, obj, at)
        elif isinstance(obj, dict) and isinstance(obj.get("nvidia"), dict):
            self._hami(document, obj["nvidia"], at)

    def _plugin(self, document: Document, name: str, obj: JsonObject, at: Path) -> None:
        config = plugin_config(name, obj, document, at)
        self.configs.append(Given(document, config, at))
        self.findings += config.findings
        if config.driver_root is not None:
            self.driver_roots.add(config.driver_root)

    def _layouts(self, document: Document, obj: JsonObject, at: Path) -> None:
        layouts = obj.get("mig-configs")
        if not isinstance(layouts, dict):
            self.findings.append(finding(codes.UNREADABLE, document, at, "mig-configs is not a mapping of layouts"))
            return
        for name, entries in layouts.items():
            layout = layout_of(str(name), entries)
            if layout is None:
                self.findings.append(
                    finding(codes.UNREADABLE, document, at, f"layout {name} is not a list of mappings")
                )
            else:
                self.layouts.append(Given(document, layout, at))

    def _default_layout(self, document: Document, obj: JsonObject) -> None:
        name = value_at(obj, ("migManager", "config", "default"))
        if isinstance(name, str) and name:
            self.default_layouts.append(Given(document, name))

    # -- Helm values and the GPU Operator

    def _helm_values(self, document: Document) -> None:
        obj = document.obj
        inner = obj.get("devicePlugin")
        plugin: JsonObject = inner if isinstance(inner, dict) else obj
        config = plugin.get("config")
        if isinstance(config, dict):
            base: Path = ("devicePlugin", "config") if inner is plugin else ("config",)
            key = "map" if config.get("map") else "data"
            for name, text in map_in(config.get(key)).items():
                at = (*base, key, str(name))
                if isinstance(text, str):
                    self._inner(document, str(name), text, at)
                elif is_plugin_config(text):
                    self._plugin(document, str(name), text, at)
            default = config.get("default")
            where = config.get("name") or document.file
            self.operator_configs.append(Given(document, (str(where), str(default) if default else None)))
        if {"resourceName", "resourceMem", "resourceCores"} & obj.keys() or "deviceSplitCount" in plugin:
            self._hami(document, {**plugin, **obj}, ())
        self._strategy(document, obj.get("migStrategy") or value_at(obj, ("mig", "strategy")))
        self._default_layout(document, obj)
        root = obj.get("nvidiaDriverRoot")
        if isinstance(root, str):
            self.driver_roots.add(root)

    def _strategy(self, document: Document, strategy: object) -> None:
        if strategy in MIG_STRATEGIES:
            self.mig_strategies.append(Given(document, str(strategy)))
        elif strategy is not None:
            message = f"MIG strategy {strategy!r} is none of none, single, mixed"
            self.findings.append(finding(codes.UNREADABLE, document, (), message))

    def _cluster_policy(self, document: Document) -> None:
        spec = document.obj.get("spec")
        if not isinstance(spec, dict):
            self.findings.append(finding(codes.UNREADABLE, document, ("spec",), "the ClusterPolicy has no spec"))
            return
        # The chart writes `single`; an object without the field has the operator's own default, which is the same.
        self._strategy(document, value_at(spec, ("mig", "strategy")) or "single")
        config = value_at(spec, ("devicePlugin", "config"))
        if isinstance(config, dict) and config.get("name"):
            default = str(config["default"]) if config.get("default") else None
            self.operator_configs.append(Given(document, (str(config["name"]), default)))
        self._default_layout(document, spec)
        self.findings += parts_of_operator(document, spec)
        if value_at(spec, ("driver", "enabled")) is not False:
            self.driver_roots.add("/run/nvidia/driver")

    def _daemon_set(self, document: Document) -> None:
        settings = plugin_settings(document.obj)
        if settings is None:
            return
        path: Path = ("spec", "template", "spec", "containers", settings.container)
        message = "this DaemonSet is a device plugin"
        advice = "Keep it away from the nodes that move, node by node as the cut-over plan says; delete it at the end."
        self.findings.append(finding(codes.DOUBLE_ALLOCATION, document, path, message, advice=advice))
        if settings.mig_strategy in MIG_STRATEGIES:
            self.flag_strategies.append(Given(document, settings.mig_strategy, path))
        if settings.driver_root is not None:
            self.driver_roots.add(settings.driver_root)

    # -- classes of the cluster

    def _device_class(self, document: Document) -> None:
        try:
            self.classes.append(DeviceClass.of(document.obj))
        except InvalidInput as error:
            self.findings.append(finding(codes.UNREADABLE, document, (), str(error)))

    # -- HAMi

    def _hami(self, document: Document, obj: JsonObject, at: Path) -> None:
        known: dict[str, Any] = {
            field: str(obj[key]) for field, keys in _HAMI_NAMES.items() for key in reversed(keys) if obj.get(key)
        }
        known |= {field: obj[key] for field, key in _HAMI_NUMBERS.items() if type(obj.get(key)) is int and obj[key]}
        hami = Hami(**known, installed=True)
        self.hamis.append(Given(document, hami, at))
        for key in ("deviceMemoryScaling", "deviceCoreScaling"):
            scaling = obj.get(key)
            if isinstance(scaling, int | float) and scaling > 1:
                message = f"{key} is {scaling}: more was given away than exists; the driver publishes what exists"
                self.findings.append(finding(codes.NO_COUNTERPART, document, at, message))

    # -- what is there

    def _slice(self, document: Document) -> None:
        """Memory of whole GPUs, which are the largest devices of a slice, and whether parts are made of them."""
        spec = document.obj.get("spec")
        if not isinstance(spec, dict) or spec.get("driver") != GPU_DRIVER:
            return
        for device in list_in(spec.get("devices")):
            kind = value_at(device, ("attributes", "type", "string"))
            amount = value_at(device, ("capacity", "memory", "value"))
            self.cut_on_demand |= kind == "gpu" and bool(device.get("consumesCounters"))
            if kind == "gpu" and (memory := Quantity.read(amount)) is not None:
                self.slice_memory.add(memory)

    # -- what counts: a cluster has one answer

    def _preferred[T](self, given: Sequence[Given[T]]) -> Sequence[Given[T]]:
        return [item for item in given if item.document in self.beside] or given

    def _settled[T](self, what: str, given: Sequence[Given[T]]) -> Given[T] | None:
        """The one that counts; None where there is none. `what` they are about, at the beginning of a sentence."""
        if not given:
            return None
        last = self._preferred(given)[-1]
        self._not_taken(what, last, [item for item in given if item.says != last.says])
        return last

    def _not_taken[T](self, what: str, last: Given[T], others: Sequence[Given[T]]) -> None:
        if others:
            places = list(dict.fromkeys(place(given.document) for given in others))
            say = "says" if len(places) == 1 else "say"
            message = f"{what} is taken from {place(last.document)}; {and_more(places, _FEW)} {say} otherwise"
            self.findings.append(finding(codes.NOT_TAKEN, last.document, last.at, message))

    def _configs_in_force(
        self, operator: Given[tuple[str, str | None]] | None
    ) -> tuple[dict[str, Given[PluginConfig]], str | None]:
        """By name, and the name of the one for nodes that name none. Of several ConfigMaps, the one that the operator
        or Helm names; if neither names one, all of them. Of configurations with one name the last one counts."""
        default, given = None, self.configs
        if operator is not None:
            where, default = operator.says
            given = [item for item in given if (item.document.name or item.document.file) == where] or given
        taken = self._preferred(given)
        named = {item.says.name: item for item in taken}
        for name, last in named.items():
            others = [item for item in given if item.says.name == name and _meant(item.says) != _meant(last.says)]
            self._not_taken(_title(name), last, others)
        for item in given:
            if item not in taken and item.says.name not in named:
                self._not_taken(_title(item.says.name), taken[-1], [item])
        if default not in named:
            default = "default" if "default" in named else next(iter(named)) if len(named) == 1 else default
        return named, default

    def _layouts_in_force(self) -> tuple[MigLayout, ...]:
        """By name, sorted."""
        taken: list[MigLayout] = []
        for name, alike in sorted(grouped(self.layouts, lambda item: item.says.name).items()):
            last = self._settled(f"layout {name}", alike)
            if last is not None:
                taken.append(last.says)
                if last.says.profiles:
                    message = f"layout {name} has MIG devices: {', '.join(last.says.profiles)}"
                    self.findings.append(finding(codes.MIG_LAYOUT, last.document, last.at, message))
        return tuple(taken)

    def meaning(self, documents: Sequence[Document], options: Options) -> Meaning:
        operator = self._settled("the name of the configuration", self.operator_configs)
        by_flags = self._settled("the MIG strategy of the device plugin", self.flag_strategies)
        by_values = self._settled("the MIG strategy", self.mig_strategies)
        hami = self._settled("the names of HAMi's resources", self.hamis)
        named, default = self._configs_in_force(operator)
        configs = {name: given.says for name, given in named.items()}
        layouts = self._layouts_in_force()
        usual = self._settled("the default layout", self.default_layouts)
        self.findings += labels_of_nodes(self.nodes)
        strategy = options.mig_strategy or next(
            (given.says for given in (by_flags, by_values) if given is not None), None
        )
        if by_flags is not None:
            configs = {name: replace(config, mig_strategy=by_flags.says) for name, config in configs.items()}
        used = [*named.values(), *(item for item in (operator, by_flags, by_values, hami) if item is not None)]
        nodes = [view_of_node(node, configs, default, strategy, layouts) for node in self.nodes]
        views = [view for view in nodes if view is not None]
        if not views:
            profile = uniform_profile(usual.says, layouts) if usual is not None else None
            unsaid = not configs or any(config.mig_strategy is None for config in configs.values())
            if by_values and not by_flags and unsaid and is_assumed_whole(by_values, usual, layouts, options):
                strategy = "none"
                self.findings.append(assumed_whole(by_values, usual))
            views = [view_of_config(config, strategy, len(configs) > 1) for config in configs.values()]
            if not views and (strategy is not None or options.replicas is not None):
                views = [View("the cluster", mig_strategy=strategy)]
            views = [replace(view, mig_profile=profile) for view in views]
            if usual is not None and profile is not None and any(view.mig_strategy == "single" for view in views):
                self.findings.append(by_default_layout(usual, profile))
        memory = self.slice_memory.pop() if len(self.slice_memory) == 1 else None
        return Meaning(
            views=tuple(as_said(view, options, memory) for view in views),
            configs=tuple(configs.values()),
            default_config=default,
            own=own_names(self.classes, options),
            hami=hami.says if hami is not None else Hami(),
            layouts=layouts,
            strategy=strategy,
            driver_roots=frozenset(self.driver_roots),
            read_from=tuple(dict.fromkeys(place(item.document) for item in used)),
            findings=tuple(self.findings),
            cut_on_demand=self.cut_on_demand,
            purposes=Purposes.of(documents),
        )


_HAMI_NAMES: Mapping[str, tuple[str, ...]] = {
    "count": ("resourceCountName", "resourceName"),
    "memory": ("resourceMemoryName", "resourceMem"),
    "memory_percentage": ("resourceMemoryPercentageName", "resourceMemPercentage"),
    "cores": ("resourceCoreName", "resourceCores"),
    "priority": ("resourcePriorityName", "resourcePriority"),
}
"""Fields of `Hami`, and the keys that give resources other names: of its configuration, and of its chart."""
_HAMI_NUMBERS = {
    "memory_factor": "memoryFactor",
    "default_cores": "defaultCores",
    "default_memory": "defaultMemory",
}
_LOOKS_LIKE = re.compile(r"^\s*\"?(?:version|mig-configs|nvidia)\"?\s*:", re.MULTILINE)


def _is_helm_values(obj: Mapping[str, Any]) -> bool:
    """Of the charts of the device plugin and the GPU Operator."""
    config = obj.get("config")
    own = isinstance(config, dict) and bool({"map", "default"} & config.keys())
    operator = isinstance(obj.get("devicePlugin"), dict) or isinstance(obj.get("migManager"), dict)
    return "apiVersion" not in obj and (own or operator or "migStrategy" in obj)


def _title(name: str) -> str:
    return f"configuration {name}" if name else "the device plugin's configuration"


def _meant(config: PluginConfig) -> tuple[object, ...]:
    return config.mig_strategy, config.sharing or {}, config.driver_root


def place(document: Document) -> str:
    """For sentences: `ConfigMap gpu/device-plugin in plugin.yaml:12`."""
    where = f"{document.file}:{document.place('')[0]}"
    return f"{title_of(document)} in {where}" if document.kind else document.file


def by_default_layout(usual: Given[str], profile: str) -> MigrationFinding:
    """What nodes were taken for of which nothing else is known."""
    message = (
        f"nodes are assumed to have the layout {usual.says}, so nvidia.com/gpu is {profile}; nodes with another value "
        "of the label nvidia.com/mig.config may differ"
    )
    advice = "Give the nodes (`--cluster`, or the output of `kubectl get nodes -o yaml` with `--with`)."
    return finding(codes.MIG_LAYOUT, usual.document, usual.at, message, advice=advice)


def is_assumed_whole(
    strategy: Given[str], usual: Given[str] | None, layouts: Sequence[MigLayout], options: Options
) -> bool:
    """Whether GPUs count as whole although the GPU Operator has the MIG strategy `single`: that is its default, and on
    nodes without MIG devices it offers whole GPUs. Other settings, and layouts, say it on purpose."""
    decided = options.mig_strategy or options.mig_profile
    if strategy.says != "single" or "migStrategy" in strategy.document.obj or decided:
        return False
    if usual is None:
        return not any(layout.profiles for layout in layouts)
    known = next((layout for layout in layouts if layout.name == usual.says), None)
    return not known.profiles if known is not None else usual.says == "all-disabled"


def assumed_whole(strategy: Given[str], usual: Given[str] | None) -> MigrationFinding:
    if usual is not None:
        because = f"nodes are assumed to have the layout {usual.says}"
    else:
        because = "the MIG strategy single is the GPU Operator's default, and no input mentions MIG devices"
    message = f"{because}, so nvidia.com/gpu is assumed to be a whole GPU"
    advice = "If it is not, give the nodes (`--cluster`, or `kubectl get nodes -o yaml` with `--with`), or decide "
    return finding(
        codes.MEANING_UNKNOWN, strategy.document, strategy.at, message, advice=f"{advice}`migProfile: 1g.10gb`."
    )
