"""The alert rules of the chart, evaluated by Prometheus' own promtool against series recorded from our collectors.

Each rule fires for what it is about, after its time and not before, and none of them fires on a healthy cluster.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from support import promql
from support.claims import BOOT, a_gpu, a_ref, an_entry, node_facts, uuid_of
from support.rows import rows

from controller.computedomains.keeper import DomainCollector
from controller.webhook.service import WebhookMetrics
from docs import generate
from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.api.inventory import HealthCondition, HealthFacts, Problem
from dra_driver.api.meta import NODES
from dra_driver.devices.model import DeviceKind
from dra_driver.kube.metrics import ApiCalls
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.runtime.telemetry import tell_build
from kubelet_plugin.facts.hardware import RELEASED, NodeFacts
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, TimeSlice
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.listener import Operation
from kubelet_plugin.reporting.metrics import ClaimTimes, NodeCollector

RULES = Path(__file__).parents[2] / "charts" / "gpu-dra-driver" / "files" / "alerts.yaml"
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"

_MINUTES = 7 * 60

type Series = tuple[str, str]
"""A series with its labels, and its values in promtool's notation, one a minute."""


def recorded(registry: CollectorRegistry, minutes: int = _MINUTES, **labels: str) -> list[Series]:
    """What a scrape brings, for as long, with the labels that Prometheus adds."""
    series_list = []
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("#") or "_created" in line:
            continue
        series, value = line.rsplit(" ", 1)
        name, _, inside = series.rstrip("}").partition("{")
        all_labels = ",".join(
            [
                *([inside] if inside else []),
                *(f'{key}="{text}"' for key, text in labels.items() if f'{key}="' not in inside),
            ]
        )
        series_list.append((f"{name}{{{all_labels}}}", f"{float(value):g}+0x{minutes}"))
    return series_list


def rising(series: Sequence[Series], name: str, step: float) -> list[Series]:
    """Counters (and histograms) of that name rise by `step` times their value with each scrape."""
    risen = []
    for name_and_labels, values in series:
        start = values.partition("+")[0]
        risen.append(
            (name_and_labels, f"0+{float(start) * step:g}x{_MINUTES}" if name_and_labels.startswith(name) else values)
        )
    return risen


class Node:
    """The monitor and the journal."""

    def __init__(self, facts: NodeFacts, journal: Journal) -> None:
        self.facts = facts
        self.current = journal


def plugin(
    facts: NodeFacts | None = None,
    journal: Journal | None = None,
    operations: Sequence[Operation] = (),
    code: int = 200,
    minutes: int = _MINUTES,
) -> list[Series]:
    """A node plugin's series."""
    registry = CollectorRegistry()
    tell_build(registry, "kubelet-plugin")
    ApiCalls(registry).answered("get", NODES, code)
    times = ClaimTimes(registry)
    for operation in operations:
        times.ended(operation)
    node = Node(facts or node_facts(1), journal or Journal({"uid": an_entry()}))
    registry.register(NodeCollector(node, node, node="node-a", driver="gpu.nvidia.com"))
    return recorded(registry, minutes, node="node-a", pod="plugin-a")


def controller(failing: int = 0, publishing: int = 1, waiting: int = 0) -> list[Series]:
    """A controller's series, by their names in the reference; tests/docs sees to it that they are so."""
    names = {family.name for family in generate.publisher_families()}
    values = {
        "gpu_dra_publishing": ("", publishing),
        "gpu_dra_pools_waiting": ("", waiting),
        "gpu_dra_pool_failing": ('pool="node-a",', failing),
    }
    assert values.keys() <= names
    return [(f'{name}{{{labels}pod="c"}}', f"{value}+0x{_MINUTES}") for name, (labels, value) in values.items()]


def domain(first: str, then: str = "") -> list[Series]:
    """What the leader tells of a domain; with another reason from the twentieth minute on."""
    if then:
        return [*_waiting(first, "1+0x19"), *_waiting(then, f"_x20 1+0x{_MINUTES}")]
    return _waiting(first, f"1+0x{_MINUTES}")


