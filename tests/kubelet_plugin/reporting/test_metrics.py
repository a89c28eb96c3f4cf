"""What Prometheus reads of the node plugin."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from support.claims import BOOT, a_claim, a_gpu, a_held_device, a_ref, a_result, an_entry, node_facts
from support.inventories import compute_instance, gpu_instance, mig
from support.plugin import ScriptedClaims

from docs import generate
from dra_driver.api.inventory import HealthCondition, HealthFacts, Problem
from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.model import DeviceKind, Partition
from dra_driver.errors import DeviceInUse, NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.facts.hardware import RELEASED, NodeFacts
from kubelet_plugin.prepare.claim_reads import PodsOfClaims
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    HoldRecord,
    HoldState,
    MpsDaemon,
    TimeSlice,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import SharedUse
from kubelet_plugin.reporting.metrics import CallMetrics, ClaimedDevice, MeasuredClaims, NodeCollector
from kubelet_plugin.rpc.messages import Prepared


def lines(registry: CollectorRegistry, *names: str) -> Sequence[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith(names)]


async def test_calls_are_passed_on_counted_and_timed() -> None:
    registry = CollectorRegistry()
    claims = ScriptedClaims()
    claims.failures["unprepare"] = [DeviceInUse("busy")]
    measured = MeasuredClaims(claims, CallMetrics(registry), "gpu.nvidia.com")
    refs = [a_ref("one"), a_ref("two")]
    assert await measured.prepare(refs) == {ref.uid: () for ref in refs}
    await measured.unprepare(refs[:1])
    assert lines(registry, "gpu_dra_claims_total") == [
        'gpu_dra_claims_total{call="prepare",driver="gpu.nvidia.com",outcome="ok"} 2.0',
        'gpu_dra_claims_total{call="unprepare",driver="gpu.nvidia.com",outcome="DeviceInUse"} 1.0',
    ]
    assert lines(registry, "gpu_dra_call_seconds_count") == [
        'gpu_dra_call_seconds_count{call="prepare",driver="gpu.nvidia.com"} 1.0',
        'gpu_dra_call_seconds_count{call="unprepare",driver="gpu.nvidia.com"} 1.0',
    ]


async def test_the_families_of_nvidias_driver_are_there_from_the_start_and_count_like_its_own() -> None:
    registry = CollectorRegistry()
    claims = ScriptedClaims()
    measured = MeasuredClaims(claims, CallMetrics(registry), "gpu.nvidia.com")
    labels = 'driver="gpu.nvidia.com",operation="prepare"'
    start = lines(registry, "nvidia_dra_requests_total", "nvidia_dra_requests_inflight", "nvidia_dra_node_prepare")
    assert {f"nvidia_dra_requests_total{{{labels}}} 0.0", f"nvidia_dra_requests_inflight{{{labels}}} 0.0"} <= set(start)
    error = 'nvidia_dra_node_prepare_errors_total{driver="gpu.nvidia.com",error_type="prepare_devices"}'
    assert f"{error} 0.0" in start
    refs = [a_ref("one"), a_ref("two")]
    await measured.prepare(refs)
    claims.failures = {"prepare": [DeviceInUse("busy")], "unprepare": [DeviceInUse("busy")]}
    await measured.prepare(refs[:1])
    await measured.unprepare(refs[:1])
    now = lines(registry, "nvidia_dra_")
    # Of each claim, and only what succeeds.
    assert f"nvidia_dra_requests_total{{{labels}}} 2.0" in now
    assert f"nvidia_dra_request_duration_seconds_count{{{labels}}} 2.0" in now
    assert 'nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="unprepare"} 0.0' in now
    assert f"{error} 1.0" in now
    assert 'nvidia_dra_node_unprepare_errors_total{driver="gpu.nvidia.com",error_type="unprepare_devices"} 1.0' in now
    assert f"nvidia_dra_requests_inflight{{{labels}}} 0.0" in now


async def test_claims_under_way_are_counted_each_also_when_kubelet_gives_up() -> None:
    registry, claims, answer = CollectorRegistry(), ScriptedClaims(), asyncio.Event()

    async def slow(refs: Sequence[ClaimRef]) -> Prepared:
        await answer.wait()
        return {}

    claims.prepare = slow
    measured = MeasuredClaims(claims, CallMetrics(registry), "gpu.nvidia.com")
    call = asyncio.create_task(measured.prepare([a_ref("one"), a_ref("two"), a_ref("two")]))
    await asyncio.sleep(0)
    inflight = 'nvidia_dra_requests_inflight{driver="gpu.nvidia.com",operation="prepare"}'
    assert f"{inflight} 2.0" in lines(registry, "nvidia_dra_requests_inflight")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert f"{inflight} 0.0" in lines(registry, "nvidia_dra_requests_inflight")


# Of kubernetes-sigs/dra-driver-nvidia-gpu, pkg/metrics, and of the nodes' plugins what they set device_type to.
NVIDIAS = {
    "nvidia_dra_requests_total": ("counter", {"driver", "operation"}),
    "nvidia_dra_request_duration_seconds": ("histogram", {"driver", "operation"}),
    "nvidia_dra_requests_inflight": ("gauge", {"driver", "operation"}),
    "nvidia_dra_prepared_devices": ("gauge", {"node", "driver", "device_type"}),
    "nvidia_dra_node_prepare_errors_total": ("counter", {"driver", "error_type"}),
    "nvidia_dra_node_unprepare_errors_total": ("counter", {"driver", "error_type"}),
    "nvidia_dra_compute_domain_info": ("gauge", {"status"}),
}
NVIDIAS_BUCKETS = ["0.05", "0.1", "0.2", "0.4", "0.8", "1.6", "3.2", "6.4", "12.8", "+Inf"]
NVIDIAS_TYPES = {
    "gpu.nvidia.com": {"gpu", "mig", "vfio", "unknown"},
    "compute-domain.nvidia.com": {"channel", "daemon", "unknown"},
}


def test_the_families_of_nvidias_driver_have_its_names_types_and_labels_and_there_are_no_others() -> None:
    families = (*generate.plugin_families(), *generate.publisher_families(), *generate.controller_families())
    ours = {
        family.name: (family.type, set(family.labels)) for family in families if family.name.startswith("nvidia_dra_")
    }
    assert ours == NVIDIAS


def test_durations_and_types_of_devices_are_cut_as_nvidias_driver_cuts_them() -> None:
    registry = CollectorRegistry()
    MeasuredClaims(ScriptedClaims(), CallMetrics(registry), "gpu.nvidia.com")
    buckets = [line for line in lines(registry, "nvidia_dra_request_duration_seconds_bucket") if '"prepare"' in line]
    assert [line.split('le="')[1].split('"')[0] for line in buckets] == NVIDIAS_BUCKETS
    node = Node(node_facts(1), Journal({}))
    collector = NodeCollector(node, node, node="node-a", driver="gpu.nvidia.com")
    collector.add("compute-domain.nvidia.com", list)
    registry = CollectorRegistry()
    registry.register(collector)
    types: dict[str, set[str]] = {}
    for line in lines(registry, "nvidia_dra_prepared_devices"):
        types.setdefault(line.split('driver="')[1].split('"')[0], set()).add(line.split('"')[1])
    assert types == NVIDIAS_TYPES


async def test_each_driver_of_the_process_has_series_of_its_own() -> None:
    registry = CollectorRegistry()
    metrics = CallMetrics(registry)
    drivers = ("gpu.nvidia.com", "compute-domain.nvidia.com")
    measured = [MeasuredClaims(ScriptedClaims(), metrics, name) for name in drivers]
    for claims, number in zip(measured, (2, 1), strict=True):
        await claims.prepare([a_ref(str(claim)) for claim in range(number)])
    assert lines(registry, "gpu_dra_claims_total") == [
        'gpu_dra_claims_total{call="prepare",driver="gpu.nvidia.com",outcome="ok"} 2.0',
        'gpu_dra_claims_total{call="prepare",driver="compute-domain.nvidia.com",outcome="ok"} 1.0',
    ]
    assert 'nvidia_dra_requests_total{driver="compute-domain.nvidia.com",operation="prepare"} 1.0' in lines(
        registry, "nvidia_dra_requests_total"
    )


class Node:
    """The monitor and the journal, as far as metrics look."""

    def __init__(self, facts: NodeFacts | None, journal: Journal) -> None:
        self._facts = facts
        self.current = journal

    @property
    def facts(self) -> NodeFacts:
        if self._facts is None:
            raise NodeNotReady("not looked at yet")
        return self._facts

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(NodeCollector(self, self, node="node-a", driver="gpu.nvidia.com"))
        return registry


def test_gpus_problems_and_held_claims_are_gauges() -> None:
    problems = [
        Problem(subject="GPU at index 3", reason="GpuIsLost", message="gone"),
        Problem(subject="GPUs", reason=RELEASED, message="somebody asked for it, so it is no problem to be alerted of"),
    ]
    registry = Node(node_facts(7, problems=problems), Journal({"uid": an_entry()})).registry()
    assert lines(registry, "gpu_dra_gpus", "gpu_dra_problems", "gpu_dra_claims_held") == [
        'gpu_dra_gpus{health="healthy"} 7.0',
        'gpu_dra_gpus{health="unhealthy"} 0.0',
        "gpu_dra_problems 1.0",
        "gpu_dra_claims_held 1.0",
    ]


def test_claims_of_another_driver_are_counted_beside() -> None:
    collector = NodeCollector(
        *[Node(node_facts(1), Journal({"uid": an_entry()}))] * 2, node="node-a", driver="gpu.nvidia.com"
    )
    channel = ClaimedDevice(a_ref("domain"), "channel-0", "channel")
    collector.add("compute-domain.nvidia.com", lambda: [channel])
    registry = CollectorRegistry()
    registry.register(collector)
    assert "gpu_dra_claims_held 2.0" in lines(registry, "gpu_dra_claims_held")
    of_channels = [line for line in lines(registry, "gpu_dra_claim_device") if "channel" in line]
    assert of_channels == [
        'gpu_dra_claim_device{admin_access="false",claim="domain",device="channel-0",gpu="",namespace="team-a",share="",'
        'type="channel"} 1.0'
    ]
    assert [line for line in lines(registry, "nvidia_dra_prepared_devices") if "compute-domain" in line] == [
        'nvidia_dra_prepared_devices{device_type="channel",driver="compute-domain.nvidia.com",node="node-a"} 1.0',
        'nvidia_dra_prepared_devices{device_type="daemon",driver="compute-domain.nvidia.com",node="node-a"} 0.0',
        'nvidia_dra_prepared_devices{device_type="unknown",driver="compute-domain.nvidia.com",node="node-a"} 0.0',
    ]


def test_before_the_hardware_was_seen_there_are_no_gauges_of_it_rather_than_zeros() -> None:
    shown = lines(Node(None, Journal({"uid": an_entry()})).registry(), "gpu_dra_", "nvidia_dra_")
    assert not [line for line in shown if line.startswith(("gpu_dra_gpu", "gpu_dra_problems"))]
    assert "gpu_dra_claims_held 1.0" in shown


def test_a_journal_that_cannot_be_read_hides_no_ill_gpu() -> None:
    class Unread(Node):
        @property
        def current(self) -> Journal:
            raise NodeNotReady("the disk failed")

        @current.setter
        def current(self, journal: Journal) -> None: ...

    shown = lines(Unread(node_facts(1), Journal({})).registry(), "gpu_dra_", "nvidia_dra_")
    assert 'gpu_dra_gpus{health="healthy"} 1.0' in shown
    assert not [line for line in shown if "claim" in line or "prepared" in line]


def test_devices_are_prepared_from_when_the_claim_is_until_it_is_being_released() -> None:
    done, begun, going = an_entry(a_ref("done")), an_entry(a_ref("begun")), an_entry(a_ref("going"))
    held = {"1": done, "2": replace(begun, cdi_digest=None), "3": replace(going, releasing=True)}
    (gpus, *_) = lines(Node(node_facts(1), Journal(held)).registry(), "nvidia_dra_prepared_devices")
    assert gpus == 'nvidia_dra_prepared_devices{device_type="gpu",driver="gpu.nvidia.com",node="node-a"} 1.0'


def test_no_series_is_there_twice() -> None:
    """Neither of a claim with two shares of a GPU, nor while one goes and another of its name comes."""
    share = SharedUse("MPS", shared=True, thread_percentage=25, memory_bytes=8 << 30)
    more = replace(share, thread_percentage=50, memory_bytes=16 << 30)
    shares = [a_held_device(0, share_id="a", sharing=share), a_held_device(0, share_id="b", sharing=more)]
    held = {uid: an_entry(a_ref("train", uid=uid), *shares) for uid in ("old", "new")}
    pods = PodsOfClaims()
    for uid in held:
        claim = a_claim(a_ref("train", uid=uid), a_result(0))
        pods.saw(ResourceClaim.of(claim))
    node, registry = Node(node_facts(1), Journal(held)), CollectorRegistry()
    registry.register(NodeCollector(node, node, node="node-a", driver="gpu.nvidia.com", pods=pods))
    series = [line.rsplit(" ", 1)[0] for line in lines(registry, "gpu_dra_", "nvidia_dra_")]
    assert sorted(series) == sorted(set(series))
    assert [line.rsplit(" ", 1)[1] for line in lines(registry, "gpu_dra_claim_thread_limit")] == ["25.0", "50.0"]
    assert len(lines(registry, "gpu_dra_claim_pod")) == 1


def test_each_gpu_says_what_it_is_and_what_is_wrong_with_it() -> None:
    lost = HealthCondition(type="Xid", value="79", severity="Critical", message="m", since="2026-01-01T00:00:00Z")
    gpu = a_gpu(0, health=HealthFacts(healthy=False, conditions=[lost, lost.model_copy(update={"instance": "MIG-a"})]))
    registry = Node(node_facts([gpu]), Journal({})).registry()
    assert lines(registry, "gpu_dra_gpu_condition") == [
        f'gpu_dra_gpu_condition{{device="{gpu.name}",gpu="{gpu.uuid}",severity="Critical",type="Xid",value="79"}} 1.0'
    ]
    (info,) = lines(registry, "gpu_dra_gpu_info")
    assert f'product="{gpu.product_name}"' in info
    (memory,) = lines(registry, "gpu_dra_gpu_memory_bytes")
    assert memory == f'gpu_dra_gpu_memory_bytes{{device="{gpu.name}",gpu="{gpu.uuid}"}} 8.589934592e+10'


def test_mig_devices_of_an_administrator_are_counted_by_profile() -> None:
    parts = [compute_instance("3g.40gb", 3, number=1), compute_instance("1c.3g.40gb", 1, number=2)]
    instances = [gpu_instance("3g.40gb", 0, 4, parts[0]), gpu_instance("3g.40gb", 4, 4, *parts)]
    gpu = a_gpu(0, mig=mig(enabled=True, instances=instances))
    assert lines(Node(node_facts([gpu]), Journal({})).registry(), "gpu_dra_static_mig_devices") == [
        f'gpu_dra_static_mig_devices{{device="{gpu.name}",gpu="{gpu.uuid}",profile="1c.3g.40gb"}} 1.0',
        f'gpu_dra_static_mig_devices{{device="{gpu.name}",gpu="{gpu.uuid}",profile="3g.40gb"}} 2.0',
    ]


def test_a_claims_devices_shares_and_limits_are_told_by_claim() -> None:
    share = SharedUse("MPS", shared=True, thread_percentage=25, memory_bytes=8 << 30)
    device = a_held_device(0, share_id="a-share", sharing=share)
    registry = Node(node_facts(1), Journal({"uid": an_entry(a_ref("train"), device)})).registry()
    (series,) = lines(registry, "gpu_dra_claim_device")
    for label in ('claim="train"', 'namespace="team-a"', 'share="a-share"', 'type="gpu"', 'admin_access="false"'):
        assert label in series
    assert [line.rsplit(" ", 1)[1] for line in lines(registry, "gpu_dra_claim_memory_limit_bytes")] == [
        "8.589934592e+09"
    ]
    assert [line.rsplit(" ", 1)[1] for line in lines(registry, "gpu_dra_claim_thread_limit_percent")] == ["25.0"]


def test_what_was_made_of_the_hardware_is_told_by_gpu() -> None:
    gpu = GpuIdentity("GPU-a", "0000:10:00.0")
    parent = GpuInstance(gpu, "3g.40gb", 9, 0, 4)
    made, begun = HoldRecord(HoldState.MADE, BOOT), HoldRecord(HoldState.INTENT, BOOT)
    holds = {
        parent: made,
        ComputeInstance(parent, slices=1): made,
        ComputeInstance(parent, slices=1, start=1): made,
        ComputeInstance(parent, slices=1, start=2): begun,
        TimeSlice(gpu, "Long"): made,
        MpsDaemon("a-key", (gpu,)): made,
    }
    part = Partition("3g.40gb", 0, 4, 1, 0)
    device = a_held_device(0, kind=DeviceKind.MIG, partition=part)
    registry = Node(node_facts(1), Journal({"uid": an_entry(a_ref(), device)}, holds=holds)).registry()
    assert lines(registry, "gpu_dra_mig_devices") == ['gpu_dra_mig_devices{gpu="GPU-a",profile="1c.3g.40gb"} 2.0']
    assert lines(registry, "gpu_dra_time_slice") == ['gpu_dra_time_slice{gpu="GPU-a",interval="Long"} 1.0']
    assert lines(registry, "gpu_dra_mps_daemon") == ['gpu_dra_mps_daemon{daemon="a-key",gpu="GPU-a"} 1.0']
    assert lines(registry, "gpu_dra_holds") == [
        'gpu_dra_holds{state="intent"} 1.0',
        'gpu_dra_holds{state="made"} 5.0',
        'gpu_dra_holds{state="undoing"} 0.0',
    ]
    prepared = lines(registry, "nvidia_dra_prepared_devices")
    assert 'nvidia_dra_prepared_devices{device_type="mig",driver="gpu.nvidia.com",node="node-a"} 1.0' in prepared
    assert 'nvidia_dra_prepared_devices{device_type="gpu",driver="gpu.nvidia.com",node="node-a"} 0.0' in prepared


def test_the_pods_of_claims_that_hold_devices_are_told_by_name() -> None:
    pods = PodsOfClaims()
    for name, users in (("train", ["train-0", "train-1"]), ("domain", ["train-0"]), ("gone", ["old"])):
        claim = a_claim(a_ref(name), a_result(0))
        claim["status"]["reservedFor"] = [
            *({"resource": "pods", "name": user, "uid": user} for user in users),
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "all", "uid": "all"},
        ]
        pods.saw(ResourceClaim.of(claim))
    node = Node(node_facts(1), Journal({a_ref().uid: an_entry(), "not-read-yet": an_entry(a_ref("not-read-yet"))}))
    collector = NodeCollector(node, node, node="node-a", driver="gpu.nvidia.com", pods=pods)
    collector.add("compute-domain.nvidia.com", lambda: [ClaimedDevice(a_ref("domain"), "channel-0", "channel")])
    registry = CollectorRegistry()
    registry.register(collector)
    assert lines(registry, "gpu_dra_claim_pod") == [
        'gpu_dra_claim_pod{claim="domain",namespace="team-a",pod="train-0"} 1.0',
        'gpu_dra_claim_pod{claim="train",namespace="team-a",pod="train-0"} 1.0',
        'gpu_dra_claim_pod{claim="train",namespace="team-a",pod="train-1"} 1.0',
    ]


def test_pods_of_claims_that_were_not_seen_for_long_are_forgotten_also_when_nobody_asks() -> None:
    pods = PodsOfClaims()
    held, gone = a_ref("c-7").uid, a_ref("c-8").uid
    for number in range(3000):
        for name in (f"c-{number}", *(["c-7"] if number > 7 and number % 100 == 0 else [])):
            claim = a_claim(a_ref(name), a_result(0))
            claim["status"]["reservedFor"] = [{"resource": "pods", "name": f"p-{number}", "uid": "u"}]
            pods.saw(ResourceClaim.of(claim))
    assert pods.of([held, gone]) == {held: ("p-2900",), gone: ()}
    assert (pods.shared(held), pods.shared(gone)) == (True, False)
    assert len(pods._names) == len(pods._shared) == 2000
