"""What resources are on one node, or wherever one configuration holds: a view. Pure.

Labels of GPU Feature Discovery and allocatable amounts of a node go before the configuration that it has, and what a
person said is for where neither says anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.api.documents import Document
from dra_driver.migration.model import Options, value_at
from dra_driver.migration.understand.labels import restored_profile
from dra_driver.migration.understand.meaning import CONFIG_LABEL, LAYOUT_LABEL, MigLayout, View
from dra_driver.migration.understand.mig_layouts import uniform_profile
from dra_driver.migration.understand.other_resources import is_other
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE, PluginConfig, Sharing
from dra_driver.quantity import Quantity


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
    labels = value_at(node.obj, ("metadata", "labels"))
    labels = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    allocatable = value_at(node.obj, ("status", "allocatable"))
    offered = frozenset(
        str(name)
        for name, amount in (allocatable.items() if isinstance(allocatable, dict) else ())
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
        Quantity.parse(f"{memory}Mi") if memory.isdigit() and not own else None,
    )


def _sharing_of_node(
    labels: Mapping[str, str], offered: frozenset[str], config: PluginConfig | None
) -> Mapping[str, Sharing] | None:
    """As its labels say; the configuration says the rest. None: neither says anything."""
    found = dict(config.sharing or {}) if config is not None else {}
    for resource, prefix in _with_labels(labels):
        strategy, replicas = labels.get(f"{prefix}.sharing-strategy"), labels.get(f"{prefix}.replicas", "")
        if strategy in ("time-slicing", "mps") and replicas.isdigit() and int(replicas) > 1:
            known = found.get(resource)
            found[resource] = Sharing(
                "MPS" if strategy == "mps" else "TimeSlicing",
                int(replicas),
                known.renamed if known is not None else f"{resource}.shared" in offered,
                known.one_only if known is not None else strategy == "mps",
            )
        elif strategy == "none":
            found.pop(resource, None)
    said = config is not None or "nvidia.com/gpu.sharing-strategy" in labels
    return found if found or said else None


def _with_labels(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Resources of which labels say how they are shared, with the beginning of the labels."""
    yield GPU_RESOURCE, GPU_RESOURCE
    for key in labels:
        name, dot, _ = key.removesuffix(".sharing-strategy").partition(".sharing")
        if key.startswith("nvidia.com/mig-") and key.endswith(".sharing-strategy") and not dot:
            yield name, name


def as_said(view: View, options: Options, memory: Quantity | None) -> View:
    """With what a person said, where nothing else is known; the MIG strategy in any case."""
    sharing = view.sharing
    if options.replicas is not None and not sharing:
        own = Sharing("MPS" if options.sharing_strategy == "mps" else "TimeSlicing", options.replicas)
        sharing = {GPU_RESOURCE: own} if options.replicas > 1 else {}
    return replace(
        view,
        sharing=sharing,
        mig_strategy=options.mig_strategy or view.mig_strategy,
        mig_profile=options.mig_profile or view.mig_profile,
        memory=options.gpu_memory or view.memory or memory,
    )
