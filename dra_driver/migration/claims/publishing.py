"""What an administrator must allow, so that the driver offers what the old configurations offered: a PublishingPolicy,
and values for the chart `gpu-dra-driver`. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.api.gpupolicy import policies_of
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.features import Feature
from dra_driver.migration.codes import TAKES_THE_REST
from dra_driver.migration.model import (
    Demand,
    MigratedWorkload,
    Migration,
    MigrationFinding,
    MigrationTarget,
    Options,
    What,
    finding,
)
from dra_driver.migration.understand.labels import restored_profile
from dra_driver.migration.understand.meaning import CONFIG_LABEL, LAYOUT_LABEL, Meaning, View
from dra_driver.migration.understand.offering import DRIVER_RUNS, OFFERED_BY
from dra_driver.migration.understand.plugin_config import (
    GPU_RESOURCE,
    MIG_RESOURCE,
    MOST_REPLICAS,
    PluginConfig,
    PluginSharing,
)
from dra_driver.names import GPU_DRIVER, INVENTORY_API_VERSION
from dra_driver.phrases import and_more

_FEW = 3
_HAMI_NODES: JsonObject = {"labelSelector": {"matchLabels": {"gpu": "on"}}}
"""Where HAMi's own chart runs its device plugin."""


@dataclass(frozen=True, slots=True)
class PublishingAdvice:
    """`policy` None: nothing beyond whole GPUs and MIG devices that exist. `values` are for the chart."""

    policy: JsonObject | None
    values: JsonObject
    reasons: tuple[str, ...] = ()
    """What a person should know about it, a sentence each."""


def publishing(meaning: Meaning, demands: Iterable[Demand], options: Options) -> PublishingAdvice:
    """For the configurations, and for workloads that ask for parts of GPUs in amounts."""
    reasons: list[str] = []
    if meaning.read_from:
        reasons.append(f"The meaning of resources was read from {and_more(meaning.read_from, _FEW)}.")
    demands = tuple(demands)
    amounts = amounts_asked(demands)
    sharing = list(_sharing_rules(meaning, amounts))
    if amounts and not any("capacity" in rule for rule in sharing):
        sharing.insert(0, {"strategy": "MPS", "capacity": list(amounts)})
        reasons.append(
            f"Workloads ask for parts of GPUs in {' and '.join(amounts)}, so all GPUs are offered in such parts, and "
            "MPS separates them; a claim without amounts has the GPU alone. Choose the nodes of this rule."
        )
    rules: JsonObject = {"mig": list(_mig_rules(meaning, options)), "sharing": sharing}
    rules = {name: rule for name, rule in rules.items() if rule}
    values = _values(meaning, rules, options, reasons)
    policy = {"apiVersion": INVENTORY_API_VERSION, "kind": "PublishingPolicy", **rules} if rules else None
    return PublishingAdvice(policy, values, tuple(reasons))


def amounts_asked(demands: Iterable[Demand]) -> tuple[str, ...]:
    """In which amounts parts of GPUs are asked for: `memory`, `cores`, both or neither.

    Offering more than is asked for is wrong: a claim takes all of an amount that it does not name.
    """
    asked = set().union(*map(_named, demands))
    return tuple(name for name in ("memory", "cores") if name in asked)


def takers_of_the_rest(workloads: Sequence[MigratedWorkload]) -> tuple[MigrationFinding, ...]:
    """Where some workloads name both amounts, or one another: those that do not name all that is offered."""
    shares = [
        (workload, demand, _named(demand))
        for workload in workloads
        if workload.choice.target is MigrationTarget.CLAIMS
        for demand in workload.reading.demands
    ]
    offered = set().union(*(names for _, _, names in shares))
    return tuple(
        finding(
            TAKES_THE_REST,
            workload.document,
            demand.removes[0] if demand.removes else workload.pod.path,
            f"no amount of {' and '.join(sorted(offered - names))}: others ask for it, so this claim takes all of it",
        )
        for workload, demand, names in shares
        if names and names < offered
    )