def _waiting(reason: str, values: str) -> list[Series]:
    condition = {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": "t"}
    status = ComputeDomainStatus.of({"conditions": [condition]})
    registry = CollectorRegistry()
    registry.register(DomainCollector(lambda: {("team", "train"): status}))
    recorded_series = recorded(registry, pod="c")
    return [
        (series, values if series.startswith("gpu_dra_compute_domain_reason") else others)
        for series, others in recorded_series
    ]


_WEEK_S = 7 * 86400


def webhook(*, armed: int = 1, expires_s: float = 3 * _WEEK_S, failed: int = 0) -> list[Series]:
    """A replica's series; time begins at 0, when its certificate has so long to go. So many reviews fail a minute."""
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry)
    metrics.armed.set(armed)
    metrics.expires.set(expires_s)
    metrics.reviews.labels("ResourceClaim", "admitted").inc()
    metrics.reviews.labels("ResourceClaim", "failed").inc()
    series = recorded(registry, pod="c")
    return [
        (labeled, f"0+{failed}x{_MINUTES}" if 'result="failed"' in labeled and "reviews_total" in labeled else values)
        for labeled, values in series
    ]


def claims(call: str, outcome: str) -> list[Series]:
    """One claim a minute ends like this."""
    assert "gpu_dra_claims_total" in {family.name for family in generate.plugin_families()}
    return [(f'gpu_dra_claims_total{{call="{call}",outcome="{outcome}",node="node-a"}}', f"0+1x{_MINUTES}")]


def ill(type_: str) -> NodeFacts:
    bad = HealthCondition(type=type_, value="79", severity="Critical", message="m", since="2026-01-01T00:00:00Z")
    return node_facts([a_gpu(0, health=HealthFacts(healthy=False, conditions=[bad]))])


def released() -> NodeFacts:
    return replace(ill("Released"), problems=(Problem(subject="GPUs", reason=RELEASED, message="m"),))


def unreadable() -> NodeFacts:
    return node_facts(1, problems=[Problem(subject="GPU at index 3", reason="GpuIsLost", message="gone")])


