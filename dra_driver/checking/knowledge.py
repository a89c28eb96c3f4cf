"""What manifests are judged against: a Kubernetes version, classes, and nodes with the devices that they would publish.

The nodes are those of the GPU models that the driver simulates (`models.json`, made of the simulated profiles by
tests/dra_driver/checking/extract_models.py), each published in every way that policies can ask for; or the
nodes of a live cluster. They are made when they are first looked at, since most manifests need few of them.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib.resources import files
from itertools import islice
from typing import Any

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice
from dra_driver.api.core import Key
from dra_driver.api.inventory import FabricPartitionFacts, GpuFacts, NodeInventorySpec
from dra_driver.api.meta import JsonObject, ObjectMeta
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import DeviceClass, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_driver.cel.functions import Server
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.domains import domain_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures
from dra_driver.slices.offline import inventories_of, published_offline


@dataclass(frozen=True, eq=False)
class SampleNode:
    """A node on which nothing is in use. `title` is for people: `dgx-h100`."""

    title: str
    node: NodeView
    catalog: Catalog


class Sites:
    """Nodes, made one after the other on demand. `broad` are the first ones, which have devices of each kind
    that the models can have; the others differ from them in how devices are shared. Where those are left out, the sites
    are not `complete`, and do not tell what fits nowhere."""

    def __init__(self, makers: Sequence[Callable[[], SampleNode]], broad: int, *, complete: bool = True) -> None:
        self.complete = complete
        self._makers = list(makers)
        self._made: list[SampleNode] = []
        self._broad = broad

    def __iter__(self) -> Iterator[SampleNode]:
        for index, make in enumerate(self._makers):
            if index == len(self._made):
                self._made.append(make())
            yield self._made[index]

    @cached_property
    def broad(self) -> tuple[SampleNode, ...]:
        return tuple(islice(self, self._broad))

    def __bool__(self) -> bool:
        return bool(self._makers)


@dataclass(frozen=True)
class Knowledge:
    """`classes` come with the driver, or are in the cluster. `certain`: `sites` are all nodes that there are, so that
    what fits none of them is an error. `existing` are the objects of the cluster by kind, without kinds that could not
    be listed; None without a cluster.
    `driver` is the name of the GPU driver, `policies` are in force besides those among the documents."""

    minor: int = 36
    sites: Sites = field(default_factory=lambda: Sites((), 0))
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    certain: bool = False
    existing: Mapping[str, Collection[Key]] | None = None
    driver: str = GPU_DRIVER
    policies: Sequence[PublishingPolicy] = ()
    gates: Gates = Gates.DEFAULT
    """Of the driver in the cluster."""

    @property
    def server(self) -> Server:
        """For expressions that are not stored yet."""
        return Server.of(self.minor, stored=False)


@cache
def _models() -> Mapping[str, JsonObject]:
    """Inventories by profile. GPUs after the first are written as what differs from it, null for what they lack."""
    models: dict[str, JsonObject] = json.loads(files(__package__).joinpath("models.json").read_text("utf-8"))
    return {
        name: {**spec, "gpus": [_partitionable({**spec["gpus"][0], **gpu}) for gpu in spec["gpus"]]}
        for name, spec in models.items()
    }


@cache
def inventory_of_model(model: str) -> NodeInventorySpec:
    """What a node of this name and model reports. Raises InvalidInput for a model that does not exist."""
    if model not in _models():
        raise InvalidInput(f"{model!r} is none of {', '.join(_models())}", about="--nodes")
    return NodeInventorySpec.of(_models()[model])


def _partitionable(gpu: JsonObject) -> JsonObject:
    """As if an administrator had switched MIG mode on where that takes a reset of the GPU."""
    facts = {name: value for name, value in gpu.items() if value is not None}
    return {**facts, "mig": {**facts["mig"], "switchable": True}} if "mig" in facts else facts


def model_names() -> tuple[str, ...]:
    return tuple(_models())


_DYNAMIC: JsonObject = {"mig": [{"mode": "Dynamic"}]}


def _sharing(devices: str, strategy: str, **how: object) -> JsonObject:
    base = _DYNAMIC if devices == "mig" else {}
    return {**base, "sharing": [{"devices": devices, "strategy": strategy, **how}]}


_POLICIES: tuple[JsonObject, ...] = (
    {**_DYNAMIC, "passthrough": [{}], "computeDomains": [{"channels": 4}]},
    {},
    *(
        _sharing("gpu", strategy, **how)
        for strategy in ("MPS", "TimeSlicing")
        for how in ({"capacity": ["memory", "cores"]}, {"replicas": 8}, {"unlimited": True})
    ),
    *(
        _sharing("mig", strategy, **how)
        for strategy in ("MPS", "TimeSlicing")
        for how in ({"capacity": ["memory", "cores"]}, {"replicas": 2})
    ),
)
"""The first one offers every kind of device."""

_FEW = 2
"""GPUs of a node suffice where each of them has dozens of partitions; the whole nodes come last, for claims of many."""


def sites_of_kinds(minor: int = 36, driver: str = GPU_DRIVER) -> Sites:
    """One of each GPU model, with devices of each kind: not complete, but small (12 MB) and quick to be asked."""
    behavior = Behavior.of(max(minor, 36))
    makers = [partial(site_of_model, _own_policies()[0], model, _FEW, behavior, driver) for model in model_names()]
    return Sites(makers, broad=len(makers), complete=False)


def sites_of_models(names: Sequence[str], policies: Sequence[PublishingPolicy] = (), minor: int = 36) -> Sites:
    """Of GPU models by the names of their profiles; all when there are no names. `policies` are tried, too, on nodes
    with all labels they ask for. Raises InvalidInput for a model that does not exist."""
    unknown = [name for name in names if name not in _models()]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is none of {', '.join(_models())}", about="--profiles")
    models = tuple(names) or model_names()
    behavior = Behavior.of(max(minor, 36))
    ours = [
        (partial(_site_by_own_policy, number), _FEW if policy.mig else None)
        for number, policy in enumerate(_own_policies())
    ]
    theirs = [(partial(site_of_model, policy), _FEW if policy.mig else None) for policy in map(everywhere, policies)]
    makers = [
        partial(make, model, gpus, behavior, GPU_DRIVER)
        for make, gpus in (*ours[:2], *theirs, *ours[2:], (ours[0][0], None))
        for model in models
    ]
    makers += [
        partial(site_of_inventory, shared, _own_policies()[0], None, behavior, GPU_DRIVER)
        for model in models
        if (shared := with_shared_switches(inventory_of_model(model))) is not None
    ]
    return Sites(makers, broad=len(models))


def with_shared_switches(inventory: NodeInventorySpec) -> NodeInventorySpec | None:
    """The node as it is if Fabric Manager shares its NVSwitches; None for a node without eight GPUs behind NVSwitches.

    Which two GPUs are a pair differs between boards; here they are neighbors.
    """
    gpus = sorted(inventory.gpus, key=lambda gpu: gpu.module_id or 0)
    switched = all(gpu.nvlink is not None and gpu.nvlink.switched for gpu in gpus)
    if not switched or [gpu.module_id for gpu in gpus] != list(range(1, 9)):
        return None
    partitions = [range(first, first + size) for size in (8, 4, 2, 1) for first in range(0, 8, size)]
    places = {gpu.uuid: place for place, gpu in enumerate(gpus)}

    def parts(gpu: GpuFacts) -> list[FabricPartitionFacts]:
        sizes = [(id_, len(part)) for id_, part in enumerate(partitions) if places[gpu.uuid] in part]
        return [FabricPartitionFacts(id=id_, size=size) for id_, size in reversed(sizes)]

    changed = [
        gpu.model_copy(update={"fabric_partitions": parts(gpu), "fabric": None, "nvlink": None})
        for gpu in inventory.gpus
    ]
    name = f"{inventory.node_name}-shared-switches"
    return inventory.model_copy(update={"node_name": name, "gpus": changed})


def everywhere(policy: PublishingPolicy) -> PublishingPolicy:
    """Without its choice of nodes: which labels a node has is not known here."""
    rules = policy.model_copy(update={"publish": None, "withhold": []}).selecting(lambda _: None)
    return rules.that_overrides((), ())


@cache
def _own_policies() -> tuple[PublishingPolicy, ...]:
    return tuple(map(PublishingPolicy.of, _POLICIES))


def site_of_model(
    policy: PublishingPolicy, model: str, gpus: int | None, behavior: Behavior, driver: str
) -> SampleNode:
    return site_of_inventory(inventory_of_model(model), policy, gpus, behavior, driver)


def site_of_inventory(
    inventory: NodeInventorySpec, policy: PublishingPolicy, gpus: int | None, behavior: Behavior, driver: str
) -> SampleNode:
    """A node of that name, without labels. `gpus` is of how many of its GPUs it is made; None for all."""
    node, published = inventory.node_name, _published(inventory, policy, gpus, driver)
    return SampleNode(node, NodeView(node), Catalog(published, behavior))


def _site_by_own_policy(number: int, model: str, gpus: int | None, behavior: Behavior, driver: str) -> SampleNode:
    node, published = inventory_of_model(model).node_name, _published_by_own_policy(number, model, gpus, driver)
    return SampleNode(node, NodeView(node), Catalog(published, behavior))


@cache
def _published_by_own_policy(number: int, model: str, gpus: int | None, driver: str) -> Sequence[PublishedSlice]:
    """Described once for all that a process checks. What a `Catalog` remembers of its questions is not kept."""
    return _published(inventory_of_model(model), _own_policies()[number], gpus, driver)


def _published(
    inventory: NodeInventorySpec, policy: PublishingPolicy, gpus: int | None, driver: str
) -> Sequence[PublishedSlice]:
    inventory = inventory.model_copy(update={"gpus": inventory.gpus[:gpus]})
    gpus_of = described_devices(inventory, policy, {}, driver, ALL_FEATURES)
    channels = domain_devices(inventory, policy, {}, COMPUTE_DOMAIN_DRIVER, ALL_FEATURES)
    published = [*_slices(inventory.node_name, driver, gpus_of)]
    if channels.devices:
        published += _slices(inventory.node_name, COMPUTE_DOMAIN_DRIVER, channels)
    return published


def _slices(model: str, driver: str, described: Description) -> list[PublishedSlice]:
    """One for all devices and one for all counters: quicker to ask than those that the API would take."""
    counters = tuple(gpu.counters for gpu in described.gpus if gpu.counters is not None)
    contents: list[dict[str, Any]] = [{"devices": list(described.devices)}]
    contents += [{"shared_counters": list(counters)}] if counters else []
    pool = ResourcePool(name=model, generation=1, resource_slice_count=len(contents))
    return [
        PublishedSlice(
            ResourceSlice(
                metadata=ObjectMeta(name=f"{model}-{driver}-{index}"),
                spec=ResourceSliceSpec.model_construct(driver=driver, pool=pool, node_name=model, **item),
            )
        )
        for index, item in enumerate(contents)
    ]


def objects_of_inventory(
    inventory: NodeInventorySpec,
    node: str,
    policy: PublishingPolicy,
    labels: Mapping[str, str],
    features: ServerFeatures = ALL_FEATURES,
) -> list[JsonObject]:
    """ResourceSlices that a node of this name would have if it reports this inventory; and its NodeInventory if that
    says what it does not offer.

    GPUs of two nodes of one model have the same UUIDs, and those of a system with NVLink between nodes one clique.
    """
    inventory = inventory.model_copy(update={"node_name": node})
    published = published_offline(inventory, policy, labels, "", features)
    slices = [
        {**slice_, "metadata": {"name": f"{node}-{item.driver}-{index}"}}
        for item in published
        for index, slice_ in enumerate(item.slices)
    ]
    return [*slices, *inventories_of(inventory, published)]


def sites_of_cluster(nodes: Sequence[JsonObject] | None, slices: Sequence[JsonObject], minor: int) -> Sites:
    """Of the nodes and ResourceSlices that a cluster has. `nodes` None: they are not known, so they are those that
    slices name, without labels."""
    published = [PublishedSlice(ResourceSlice.of(slice_)) for slice_ in slices]
    catalog = Catalog(published, Behavior.of(minor))
    if nodes is None:
        views = [NodeView(name) for name in dict.fromkeys(slice_.node_name for slice_ in published) if name is not None]
    else:
        views = [NodeView.read(node) for node in nodes]
    with_devices = [view for view in views if any(pool.candidates for pool in catalog.pools(view))]
    makers = [partial(SampleNode, view.name, view, catalog) for view in with_devices]
    return Sites(makers, broad=len(makers))