def _named(demand: Demand) -> set[str]:
    """The amounts that it names of a share of a GPU."""
    share = demand.want.share
    if share is None or demand.want.what is not What.GPU:
        return set()
    amounts = (("memory", share.memory), ("memory", share.memory_percent), ("cores", share.cores))
    return {name for name, amount in amounts if amount is not None}


# -- sharing


def _sharing_rules(meaning: Meaning, amounts: Sequence[str]) -> Iterator[JsonObject]:
    """Of several rules that match the last one wins, so those for more nodes come first."""
    if meaning.hami.installed:
        # What all of its pods have, whether or not they say so.
        capacity = amounts or (("memory", "cores") if meaning.hami.default_cores else ("memory",))
        yield {"nodes": _HAMI_NODES, "strategy": "MPS", "capacity": list(capacity)}
    if meaning.configs:
        for config in sorted(meaning.configs, key=lambda item: (item.name != meaning.default_config, item.name)):
            nodes = _nodes_of(config, meaning)
            single = (config.mig_strategy or meaning.strategy) == "single"
            for resource, shared in sorted((config.sharing or {}).items()):
                yield _rule(nodes, resource, shared, single)
        return
    for (resource, shared), views in _by_sharing(meaning.views):
        names = sorted(view.title.removeprefix("node ") for view in views)
        single = views[0].mig_strategy == "single"
        yield _rule({"names": names} if views[0].labels is not None else None, resource, shared, single)


def _by_sharing(views: Sequence[View]) -> list[tuple[tuple[str, PluginSharing], list[View]]]:
    """Nodes that share the same in the same way."""
    groups: dict[tuple[str, PluginSharing], list[View]] = {}
    for view in views:
        for resource, shared in sorted((view.sharing or {}).items()):
            groups.setdefault((resource, replace(shared, one_only=False)), []).append(view)
    return sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[1][0].title))


def _nodes_of(config: PluginConfig, meaning: Meaning) -> JsonObject | None:
    """None: all. The default configuration is for nodes that name none, or one that does not exist."""
    others = sorted(item.name for item in meaning.configs if item.name != config.name)
    if not others:
        return None
    if config.name == meaning.default_config:
        expression = {"key": CONFIG_LABEL, "operator": "NotIn", "values": others}
        return {"labelSelector": {"matchExpressions": [expression]}}
    return {"labelSelector": {"matchLabels": {CONFIG_LABEL: config.name}}}


def _rule(nodes: JsonObject | None, resource: str, shared: PluginSharing, single: bool) -> JsonObject:
    rule: JsonObject = {"nodes": nodes} if nodes is not None else {}
    if resource.startswith(MIG_RESOURCE):
        profile = restored_profile(resource.removeprefix(MIG_RESOURCE)) or resource.removeprefix(MIG_RESOURCE)
        rule |= {"devices": "mig", "profiles": [profile]}
    elif single:
        rule |= {"devices": "mig"}
    replicas = min(shared.replicas or 2, MOST_REPLICAS)
    return {**rule, "strategy": shared.strategy or "TimeSlicing", "replicas": replicas}


# -- MIG


def _mig_rules(meaning: Meaning, options: Options) -> Iterator[JsonObject]:
    """Without `dynamic_mig` the MIG manager continues, and its devices are offered, which needs no rule."""
    if not options.dynamic_mig:
        return
    for layout in meaning.layouts:
        if layout.profiles:
            nodes = {"labelSelector": {"matchLabels": {LAYOUT_LABEL: layout.name}}}
            yield {"nodes": nodes, "mode": "Dynamic", "profiles": list(layout.profiles)}


# -- chart


