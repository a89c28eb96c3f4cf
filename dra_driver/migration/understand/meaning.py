"""What the resources of a cluster mean: nodes on which they mean the same, and which of them a pod can use. Pure.

Labels of GPU Feature Discovery and allocatable amounts of a node win over its configuration; decisions count where
neither defines anything. `dra_driver.migration.understand.surroundings` makes a `Meaning` of documents.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.allocation.placement import class_by_resource
from dra_driver.api.documents import Document
from dra_driver.api.resource import DeviceClass
from dra_driver.api.untyped import map_in, value_at
from dra_driver.migration.model import MigrationFinding, Options, Want, What
from dra_driver.migration.understand.labels import Hints, Requirement, is_other, restored_profile
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE, MIG_RESOURCE, PluginConfig, PluginSharing
from dra_driver.migration.understand.purposes import Purposes
from dra_driver.quantity import Quantity, whole_number

CONFIG_LABEL = "nvidia.com/device-plugin.config"
LAYOUT_LABEL = "nvidia.com/mig.config"
_SHARED = ".shared"


@dataclass(frozen=True, slots=True)
class MigLayout:
    """A named layout of mig-parted: MIG devices by profile on each kind of GPU."""

    name: str
    profiles: tuple[str, ...]
    """Sorted."""
    everywhere: bool = True
    """Whether no GPU stays whole."""


def layout_of(name: str, entries: object) -> MigLayout | None:
    """None: it is no list of what becomes of GPUs."""
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        return None
    profiles: set[str] = set()
    for entry in entries:
        profiles |= set(map(str, map_in(entry.get("mig-devices"))))
    everywhere = all(bool(entry.get("mig-enabled")) for entry in entries)
    return MigLayout(name, tuple(sorted(profiles)), everywhere)


def uniform_profile(name: str, layouts: Sequence[MigLayout]) -> str | None:
    """Of all MIG devices of a node with this layout; None where they differ, or it is not known.

    Layouts that were not given are known by the names that mig-parted's own have: `all-1g.10gb`.
    """
    layout = next((mig_layout for mig_layout in layouts if mig_layout.name == name), None)
    if layout is not None:
        return layout.profiles[0] if layout.everywhere and len(layout.profiles) == 1 else None
    usual = re.fullmatch(r"all-(.+)", name)
    return restored_profile(usual[1]) if usual else None


@dataclass(frozen=True, slots=True)
class Stands:
    """What one unit of a resource is. `profile` None of a MIG device: it is not known which."""

    what: What
    profile: str | None = None
    sharing: PluginSharing | None = None
    """None: it is not shared."""


@dataclass(frozen=True, slots=True)
class View:
    """Nodes on which resources mean the same. What is None is not known."""

    title: str
    """For sentences: `node gpu-1`, `configuration a100`."""
    config: str | None = None
    """Name of the device plugin's configuration; None where there is only one."""
    labels: Mapping[str, str] | None = None
    mig_strategy: str | None = None
    mig_profile: str | None = None
    """Of all MIG devices, under the strategy `single`."""
    sharing: Mapping[str, PluginSharing] | None = None
    """By resource, before it is renamed; empty: nothing is shared."""
    resources: frozenset[str] | None = None
    """What nodes offer."""
    memory: Quantity | None = None
    """Of one GPU."""

    def stands_for(self, resource: str, hints: Hints) -> Stands | None:
        """`hints` are what the pod's own choice of nodes says. None: the pod gets no such resource here."""
        base = self._base(resource)
        return self.means(resource, hints) if self._has(resource, base, resource != base, hints) else None

    def means(self, resource: str, hints: Hints) -> Stands:
        """What it is, if a node offers it."""
        base = self._base(resource)
        sharing = self._sharing_of(base, resource != base, hints)
        if base.startswith(MIG_RESOURCE):
            return Stands(What.MIG, restored_profile(base.removeprefix(MIG_RESOURCE)), sharing)
        single, profile = self._single(hints)
        return Stands(What.MIG, profile, sharing) if single else Stands(What.GPU, None, sharing)

    def shares(self, what: What) -> bool:
        """Whether devices of this kind are shared."""
        single = self.mig_strategy == "single"
        return any(
            (single or resource.startswith(MIG_RESOURCE)) == (what is What.MIG) for resource in self.sharing or {}
        )

    def _base(self, resource: str) -> str:
        """Its name before it is renamed."""
        renamed = (
            name
            for name, sharing in (self.sharing or {}).items()
            if sharing.renamed and sharing.name_of(name) == resource
        )
        return next(renamed, resource.removesuffix(_SHARED))

    def _single(self, hints: Hints) -> tuple[bool, str | None]:
        """Whether `nvidia.com/gpu` is a MIG device here, and of which profile."""
        profile = hints.mig_profile or self.mig_profile
        single = hints.mig_profile is not None or (hints.mig_strategy or self.mig_strategy) == "single"
        return single and not (self.labels is not None and profile is None), profile

    def _has(self, resource: str, base: str, renamed: bool, hints: Hints) -> bool:
        if self.resources is not None and resource not in self.resources:
            return False
        if self.sharing is None:
            return True
        known = self.sharing.get(base)
        named = not renamed if known is None or not known.renamed else resource == known.name_of(base)
        return named and (hints.shared is None or hints.shared == (known is not None))

    def _sharing_of(self, base: str, renamed: bool, hints: Hints) -> PluginSharing | None:
        if self.sharing is not None:
            known = self.sharing.get(base)
            return known if known is not None and known.renamed == renamed else None
        return PluginSharing("MPS" if hints.mps else None, None, renamed) if renamed or hints.shared else None


