"""Gates and limits by version: what a server of another minor version has on, refuses to switch, and accepts."""

import pytest
from support.api import Api
from support.dra_objects import SLICES, device, resource_slice

from dra_driver.apirules.dra_slices import SliceLimits
from dra_driver.kubernetes import FeatureGates
from dra_driver.simulation.apiserver import SimulatedApiServer


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


async def test_a_1_37_server_has_taint_rules_in_v1_and_selects_slices_by_pool() -> None:
    server = SimulatedApiServer(version="v1.37.0")
    await server.start()
    async with Api(server.url) as api:
        rules = "/apis/resource.k8s.io/v1/devicetaintrules"
        await api.post(rules, {"metadata": {"name": "a"}, "spec": {"taint": {"key": "k", "effect": "None"}}})
        await api.post(SLICES, resource_slice("a", device()))
        listed = await api.get(SLICES, fieldSelector="spec.pool.name=node-1")
        assert [slice_["metadata"]["name"] for slice_ in listed["items"]] == ["a"]
    await server.stop()
