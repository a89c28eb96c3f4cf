"""What the plugin's debug page says of claims and holds."""

from dataclasses import replace

from support.claims import BOOT, a_ref, an_entry, node_facts

from dra_driver.api.inventory import Problem
from dra_driver.errors import DeviceInUse
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, TimeSlice
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.listener import Operation
from kubelet_plugin.reporting.debug import LastErrors, sections


class Node:
    facts = node_facts(1, problems=[Problem(subject="GPU 3", reason="GpuIsLost", message="gone")])

    def __init__(self, journal: Journal) -> None:
        self.current = journal


def test_held_claims_holds_problems_and_the_last_errors_are_told() -> None:
    hold = TimeSlice(GpuIdentity("GPU-a", "0000:10:00.0"), "Long")
    entry = replace(an_entry(), holds=(hold,))
    node, errors = Node(Journal({"uid": entry}, holds={hold: HoldRecord(HoldState.MADE, BOOT)})), LastErrors()
    errors.ended(Operation(call="prepare", claim=a_ref("good"), seconds=0.1))
    for name in ("first", "second"):
        errors.ended(Operation(call="prepare", claim=a_ref(name), seconds=0.1, error=DeviceInUse("held")))
    text = {title: list(section()) for title, section in sections(node, node, errors).items()}
    assert "claim team-a/train" in text["held claims"][0]
    assert "prepared" in text["held claims"][0]
    assert text["holds"][0].startswith("time slice Long of GPU GPU-a (0000:10:00.0): made, boot boot-1, claims: 1")
    assert ["second" in text["last errors"][0], "first" in text["last errors"][1], len(text["last errors"])] == [
        True, True, 2,
    ]  # fmt: skip
    assert text["problems of the node"] == ["GPU 3: GpuIsLost: gone"]


def test_no_more_errors_are_kept_than_fit() -> None:
    errors = LastErrors()
    for number in range(80):
        errors.ended(Operation(call="prepare", claim=a_ref(f"c{number}"), seconds=0.1, error=DeviceInUse("held")))
    lines = list(errors.lines())
    assert len(lines) == 50
    assert "c79" in lines[0]
