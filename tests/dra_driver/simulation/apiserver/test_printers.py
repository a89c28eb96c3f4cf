"""Times as kubectl shows them, the states of pods, and columns of custom types."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.rows import rows

from dra_driver.simulation.apiserver.resource_types import Column
from dra_driver.simulation.apiserver.tables import CELLS, age, cell

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_an_age_without_a_moment_is_unknown() -> None:
    assert (age(None, NOW), age("2026-01-01T00:00:00Z", NOW), age("2027-01-01T00:00:00Z", NOW)) == (
        "<unknown>",
        "24h",
        "<invalid>",
    )


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"ready": False, "restartCount": 2, "state": {"waiting": {"reason": reason}}}]}


@pytest.mark.parametrize(
    ("metadata", "status", "shown"),
    [
        ({}, {"phase": "Running"}, "Running"),
        ({}, {"phase": "Pending", **waiting("ContainerCreating")}, "ContainerCreating"),
        ({}, {"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({}, {"phase": "Running", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Running"}, "Terminating"),
    ],
)
def test_the_state_of_a_pod(metadata: dict[str, str], status: dict[str, Any], shown: str) -> None:
    pod = {"metadata": {"name": "p", **metadata}, "spec": {"containers": [{}]}, "status": status}
    assert CELLS["pod"](pod, NOW) == shown


@rows(
    "path, shown",
    [
        (".status.conditions[?(@.type=='B')].status", "2"),
        (".status.conditions[?(@.type=='C')].status", None),
        (".metadata.name.deeper", None),
        (".a[", None),
    ],
)
def test_a_column_whose_path_leads_nowhere_is_empty(path: str, shown: str | None) -> None:
    conditions = [{"type": "A", "status": "1"}, {"type": "B", "status": "2"}]
    obj = {"metadata": {"name": "n"}, "status": {"conditions": conditions}}
    assert cell(Column("Ready", "string", path), obj, NOW) == shown
