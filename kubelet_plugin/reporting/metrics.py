"""Metrics of the node plugin: the kubelet's calls, the claims that hold devices, the GPUs and their state.

`main` puts `MeasuredClaims` between the kubelet's calls and the claim service, so that neither knows of metrics.
Families whose name begins with `nvidia_dra_` are those of NVIDIA's own driver, with its labels, so that its dashboards
work; this driver's own begin with `gpu_dra_`. Each claim has a few series, which end with it.
"""

import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from dra_driver.api.inventory import GpuFacts
from dra_driver.errors import DriverError
from dra_driver.names import ClaimRef
from kubelet_plugin.facts.hardware import RELEASED, NodeFacts
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.prepare.claim_reads import PodsOfClaims
from kubelet_plugin.prepare.holds import ComputeInstance, HoldState, MpsDaemon, TimeSlice
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.listener import Call, ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.rpc.messages import Prepared, Unprepared
from kubelet_plugin.rpc.servers import ClaimHandler

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 45.0)
_COMPATIBLE_BUCKETS_S = tuple(0.05 * 2**power for power in range(9))
_CALLS: tuple[Call, ...] = ("prepare", "unprepare")


class CallMetrics:
    """Of the kubelet's calls to all drivers of the process; and the families of NVIDIA's own driver, which counts and
    times each claim, and of these only what succeeds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = cache(
            Histogram(
                "gpu_dra_call_seconds",
                "Duration of kubelet's calls, each with one or more claims.",
                ["driver", "call"],
                buckets=_BUCKETS_S,
                registry=registry,
            ).labels
        )
        self._outcomes = cache(
            Counter(
                "gpu_dra_claims",
                "Claims that kubelet asked to prepare or unprepare, by outcome: ok, or the kind of error.",
                ["driver", "call", "outcome"],
                registry=registry,
            ).labels
        )
        labels = ["driver", "operation"]
        self._requests = cache(
            Counter("nvidia_dra_requests", "Claims that were prepared or unprepared.", labels, registry=registry).labels
        )
        self._request_seconds = cache(
            Histogram(
                "nvidia_dra_request_duration_seconds",
                "How long kubelet waited for each claim that was prepared or unprepared.",
                labels,
                buckets=_COMPATIBLE_BUCKETS_S,
                registry=registry,
            ).labels
        )
        self._inflight = cache(
            Gauge(
                "nvidia_dra_requests_inflight", "Claims being prepared or unprepared.", labels, registry=registry
            ).labels
        )
        self._errors = {
            call: cache(
                Counter(
                    f"nvidia_dra_node_{call}_errors",
                    f"Claims that could not be {call}d.",
                    ["driver", "error_type"],
                    registry=registry,
                ).labels
            )
            for call in _CALLS
        }

    def begin(self, driver: str) -> None:
        """Series of a driver are there before the first call to it."""
        for call in _CALLS:
            self._requests(driver, call)
            self._request_seconds(driver, call)
            self._inflight(driver, call)
            self._errors[call](driver, f"{call}_devices")

    async def measured[T](
        self,
        driver: str,
        call: Call,
        claims: Sequence[ClaimRef],
        act: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, T]]],
    ) -> Mapping[str, T]:
        """What `act` answers for these claims."""
        started = time.perf_counter()
        inflight, number = self._inflight(driver, call), len({claim.uid for claim in claims})
        inflight.inc(number)
        try:
            answers = await act(claims)
        finally:
            inflight.dec(number)
        seconds = time.perf_counter() - started
        self._seconds(driver, call).observe(seconds)
        for answer in answers.values():
            outcome = type(answer).__name__ if isinstance(answer, DriverError) else "ok"
            self._outcomes(driver, call, outcome).inc()
            if outcome == "ok":
                self._requests(driver, call).inc()
                self._request_seconds(driver, call).observe(seconds)
            else:
                self._errors[call](driver, f"{call}_devices").inc()
        return answers


class MeasuredClaims:
    """Passes kubelet's calls to one driver on, and counts and times them."""

    def __init__(self, claims: ClaimHandler, metrics: CallMetrics, driver: str) -> None:
        self._claims = claims
        self._metrics = metrics
        self._driver = driver
        metrics.begin(driver)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        return await self._metrics.measured(self._driver, "prepare", claims, self._claims.prepare)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Unprepared:
        return await self._metrics.measured(self._driver, "unprepare", claims, self._claims.unprepare)


