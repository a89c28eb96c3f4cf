"""Nodes on which the result of a migration is tried: those of a cluster, or of GPU models that we know. Pure."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import ResourceSlice
from dra_driver.checking.knowledge import SampleNode, Sites, everywhere, model_names, site_of_inventory, site_of_model
from dra_driver.errors import InvalidInput
from dra_driver.migration.understand.offering import is_plugin_resource
from dra_driver.names import GPU_DRIVER, model_label

_FEW = 2
"""GPUs of a node suffice where each has dozens of partitions; whole nodes come last, for claims of many."""
_DYNAMIC: JsonObject = {"mig": [{"mode": "Dynamic"}]}


@dataclass(frozen=True, slots=True, eq=False)
class GroundPublication:
    """Nodes with what they would publish under one policy. `needs` None: as it is, or as this report's policy says."""

    sites: Iterable[SampleNode]
    needs: JsonObject | None = None
    """Rules of a PublishingPolicy without which these devices would not be there."""


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """The nodes on which the result is tried; of several publications the first that has what is wanted counts."""

    title: str
    """After "on": `the nodes of the cluster`."""
    publications: tuple[GroundPublication, ...]
    minor: int
    certain: bool
    """Whether there are no other nodes, so that what fits none of them is an error."""
    real_nodes: bool = False
    """Whether labels and taints of these nodes are known, so that what pods ask of them counts."""


def ground_of_models(
    names: Collection[str],
    policy: JsonObject | None,
    minor: int,
    driver: str = GPU_DRIVER,
    recorded: Mapping[str, NodeInventorySpec] = MappingProxyType({}),
) -> Ground:
    """Nodes of GPU models by the names of their profiles, one of each or so many; all known ones when there are none.

    `policy` is that of the report. `recorded` are nodes of names that are no model's. Raises InvalidInput for a name
    that is neither.
    """
    unknown = [name for name in names if name not in model_names() and name not in recorded]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is none of {', '.join(model_names())}", about="--nodes")
    models = tuple(dict.fromkeys(names)) or model_names()
    own = {key: value for key, value in (policy or {}).items() if key not in ("apiVersion", "kind")}
    behavior = Behavior.of(max(minor, 36))

    def published(rules: JsonObject, needs: JsonObject | None, gpus: int | None = None) -> GroundPublication:
        typed = everywhere(PublishingPolicy.of(rules, about="the policy of this migration"))
        written = json.dumps(typed.to_wire(), sort_keys=True)
        makers = (
            partial(site_of_inventory, recorded[model], typed, gpus, behavior, driver)
            if model in recorded
            else partial(_site, model, written, gpus, behavior, driver)
            for model in models
        )
        return GroundPublication(Sites(tuple(makers), 0), needs)

    shared = {"strategy": "MPS", "capacity": ["memory", "cores"]}
    extras: tuple[JsonObject, ...] = (
        _DYNAMIC,
        {"sharing": [shared]},
        {"sharing": [{"strategy": "MPS", "capacity": ["memory"]}]},
        {"sharing": [{"strategy": "TimeSlicing", "replicas": 4}]},
        {**_DYNAMIC, "sharing": [{**shared, "devices": "mig"}]},
        {**_DYNAMIC, "sharing": [{"devices": "mig", "strategy": "TimeSlicing", "replicas": 4}]},
        {"passthrough": [{}]},
    )
    publications = [published(own, None, _FEW if "mig" in own else None)]
    if any("nodes" in rule or "gpus" in rule for name in ("mig", "sharing") for rule in own.get(name) or ()):
        # There are other nodes, too, or other GPUs, of which these rules say nothing.
        publications.append(published({}, None))
    elif own.get("mig") or own.get("sharing"):
        # These rules are for all GPUs; whole GPUs need some that they leave out.
        publications.append(published({}, {}))
    by_nodes: dict[str, list[JsonObject]] = {}
    for rule in own.get("sharing") or ():
        by_nodes.setdefault(json.dumps(rule.get("nodes"), sort_keys=True), []).append(rule)
    if len(by_nodes) > 1:
        # These are rules for different nodes; everywhere at once only the last of them would count.
        publications += [published({**own, "sharing": rules}, None) for rules in by_nodes.values()]
    publications += [published(extra, extra, _FEW if "mig" in extra else None) for extra in extras]
    publications += [published(own, None), published(_DYNAMIC, _DYNAMIC)]
    title = (
        f"nodes of {', '.join(map(model_label, models))}"
        if names
        else f"nodes of the {len(models)} GPU models that are known here"
    )
    return Ground(title, tuple(publications), minor, certain=bool(names))


@cache
def _site(model: str, rules: str, gpus: int | None, behavior: Behavior, driver: str) -> SampleNode:
    """The same one for the same `rules` (JSON), since many results may be tried in one process."""
    return site_of_model(PublishingPolicy.of(json.loads(rules)), model, gpus, behavior, driver)


def ground_of_cluster(nodes: Sequence[JsonObject], slices: Sequence[JsonObject], minor: int) -> Ground:
    """The nodes and ResourceSlices that a cluster has; devices that are in use now count as free."""
    behavior = Behavior.of(minor, partitionable=True, consumable=True, taints=True)
    catalog = Catalog([PublishedSlice(ResourceSlice.of(slice_)) for slice_ in slices], behavior)
    views = [NodeView.read(node) for node in nodes]
    sites = [SampleNode(view.name, _without_plugin(view), catalog) for view in views]
    with_devices = tuple(site for site in sites if any(pool.candidates for pool in catalog.pools(site.node)))
    title = "the nodes of the cluster"
    return Ground(title, (GroundPublication(with_devices),), minor, certain=True, real_nodes=True)


def _without_plugin(view: NodeView) -> NodeView:
    """Once the driver has a node, its device plugin has nothing to give."""
    left = {name: amount for name, amount in view.allocatable.items() if not is_plugin_resource(name)}
    return replace(view, allocatable=left)
