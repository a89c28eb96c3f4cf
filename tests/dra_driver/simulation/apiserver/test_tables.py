"""The paths of printer columns."""

from typing import Any

from support.rows import rows

from dra_driver.simulation.apiserver.tables import find

OBJ = {
    "metadata": {"name": "n", "labels": {"x.example/y": "dotted"}},
    "status": {"conditions": [{"type": "A", "status": "1"}, {"type": "B", "status": "2"}], "count": 2, "ok": True},
}


@rows(
    "path, value",
    [
        (".metadata.name", "n"),
        (".metadata.none", None),
        (".metadata.name.deeper", None),
        ('.status.conditions[?(@.type=="B")].status', "2"),
        (".status.conditions[?(@.type=='B')].status", "2"),
        (".status.conditions[?(@.type=='C')].status", None),
        (r".metadata.labels.x\.example/y", "dotted"),
        (".status.count", 2),
        (".status.ok", True),
        (".status.conditions[*]", None),
        (".a[", None),
    ],
)
def test_paths(path: str, value: Any) -> None:
    assert find(path, OBJ) == value