def idle(percent: int, labels: str = 'UUID="{}",Hostname="node-a"') -> list[Series]:
    """What the DCGM exporter tells of GPU 0."""
    return [(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",{labels.format(uuid_of(0))}}}', f"{percent}+0x{_MINUTES}")]


OLD_NAMES = 'uuid="{}",pod_namespace="team-a",pod_name="train-0",container_name="main"'
"""With --use-old-namespace, and as it names the pods of claims."""


def daemon_set(ready: int) -> list[Series]:
    labels = '{namespace="gpu",daemonset="gpu-dra-driver-kubelet-plugin"}'
    return [
        (f"kube_daemonset_status_desired_number_scheduled{labels}", f"3+0x{_MINUTES}"),
        (f"kube_daemonset_status_number_ready{labels}", f"{ready}+0x{_MINUTES}"),
    ]


def node_info(minutes: int = _MINUTES) -> list[Series]:
    """Of kube-state-metrics, whose own pod is elsewhere."""
    return [(f'kube_node_info{{node="{node}"}}', f"1+0x{end}") for node, end in (("node-a", minutes), ("b", _MINUTES))]


def slow(driver: str = GPU_DRIVER) -> list[Series]:
    operations = [Operation(call="prepare", claim=a_ref(), seconds=40.0, driver=driver)]
    return rising(plugin(operations=operations), "gpu_dra_claim_seconds", 1)


def undoing() -> Journal:
    hold = TimeSlice(GpuIdentity(uuid_of(0), "0000:10:00.0"), "Long")
    return Journal({}, holds={hold: HoldRecord(HoldState.UNDOING, BOOT)})


HEALTHY = [
    *plugin(),
    *controller(),
    *claims("prepare", "ok"),
    *idle(90),
    *daemon_set(3),
    *domain("AllNodesReady"),
    *webhook(),
]


@dataclass(frozen=True)
class Case:
    """`series` fire `alert` after `minutes`, and not in the first half of them."""

    alert: str
    minutes: int
    series: Callable[[], list[Series]]
    since: int = 0
    """The minute in which it begins."""


CASES = [
    Case("GpuDraPluginAbsent", 18, lambda: [*plugin(minutes=60), *controller()], since=65),
    Case("GpuDraPluginAbsent", 18, lambda: [*plugin(minutes=60), *controller(), *node_info()], since=65),
    Case("GpuDraPluginNotReady", 16, lambda: [*HEALTHY, *daemon_set(2)]),
    Case("GpuDraNobodyPublishes", 11, lambda: [*plugin(), *controller(publishing=0)]),
    Case("GpuDraNobodyPublishes", 11, plugin),
    Case("GpuDraPublicationStale", 11, lambda: [*plugin(), *controller(failing=1)]),
    Case("GpuDraPoolsWaiting", 16, lambda: [*plugin(), *controller(waiting=2)]),
    Case("GpuDraPrepareFailing", 12, lambda: [*plugin(), *controller(), *claims("prepare", "HardwareError")]),
    Case("GpuDraUnprepareFailing", 12, lambda: [*plugin(), *controller(), *claims("unprepare", "HardwareError")]),
    Case("GpuDraPrepareSlow", 20, lambda: [*slow(), *controller()]),
    Case("GpuDraGpuTainted", 3, lambda: [*plugin(ill("Xid")), *controller()]),
    Case("GpuDraGpusReleased", 241, lambda: [*plugin(released()), *controller()]),
    Case("GpuDraNotOffered", 11, lambda: [*plugin(unreadable()), *controller()]),
    Case("GpuDraComputeDomainNotReady", 31, lambda: [*HEALTHY, *domain("FabricIncomplete")]),
    Case("GpuDraComputeDomainNotReady", 31, lambda: [*HEALTHY, *domain("NodesJoining", "DaemonsNotReady")]),
    Case("GpuDraWebhookCertificateExpiring", 125, lambda: [*HEALTHY, *webhook(expires_s=_WEEK_S + 3600)]),
    Case("GpuDraWebhookCertificateExpiring", 61, lambda: [*HEALTHY, *webhook(expires_s=0)]),
    Case("GpuDraWebhookNotAsked", 16, lambda: [*HEALTHY, *webhook(armed=0)]),
    Case("GpuDraWebhookFailing", 2, lambda: [*HEALTHY, *webhook(failed=1)]),
    Case("GpuDraMpsDaemonDead", 2, lambda: [*plugin(ill("MpsDaemon")), *controller()]),
    Case("GpuDraHoldsStuck", 31, lambda: [*plugin(journal=undoing()), *controller()]),
    Case("GpuDraApiErrors", 30, lambda: [*rising(plugin(code=403), "gpu_dra_api_errors", 10), *controller()]),
    Case("GpuDraAllocatedButIdle", 62, lambda: [*plugin(), *controller(), *idle(0)]),
    Case("GpuDraAllocatedButIdle", 62, lambda: [*plugin(), *controller(), *idle(0, OLD_NAMES)]),
]


@pytest.fixture
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: package prometheus)")
    return program


def evaluated(
    promtool: str, folder: Path, series: Sequence[Series], expected: Sequence[tuple[int, Sequence[str]]]
) -> None:
    """Which alerts fire at which minute; promtool's own words when it is otherwise."""
    series = list(dict(series).items())  # a later one takes the place of an earlier one
    tests: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
                    }
                    for minute, names in expected
                ],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(tests))
    ended = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_each_alert_fires_for_what_it_is_about_after_its_time(promtool: str, tmp_path: Path, case: Case) -> None:
    expected = [
        (case.since + case.minutes // 2 if case.minutes > 3 else case.since, []),
        (case.since + case.minutes, [case.alert]),
    ]
    evaluated(promtool, tmp_path, case.series(), expected)


def test_a_healthy_cluster_fires_none(promtool: str, tmp_path: Path) -> None:
    evaluated(promtool, tmp_path, HEALTHY, [(minute, []) for minute in (5, 60, 300)])
    evaluated(promtool, tmp_path, [*HEALTHY, *idle(90, OLD_NAMES)], [(minute, []) for minute in (5, 60, 300)])


def test_a_gpu_that_works_a_claim_in_parts_and_a_wait_for_another_claim_are_no_alerts(
    promtool: str, tmp_path: Path
) -> None:
    part = an_entry().devices[0]
    journal = Journal({"uid": an_entry(None, type(part)(**{**_fields(part), "kind": DeviceKind.MIG}))})
    series = [*plugin(journal=journal), *controller(), *idle(0), *claims("prepare", "DeviceInUse")]
    evaluated(promtool, tmp_path, series, [(300, [])])


def test_claims_that_wait_for_their_domain_are_neither_slow_nor_failing(promtool: str, tmp_path: Path) -> None:
    """GpuDraComputeDomainNotReady is about those."""
    series = [*HEALTHY, *slow(COMPUTE_DOMAIN_DRIVER), *claims("prepare", "DomainNotReady")]
    evaluated(promtool, tmp_path, series, [(300, [])])


def test_a_node_that_is_gone_misses_no_plugin(promtool: str, tmp_path: Path) -> None:
    """Where kube-state-metrics tells; autoscaled nodes come and go every day."""
    series = [*plugin(minutes=60), *controller(), *node_info(minutes=62)]
    evaluated(promtool, tmp_path, series, [(minute, []) for minute in (83, 120, 400)])


def test_a_domain_that_no_pod_has_come_for_is_no_alert(promtool: str, tmp_path: Path) -> None:
    evaluated(promtool, tmp_path, [*HEALTHY, *domain("NoNodes")], [(300, [])])


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).__dataclass_fields__}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    alert_rules: list[dict[str, Any]] = group["rules"]
    return alert_rules


