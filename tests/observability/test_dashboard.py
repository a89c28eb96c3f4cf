"""The Grafana dashboard of the chart: it is whole, and asks for nothing that does not exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import promql
from support.rows import rows

from docs import generate

FILE = Path(__file__).parents[2] / "charts" / "gpu-dra-driver" / "files" / "dashboard.json"
ADDED_LABELS = {"node", "pod", "le", "namespace"}
"""By Prometheus and its relabelling."""

SERIES = {
    name: set(family.labels) | ADDED_LABELS
    for family in (*generate.plugin_families(), *generate.publisher_families(), *generate.controller_families())
    for name in family.series
}


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text())
    return content


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_panels_have_titles_of_their_own_and_do_not_lie_on_each_other() -> None:
    titles, ids = [panel["title"] for panel in panels()], [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(titles)) == len(titles)
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@rows("expression", expressions())
def test_every_query_of_it_can_be_right(expression: str) -> None:
    """Every word is one of PromQL, or a family with its labels."""
    assert promql.faults(expression, {**SERIES, "DCGM_FI_DEV_GPU_UTIL": {"UUID", "uuid"}}) == []


def test_the_variable_asks_for_a_label_that_exists() -> None:
    query = dashboard()["templating"]["list"][1]["query"]["query"]
    name, label = re.fullmatch(r"label_values\((\w+)(?:\{[^}]*\})?, ?(\w+)\)", query).groups()
    assert label in SERIES[name]


def test_its_legends_name_labels_that_the_query_leaves() -> None:
    named = [
        (panel, target, label)
        for panel in panels()
        for target in panel["targets"]
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
    ]
    assert named
    for panel, target, label in named:
        grouping = re.search(rf"\((?:[^()]*,\s*)?{label}\b[^()]*\)", target["expr"])
        assert grouping is not None, f"{label} in {panel['title']}"


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: package prometheus)")
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$node", ".*")}
        for number, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    ended = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("label", ["UUID", "uuid"])
def test_each_claim_of_a_shared_gpu_has_its_utilization(tmp_path: Path, label: str) -> None:
    (expression,) = (query for query in expressions() if "DCGM" in query)
    device = 'gpu_dra_claim_device{{gpu="GPU-a",type="gpu",admin_access="false",node="n",namespace="t",claim="{}"}}'
    series = [device.format("one"), device.format("two"), f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",{label}="GPU-a"}}']
    values = {name: 40 if "DCGM" in name else 1 for name in series}
    by_claim = {f'{{gpu="GPU-a",namespace="t",claim="{claim}"}}': 40 for claim in ("one", "two")}
    evaluated(tmp_path, expression, values, by_claim)


def test_the_pods_of_each_claim_are_shown(tmp_path: Path) -> None:
    (expression,) = (query for query in expressions() if "gpu_dra_claim_pod" in query)
    series = {f'gpu_dra_claim_pod{{node="n",namespace="t",claim="shared",pod="{pod}"}}': 1 for pod in ("a", "b")}
    pods = {f'{{node="n",namespace="t",claim="shared",pod="{pod}"}}': 1 for pod in ("a", "b")}
    evaluated(tmp_path, expression, series, pods)


PUBLISHERS = {
    "a controller": ({"controller-0": 3}, {"controller-0": 24}),
    "a plugin for each node": (
        {"plugin-a": 1, "plugin-b": 1, "plugin-c": 1},
        {"plugin-a": 8, "plugin-b": 8, "plugin-c": 8},
    ),
}


@pytest.mark.parametrize("publishers", PUBLISHERS)
def test_pools_and_devices_are_counted_whoever_publishes_them(tmp_path: Path, publishers: str) -> None:
    pools, devices = PUBLISHERS[publishers]
    shown = {panel["title"]: panel["targets"][0]["expr"] for panel in panels()}
    for family, title, values, expected in (
        ("gpu_dra_pools", "Pools", pools, {"{}": 3}),
        ("gpu_dra_pools_waiting", "Pools that wait for their plugin", pools, {"{}": 3}),
        ("gpu_dra_published_devices", "Published devices", devices, {'{driver="gpu.nvidia.com"}': 24}),
    ):
        domains = {f'{family}{{driver="compute-domain.nvidia.com",pod="{pod}"}}': 0 for pod in values}
        gpus = {f'{family}{{driver="gpu.nvidia.com",pod="{pod}"}}': value for pod, value in values.items()}
        of_domains = {'{driver="compute-domain.nvidia.com"}': 0} if title == "Published devices" else {}
        evaluated(tmp_path, shown[title], domains | gpus, expected | of_domains)


def evaluated(folder: Path, expression: str, series: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """What a panel shows of these values of series, by labels."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: package prometheus)")
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": str(value)} for name, value in series.items()],
        "promql_expr_test": [
            {
                "expr": expression.replace("$node", ".*"),
                "eval_time": "0m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    ended = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
