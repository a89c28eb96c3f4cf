"""Each fault of the list can be tried: its text is once in the sources, and its test is there. None is tried here."""

from faults.run import ROOT, Tree, faults


def test_every_fault_can_still_be_applied() -> None:
    tree, listed = Tree(ROOT), faults()
    assert len(listed) >= 60
    assert {fault.fault: problem for fault in listed if (problem := tree.problem(fault)) is not None} == {}
