"""Opaque configs mean what NVIDIA's own driver makes of them, and what is not understood is refused.

What exactly is said about each mistake is in `test_config_errors.py`.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import STRATEGIES, configs, decode_config, encode_config, written
from support.rows import rows

from dra_driver.api.config import (
    DEVICE_CONFIGS,
    MEBIBYTE,
    DeviceConfig,
    GpuConfig,
    Iommu,
    MigDeviceConfig,
    Mps,
    Sharing,
    TimeSlicing,
    VfioDeviceConfig,
)
from dra_driver.api.meta import JsonObject
from dra_driver.api.opaque import PartialConfig, combined, kind_of, over
from dra_driver.errors import InvalidConfig

VERSION = "resource.nvidia.com/v1beta1"
UUID = "5a7b8d0e-0000-4000-8000-0000000000ab"
GIB = 2**30


def decoded[C: DeviceConfig](kind: type[C], **fields: Any) -> C:
    parameters = {"apiVersion": VERSION, "kind": kind.kind, **fields}
    assert kind_of(parameters, field="parameters") == kind.kind
    return decode_config(parameters, kind, field="parameters")


def mps(**fields: Any) -> Mps:
    sharing = decoded(GpuConfig, sharing={"strategy": "MPS", "mpsConfig": fields}).sharing
    assert sharing is not None
    assert sharing.mps is not None
    return sharing.mps


@pytest.mark.parametrize("kind", DEVICE_CONFIGS)
def test_a_config_without_settings_is_the_default_of_its_kind(kind: type[DeviceConfig]) -> None:
    assert decoded(kind) == kind()


def test_null_is_as_good_as_left_out() -> None:
    assert decoded(GpuConfig, sharing=None) == GpuConfig()
    written = {"strategy": "TimeSlicing", "timeSlicingConfig": None, "mpsConfig": None}
    assert decoded(GpuConfig, sharing=written) == decoded(GpuConfig, sharing={"strategy": "TimeSlicing"})
    assert decoded(VfioDeviceConfig, iommu={"backendPolicy": None}) == VfioDeviceConfig()


@pytest.mark.parametrize("block", [{}, {"timeSlicingConfig": {}}, {"timeSlicingConfig": {"interval": "Default"}}])
def test_time_slicing_without_an_interval_is_the_default_one(block: dict[str, Any]) -> None:
    config = decoded(GpuConfig, sharing={"strategy": "TimeSlicing", **block})
    assert config.sharing == Sharing("TimeSlicing", time_slicing=TimeSlicing("Default"))


@pytest.mark.parametrize("interval", ["Default", "Short", "Medium", "Long"])
def test_intervals_have_four_names(interval: Any) -> None:
    config = decoded(GpuConfig, sharing={"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}})
    assert config.sharing == Sharing("TimeSlicing", time_slicing=TimeSlicing(interval))


def test_mps_settings_are_all_optional() -> None:
    assert decoded(GpuConfig, sharing={"strategy": "MPS"}).sharing == Sharing("MPS", mps=Mps())
    assert not Mps().limited


def test_mps_settings_are_typed_values() -> None:
    limits = {"defaultPinnedDeviceMemoryLimit": "10Gi", "defaultPerDevicePinnedMemoryLimit": {"1": "4Gi", "*": "8Gi"}}
    limits_config = mps(defaultActiveThreadPercentage=50, multiUser=True, **limits)
    assert limits_config == Mps(50, 10 * GIB, (("*", 8 * GIB), ("1", 4 * GIB)), True)
    assert limits_config.limited


@pytest.mark.parametrize(("percent", "limit"), [(0, None), (1, 1), (100, 100)])
def test_thread_percentages_go_from_0_to_100_and_0_is_no_limit(percent: int, limit: int | None) -> None:
    assert mps(defaultActiveThreadPercentage=percent).default_active_thread_percentage == limit


@rows(
    "written, mebibytes",
    [("1Mi", 1), ("1.9Mi", 1), ("1G", 953), ("1500M", 1430), ("8Gi", 8192), (1048576, 1), (2.5e9, 2384), ("1e9", 953)],
)
def test_memory_is_rounded_down_to_whole_mebibytes(written: object, mebibytes: int) -> None:
    assert mps(defaultPinnedDeviceMemoryLimit=written).default_pinned_device_memory_limit == mebibytes * MEBIBYTE


def test_the_uuid_of_a_device_may_be_written_in_capitals() -> None:
    config = mps(defaultPerDevicePinnedMemoryLimit={f"GPU-{UUID.upper()}": "1Gi"})
    assert config.per_device == ((f"GPU-{UUID}", GIB),)


def test_a_devices_limit_is_by_uuid_else_by_index_else_by_star_else_the_default() -> None:
    limits = Mps(None, 7 * GIB, (("*", 3 * GIB), ("0", GIB), ("1", 2 * GIB), ("GPU-b", 5 * GIB)))
    assert limits.memory_limits(["GPU-c", "GPU-b", "GPU-a"]) == (
        ("GPU-a", GIB),
        ("GPU-b", 5 * GIB),
        ("GPU-c", 3 * GIB),
    )
    assert Mps(None, 7 * GIB, (("1", GIB),)).memory_limits(["GPU-a", "GPU-b"]) == (("GPU-a", 7 * GIB), ("GPU-b", GIB))
    assert Mps(None, None, (("1", GIB),)).memory_limits(["GPU-a"]) == ()


def test_limits_for_devices_that_the_claim_does_not_have_are_found() -> None:
    limits = Mps(per_device=(("*", GIB), ("0", GIB), ("1", GIB), ("GPU-a", GIB), ("GPU-b", GIB)))
    assert limits.strangers(["GPU-a"]) == ("1", "GPU-b")
    assert limits.strangers(["GPU-a", "GPU-b"]) == ()


def test_mig_devices_take_both_strategies_and_their_own_uuids() -> None:
    limits = {"defaultPerDevicePinnedMemoryLimit": {f"MIG-{UUID}": "2Gi"}}
    config = decoded(MigDeviceConfig, sharing={"strategy": "MPS", "mpsConfig": limits})
    assert config.sharing == Sharing("MPS", mps=Mps(per_device=((f"MIG-{UUID}", 2 * GIB),)))
    assert decoded(MigDeviceConfig, sharing={"strategy": "TimeSlicing"}).sharing is not None


def test_virtual_machines_get_the_legacy_interface_unless_told_otherwise() -> None:
    assert decoded(VfioDeviceConfig, iommu={}).iommu == Iommu("LegacyOnly", False)
    wanted = {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}
    assert decoded(VfioDeviceConfig, iommu=wanted).iommu == Iommu("PreferIommuFD", True)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(InvalidConfig) as refused:
        decoded(GpuConfig, b=1, a=2, sharing={"strategy": "mps", "mpsConfig": {"multiUser": "yes", "x": 1}})
    fields = ("sharing.strategy", "sharing.mpsConfig.multiUser", "sharing.mpsConfig.x", "b", "a")
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [f"parameters.{f}" for f in fields]
    assert refused.value.field == "parameters.sharing.strategy"
    assert all(problem in str(refused.value) for problem in refused.value.problems)
    assert "\n" not in str(refused.value)


def test_kinds_for_other_drivers_are_known() -> None:
    for kind in ("ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"):
        assert kind_of({"apiVersion": VERSION, "kind": kind}, field="parameters") == kind


names = st.sampled_from(
    [
        *("sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "multiUser", "iommu", "backendPolicy"),
        *("defaultActiveThreadPercentage", "defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit"),
        *("0", "*", "kind", "x"),
    ]
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
known = st.sampled_from(["MPS", "TimeSlicing", "Long", "8Gi", "1Ki", 50, 0, True])
documents = st.recursive(
    leaves | known,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(DEVICE_CONFIGS), st.dictionaries(names, documents, max_size=4))
def test_whatever_somebody_writes_is_a_config_or_a_refusal_with_places(
    kind: type[DeviceConfig], parameters: dict[str, Any]
) -> None:
    try:
        config = decode_config(parameters, kind, field="p")
    except InvalidConfig as error:
        assert error.problems
        assert all(problem.startswith("p.") for problem in error.problems)
    else:
        assert decode_config(encode_config(config), kind, field="p") == config


@given(configs)
def test_a_config_that_was_encoded_decodes_to_itself(config: DeviceConfig) -> None:
    parameters = encode_config(config)
    assert kind_of(parameters, field="") == config.kind
    assert decode_config(parameters, type(config), field="") == config


def tree_of(config: PartialConfig) -> JsonObject:
    return config.tree


@given(written().map(tree_of), written().map(tree_of), written().map(tree_of))
def test_it_does_not_matter_which_two_of_three_configs_are_combined_first(
    low: JsonObject, middle: JsonObject, high: JsonObject
) -> None:
    assert over(high, over(middle, low)) == over(over(high, middle), low)


@given(written().map(tree_of))
def test_an_empty_config_changes_nothing_and_neither_does_the_same_one_again(tree: JsonObject) -> None:
    assert over({}, tree) == over(tree, {}) == over(tree, tree) == tree


@given(st.lists(written(), max_size=4))
def test_each_field_is_as_the_last_one_who_wrote_it_wants_it(stack: list[PartialConfig]) -> None:
    try:
        whole = combined(stack, GpuConfig).sharing
    except InvalidConfig:
        return
    sharings: list[Any] = [config.tree["sharing"] for config in stack if "sharing" in config.tree]
    strategies = [sharing["strategy"] for sharing in sharings if "strategy" in sharing]
    assert (whole is None) == (not sharings)
    if whole is None:
        return
    assert whole.strategy == strategies[-1]
    blocks = [sharing[STRATEGIES[whole.strategy]] for sharing in sharings if STRATEGIES[whole.strategy] in sharing]
    if whole.mps is not None:
        percents = [block["defaultActiveThreadPercentage"] for block in blocks if len(block) and PERCENT in block]
        assert (whole.mps.default_active_thread_percentage or 0) == (percents[-1] if percents else 0)
        users = [block["multiUser"] for block in blocks if "multiUser" in block]
        assert whole.mps.multi_user == (users[-1] if users else False)
    if whole.time_slicing is not None:
        intervals = [block["interval"] for block in blocks if "interval" in block]
        assert whole.time_slicing.interval == (intervals[-1] if intervals else "Default")


PERCENT = "defaultActiveThreadPercentage"


@given(written(), written())
def test_what_the_class_alone_wrote_survives_unless_the_claim_changes_the_strategy(
    low: PartialConfig, high: PartialConfig
) -> None:
    of_class, of_claim = low.tree.get("sharing"), high.tree.get("sharing", {})
    assert isinstance(of_claim, dict)
    if not isinstance(of_class, dict) or "strategy" not in of_class:
        return
    if of_claim.get("strategy", of_class["strategy"]) != of_class["strategy"]:
        return
    try:
        encoded = encode_config(combined([low, high], GpuConfig))["sharing"]
    except InvalidConfig:
        assert "strategy" not in of_claim
        return
    block = STRATEGIES[str(of_class["strategy"])]
    lower, upper = of_class.get(block, {}), of_claim.get(block, {})
    assert isinstance(lower, dict)
    assert isinstance(upper, dict)
    for field in lower.keys() - upper.keys():
        assert field in encoded[block] or lower[field] in (0, ())