class ClaimTimes(ClaimListener):
    """Durations of operations on claims, and of their steps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._claims = cache(
            Histogram(
                "gpu_dra_claim_seconds",
                "Duration of preparing or unpreparing one claim, by outcome: ok, or the kind of error.",
                ["driver", "call", "outcome"],
                buckets=_BUCKETS_S,
                registry=registry,
            ).labels
        )
        self._steps = cache(
            Histogram(
                "gpu_dra_step_seconds",
                "Duration of the steps of preparing and unpreparing: reading the claim, looking at the node, writing"
                " journal and CDI file, making and undoing each kind of hold.",
                ["step", "outcome"],
                buckets=_BUCKETS_S,
                registry=registry,
            ).labels
        )

    def step_ended(self, step: str, outcome: str, seconds: float) -> None:
        self._steps(step, outcome).observe(seconds)

    def ended(self, operation: Operation) -> None:
        self._claims(operation.driver, operation.call, operation.outcome).observe(operation.seconds)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of another driver of the process that a claim has; `type` is what it is."""

    claim: ClaimRef
    device: str
    type: str
    admin_access: bool = False


class NodeCollector:
    """Gauges that are read from their owners at each scrape. Unknown values have no series."""

    def __init__(
        self, facts: SeenFacts, journal: JournalStore, *, node: str, driver: str, pods: PodsOfClaims | None = None
    ) -> None:
        self.pods = pods or PodsOfClaims()
        self._facts = facts
        self._journal = journal
        self._node = node
        self._driver = driver
        self._others: dict[str, Callable[[], Sequence[ClaimedDevice]]] = {}

    def add(self, driver: str, devices: Callable[[], Sequence[ClaimedDevice]]) -> None:
        """Count what claims have of another driver, too; it is asked at every scrape."""
        self._others[driver] = devices

    def collect(self) -> Iterator[Metric]:
        with suppress(DriverError):
            yield from _hardware(self._facts.facts)
        try:
            journal = self._journal.current
        except DriverError:
            return
        others = {driver: devices() for driver, devices in self._others.items()}
        yield from _claims(journal, self._node, self._driver, others)
        yield _pods(journal, others, self.pods)
        yield from _holds(journal)


def _hardware(facts: NodeFacts) -> Iterator[Metric]:
    gpus = _family("gpu_dra_gpus", "GPUs of this node that can be read, by health.", "health")
    healthy = sum(gpu.health.healthy for gpu in facts.gpus)
    gpus.add_metric(["healthy"], healthy)
    gpus.add_metric(["unhealthy"], len(facts.gpus) - healthy)
    yield gpus
    problems = "Problems that prevent a GPU, or all GPUs, from being offered, except requested releases."
    yield GaugeMetricFamily(
        "gpu_dra_problems", problems, value=sum(problem.reason != RELEASED for problem in facts.problems)
    )
    info = _family("gpu_dra_gpu_info", "1 for each GPU, with what it is.", "gpu", "device", "product", "pci_bus_id")
    memory = _family("gpu_dra_gpu_memory_bytes", "Memory of each GPU that has its own.", "gpu", "device")
    conditions = _family(
        "gpu_dra_gpu_condition", "1 for each condition of a GPU.", "gpu", "device", "type", "value", "severity"
    )
    for gpu in facts.gpus:
        info.add_metric([gpu.uuid, gpu.name, gpu.product_name, gpu.pci_bus_id], 1)
        if gpu.memory_bytes is not None:
            memory.add_metric([gpu.uuid, gpu.name], gpu.memory_bytes)
        for labels in sorted(
            {(condition.type, condition.value or "", condition.severity) for condition in gpu.health.conditions}
        ):
            conditions.add_metric([gpu.uuid, gpu.name, *labels], 1)
    yield from (info, memory, conditions, _static_instances(facts.gpus))


def _static_instances(gpus: Sequence[GpuFacts]) -> Metric:
    static_instances = _family(
        "gpu_dra_static_mig_devices", "MIG devices that an administrator made.", "gpu", "device", "profile"
    )
    for gpu in gpus:
        for profile, number in sorted(Tally(device.profile for device in gpu.mig_devices).items()):
            static_instances.add_metric([gpu.uuid, gpu.name, profile], number)
    return static_instances


type _Others = Mapping[str, Sequence[ClaimedDevice]]


