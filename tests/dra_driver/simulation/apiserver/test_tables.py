"""The paths of printer columns."""

import pytest
from support.rows import rows

from dra_driver.simulation.apiserver.tables import InvalidPath, find

OBJ = {
    "metadata": {"name": "n", "labels": {"x.example/y": "dotted"}},
    "status": {"conditions": [{"type": "A", "status": "1"}, {"type": "B", "status": "2"}], "count": 2, "ok": True},
}


@rows(
    "path, found",
    [
        (".metadata.name", ["n"]),
        (".metadata.none", []),
        (".metadata.name.deeper", []),
        (".status.conditions[0].type", ["A"]),
        (".status.conditions[-1].type", ["B"]),
        (".status.conditions[7].type", []),
        (".status.conditions[*].type", ["A", "B"]),
        ('.status.conditions[?(@.type=="B")].status', ["2"]),
        (".status.conditions[?(@.type=='B')].status", ["2"]),
        ('.status.conditions[?(@.type!="B")].status', ["1"]),
        (r".metadata.labels.x\.example/y", ["dotted"]),
        (".metadata.labels['x.example/y']", ["dotted"]),
        (".status.count", [2]),
        (".status.ok", [True]),
    ],
)
def test_paths(path: str, found: list[object]) -> None:
    assert find(path, OBJ) == found


@pytest.mark.parametrize("path", [".a[", ".a[?", ".a[x]"])
def test_what_is_no_path_is_said_to_be_none(path: str) -> None:
    with pytest.raises(InvalidPath):
        find(path, OBJ)
