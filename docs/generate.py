"""Writes the generated parts of the README and of the pages of docs/, which are between `<!-- NAME: begin -->` and
`<!-- NAME: end -->`. `make generate` runs it, and a test compares. The metric families are those of the collectors that
both processes register, created here without data.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from controller.computedomains.keeper import DomainCollector
from controller.webhook.service import WebhookMetrics
from docs.from_code import attributes, errors, figures, hardware, lists, policy, rights, settings
from docs.from_code.tables import table
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.metrics import ApiCalls, DroppedEvents
from dra_driver.kube.watch import Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import listed
from dra_driver.publish.live import DecidedPolicies
from dra_driver.publish.metrics import PublishedPools
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.pools import PoolPublisher, Publication
from dra_driver.runtime.telemetry import tell_build
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.reporting.metrics import CallMetrics, ClaimTimes, NodeCollector

FOLDER = Path(__file__).parent
PAGES = (FOLDER.parent / "README.md", *sorted(FOLDER.glob("*.md")))


@dataclass(frozen=True, order=True)
class Family:
    """A metric family as Prometheus shows it, without the suffixes of a histogram's series."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def series(self) -> tuple[str, ...]:
        """The series names for queries."""
        if self.type != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "count", "sum"))


class _Recorded(CollectorRegistry):
    """Records the registered collectors."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)
        super().register(collector)


class _Nothing:
    """A node without GPUs and claims."""

    facts = NodeFacts("boot", None, (), ())
    current = Journal({})


def plugin_families() -> list[Family]:
    """Families of the node plugin; with `publisher: node` it also has those of publishing."""
    registry = _Recorded()
    tell_build(registry, "kubelet-plugin")
    ApiCalls(registry)
    registry.register(DroppedEvents({}))
    ClaimTimes(registry)
    CallMetrics(registry)
    registry.register(NodeCollector(_Nothing(), _Nothing(), node="node", driver=GPU_DRIVER))
    return _families(registry)


def publisher_families() -> list[Family]:
    """Families of the publisher."""
    registry = _Recorded()
    tell_build(registry, "controller")
    ApiCalls(registry)
    registry.register(DroppedEvents({}))
    Narrator(registry)
    publication = Publication(driver=GPU_DRIVER, policies=lambda *_: DecidedPolicies())
    publisher = PoolPublisher(Watches(Kube(Endpoint(server="http://localhost"))), publication)
    registry.register(PublishedPools(lambda: [publisher]))
    return _families(registry)


def controller_families() -> list[Family]:
    """Families that only the controller has: ComputeDomains and the webhook."""
    registry = _Recorded()
    registry.register(DomainCollector(dict))
    WebhookMetrics(registry)
    return _families(registry)


def _families(registry: _Recorded) -> list[Family]:
    families = []
    for collector in registry.collectors:
        if isinstance(collector, MetricWrapperBase):
            families += [_family(metric, collector._labelnames) for metric in collector.describe()]
        else:
            families += [_family(metric, metric._labelnames) for metric in collector.collect()]
    return sorted(set(families))


def _family(metric: Metric, labels: Iterable[str]) -> Family:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return Family(name, metric.type, tuple(labels), metric.documentation)


def _metrics(families: Iterable[Family]) -> str:
    rows = ((f"`{family.name}`", family.type, listed(family.labels), family.meaning) for family in families)
    return table(("Name", "Type", "Labels", "Meaning"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "attributes": attributes.attributes,
    "capacities": attributes.capacities,
    "classes": lists.classes,
    "cluster-checks": lists.cluster_checks_part,
    "codes": lists.codes_of_check,
    "condition-taints": attributes.condition_taints,
    "decisions": lists.decisions,
    "domain-attributes": attributes.domain_attributes,
    "domain-events": lists.domain_events,
    "domain-reasons": lists.domain_reasons,
    "errors": errors.error_kinds,
    "escalations": rights.escalations,
    "events": lists.events,
    "exclusions": lists.exclusions,
    "feature-gates": lists.feature_gates,
    "gpupolicy-example": policy.gpupolicy_example,
    "kinds": lists.kinds,
    "kubernetes-gates": lists.kubernetes_gates,
    "labels": lists.labels,
    "limitations": lists.limitations,
    "limits": lists.limits,
    "losses": lists.losses,
    "metrics-of-both": lambda: _metrics(of for of in plugin_families() if of in publisher_families()),
    "metrics-of-publishers": lambda: _metrics(of for of in publisher_families() if of not in plugin_families()),
    "metrics-of-the-controller": lambda: _metrics(controller_families()),
    "metrics-of-the-plugin": lambda: _metrics(of for of in plugin_families() if of not in publisher_families()),
    "mig-tables": hardware.mig_tables,
    "migration-codes": lists.codes_of_migration,
    "models": hardware.models,
    "node-checks": lists.node_checks_part,
    "policy-fields": policy.policy_fields,
    "profile-class": lists.profile_class,
    "proofs": lists.proofs,
    "publishingpolicy-example": policy.publishingpolicy_example,
    "refusals": rights.refusals,
    "rights": rights.rights,
    "settings": settings.settings,
    "sources": hardware.source_list,
    "xids": attributes.xids,
    **{f"figures-{name}": partial(figures.figures, name) for name in figures.TABLES},
}
_PART = re.compile(r"(?P<begin><!-- (?P<name>\S+): begin;[^\n]*-->\n).*?(?P<end><!-- (?P=name): end -->)", re.DOTALL)


def parts_in(page: str) -> list[str]:
    """Names of the parts that a page has, in its order."""
    return [part["name"] for part in _PART.finditer(page)]


def written(page: str) -> str:
    """The page with its parts as the code has them now. Raises KeyError for a part that does not exist."""
    return _PART.sub(lambda part: f"{part['begin']}\n{PARTS[part['name']]()}\n\n{part['end']}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
