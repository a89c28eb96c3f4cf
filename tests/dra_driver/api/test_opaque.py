"""Precedence, requests and drivers of opaque configs; what is wrong in them is said with its place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.config import (
    DeviceConfig,
    GpuConfig,
    Iommu,
    MigDeviceConfig,
    Mps,
    Sharing,
    TimeSlicing,
    VfioDeviceConfig,
)
from dra_driver.api.opaque import config_for, listed_configs
from dra_driver.api.resource import AllocatedConfig, DeviceClaim
from dra_driver.errors import InvalidConfig
from dra_driver.names import RequestName

DRIVER = "gpu.nvidia.com"
GPU: dict[str, Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
MIG = {**GPU, "kind": "MigDeviceConfig"}
WRONG = {**GPU, "colour": "green"}


def written(
    parameters: dict[str, Any], *requests: str, source: str = "FromClaim", driver: str = DRIVER
) -> AllocatedConfig:
    opaque = {"driver": driver, "parameters": parameters}
    return AllocatedConfig.of({"source": source, "requests": list(requests), "opaque": opaque})


def resolved(request: str, *configs: AllocatedConfig) -> GpuConfig:
    return config_for(RequestName.of(request), listed_configs(configs, DRIVER), GpuConfig)


def resolved_as[C: DeviceConfig](kind: type[C], *configs: AllocatedConfig, request: str = "gpu") -> C:
    return config_for(RequestName.of(request), listed_configs(configs, DRIVER), kind)


def with_sharing(strategy: str | None = None, *, kind: str = "GpuConfig", **blocks: Any) -> dict[str, Any]:
    return {**GPU, "kind": kind, "sharing": blocks if strategy is None else {"strategy": strategy, **blocks}}


def by_mps(**settings: Any) -> dict[str, Any]:
    return with_sharing("MPS", mpsConfig=settings)


def test_nobody_has_to_write_a_config() -> None:
    assert resolved("gpu") == GpuConfig()
    assert resolved("gpu", written(GPU), written(GPU, "gpu", source="FromClass")) == GpuConfig()


def test_a_claim_comes_before_its_class_and_of_equals_the_last_one_wins() -> None:
    order = [
        written({**GPU, "n": 0}, source="FromClaim"),
        written({**GPU, "n": 1}, source="FromClass"),
        written({**GPU, "n": 2}, source="FromClaim"),
        written({**GPU, "n": 3}, source="FromClass"),
    ]
    assert [config.parameters["n"] for config in listed_configs(order, DRIVER)] == [2, 0, 3, 1]


def test_an_error_names_the_place_where_a_person_wrote_the_config() -> None:
    listed = [written(WRONG, source="FromClass"), written(GPU, "gpu"), written(WRONG, "gpu")]
    config = [{"requests": item.requests, "opaque": item.opaque.model_dump()} for item in listed if item.opaque]
    claim = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "shared"}}], "config": config[1:]}
    fields = [item.field for item in listed_configs(listed, DRIVER, DeviceClaim.of(claim))]
    assert fields == [
        "spec.devices.config[1].opaque.parameters",
        "spec.devices.config[0].opaque.parameters",
        "DeviceClass shared: spec.config.opaque.parameters",
    ]


def test_where_the_place_of_a_config_is_not_known_an_error_names_the_allocation() -> None:
    listed = [written(WRONG, source="FromClass"), written(WRONG, "gpu")]
    ways = [{"name": str(n), "deviceClassName": f"class-{n}"} for n in range(2)]
    claim = {"requests": [{"name": "gpu", "firstAvailable": ways}], "config": []}
    fields = [item.field for item in listed_configs(listed, DRIVER, DeviceClaim.of(claim))]
    assert fields == [f"status.allocation.devices.config[{n}].opaque.parameters" for n in (1, 0)]


def test_configs_of_other_drivers_are_not_read() -> None:
    assert resolved("gpu", written({"kind": 7}, "gpu", driver="nic.example.com")) == GpuConfig()


def test_a_config_for_a_request_covers_its_alternatives() -> None:
    for name in ("gpu", "gpu/large"):
        with pytest.raises(InvalidConfig, match="colour"):
            resolved("gpu/large", written(WRONG, name))


@pytest.mark.parametrize("name", ["other", "gpu/small", "large", "gp"])
def test_a_config_for_another_request_or_alternative_is_not_read(name: str) -> None:
    assert resolved("gpu/large", written(WRONG, name)) == GpuConfig()


def test_a_config_of_another_kind_that_names_the_request_is_an_error() -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolved("gpu", written(GPU), written(MIG, "gpu"))
    assert refused.value.field == "status.allocation.devices.config[1].opaque.parameters.kind"
    assert "MigDeviceConfig is for MIG devices" in refused.value.message
    assert "use GpuConfig" in refused.value.message


def test_a_config_of_another_kind_for_all_requests_is_passed_over() -> None:
    assert (
        resolved("gpu", written(MIG), written({**GPU, "kind": "VfioDeviceConfig"}, source="FromClass")) == GpuConfig()
    )


def test_a_wrong_config_is_an_error_also_when_another_one_hides_it() -> None:
    with pytest.raises(InvalidConfig, match=r"config\[0\].*colour"):
        resolved("gpu", written(WRONG, source="FromClass"), written(GPU))


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolved("gpu", written({**WRONG, "size": 1}), written({**GPU, "kind": "GpuConfg"}, "gpu"))
    for part in ("config[0].opaque.parameters.colour", "parameters.size", "config[1].opaque.parameters.kind"):
        assert any(part in problem for problem in refused.value.problems), part
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.lists(st.tuples(st.sampled_from(["FromClass", "FromClaim"]), st.booleans()), max_size=8))
def test_every_config_of_the_driver_is_listed_once_and_no_class_before_a_claim(order: list[tuple[str, bool]]) -> None:
    configs = [
        written({**GPU, "n": index}, source=source, driver=DRIVER if ours else "other.example.com")
        for index, (source, ours) in enumerate(order)
    ]
    listed = listed_configs(configs, DRIVER)
    assert sorted(config.parameters["n"] for config in listed) == [n for n, (_, ours) in enumerate(order) if ours]
    sources = [config.source for config in listed]
    assert sources == sorted(sources, key=["FromClaim", "FromClass"].index)
    for source in ("FromClass", "FromClaim"):
        numbers = [config.parameters["n"] for config in listed if config.source == source]
        assert numbers == sorted(numbers, reverse=True)


PERCENT, MEMORY, BY_DEVICE = (
    "defaultActiveThreadPercentage",
    "defaultPinnedDeviceMemoryLimit",
    "defaultPerDevicePinnedMemoryLimit",
)


def test_a_claim_adds_to_its_class_and_what_both_say_is_as_the_claim_says() -> None:
    of_class = written(by_mps(**{PERCENT: 50, "multiUser": True}), "gpu", source="FromClass")
    of_claim = written(by_mps(**{PERCENT: 30, MEMORY: "8Gi"}))
    expected = Sharing("MPS", mps=Mps(30, 8 * 2**30, multi_user=True))
    for order in ([of_class, of_claim], [of_claim, of_class]):
        assert resolved("gpu", *order).sharing == expected


def test_a_claim_may_leave_the_strategy_to_its_class() -> None:
    of_class = written(by_mps(**{PERCENT: 50}), "gpu", source="FromClass")
    of_claim = written(with_sharing(mpsConfig={MEMORY: "8Gi"}))
    assert resolved("gpu", of_class, of_claim).sharing == Sharing("MPS", mps=Mps(50, 8 * 2**30))


def test_of_two_configs_in_one_place_the_later_one_lies_above_whatever_requests_it_names() -> None:
    narrow, wide = by_mps(**{PERCENT: 30}), by_mps(**{PERCENT: 60, MEMORY: "1Gi"})
    assert resolved("gpu/large", written(narrow, "gpu/large"), written(wide)).sharing == Sharing(
        "MPS", mps=Mps(60, 2**30)
    )
    assert resolved("gpu/large", written(wide), written(narrow, "gpu/large")).sharing == Sharing(
        "MPS", mps=Mps(30, 2**30)
    )


def test_a_claim_that_changes_the_strategy_gets_nothing_of_the_settings_of_the_other_one() -> None:
    of_class = written(by_mps(**{PERCENT: 50}), "gpu", source="FromClass")
    of_claim = written(with_sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"}))
    assert resolved("gpu", of_class, of_claim).sharing == Sharing("TimeSlicing", time_slicing=TimeSlicing("Long"))


def test_limits_by_device_are_one_field() -> None:
    of_class = written(by_mps(**{BY_DEVICE: {"0": "4Gi", "1": "2Gi"}, PERCENT: 50}), "gpu", source="FromClass")
    of_claim = written(by_mps(**{BY_DEVICE: {"*": "1Gi"}}))
    assert resolved("gpu", of_class, of_claim).sharing == Sharing("MPS", mps=Mps(50, None, (("*", 2**30),)))
    assert resolved("gpu", of_class, written(by_mps(**{BY_DEVICE: {}}))).sharing == Sharing("MPS", mps=Mps(50))


def test_a_claim_lifts_the_percentage_of_its_class_by_0_and_null_lifts_nothing() -> None:
    of_class = written(by_mps(**{PERCENT: 50}), "gpu", source="FromClass")
    assert resolved("gpu", of_class, written(by_mps(**{PERCENT: 0}))).sharing == Sharing("MPS", mps=Mps())
    assert resolved("gpu", of_class, written(by_mps(**{PERCENT: None}))).sharing == Sharing("MPS", mps=Mps(50))
    assert resolved("gpu", of_class, written({**GPU, "sharing": None})).sharing == Sharing("MPS", mps=Mps(50))


def test_settings_for_another_strategy_than_the_one_below_are_refused_with_both_places() -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolved(
            "gpu",
            written(by_mps(), "gpu", source="FromClass"),
            written(with_sharing(timeSlicingConfig={"interval": "Long"})),
        )
    assert refused.value.field == "status.allocation.devices.config[1].opaque.parameters.sharing.timeSlicingConfig"
    assert "config[0]" in refused.value.message


def test_one_claim_configures_gpus_mig_devices_and_gpus_for_virtual_machines() -> None:
    configs = [
        written(with_sharing("TimeSlicing")),
        written(with_sharing("MPS", kind="MigDeviceConfig")),
        written({**GPU, "kind": "VfioDeviceConfig", "iommu": {"enableAPIDevice": True}}),
    ]
    assert resolved_as(GpuConfig, *configs).sharing == Sharing("TimeSlicing", time_slicing=TimeSlicing())
    assert resolved_as(MigDeviceConfig, *configs).sharing == Sharing("MPS", mps=Mps())
    assert resolved_as(VfioDeviceConfig, *configs).iommu == Iommu(enable_api_device=True)


def test_a_class_for_gpus_and_mig_devices_has_a_config_for_each() -> None:
    """The scheduler writes the names of all requests of the class into each of its configs."""
    configs = [
        written(with_sharing("TimeSlicing"), "gpu", "part", source="FromClass"),
        written(with_sharing("MPS", kind="MigDeviceConfig"), "gpu", "part", source="FromClass"),
    ]
    assert resolved_as(GpuConfig, *configs).sharing == Sharing("TimeSlicing", time_slicing=TimeSlicing())
    assert resolved_as(MigDeviceConfig, *configs, request="part").sharing == Sharing("MPS", mps=Mps())
    with pytest.raises(InvalidConfig, match="MigDeviceConfig is for MIG devices"):
        resolved_as(GpuConfig, configs[1])


def test_a_claim_that_names_a_request_for_the_wrong_kind_is_refused_also_where_the_class_fits() -> None:
    with pytest.raises(InvalidConfig, match=r"config\[1\].*MigDeviceConfig is for MIG devices"):
        resolved("gpu", written(with_sharing("MPS"), "gpu", source="FromClass"), written(MIG, "gpu"))
