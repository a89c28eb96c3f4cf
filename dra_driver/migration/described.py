"""A cluster's nodes, each of them, as far as they are described: for trying all workloads on them at once. Pure.

By numbers of GPU models (`dgx-h100:2`), by the ResourceSlices that a cluster has, or by the labels of GPU Feature
Discovery, where the driver is not there yet: product and number of GPUs say which model a node is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from dra_driver.allocation.behaviour import Behaviour
from dra_driver.allocation.nodes import NodeView, provides
from dra_driver.allocation.snapshot import Catalog
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking.knowledge import Site, everywhere, inventory_of_model, model_names, site_of_inventory
from dra_driver.migration.gfd import Labels, labels_of, products_of
from dra_driver.migration.offering import is_plugin_resource
from dra_driver.names import model_label

_GPU_RESOURCE = "nvidia.com/gpu"
_PRODUCT, _COUNT = "nvidia.com/gpu.product", "nvidia.com/gpu.count"
_SHARED, _MIG = "-SHARED", "-MIG-"


@dataclass(frozen=True, slots=True, eq=False)
class DescribedNode:
    site: Site
    labels: Labels | None
    """What its GPUs' labels are; None where the node's own are known, which are in `site`."""
    offered: Mapping[str, int] | None
    """What a device plugin has to give there, by resource; None: not known."""


type NodesUnder = Callable[[PublishingPolicy], tuple[DescribedNode, ...]]
"""The nodes as they are under a policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    title: str
    """After "on": `5 nodes: 3 x dgx-h100, 2 x t4`."""
    nodes: NodesUnder
    left_out: tuple[str, ...] = ()
    """Nodes with GPUs of which too little is known, and what is lacking, a sentence each."""
    fixed: bool = False
    """Whether what they publish is known, whatever a policy says."""
    real: bool = False
    """Whether their labels and taints are known, so that what pods ask of them counts."""


def titled(models: Mapping[str, int]) -> str:
    parts = ", ".join(f"{number} x {model}" for model, number in models.items())
    total = sum(models.values())
    return f"{total} node{'s' * (total != 1)}: {parts}"


def of_models(
    models: Mapping[str, int], behaviour: Behaviour, driver: str, recorded: Mapping[str, NodeInventorySpec]
) -> Described:
    """So many nodes of each model, called `dgx-h100-1` and so on. `recorded` are nodes of names that are no model's."""
    nodes_of = {model: recorded.get(model) or inventory_of_model(model) for model in models}
    named = [
        (f"{model_label(model)}-{index}", nodes_of[model])
        for model, number in models.items()
        for index in range(1, number + 1)
    ]

    def nodes(policy: PublishingPolicy) -> tuple[DescribedNode, ...]:
        # Nobody said which labels they have, so rules for some nodes are for all of them.
        rules = everywhere(policy)
        whole = not policy.mig and not policy.sharing
        return tuple(_of_model(name, inventory, rules, behaviour, driver, whole=whole) for name, inventory in named)

    return Described(titled({model_label(model): number for model, number in models.items()}), nodes)


def _of_model(
    name: str, inventory: NodeInventorySpec, policy: PublishingPolicy, behaviour: Behaviour, driver: str, *, whole: bool
) -> DescribedNode:
    inventory = inventory.model_copy(update={"node_name": name})
    site = site_of_inventory(inventory, policy, behaviour, driver)
    device = next((one.device for pool in site.catalog.pools(site.node) for one in pool.candidates), None)
    # What a device plugin would call shares or MIG devices of these nodes depends on its configuration.
    offered = {_GPU_RESOURCE: len(inventory.gpus)} if whole else None
    return DescribedNode(site, labels_of(device) if device is not None else {}, offered)


# -- of a cluster


def of_slices(views: Sequence[NodeView], catalog: Catalog) -> Described:
    """Nodes that have devices, as they will be when no device plugin is there."""
    found = [
        DescribedNode(Site(view.name, without_plugin(view), catalog), None, _offered(view, views)) for view in views
    ]
    with_devices = tuple(one for one in found if any(pool.candidates for pool in catalog.pools(one.site.node)))
    title = f"the {len(with_devices)} nodes of the cluster that have slices"
    return Described(title, lambda _policy: with_devices, fixed=True, real=True)


def without_plugin(view: NodeView) -> NodeView:
    """Once a node is over, its device plugin has nothing to give."""
    left = {name: amount for name, amount in view.allocatable.items() if not is_plugin_resource(name)}
    return replace(view, allocatable=left)


def _offered(view: NodeView, views: Sequence[NodeView]) -> Mapping[str, int] | None:
    """Of a cluster that is over nobody can tell any more what the device plugin had to give."""
    if not any(_amounts(one) for one in views):
        return None
    return _amounts(view)


def _amounts(view: NodeView) -> dict[str, int]:
    amounts = {name: provides(view, name) for name in view.allocatable if is_plugin_resource(name)}
    return {name: amount for name, amount in amounts.items() if amount}


def of_labels(views: Sequence[NodeView], behaviour: Behaviour, driver: str) -> Described | None:
    """Nodes with the labels of GPU Feature Discovery; None where none is known well enough."""
    known: list[tuple[NodeView, str, int]] = []
    left_out: list[str] = []
    for view in views:
        if _PRODUCT not in view.labels and not _amounts(view):
            continue
        model = _model_of(view)
        if isinstance(model, str):
            left_out.append(f"{view.name} {model}")
        else:
            known.append((view, *model))
    if not known:
        return None

    def nodes(policy: PublishingPolicy) -> tuple[DescribedNode, ...]:
        return tuple(_of_labels(view, model, gpus, policy) for view, model, gpus in known)

    def _of_labels(view: NodeView, model: str, gpus: int, policy: PublishingPolicy) -> DescribedNode:
        whole = inventory_of_model(model)
        inventory = whole.model_copy(update={"node_name": view.name, "gpus": whole.gpus[:gpus]})
        site = site_of_inventory(inventory, policy, behaviour, driver, view.labels)
        return DescribedNode(Site(view.name, without_plugin(view), site.catalog), None, _offered(view, views))

    title = titled(Counter(f"{model} ({gpus} GPU{'s' * (gpus != 1)})" for _, model, gpus in known))
    return Described(f"{title}, by their labels", nodes, tuple(left_out), real=True)


def _model_of(view: NodeView) -> tuple[str, int] | str:
    """Model and number of GPUs; or what is lacking, after the node's name."""
    product = view.labels.get(_PRODUCT, "").removesuffix(_SHARED)
    if not product:
        return f"has no label {_PRODUCT}"
    if _MIG in product or any(name.startswith("nvidia.com/mig-") for name in _amounts(view)):
        return "has MIG devices, of which labels do not say which GPUs they are on"
    model = _models().get(product)
    if model is None:
        return f"has {product}, which is none of the GPU models that are known here"
    there = len(inventory_of_model(model).gpus)
    text = view.labels.get(_COUNT, "")
    if not text.isdecimal():
        return f"has no label {_COUNT} with a number"
    if not 1 <= int(text) <= there:
        return f"has {text} GPUs, and nodes of {product} that are known here have {there}"
    return model, int(text)


@cache
def _models() -> Mapping[str, str]:
    """By what GPU Feature Discovery calls their GPUs."""
    return dict(_named_models())


def _named_models() -> Iterator[tuple[str, str]]:
    for model in reversed(model_names()):
        for product in products_of(inventory_of_model(model).gpus[0].product_name, None, shared=False):
            yield product, model
