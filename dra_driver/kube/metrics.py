"""Metrics of requests to the API server, counted when they end, for `dra_driver.kube.client.Kube`; and of Events that
`dra_driver.kube.events` dropped."""

from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, Metric

from dra_driver.api.meta import Resource
from dra_driver.kube.events import Dropped


class ApiCalls:
    """Counts answers. A watch is counted at its start, and again, with `none`, if it breaks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "gpu_dra_api_requests",
            "Requests to the API server, by verb, resource and HTTP status; `none`: no answer.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self._errors = Counter(
            "gpu_dra_api_errors",
            "Requests that the API server refused or did not answer; conflicts and missing objects are no errors.",
            ["verb", "code"],
            registry=registry,
        )

    def answered(self, verb: str, resource: Resource | None, status: int | None) -> None:
        """`status` None: there was no answer."""
        code = "none" if status is None else str(status)
        plural = "" if resource is None else resource.plural
        self._answers.labels(verb, plural, code).inc()
        if status is None or (status >= 400 and status not in (404, 409, 410)):
            self._errors.labels(verb, code).inc()


class DroppedEvents:
    """Reads the dropped Events of an EventRecorder."""

    def __init__(self, dropped: Mapping[Dropped, int]) -> None:
        self._dropped = dropped

    def collect(self) -> Iterator[Metric]:
        meaning = (
            "Kubernetes Events that were not written: `object` had too many of them, the `process` had too many, or the"
            " API server `refused` them."
        )
        family = CounterMetricFamily("gpu_dra_events_dropped", meaning, labels=["limit"])
        for limit in get_args(Dropped.__value__):
            family.add_metric([limit], self._dropped.get(limit, 0))
        yield family
