"""Kubernetes versions and their feature gates for DRA: which exist in a version and which are on. Pure.

The only table of gates. The simulated API server, the allocator, the doctor and the migration use it, and
`docs/kubernetes-versions.md` is generated from it; `tests/contracts/test_kubernetes_versions.py` compares it with real
servers. The column for 1.37 is from Kubernetes' documentation and was not compared with a server.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from dra_driver.errors import InvalidInput

KNOWN = range(34, 38)
"""Minor versions whose differences are known; 1.34 is the first that serves resource.k8s.io/v1."""
OLDEST = KNOWN[0]
SEEN: Mapping[int, str] = {34: "v1.34.9", 35: "v1.35.6", 36: "v1.36.3"}
"""By minor version: the release of the real servers with which the simulation was compared."""
CURRENT = max(SEEN)
"""The default version."""

Stage = Literal["absent", "alpha", "beta", "stable"]
_NEVER = 1000
"""No version yet."""


@dataclass(frozen=True, slots=True)
class KubernetesGate:
    """The minor versions in which a gate appears (as alpha), is beta, is on by default, is stable, and is locked."""

    means: str
    alpha: int
    beta: int = _NEVER
    on: int = _NEVER
    stable: int = _NEVER
    locked: int = _NEVER

    def default(self, minor: int) -> bool:
        return minor >= self.on

    def stage(self, minor: int) -> Stage:
        if minor >= self.stable:
            return "stable"
        if minor >= self.beta:
            return "beta"
        return "alpha" if minor >= self.alpha else "absent"

    def is_on(self, name: str, minor: int, given: Mapping[str, bool]) -> bool:
        """Whether the gate is on in a component 1.`minor` with these gates; AllAlpha and AllBeta apply if the gate
        itself is not given."""
        if name in given:
            return given[name]
        switch = {"alpha": "AllAlpha", "beta": "AllBeta"}.get(self.stage(minor), "")
        return given.get(switch, self.default(minor))


GATES: Mapping[str, KubernetesGate] = {
    "DynamicResourceAllocation": KubernetesGate("Claims, classes and slices at all.", 26, 32, 34, 34, 35),
    "DRAAdminAccess": KubernetesGate("Claims with `adminAccess`.", 32, 34, 34, 36, 36),
    "DRAPrioritizedList": KubernetesGate("Alternatives in a request (`firstAvailable`).", 33, 34, 34, 36, 37),
    "DRAResourceClaimDeviceStatus": KubernetesGate("`status.devices` of claims.", 32, 33, 33, 37, 37),
    "DRAPartitionableDevices": KubernetesGate("Counters: MIG devices that are created on demand.", 33, 36, 36),
    "DRAConsumableCapacity": KubernetesGate("Devices whose capacity several claims share.", 34, 36, 36),
    "DRADeviceTaints": KubernetesGate("Taints on devices, tolerations in claims.", 33, 36, 36),
    "DRADeviceTaintRules": KubernetesGate("DeviceTaintRules: taints that an administrator sets.", 35, 36, 37),
    "DRAExtendedResource": KubernetesGate("`nvidia.com/gpu: 1` served by a DeviceClass.", 34, 36, 36, 37, 37),
    "DRADeviceBindingConditions": KubernetesGate(
        "Devices that become ready after the pod is assigned to a node.", 34, 36, 36
    ),
    "ResourceHealthStatus": KubernetesGate("The health of devices in the status of pods.", 31, 36, 36),
    "DRAResourceClaimGranularStatusAuthorization": KubernetesGate(
        "Separate RBAC verbs for `status.devices` of claims.", 36, 36, 36
    ),
    "DRAListTypeAttributes": KubernetesGate("Attributes that are lists.", 36),
    "DRAResourcePoolStatus": KubernetesGate("ResourcePoolStatusRequests: how many devices of a pool are in use.", 36),
    "DRANodeAllocatableResources": KubernetesGate("CPU and memory that come with a device.", 36),
    "KubeletPodResourcesDynamicResources": KubernetesGate(
        "Claims in the kubelet's pod resources API.", 27, 34, 34, 36, 36
    ),
}


class FeatureGates:
    """The gates of one server. Raises ValueError for an override that a real server would refuse to start with."""

    def __init__(self, minor: int, overrides: Mapping[str, bool] | None = None) -> None:
        self.minor = minor
        self._on = {name: gate.default(minor) for name, gate in GATES.items() if minor >= gate.alpha}
        for name, value in (overrides or {}).items():
            if name not in self._on:
                raise ValueError(f"unrecognized feature gate: {name}")
            if minor >= GATES[name].locked and value is not self._on[name]:
                raise ValueError(f"cannot set feature gate {name} to {value}, feature is locked to {self._on[name]}")
            self._on[name] = value

    def enabled(self, name: str) -> bool:
        """Also False for a gate that this version does not have."""
        return self._on.get(name, False)


def minor_of(version: str) -> int:
    """36 for `v1.36.2-gke.1` or `1.36`; 0 for text that is not a Kubernetes version."""
    parts = version.removeprefix("v").split(".")
    return int(parts[1]) if len(parts) > 1 and parts[0] == "1" and parts[1].isdecimal() else 0


def named_minor(text: str, within: Collection[int] | None = None) -> int:
    """The minor version of `--kubernetes 1.36`. Raises InvalidInput for text that is not a version, or a version not in
    `within`."""
    minor = minor_of(text)
    if minor == 0:
        raise InvalidInput(f"{text!r} is not a Kubernetes version like 1.{CURRENT}", about="--kubernetes")
    if within is not None and minor not in within:
        versions = f"1.{min(within)} to 1.{max(within)}"
        raise InvalidInput(f"known are Kubernetes {versions}, not {text}", about="--kubernetes")
    return minor
