"""Gates and limits by version: what a server of another minor version has on, refuses to switch, and accepts."""

import pytest

from dra_driver.apirules.dra_slices import SliceLimits
from dra_driver.kubernetes import FeatureGates


@pytest.mark.parametrize(
    ("minor", "taints", "rules", "lists"),
    [(34, False, False, False), (35, False, False, False), (36, True, False, False), (37, True, True, False)],
)
def test_defaults_follow_the_version(minor: int, taints: bool, rules: bool, lists: bool) -> None:
    gates = FeatureGates(minor)
    names = ("DRADeviceTaints", "DRADeviceTaintRules", "DRAListTypeAttributes")
    assert tuple(gates.enabled(name) for name in names) == (taints, rules, lists)


def test_an_override_wins() -> None:
    assert FeatureGates(34, {"DRADeviceTaints": True}).enabled("DRADeviceTaints")
    assert not FeatureGates(36, {"DRADeviceTaints": False}).enabled("DRADeviceTaints")


def test_a_gate_that_the_version_does_not_have_cannot_be_set() -> None:
    assert not FeatureGates(34).enabled("DRAListTypeAttributes")
    with pytest.raises(ValueError, match="unrecognized feature gate: DRAListTypeAttributes"):
        FeatureGates(34, {"DRAListTypeAttributes": True})


def test_a_locked_gate_cannot_be_switched_off() -> None:
    with pytest.raises(ValueError, match="locked"):
        FeatureGates(36, {"DRAAdminAccess": False})
    assert FeatureGates(36, {"DRAAdminAccess": True}).enabled("DRAAdminAccess")


def test_limits_of_older_versions() -> None:
    assert (SliceLimits.of(34).advanced_devices, SliceLimits.of(34).taints) == (128, 4)
    assert SliceLimits.of(34).counters_apart is False
    assert SliceLimits.of(35).attribute_values is None
    assert SliceLimits.of(36) == SliceLimits.of(37) == SliceLimits()
