"""Precedence, requests and drivers of opaque configs; what is wrong in them is said with its place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.config import GpuConfig
from dra_driver.api.resource import AllocatedConfig
from dra_driver.errors import InvalidConfig
from dra_driver.names import RequestName
from dra_driver.opaque import config_for, listed_configs

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
    return config_for(RequestName.of(request), listed_configs(configs, DRIVER), GpuConfig, GpuConfig())


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
    assert sorted(one.parameters["n"] for one in listed) == [n for n, (_, ours) in enumerate(order) if ours]
    sources = [one.source for one in listed]
    assert sources == sorted(sources, key=["FromClaim", "FromClass"].index)
    for source in ("FromClass", "FromClaim"):
        numbers = [one.parameters["n"] for one in listed if one.source == source]
        assert numbers == sorted(numbers, reverse=True)