UNKNOWN_NODES = View("nodes that are not known")
"""Where a name alone says what a resource is."""


@dataclass(frozen=True, slots=True)
class SharingSystem:
    """Resources of a system that shares GPUs. Empty names: it has no such resource."""

    count: str = ""
    memory: str = ""
    percent: str = ""
    cores: str = ""
    memory_mib: int = 1
    """What one unit of memory is."""
    beside: tuple[str, ...] = ()
    """Resources that go with the others."""
    without_memory_alone: bool = False
    """Who names no memory gets all of it, so the GPU alone."""
    one_gpu: bool = False
    """All shares of a pod are of one GPU. Source: gpushare-scheduler-extender, pkg/cache/nodeinfo.go; Volcano,
    pkg/scheduler/api/devices/nvidia/gpushare."""

    @property
    def resources(self) -> tuple[str, ...]:
        names = (self.count, self.memory, self.percent, self.cores, *self.beside)
        return tuple(name for name in names if name)


ALIYUN = SharingSystem(
    memory="aliyun.com/gpu-mem",
    cores="aliyun.com/gpu-core.percentage",
    beside=("aliyun.com/gpu-count",),
    one_gpu=True,
)
SYSTEMS = (
    SharingSystem(
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
        without_memory_alone=True,
    ),
    SharingSystem("volcano.sh/gpu-number", "volcano.sh/gpu-memory", one_gpu=True),
    ALIYUN,
)
"""Besides HAMi, whose resources have the names of its configuration."""


