"""Tables of figures in pages, made from the recorded runs in `benchmarks/records`; empty without a record."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docs.from_code.tables import table
from dra_driver.api.meta import JsonObject

RECORDS = Path(__file__).parents[2] / "benchmarks/records"

type Cell = Callable[[JsonObject], str]
"""From a row of the record: its unit, and its values by column."""


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` are made of each row; None: the record's own. `rows`: only these, in this order; None: all."""

    record: str
    columns: Mapping[str, Cell] | None = None
    rows: tuple[str, ...] | None = None


def _value(column: str) -> Cell:
    return lambda row: f"{row[column]:,} {row['unit']}".strip() if column in row else ""


def _ratio(row: JsonObject) -> str:
    return f"{row['ratio']:g} ({row['lowest']:g} to {row['highest']:g})"


TABLES: Mapping[str, Table] = {
    "against": Table("against", {"Ratio": _ratio, "Here": _value("ours"), "There": _value("peer")}),
    "against-same": Table(
        "against_same",
        {"Ratio": _ratio, "Here": _value("ours"), "There": _value("peer")},
        (
            "one prepare",
            "one unprepare",
            "prepare of eight in one call",
            "unprepare of eight in one call",
            "processor time, prepare and unprepare of one",
            "processor time, prepare and unprepare of eight",
        ),
    ),
    "against-ratios": Table(
        "against",
        {"Ratio": _ratio},
        (
            "one prepare",
            "one prepare after the rest",
            "one unprepare",
            "prepare of eight in one call",
            "unprepare of eight in one call",
            "processor time, prepare and unprepare of one",
            "resident memory after the start",
            "resident memory after 1,000 claims",
        ),
    ),
    "calls": Table(
        "prepare",
        rows=(
            "prepare, one claim in a call",
            "prepare, eight claims in one call",
            "repeat, one claim in a call",
            "unprepare, one claim in a call",
            "unprepare, eight claims in one call",
            "empty call, the minimum",
            "claim read, the minimum",
            "durable file write, the minimum",
            "plugin start to slices visible",
            "API writes at rest, in an hour, without the Lease",
        ),
    ),
    "memory": Table(
        "memory",
        rows=(
            "dgx-h100: plugin at rest, resident",
            "dgx-h100: plugin with 200 claims, resident",
            "dgx-h100: controller at rest, resident",
            "IMEX supervisor, 18 nodes, resident",
        ),
    ),
    "controller": Table("controller_scale"),
    "controller-short": Table(
        "controller_scale",
        rows=(
            "first publish, nodes join",
            "the same writes by a bare client",
            "one GPU changes: slice visible",
            "policy for all nodes",
            "its writes by a bare client",
            "memory",
            "processor at rest",
            "restart: slice writes",
        ),
    ),
    "controller-mig": Table("controller_scale_mig"),
    "controller-mig-large": Table(
        "controller_scale_mig_2500",
        rows=(
            "first publish, nodes join",
            "the same writes by a bare client",
            "processor time, first publish",
            "one GPU changes: slice visible",
            "policy for all nodes",
            "its writes by a bare client",
            "one GPU changes meanwhile: slice visible",
            "memory",
            "nodes lost: their last slice is gone",
            "restart: until all is checked",
            "restart: slice writes",
            "leader change: a change is published",
        ),
    ),
    "commands": Table("views"),
    "commands-short": Table(
        "views",
        rows=(
            "get nodes: time",
            "explain a waiting pod: time",
            "explain offline: time",
            "top: first screen",
            "top: effect of a key, median",
            "ui: first byte, median",
        ),
    ),
    "pods": Table("churn"),
    "pods-large": Table(
        "churn_5000",
        rows=(
            "devices of a node",
            "size of a node's slices",
            *(
                f"{claim}: {what}"
                for claim in ("a whole GPU", "a 1g.10gb", "a share of a GPU")
                for what in ("pods a second", "scheduler's processor time for a pod")
            ),
            "scheduler's memory",
        ),
    ),
    "pods-next": Table(
        "churn_138917",
        rows=(
            "a whole GPU: pods a second",
            "a whole GPU: scheduler's processor time for a pod",
            "a 1g.10gb: pods a second",
            "a 1g.10gb: scheduler's processor time for a pod",
        ),
    ),
    "domains": Table("computedomains"),
}


def figures(name: str, records: Path = RECORDS) -> str:
    """The table of this name with a line that says which run it is; empty without a record.

    Raises KeyError for a row that does not exist.
    """
    shown = TABLES[name]
    file = records / f"{shown.record}.json"
    if not file.exists():
        return ""
    record = json.loads(file.read_text(encoding="utf-8"))
    return f"{_run(record, file.name)}\n\n{_table(shown, record['figures'])}"


def _run(record: JsonObject, file: str) -> str:
    versions = record["versions"]
    kubernetes = versions["kubernetes"]
    more = [f"{value:,} {key}" for key, value in record.items() if isinstance(value, int)]
    parts = [
        f"this driver at `{versions['ours']}`",
        *([versions["peer"]] if "peer" in versions else ()),
        f"Kubernetes {kubernetes}" if kubernetes.startswith("v") else f"API server {kubernetes}",
        f"Python {versions['python']}",
        f"{versions['processors']} processor cores",
        *more,
    ]
    return f"Measured on {record['date']} (`benchmarks/records/{file}`): {', '.join(parts)}."


def _table(shown: Table, figures: Mapping[str, JsonObject]) -> str:
    own = dict.fromkeys(column for row in figures.values() for column in row if column != "unit")
    columns = shown.columns or {column: _value(column) for column in own}
    rows = figures if shown.rows is None else shown.rows
    return table(("Figure", *columns), ((name, *(cell(figures[name]) for cell in columns.values())) for name in rows))
