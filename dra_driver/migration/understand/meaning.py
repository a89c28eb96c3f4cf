"""What the resources of a cluster stand for: nodes on which they mean the same, and which of them a pod can use.

`dra_driver.migration.understand.surroundings` makes a `Meaning` of documents, for what reads pods and quotas. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.migration.model import Finding, What
from dra_driver.migration.read.bases import Bases
from dra_driver.migration.read.definitions import Definitions
from dra_driver.migration.understand.labels import Hints, Requirement, restored_profile
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE, PluginConfig, Sharing
from dra_driver.migration.understand.purposes import Purposes
from dra_driver.quantity import Quantity

CONFIG_LABEL = "nvidia.com/device-plugin.config"
LAYOUT_LABEL = "nvidia.com/mig.config"
_MIG = "nvidia.com/mig-"
_SHARED = ".shared"


@dataclass(frozen=True, slots=True)
class Stands:
    """What one unit of a resource is. `profile` None of a MIG device: it is not known which."""

    what: What
    profile: str | None = None
    sharing: Sharing | None = None
    """None: it is nobody else's."""


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
    sharing: Mapping[str, Sharing] | None = None
    """By resource, before it is renamed; empty: nothing is shared."""
    resources: frozenset[str] | None = None
    """What nodes have to give."""
    memory: Quantity | None = None
    """Of one GPU."""

    def stands_for(self, resource: str, hints: Hints) -> Stands | None:
        """`hints` are what the pod's own choice of nodes says. None: the pod gets no such resource here."""
        base = self._base(resource)
        renamed = resource != base
        if not self._has(resource, base, renamed, hints):
            return None
        sharing = self._sharing_of(base, renamed, hints)
        if base.startswith(_MIG):
            return Stands(What.MIG, restored_profile(base.removeprefix(_MIG)), sharing)
        single, profile = self._single(hints)
        return Stands(What.MIG, profile, sharing) if single else Stands(What.GPU, None, sharing)

    def shares(self, what: What) -> bool:
        """Whether devices of this kind are shared."""
        return any(self._is_mig(resource) == (what is What.MIG) for resource in self.sharing or {})

    def _is_mig(self, resource: str) -> bool:
        return resource.startswith(_MIG) or self.mig_strategy == "single"

    def _base(self, resource: str) -> str:
        """Its name before it is renamed."""
        renamed = (name for name, one in (self.sharing or {}).items() if one.renamed and one.name_of(name) == resource)
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

    def _sharing_of(self, base: str, renamed: bool, hints: Hints) -> Sharing | None:
        if self.sharing is not None:
            known = self.sharing.get(base)
            return known if known is not None and known.renamed == renamed else None
        return Sharing("MPS" if hints.mps else None, None, renamed) if renamed or hints.shared else None


@dataclass(frozen=True, slots=True)
class Hami:
    """How HAMi's resources are called, and what it does where a pod does not say."""

    count: str = GPU_RESOURCE
    memory: str = "nvidia.com/gpumem"
    memory_percentage: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"
    split_count: int | None = None
    memory_factor: int = 1
    default_cores: int = 0
    default_memory: int = 0
    """MiB; 0 is all of it."""
    installed: bool = False
    """Whether a configuration of HAMi was given."""


@dataclass(frozen=True, slots=True)
class MigLayout:
    """A named layout of mig-parted: MIG devices by profile on each kind of GPU."""

    name: str
    profiles: tuple[str, ...]
    """Sorted."""
    summary: str
    everywhere: bool = True
    """Whether no GPU stays whole."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a resource is to which a DeviceClass answers under a name that somebody chose."""

    what: What
    device_class: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What resources stand for. `Meaning()` is when nothing is known."""

    views: tuple[View, ...] = ()
    configs: tuple[PluginConfig, ...] = ()
    default_config: str | None = None
    """Of nodes that name none."""
    own: Mapping[str, Own] = field(default_factory=dict)
    """By resource."""
    hami: Hami = field(default_factory=Hami)
    layouts: tuple[MigLayout, ...] = ()
    strategy: str | None = None
    """Of MIG, for all nodes of which nothing else is known."""
    driver_roots: frozenset[str] = frozenset()
    read_from: tuple[str, ...] = ()
    """Configurations, operators and the like, for sentences."""
    findings: tuple[Finding, ...] = ()
    definitions: Definitions = field(default_factory=Definitions)
    """Of kinds whose CustomResourceDefinitions were given."""
    claims: Mapping[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    """Specs of claims that are there, also of templates, by kind and name of the object."""
    cut_on_demand: bool = False
    """Whether slices have GPUs of which MIG devices are made on demand."""
    purposes: Purposes = field(default_factory=Purposes)
    """Of these claims."""
    bases: Bases = field(default_factory=Bases)

    def views_for(self, requirements: Iterable[Requirement]) -> tuple[View, ...]:
        """Those whose nodes a pod with these requirements can run on. Of nodes that are not known, all that are not
        ruled out by the label that chooses configurations."""
        asked = tuple(requirements)
        chosen = [one for one in asked if one.key == CONFIG_LABEL]
        found = []
        for view in self.views:
            labels = view.labels
            if labels is None:
                own = {CONFIG_LABEL: view.config} if view.config and view.config != self.default_config else {}
                fits = all(one.holds({k: v for k, v in own.items() if v}) for one in chosen)
            else:
                fits = all(one.holds(labels) for one in asked)
            if fits:
                found.append(view)
        return tuple(found)

    def meanings(self, resource: str, requirements: Iterable[Requirement], hints: Hints) -> dict[Stands, list[str]]:
        """What a resource can stand for on the nodes that a pod can run on, with where. Empty: nobody said."""
        found: dict[Stands, list[str]] = {}
        for view in self.views_for(requirements):
            stands = view.stands_for(resource, hints)
            if stands is not None:
                found.setdefault(stands, []).append(view.title)
        return found

    def gpu_memory(self, requirements: Iterable[Requirement]) -> Quantity | None:
        """Of a GPU of any node that a pod can run on; None when it is not known, or differs."""
        amounts = {view.memory for view in self.views_for(requirements)}
        return amounts.pop() if len(amounts) == 1 else None

    def shares(self, what: What) -> bool:
        """Whether devices of this kind are shared on any node."""
        return any(view.shares(what) for view in self.views)