def _values(meaning: Meaning, rules: JsonObject, options: Options, reasons: list[str]) -> JsonObject:
    answering = _classes(meaning)
    values: JsonObject = {
        **({"driverName": options.driver} if options.driver != GPU_DRIVER else {}),
        **({"policy": rules} if rules else {}),
        **({"deviceClasses": {"extendedResources": answering}} if answering else {}),
        **({"featureGates": {Feature.MIG_EXTENDED_RESOURCES.value: True}} if "mixed" in _strategies(meaning) else {}),
    }
    roots = sorted(meaning.driver_roots - {"/"})
    if len(roots) == 1 and "/" not in meaning.driver_roots:
        values["kubeletPlugin"] = {"driverRoot": roots[0]}
    elif roots:
        reasons.append(
            f"The driver's folder differs ({', '.join(sorted(meaning.driver_roots))}), so the plugin searches for it."
        )
    return values


def _strategies(meaning: Meaning) -> set[str | None]:
    return {view.mig_strategy for view in meaning.views} or {meaning.strategy}


def _classes(meaning: Meaning) -> dict[str, str]:
    """Which extended resources classes answer to, where that differs from the chart's defaults."""
    names: dict[str, str] = {}
    if _strategies(meaning) == {"single"}:
        names = {"gpu.nvidia.com": "", "mig.nvidia.com": GPU_RESOURCE}
    shared = [sharing[GPU_RESOURCE] for view in meaning.views if GPU_RESOURCE in (sharing := view.sharing or {})]
    renamed = next((item.name_of(GPU_RESOURCE) for item in shared if item.renamed), None)
    if renamed is not None:
        names["shared.gpu.nvidia.com"] = renamed
    return names


# -- values during and after the cut-over


def gpu_policies(migration: Migration) -> list[JsonObject]:
    """The policy as objects that `kubectl apply` takes."""
    return [] if migration.policy is None else policy_objects(migration.policy, "migrated")


def policy_objects(rules: JsonObject, prefix: str) -> list[JsonObject]:
    """GpuPolicies of the rules of a PublishingPolicy; their names begin with `prefix`."""
    policy = PublishingPolicy.of(rules, about="the policy of this migration")
    return [made.to_object() for made in policies_of(policy, prefix)]


def final_values(migration: Migration) -> JsonObject:
    """Chart values for the time after: the policy, and classes that answer the resources of MIG devices if pods keep
    asking for those."""
    rules = {key: value for key, value in (migration.policy or {}).items() if key not in ("apiVersion", "kind")}
    given = dict(migration.chart_values or {})
    if any(resource.startswith(MIG_RESOURCE) for resource in kept_resources(migration)):
        given["featureGates"] = {**(given.get("featureGates") or {}), str(Feature.MIG_EXTENDED_RESOURCES): True}
    return {**given, "policy": {**(given.get("policy") or {}), **rules}}


def kept_resources(migration: Migration) -> frozenset[str]:
    """The extended resources that pods keep asking for."""
    stay = (workload for workload in migration.workloads if workload.choice.target is MigrationTarget.EXTENDED)
    return frozenset(demand.resource for workload in stay for demand in workload.reading.demands if demand.resource)


def values_for_cutover(migration: Migration) -> JsonObject:
    """The same, but the driver runs and publishes only where the labels say so."""
    values = final_values(migration)
    plugin = dict(values.get("kubeletPlugin") or {})
    plugin["nodeSelector"] = {**(plugin.get("nodeSelector") or {}), DRIVER_RUNS: "yes"}
    rules = dict(values["policy"])
    rules["publish"] = [{**rule, "nodes": _where_it_offers(rule.get("nodes"))} for rule in rules.get("publish") or [{}]]
    return {**values, "kubeletPlugin": plugin, "policy": rules}


def _where_it_offers(nodes: JsonObject | None) -> JsonObject:
    selector = (nodes or {}).get("labelSelector") or {}
    labels = {**(selector.get("matchLabels") or {}), OFFERED_BY: "driver"}
    return {**(nodes or {}), "labelSelector": {**selector, "matchLabels": labels}}