@dataclass(frozen=True, slots=True)
class Hami:
    """How HAMi's resources are called, and what it does where a pod does not say."""

    count: str = GPU_RESOURCE
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"
    memory_factor: int = 1
    default_cores: int = 0
    default_memory: int = 0
    """MiB; 0 is all of it."""
    installed: bool = False
    """Whether a configuration of HAMi was given."""

    @property
    def system(self) -> SharingSystem:
        names = (self.count, self.memory, self.memory_percentage, self.cores)
        return SharingSystem(*names, self.memory_factor, (self.priority,), without_memory_alone=True)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What resources stand for. `Meaning()` is when nothing is known."""

    views: tuple[View, ...] = ()
    configs: tuple[PluginConfig, ...] = ()
    default_config: str | None = None
    """Of nodes that name none."""
    own: Mapping[str, Want] = field(default_factory=dict)
    """What resources with chosen names are, which DeviceClasses answer."""
    hami: Hami = field(default_factory=Hami)
    layouts: tuple[MigLayout, ...] = ()
    strategy: str | None = None
    """Of MIG, for all nodes of which nothing else is known."""
    driver_roots: frozenset[str] = frozenset()
    read_from: tuple[str, ...] = ()
    """Configurations, operators and the like, for sentences."""
    findings: tuple[MigrationFinding, ...] = ()
    cut_on_demand: bool = False
    """Whether slices have GPUs of which MIG devices are made on demand."""
    purposes: Purposes = field(default_factory=Purposes)
    """Of claims that are there."""

    def views_for(self, requirements: Iterable[Requirement]) -> tuple[View, ...]:
        """Those whose nodes a pod with these requirements can run on. Of nodes that are not known, all that are not
        ruled out by the label that chooses configurations."""
        asked = tuple(requirements)
        chosen = [requirement for requirement in asked if requirement.key == CONFIG_LABEL]

        def fits(view: View) -> bool:
            if view.labels is not None:
                return all(requirement.holds(view.labels) for requirement in asked)
            own = {CONFIG_LABEL: view.config} if view.config and view.config != self.default_config else {}
            return all(requirement.holds(own) for requirement in chosen)

        return tuple(filter(fits, self.views))

    def meanings(self, resource: str, requirements: Iterable[Requirement], hints: Hints) -> dict[Stands, list[str]]:
        """What a resource can stand for on the nodes that a pod can run on, with places. Empty: no source says it."""
        places: dict[Stands, list[str]] = {}
        for view in self.views_for(requirements):
            stands = view.stands_for(resource, hints)
            if stands is not None:
                places.setdefault(stands, []).append(view.title)
        return places

    def gpu_memory(self, requirements: Iterable[Requirement]) -> Quantity | None:
        """Of a GPU of any node that a pod can run on; None when it is not known, or differs."""
        amounts = {view.memory for view in self.views_for(requirements)}
        return amounts.pop() if len(amounts) == 1 else None

    def shares(self, what: What) -> bool:
        """Whether devices of this kind are shared on any node."""
        return any(view.shares(what) for view in self.views)


def view_of_config(config: PluginConfig, strategy: str | None, several: bool) -> View:
    title = f"configuration {config.name}" if config.name else "the device plugin's configuration"
    return View(
        title,
        config.name if several else None,
        None,
        config.mig_strategy or strategy or ("none" if config.sharing is not None else None),
        sharing=config.sharing or {},
    )


def view_of_node(
    node: Document,
    configs: Mapping[str, PluginConfig],
    default: str | None,
    strategy: str | None,
    layouts: Sequence[MigLayout],
) -> View | None:
    """None: a node without GPUs."""
    labels = {str(key): str(value) for key, value in map_in(value_at(node.obj, ("metadata", "labels"))).items()}
    offered = frozenset(
        str(name)
        for name, amount in map_in(value_at(node.obj, ("status", "allocatable"))).items()
        if str(name).startswith("nvidia.com/") and str(amount) != "0" and not is_other(str(name))
    )
    if not offered and not any(key.startswith("nvidia.com/gpu") for key in labels):
        return None
    name = labels.get(CONFIG_LABEL) or default
    config = configs.get(name or "")
    _, mig, profile = labels.get("nvidia.com/gpu.product", "").removesuffix("-SHARED").rpartition("-MIG-")
    own = restored_profile(profile) if mig else uniform_profile(labels.get(LAYOUT_LABEL, ""), layouts)
    memory = labels.get("nvidia.com/gpu.memory", "")
    return View(
        f"node {node.name}",
        name,
        labels,
        labels.get("nvidia.com/mig.strategy") or (config.mig_strategy if config else None) or strategy,
        own,
        _sharing_of_node(labels, offered, config),
        offered or None,
        Quantity.parse(f"{memory}Mi") if whole_number(memory) is not None and not own else None,
    )


def _sharing_of_node(
    labels: Mapping[str, str], offered: frozenset[str], config: PluginConfig | None
) -> Mapping[str, PluginSharing] | None:
    """As its labels say; the configuration says the rest. None: neither says anything."""
    sharing = dict(config.sharing or {}) if config is not None else {}
    for resource in _with_labels(labels):
        strategy = labels.get(f"{resource}.sharing-strategy")
        replicas = whole_number(labels.get(f"{resource}.replicas"))
        if strategy in ("time-slicing", "mps") and replicas is not None and replicas > 1:
            known = sharing.get(resource)
            sharing[resource] = PluginSharing(
                "MPS" if strategy == "mps" else "TimeSlicing",
                replicas,
                known.renamed if known is not None else f"{resource}.shared" in offered,
                known.one_only if known is not None else strategy == "mps",
            )
        elif strategy == "none":
            sharing.pop(resource, None)
    is_known = config is not None or "nvidia.com/gpu.sharing-strategy" in labels
    return sharing if sharing or is_known else None


def _with_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """Resources of which labels say how they are shared; the labels begin with their names."""
    yield GPU_RESOURCE
    for key in labels:
        name = key.removesuffix(".sharing-strategy")
        if key.startswith(MIG_RESOURCE) and name != key and ".sharing" not in name:
            yield name


def as_said(view: View, options: Options, memory: Quantity | None) -> View:
    """With what a person said, where nothing else is known; the MIG strategy in any case."""
    sharing = view.sharing
    if options.replicas is not None and not sharing:
        own = PluginSharing("MPS" if options.sharing_strategy == "mps" else "TimeSlicing", options.replicas)
        sharing = {GPU_RESOURCE: own} if options.replicas > 1 else {}
    return replace(
        view,
        sharing=sharing,
        mig_strategy=options.mig_strategy or view.mig_strategy,
        mig_profile=options.mig_profile or view.mig_profile,
        memory=options.gpu_memory or view.memory or memory,
    )


_OF_MIG = re.compile(r"\.type\s*==\s*['\"]mig['\"]|\.profile\b")
_OF_VFIO = re.compile(r"\.type\s*==\s*['\"]vfio['\"]")


def own_names(classes: Sequence[DeviceClass], options: Options) -> Mapping[str, Want]:
    """By resource. Classes of other drivers' devices are passed over."""
    ours = {
        class_.metadata.name: class_
        for class_ in classes
        if any(options.driver in text for text in class_.spec.expressions)
    }
    own: dict[str, Want] = {}
    for resource, name in class_by_resource(ours.values()).items():
        text = " ".join(ours[name].spec.expressions)
        what = What.VFIO if _OF_VFIO.search(text) else What.MIG if _OF_MIG.search(text) else What.GPU
        own[resource] = Want(what, device_class=name)
    return own
