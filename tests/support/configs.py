"""Opaque configs for property tests: complete ones, and parts as a class or a claim writes them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import strategies as st

from dra_driver.api.config import (
    MEBIBYTE,
    DeviceConfig,
    GpuConfig,
    Iommu,
    MigDeviceConfig,
    Mps,
    Sharing,
    TimeSlicing,
    VfioDeviceConfig,
    wire_name,
)
from dra_driver.api.opaque import PartialConfig, combined, written_config
from dra_driver.names import CONFIG_API_VERSION
from dra_driver.quantity import Quantity

amounts = st.integers(1, 2**20).map(lambda mebibytes: mebibytes * MEBIBYTE)
percents = st.none() | st.integers(1, 100)


def decode_config[C: DeviceConfig](parameters: Mapping[str, object], kind: type[C], *, field: str) -> C:
    """A single config. Raises InvalidConfig with all problems."""
    return combined([written_config(parameters, kind, field=field)], kind)


def devices(prefix: str) -> st.SearchStrategy[str]:
    return st.just("*") | st.integers(0, 15).map(str) | st.uuids().map(lambda uuid: f"{prefix}-{uuid}")


def sharings(prefix: str) -> st.SearchStrategy[Sharing | None]:
    by_device = st.dictionaries(devices(prefix), amounts, max_size=4).map(lambda limits: tuple(sorted(limits.items())))
    with_mps = st.builds(Mps, percents, st.none() | amounts, by_device, st.booleans())
    intervals = st.sampled_from(["Default", "Short", "Medium", "Long"])
    return (
        st.none()
        | st.builds(Sharing, st.just("TimeSlicing"), time_slicing=st.builds(TimeSlicing, intervals))
        | st.builds(Sharing, st.just("MPS"), mps=with_mps)
    )


iommus = st.builds(Iommu, st.sampled_from(["LegacyOnly", "PreferIommuFD"]), st.booleans())
configs: st.SearchStrategy[DeviceConfig] = (
    st.builds(GpuConfig, sharings("GPU"))
    | st.builds(MigDeviceConfig, sharings("MIG"))
    | st.builds(VfioDeviceConfig, iommus)
)

STRATEGIES = {"TimeSlicing": "timeSlicingConfig", "MPS": "mpsConfig"}
settings: dict[str, st.SearchStrategy[Any]] = {
    "timeSlicingConfig": st.fixed_dictionaries(
        {}, optional={"interval": st.sampled_from(["Default", "Short", "Medium", "Long"])}
    ),
    "mpsConfig": st.fixed_dictionaries(
        {},
        optional={
            "defaultActiveThreadPercentage": st.integers(0, 100),
            "defaultPinnedDeviceMemoryLimit": st.sampled_from(["1Mi", "8Gi"]),
            "defaultPerDevicePinnedMemoryLimit": st.dictionaries(st.sampled_from(["0", "1", "*"]), st.just("2Gi")),
            "multiUser": st.booleans(),
        },
    ),
}


@st.composite
def written(draw: st.DrawFn) -> PartialConfig:
    """A config that is right in itself: complete, a part of one, or empty."""
    strategy = draw(st.sampled_from([None, "TimeSlicing", "MPS"]))
    sharing: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
    for other, block in STRATEGIES.items():
        if strategy in (None, other) and draw(st.booleans()):
            sharing[block] = draw(settings[block])
    has_sharing = bool(sharing) or draw(st.booleans())
    parameters = {"sharing": sharing} if has_sharing else {}
    return written_config(parameters, GpuConfig, field="parameters")


def encode_config(config: DeviceConfig) -> dict[str, Any]:
    """The `parameters` that decode to this config."""
    tree: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "per_device":
            tree[wire_name(field.name)] = {device: str(Quantity.of_bytes(amount)) for device, amount in value}
        elif is_dataclass(value):
            tree[wire_name(field.name)] = encode_config(value)  # type: ignore[arg-type]
        elif value is not None:
            tree[wire_name(field.name)] = value
    header = {"apiVersion": CONFIG_API_VERSION, "kind": config.kind} if isinstance(config, DeviceConfig) else {}
    return {**header, **tree}
