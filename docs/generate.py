"""Writes the generated pages of docs/, and generated parts of others. `make generate` runs it, and a test compares. The
metric families are those of the collectors that both processes register, created here without data.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from controller.computedomains.keeper import DomainCollector
from controller.policies import WAITING
from controller.webhook.service import WebhookMetrics
from docs.from_code import checks, domains, errors, findings, hardware, migration, security, sharing
from docs.from_code.attributes import attributes_page
from docs.from_code.classes import classes_page
from docs.from_code.domains import domain_events
from docs.from_code.gates import gates_page
from docs.from_code.kubernetes import versions_page
from docs.from_code.policy import policy_page
from docs.from_code.settings import settings_page
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.metrics import ApiCalls, DroppedEvents
from dra_driver.names import GPU_DRIVER
from dra_driver.publish import PoolPublisher, Publication
from dra_driver.publish.metrics import PublishedPools, PublishingCounters
from dra_driver.publish.statuses import FOLLOWED, NOT_FOLLOWED
from dra_driver.runtime.telemetry import tell_build
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.reporting.events import Reason
from kubelet_plugin.reporting.metrics import CallMetrics, ClaimTimes, NodeCollector

FOLDER = Path(__file__).parent


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
    PublishingCounters(registry)
    publisher = PoolPublisher(Kube(Endpoint(server="http://localhost")), Publication(driver=GPU_DRIVER))
    registry.register(PublishedPools(lambda: [publisher]))
    return _families(registry)


def controller_families() -> list[Family]:
    """Families that only the controller has: ComputeDomains and the webhook."""
    registry = _Recorded()
    registry.register(DomainCollector(dict))
    WebhookMetrics(registry)
    return _families(registry)


def _families(registry: _Recorded) -> list[Family]:
    found = []
    for collector in registry.collectors:
        if isinstance(collector, MetricWrapperBase):
            found += [_family(one, collector._labelnames) for one in collector.describe()]
        else:
            found += [_family(one, one._labelnames) for one in collector.collect()]
    return sorted(set(found))


def _family(metric: Metric, labels: Iterable[str]) -> Family:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return Family(name, metric.type, tuple(labels), metric.documentation)


def metrics_page() -> str:
    """The whole of metrics.md."""
    plugin, controller = plugin_families(), publisher_families()
    common = [family for family in plugin if family in controller]
    return "\n".join(
        [
            "# Metrics",
            "",
            "<!-- Written by docs/generate.py; change the code instead. -->",
            "",
            "Both processes serve metrics at `/metrics` of `--http-endpoint`. Families that begin with"
            " `nvidia_dra_` have the",
            "names and labels of NVIDIA's own driver, so that its dashboards work. A histogram has the series"
            " `_bucket`, `_count`",
            "and `_sum`. Alert rules and a Grafana dashboard are in `charts/gpu-dra-driver/files`.",
            "",
            "## Both processes",
            "",
            *_table(common),
            "",
            "## Node plugin",
            "",
            *_table(family for family in plugin if family not in common),
            "",
            "## Controller, and node plugins with `--publisher node`",
            "",
            *_table(family for family in controller if family not in common),
            "",
            "## Only the controller",
            "",
            *_table(controller_families()),
            "",
        ]
    )


def _table(families: Iterable[Family]) -> Iterator[str]:
    yield "| Name | Type | Labels | Meaning |"
    yield "|---|---|---|---|"
    for one in families:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        yield f"| `{one.name}` | {one.type} | {labels} | {one.meaning} |"


def events_page() -> str:
    """The whole of events.md."""
    return "\n".join(
        [
            "# Events",
            "",
            "<!-- Written by docs/generate.py; change the code instead. -->",
            "",
            "`kubectl describe` shows these Events. The node plugin writes them with `events.k8s.io/v1`. Events of"
            " nodes are in",
            "the namespace `default`. A repeated Event increases the count of its series. If a claim cannot be"
            " prepared, the",
            "kubelet also writes an Event to the pod at every attempt (`FailedPrepareDynamicResources`).",
            "",
            "A pod gets one Event when a device it holds becomes unhealthy, and one when it recovers. All pods of"
            " a shared claim",
            "get them, except monitors with admin access. A pod that starts to use a claim with an unhealthy"
            " device gets the",
            "Event within a minute. A node writes at most 20 Events of pods at once and then one a second."
            " It omits faults",
            "that end earlier, and faults that return within 30 seconds. A restarted plugin repeats nothing. A"
            " claim that is",
            "reserved for a PodGroup does not name its pods, so the plugin asks the kubelet for them"
            " (PodResources), once a",
            "minute and only if such a claim exists. These pods get Events of their devices once their containers"
            " run; only the",
            "kubelet reports that such a claim cannot be prepared.",
            "",
            "| Object | Type | Reason | Meaning |",
            "|---|---|---|---|",
            *(f"| {one.kind} | {one.type} | `{one.word}` | {one.meaning} |" for one in Reason),
            "",
            "The publisher (controller or plugin) reports when a node cannot follow the policy, and when it can"
            " again. The status",
            "of the node's inventory says the same: [policy.md](policy.md#what-cannot-be-followed).",
            "",
            "| Object | Type | Reason | Meaning |",
            "|---|---|---|---|",
            "| GpuPolicy | Warning | reason of the status | Nodes cannot follow the policy, or it makes no sense: which"
            " rule, why, and the fix. |",
            f"| GpuPolicy | Normal | `{WAITING}` | GPUs change when the claims that use them are gone, or switch. |",
            "| GpuPolicy | Normal | `Followed` | All nodes follow the policy again. |",
            f"| Node | Warning | `{NOT_FOLLOWED}` | Rules of the policy cannot be followed: which, why, and the fix. |",
            f"| Node | Normal | `{FOLLOWED}` | All rules of the policy are followed again. |",
            "",
            "The controller writes these Events when a ComputeDomain becomes ready, and when the reason why it is"
            " not ready",
            "changes. The condition `Ready` of the domain's status has the same reason.",
            "",
            domain_events(),
            "",
        ]
    )


PAGES = {
    "attributes.md": attributes_page,
    "classes.md": classes_page,
    "events.md": events_page,
    "feature-gates.md": gates_page,
    "kubernetes-versions.md": versions_page,
    "metrics.md": metrics_page,
    "policy.md": policy_page,
    "settings.md": settings_page,
}

PARTS = {
    "check.md": (findings.BEGIN, findings.codes_part, findings.END),
    "compute-domains.md": (domains.BEGIN, domains.reasons_part, domains.END),
    "hardware.md": (hardware.BEGIN, hardware.models_part, hardware.END),
    "doctor.md": (checks.BEGIN, checks.checks_part, checks.END),
    "migration.md": (migration.BEGIN, migration.migration_part, migration.END),
    "security.md": (security.BEGIN, security.rights_part, security.END),
    "sharing.md": (sharing.BEGIN, sharing.sharing_part, sharing.END),
    "troubleshooting.md": (errors.BEGIN, errors.kinds_part, errors.END),
}
"""Generated parts of other pages, between two marker lines."""


def with_part(name: str) -> str:
    """The page with its generated part. Raises LookupError if the marker lines are missing."""
    begin, part, end = PARTS[name]
    before, found, rest = (FOLDER / name).read_text(encoding="utf-8").partition(f"{begin}\n")
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise LookupError(f"docs/{name} needs the lines {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{part()}\n\n{end}{after}"


if __name__ == "__main__":
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")
    for name in PARTS:
        (FOLDER / name).write_text(with_part(name), encoding="utf-8")
