"""The Grafana dashboard of the chart: it is whole, and asks for nothing that does not exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_panels_have_titles_of_their_own_and_do_not_lie_on_each_other() -> None:
    titles, ids = [one["title"] for one in panels()], [one["id"] for one in dashboard()["panels"]]
    assert len(set(titles)) == len(titles)
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for one in dashboard()["panels"]:
        place = one["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_metric_and_label_in_it_exists() -> None:
    variable = dashboard()["templating"]["list"][1]["query"]["query"]
    for expression in (*expressions(), variable):
        for name, selector in re.findall(r"\b((?:gpu|nvidia)_dra_\w+)(?:\{([^}]*)\})?", expression):
            assert name in SERIES, f"{name} in {expression}"
            selected = {one.group(1) for one in re.finditer(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector)}
            assert selected <= SERIES[name], f"{selected} of {name}"
        known = set().union(*SERIES.values()) | {"UUID"}
        for labels in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression):
            assert {label.strip() for label in labels.split(",")} <= known, expression


def test_its_legends_name_labels_that_the_query_leaves() -> None:
    for panel in panels():
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                kept = re.search(rf"\((?:[^()]*,\s*)?{label}\b[^()]*\)", target["expr"])
                assert kept is not None, f"{label} in {panel['title']}"


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