def _claims(journal: Journal, node: str, driver: str, others: _Others) -> Iterator[Metric]:
    entries = [journal.held[uid] for uid in sorted(journal.held)]
    of_others = [item for devices in others.values() for item in devices]
    held = len(entries) + len({item.claim.uid for item in of_others} - journal.held.keys())
    yield GaugeMetricFamily("gpu_dra_claims_held", "Claims that hold devices of this node.", value=held)
    of_share = ("namespace", "claim", "device", "share")
    allocated = _Series(
        "gpu_dra_claim_device",
        "1 for each device that a claim holds; `share` is the share of a device that several claims hold.",
        *("namespace", "claim", "device", "gpu", "type", "share", "admin_access"),
    )
    memory = _Series("gpu_dra_claim_memory_limit_bytes", "Memory that a claim's programs are limited to.", *of_share)
    threads = _Series(
        "gpu_dra_claim_thread_limit_percent",
        "Percent of the threads that a claim's programs are limited to.",
        *of_share,
    )
    for entry in entries:
        for device in entry.devices:
            allocated.put([*_claim(entry), *_device(device)], 1)
            labels = [*_claim(entry), device.device, _share(device)]
            if device.sharing is not None and device.sharing.memory_bytes is not None:
                memory.put(labels, device.sharing.memory_bytes)
            if device.sharing is not None and device.sharing.thread_percentage is not None:
                threads.put(labels, device.sharing.thread_percentage)
    for claimed_device in of_others:
        whose = [claimed_device.claim.namespace, claimed_device.claim.name]
        allocated.put(
            [*whose, claimed_device.device, "", claimed_device.type, "", str(claimed_device.admin_access).lower()], 1
        )
    yield from (allocated.family, memory.family, threads.family, _prepared(entries, node, driver, others))


def _pods(journal: Journal, others: _Others, pods: PodsOfClaims) -> Metric:
    series = _Series(
        "gpu_dra_claim_pod",
        "1 for each pod of a claim that holds devices, as was known when the claim was read last: whenever the"
        " kubelet asks for it, every minute where further pods can join, and every ten minutes.",
        *("namespace", "claim", "pod"),
    )
    claims = {uid: entry.claim for uid, entry in journal.held.items()}
    claims |= {device.claim.uid: device.claim for devices in others.values() for device in devices}
    for uid, names in sorted(pods.of(claims.keys()).items()):
        for name in names:
            series.put([claims[uid].namespace, claims[uid].name, name], 1)
    return series.family


def _prepared(entries: Sequence[Entry], node: str, driver: str, others: _Others) -> Metric:
    prepared = _family(
        "nvidia_dra_prepared_devices", "Devices that are prepared now, by type.", "node", "driver", "device_type"
    )
    done = [entry for entry in entries if entry.in_use]
    types = Tally(device.kind.value for entry in done for device in entry.devices)
    for type_ in ("gpu", "mig", "vfio", "unknown"):
        prepared.add_metric([node, driver, type_], types[type_])
    for other, devices in others.items():
        of_other = Tally(device.type for device in devices)
        for type_ in ("channel", "daemon", "unknown"):
            prepared.add_metric([node, other, type_], of_other[type_])
    return prepared


def _holds(journal: Journal) -> Iterator[Metric]:
    made = _family("gpu_dra_mig_devices", "MIG devices that were made for claims.", "gpu", "profile")
    slices = _family("gpu_dra_time_slice", "1 for each GPU whose time slice a claim has set.", "gpu", "interval")
    daemons = _family("gpu_dra_mps_daemon", "1 for each MPS daemon that serves claims.", "gpu", "daemon")
    states = Tally(record.state for record in journal.holds.values())
    profiles: Tally[tuple[str, str]] = Tally()
    for hold, record in journal.holds.items():
        if record.state is not HoldState.MADE:
            continue
        if isinstance(hold, ComputeInstance):
            part = "" if hold.slices is None else f"{hold.slices}c."
            profiles[hold.parent.gpu.uuid, part + hold.parent.profile] += 1
        elif isinstance(hold, TimeSlice):
            slices.add_metric([hold.gpu.uuid, hold.interval], 1)
        elif isinstance(hold, MpsDaemon):
            for gpu in hold.gpus:
                daemons.add_metric([gpu.uuid, hold.key], 1)
    for labels, number in sorted(profiles.items()):
        made.add_metric(list(labels), number)
    under_way = _family("gpu_dra_holds", "Settings and objects of the hardware that claims need, by state.", "state")
    for state in HoldState:
        under_way.add_metric([state.value], states[state])
    yield from (made, slices, daemons, under_way)


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


class _Series:
    """A family without duplicate series, which Prometheus refuses: while a claim is replaced by another of the same
    name, there are two of that name."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._empty = _family(name, text, *labels)
        self._values: dict[tuple[str, ...], float] = {}

    def put(self, labels: Sequence[str], value: float) -> None:
        self._values[tuple(labels)] = value

    @property
    def family(self) -> Metric:
        for labels, value in self._values.items():
            self._empty.add_metric(labels, value)
        return self._empty


def _claim(entry: Entry) -> list[str]:
    return [entry.claim.namespace, entry.claim.name]


def _device(device: HeldDevice) -> list[str]:
    return [device.device, device.gpu_uuid, device.kind.value, _share(device), str(device.admin_access).lower()]


def _share(device: HeldDevice) -> str:
    number = device.sharing.number if device.sharing is not None else None
    return device.share_id or ("" if number is None else str(number))
