"""Metrics of domains; `nvidia_dra_compute_domain_info` is the same as in NVIDIA's own driver."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, Metric

from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.domains.status import READY

_STATES: tuple[Literal["Ready", "NotReady"], ...] = ("Ready", "NotReady")


class DomainCollector:
    """Reads the statuses, by namespace and name, at each scrape; empty if another replica leads."""

    def __init__(self, statuses: Callable[[], Mapping[tuple[str, str], ComputeDomainStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        info = GaugeMetricFamily("nvidia_dra_compute_domain_info", "ComputeDomains by status.", labels=["status"])
        counts = Counter(status.status for status in statuses.values())
        for state in _STATES:
            info.add_metric([state], counts[state])
        yield info
        nodes = GaugeMetricFamily(
            "gpu_dra_compute_domain_nodes", "Nodes of ComputeDomains.", labels=["namespace", "domain", "status"]
        )
        reasons = GaugeMetricFamily(
            "gpu_dra_compute_domain_reason",
            "1 for the reason why a ComputeDomain is ready or not.",
            labels=["namespace", "domain", "reason"],
        )
        for (namespace, name), status in sorted(statuses.items()):
            of_nodes = Counter(node.status for node in status.nodes)
            for state in _STATES:
                nodes.add_metric([namespace, name, state], of_nodes[state])
            for condition in status.conditions:
                if condition.type == READY:
                    reasons.add_metric([namespace, name, condition.reason], 1)
        yield nodes
        yield reasons
