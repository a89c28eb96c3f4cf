"""Opaque configs are decoded strictly: what is not understood is refused by name and place."""

from typing import Any

import pytest

from dra_driver.api.config import GpuConfig, decode_config, kind_of
from dra_driver.errors import InvalidConfig

GPU: dict[str, Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}


def decoded(parameters: dict[str, Any]) -> GpuConfig:
    assert kind_of(parameters, field="parameters") == "GpuConfig"
    return decode_config(parameters, GpuConfig, field="parameters")


def test_a_gpu_config_without_settings_is_the_default() -> None:
    assert decoded(GPU) == decoded({**GPU, "sharing": None}) == GpuConfig()


@pytest.mark.parametrize(
    ("parameters", "field", "says"),
    [
        ({}, "parameters.apiVersion", "missing; must be `resource.nvidia.com/v1beta1`"),
        ({**GPU, "apiVersion": "gpu.nvidia.com/v1alpha1"}, "parameters.apiVersion", "'gpu.nvidia.com/v1alpha1'"),
        ({**GPU, "kind": None}, "parameters.kind", "missing; must be one of `GpuConfig`"),
        ({**GPU, "kind": "gpuconfig"}, "parameters.kind", "'gpuconfig'"),
        ({**GPU, "kind": ["GpuConfig"]}, "parameters.kind", "must be one of"),
        ({**GPU, "kind": "x" * 1000}, "parameters.kind", "..."),
        ({**GPU, "Sharing": {}}, "parameters.Sharing", "GpuConfig has `apiVersion`, `kind`, `sharing`"),
        ({**GPU, "sharing": {}}, "parameters.sharing", "sharing is not supported on full GPUs by this version"),
        ({**GPU, "sharing": {"strategy": "MPS"}}, "parameters.sharing", "'MPS' is not supported"),
        ({**GPU, "sharing": "MPS"}, "parameters.sharing", "not supported"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_may_stand_there(
    parameters: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        decoded(parameters)
    assert refused.value.field == field
    assert says in refused.value.message
    assert refused.value.retry_after_s is None
    assert len(str(refused.value)) < 300


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="must be an object"):
        kind_of([GPU], field="parameters")


def test_all_unknown_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidConfig) as refused:
        decoded({**GPU, "b": 1, "a": 2, "sharing": {"strategy": "TimeSlicing"}})
    assert len(refused.value.problems) == 3
    for name in ("parameters.a", "parameters.b", "parameters.sharing"):
        assert name in str(refused.value)
