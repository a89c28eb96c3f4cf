"""What Prometheus may know of the node plugin: kubelet's calls, the claims that hold devices, the GPUs.

`main` puts `MeasuredClaims` between kubelet's calls and the claim service, so that neither knows of metrics.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from dra_driver.errors import DriverError
from dra_driver.names import ClaimRef
from kubelet_plugin.discovery import NodeFacts
from kubelet_plugin.prepare.lifecycle import Held
from kubelet_plugin.rpc.messages import Prepared, Unprepared
from kubelet_plugin.rpc.server import ClaimHandler

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 45.0)


class MeasuredClaims:
    """Passes kubelet's calls on, and counts and times them."""

    def __init__(self, claims: ClaimHandler, registry: CollectorRegistry) -> None:
        self._claims = claims
        self._seconds = Histogram(
            "gpu_dra_call_seconds",
            "Duration of kubelet's calls, each with one or more claims.",
            ["call"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._outcomes = Counter(
            "gpu_dra_claims",
            "Claims that kubelet asked to prepare or unprepare, by outcome: ok, or the kind of error.",
            ["call", "outcome"],
            registry=registry,
        )

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        started = time.perf_counter()
        answers = await self._claims.prepare(claims)
        self._count("prepare", started, answers)
        return answers

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Unprepared:
        started = time.perf_counter()
        answers = await self._claims.unprepare(claims)
        self._count("unprepare", started, answers)
        return answers

    def _count(self, call: str, started: float, answers: Mapping[str, object]) -> None:
        self._seconds.labels(call).observe(time.perf_counter() - started)
        for answer in answers.values():
            outcome = type(answer).__name__ if isinstance(answer, DriverError) else "ok"
            self._outcomes.labels(call, outcome).inc()


class Facts(Protocol):
    """What is needed of `kubelet_plugin.discovery.Discovery`."""

    @property
    def facts(self) -> NodeFacts: ...


class Holder(Protocol):
    """What is needed of `kubelet_plugin.service.ClaimService`."""

    @property
    def held(self) -> Held: ...


class NodeCollector:
    """Gauges that are read from their owners when somebody scrapes."""

    def __init__(self, discovery: Facts, claims: Holder) -> None:
        self._discovery = discovery
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        try:
            facts = self._discovery.facts
            held = self._claims.held
        except DriverError:
            return  # not known yet, or not readable; a missing series says so
        gpus = GaugeMetricFamily("gpu_dra_gpus", "GPUs of this node that can be read, by health.", labels=["health"])
        healthy = sum(gpu.health.healthy for gpu in facts.gpus)
        gpus.add_metric(["healthy"], healthy)
        gpus.add_metric(["unhealthy"], len(facts.gpus) - healthy)
        yield gpus
        problems = "Things that keep a GPU, or all of them, from being offered."
        yield GaugeMetricFamily("gpu_dra_problems", problems, value=len(facts.problems))
        yield GaugeMetricFamily("gpu_dra_claims_held", "Claims that hold devices of this node.", value=len(held))
