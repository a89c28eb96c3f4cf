"""Kubernetes' feature gates for DRA: which exist in a version, which are on, and overrides by name.

Source: the feature gate tables of Kubernetes 1.34 to 1.37. What a gate that is off does to objects: `dra_gates.py`.
"""

from collections.abc import Mapping

_OFF, _ON = False, True

# Gate: the minor version from which a default holds, newest last.
_DEFAULTS: dict[str, tuple[tuple[int, bool], ...]] = {
    "DynamicResourceAllocation": ((34, _ON),),
    "DRAAdminAccess": ((34, _ON),),
    "DRAPrioritizedList": ((34, _ON),),
    "DRAResourceClaimDeviceStatus": ((34, _ON),),
    "DRAConsumableCapacity": ((34, _OFF), (36, _ON)),
    "DRAPartitionableDevices": ((34, _OFF), (36, _ON)),
    "DRADeviceTaints": ((34, _OFF), (36, _ON)),
    "DRADeviceTaintRules": ((35, _OFF), (37, _ON)),
    "DRAExtendedResource": ((34, _OFF), (36, _ON)),
    "DRADeviceBindingConditions": ((34, _OFF), (36, _ON)),
    "DRAResourceClaimGranularStatusAuthorization": ((36, _ON),),
    "ResourceHealthStatus": ((34, _OFF), (36, _ON)),
    "DRAListTypeAttributes": ((36, _OFF),),
    "DRANodeAllocatableResources": ((36, _OFF),),
}
_LOCKED_FROM = {
    "DynamicResourceAllocation": 35,
    "DRAAdminAccess": 36,
    "DRAPrioritizedList": 37,
    "DRAResourceClaimDeviceStatus": 37,
    "DRAExtendedResource": 37,
}


class FeatureGates:
    """The gates of one server. Raises ValueError for an override that a real server would refuse to start with."""

    def __init__(self, minor: int, overrides: Mapping[str, bool] | None = None) -> None:
        self._on = {
            name: [value for since, value in defaults if since <= minor][-1]
            for name, defaults in _DEFAULTS.items()
            if defaults[0][0] <= minor
        }
        for name, value in (overrides or {}).items():
            if name not in self._on:
                raise ValueError(f"unrecognized feature gate: {name}")
            if _LOCKED_FROM.get(name, minor + 1) <= minor and value is not self._on[name]:
                raise ValueError(f"cannot set feature gate {name} to {value}, feature is locked to {self._on[name]}")
            self._on[name] = value

    def enabled(self, name: str) -> bool:
        """False as well for a gate that this version does not have."""
        return self._on.get(name, False)
