"""Figures in pages are those of the recorded runs in benchmarks/records; test_generated_pages.py compares the pages."""

import json
from pathlib import Path

import pytest

from docs.from_code.figures import RECORDS, TABLES, figures
from dra_driver.api.meta import JsonObject

ROW: JsonObject = {"unit": "ms", "ours": 4.5, "peer": 1234.5, "ratio": 0.9, "lowest": 0.8, "highest": 1.25}
VERSIONS = {"ours": "c0ffee", "peer": "another driver", "kubernetes": "v1.36.2", "python": "3", "processors": "2"}


def record(folder: Path, name: str, rows: dict[str, JsonObject]) -> None:
    content = {"date": "2026-01-02", "rounds": 5, "versions": VERSIONS, "figures": rows}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_every_record_is_shown() -> None:
    records = {file.stem for file in RECORDS.glob("*.json")}
    assert records and records <= {table.record for table in TABLES.values()}


def test_a_table_has_the_figures_of_the_record_and_names_the_run(tmp_path: Path) -> None:
    record(tmp_path, "against", {"one prepare": ROW})
    text = figures("against", tmp_path)
    assert text.endswith("| one prepare | 0.9 (0.8 to 1.25) | 4.5 ms | 1,234.5 ms |")
    assert all(word in text for word in ("2026-01-02", "c0ffee", "another driver", "v1.36.2", "5 rounds"))


def test_a_table_has_every_column_of_the_record_and_leaves_out_what_does_not_apply(tmp_path: Path) -> None:
    rows: dict[str, JsonObject] = {
        "time": {"unit": "s", "10 nodes": 1, "1,000 nodes": 2},
        "writes": {"unit": "", "10 nodes": 0},
    }
    record(tmp_path, "controller_scale", rows)
    lines = figures("controller", tmp_path).splitlines()
    assert lines[-4] == "| Figure | 10 nodes | 1,000 nodes |"
    assert lines[-2:] == ["| time | 1 s | 2 s |", "| writes | 0 |  |"]


def test_a_row_that_the_record_does_not_have_is_an_error(tmp_path: Path) -> None:
    record(tmp_path, "against", {"one prepare": ROW})
    with pytest.raises(KeyError, match="one prepare after the rest"):
        figures("against-ratios", tmp_path)


def test_without_a_record_there_is_no_figure(tmp_path: Path) -> None:
    assert figures("against", tmp_path) == ""