def test_every_alert_is_provoked() -> None:
    assert {rule["alert"] for rule in rules()} == {case.alert for case in CASES}


def test_each_alert_has_its_section_among_the_runbooks_and_no_other_has() -> None:
    sections = re.findall(r"^## (\w+)\n\n\*\*Effect:\*\* ", RUNBOOKS.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]


FAMILIES: dict[str, set[str]] = {
    name: set(family.labels)
    for family in (*generate.plugin_families(), *generate.publisher_families(), *generate.controller_families())
    for name in family.series
} | {
    # Of kube-state-metrics and of the DCGM exporter.
    "kube_daemonset_status_desired_number_scheduled": {"daemonset"},
    "kube_daemonset_status_number_ready": {"daemonset"},
    "kube_node_info": {"node"},
    "DCGM_FI_DEV_GPU_UTIL": {"UUID", "uuid", "gpu", "Hostname"},
}


@rows("rule", rules())
def test_every_alert_says_what_it_is_and_names_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert re.fullmatch(r"[1-9]\d*[mh]", rule.get("for", "1m"))
    assert promql.faults(rule["expr"], FAMILIES) == []
    labels = {name for text in rule["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
    assert labels <= promql.labels_left(rule["expr"], FAMILIES)


@rows(
    "query, faults",
    [
        ("max by (pool) (gpu_dra_pool_failing) > 0", []),
        ("max by (pool) (gpu_dra_pool_failing > 0", ["( is not closed"]),
        ("max(gpu_dra_publishing)) == 0", ["a ) too many"]),
        ("max(gpu_dra_publishes) == 0", ["there is no family gpu_dra_publishes"]),
        ("maximum(gpu_dra_publishing) == 0", ["there is no family maximum"]),
        ('gpu_dra_pool_failing{pol="a"}', ["gpu_dra_pool_failing has no label pol"]),
        ("max by (puddle) (gpu_dra_pool_failing)", ["no family has the label puddle"]),
        ("rate(gpu_dra_publishing[5m]) ; 1", ["what is ' ; 1'"]),
    ],
)
def test_what_cannot_be_right_in_a_query_is_told(query: str, faults: list[str]) -> None:
    assert promql.faults(query, FAMILIES) == faults
