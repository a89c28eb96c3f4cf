"""Values of the chart for the time of the change from device plugin to driver, and for the time after. Pure."""

from dra_driver.api.meta import JsonObject
from dra_driver.features import Feature
from dra_driver.migration.model import Migration, Target
from dra_driver.migration.understand.offering import DRIVER_RUNS, OFFERED_BY

MIG_RESOURCE = "nvidia.com/mig-"


def final_values(migration: Migration) -> JsonObject:
    """Chart values for the time after: what configurations said, the policy that was made of them, and classes that
    answer to MIG devices' resources where pods go on to ask for those."""
    rules = {key: value for key, value in (migration.policy or {}).items() if key not in ("apiVersion", "kind")}
    given = dict(migration.chart_values or {})
    if any(one.startswith(MIG_RESOURCE) for one in kept_resources(migration)):
        given["featureGates"] = {**(given.get("featureGates") or {}), str(Feature.MIG_EXTENDED_RESOURCES): True}
    return {**given, "policy": {**(given.get("policy") or {}), **rules}}


def kept_resources(migration: Migration) -> frozenset[str]:
    """The extended resources by which pods go on to ask for devices."""
    stay = (one for one in migration.workloads if one.choice.target is Target.EXTENDED)
    return frozenset(demand.resource for one in stay for demand in one.reading.demands if demand.resource)


def values_for_cutover(migration: Migration) -> JsonObject:
    """The same, but the driver runs and publishes only where the labels say so."""
    values = final_values(migration)
    plugin = dict(values.get("kubeletPlugin") or {})
    plugin["nodeSelector"] = {**(plugin.get("nodeSelector") or {}), DRIVER_RUNS: "yes"}
    rules = dict(values["policy"])
    ours = {"matchLabels": {OFFERED_BY: "driver"}}
    wanted = rules.get("publish") or [{}]
    rules["publish"] = [{**rule, "nodes": _both(rule.get("nodes"), ours)} for rule in wanted]
    return {**values, "kubeletPlugin": plugin, "policy": rules}


def _both(nodes: JsonObject | None, ours: JsonObject) -> JsonObject:
    selector = (nodes or {}).get("labelSelector") or {}
    labels = {**(selector.get("matchLabels") or {}), **ours["matchLabels"]}
    return {**(nodes or {}), "labelSelector": {**selector, "matchLabels": labels}}
