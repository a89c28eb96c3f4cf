"""Feature gates: whether a cluster allows a feature at all. Only this module knows their names and defaults.

Controller and node plugin take the same `--feature-gates A=true,B=false`; the chart's `featureGates` and
`docs/feature-gates.md` are made from the table below. A policy or claim that requests a disabled feature is refused
with the gate's name. Policy and claims decide where and how features are used.

Gates with the same meaning as in NVIDIA's own driver have the same name. There, most gates exclude each other; here
none does, because `dra_driver.devices.exclusion` decides for each GPU which features exclude each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar, Literal

from dra_driver.errors import InvalidConfig, InvalidInput

Stage = Literal["alpha", "beta"]
"""Alpha is off by default and may change in any release; beta is on by default."""


class Feature(StrEnum):
    """The features that code checks for; the value is the gate's name in settings."""

    TIME_SLICING = "TimeSlicingSettings"
    MPS = "MPSSupport"
    DYNAMIC_MIG = "DynamicMIG"
    MIG_MODE_CHANGE = "MigModeChange"
    SHARES = "ConsumableShares"
    PASSTHROUGH = "PassthroughSupport"
    HEALTH = "NVMLDeviceHealthCheck"
    DEVICE_STATUS = "DeviceStatus"
    BINDING_CONDITIONS = "BindingConditions"
    MIG_BINDING_CONDITIONS = "MigBindingConditions"
    DEVICE_METADATA = "DeviceMetadata"
    MIG_CLASSES = "MigProfileClasses"
    MIG_EXTENDED_RESOURCES = "MigExtendedResources"
    COMPUTE_DOMAINS = "ComputeDomains"
    HOST_IMEX = "HostManagedIMEXDaemon"
    FABRIC_PARTITIONS = "FabricManagerPartitioning"
    LIST_ATTRIBUTES = "DRAListTypeAttributes"


@dataclass(frozen=True, slots=True)
class Gate:
    """One row of the table. `needs` must be on for it to be on."""

    feature: Feature
    stage: Stage
    means: str
    needs: tuple[Feature, ...] = ()

    @property
    def default(self) -> bool:
        return self.stage != "alpha"


GATES: Mapping[Feature, Gate] = {
    gate.feature: gate
    for gate in (
        Gate(
            Feature.TIME_SLICING,
            "beta",
            "Claims may set time slices (`strategy: TimeSlicing`), and so may the policy's sharing rules.",
        ),
        Gate(
            Feature.MPS,
            "beta",
            "Claims may share through MPS (`strategy: MPS`), and so may the policy's sharing rules.",
        ),
        Gate(
            Feature.DYNAMIC_MIG,
            "beta",
            "The policy may offer MIG devices that are created on demand (`mig: [{mode: Dynamic}]`).",
        ),
        Gate(
            Feature.MIG_MODE_CHANGE,
            "alpha",
            "The policy may let the driver reset idle GPUs to switch their MIG mode, on models that need it"
            " (`modeChange: WhenIdle`). Never seen on hardware.",
            needs=(Feature.DYNAMIC_MIG,),
        ),
        Gate(
            Feature.SHARES,
            "beta",
            "The policy may offer devices to several claims at once (`sharing`).",
        ),
        Gate(
            Feature.PASSTHROUGH,
            "beta",
            "The policy may offer GPUs to virtual machines (`passthrough`).",
        ),
        Gate(
            Feature.HEALTH,
            "beta",
            "The plugin monitors GPUs: conditions in the inventory, taints on devices, health in the status of pods.",
        ),
        Gate(
            Feature.DEVICE_STATUS,
            "beta",
            "The status of claims reports the state of their devices (`status.devices`): two small writes per claim.",
        ),
        Gate(
            Feature.BINDING_CONDITIONS,
            "beta",
            "A pod of a ComputeDomain is bound to a node when the domain's daemon is ready there; if it does not become"
            " ready, the scheduler chooses another node (KEP-5007). Without `DeviceStatus` it has no effect.",
        ),
        Gate(
            Feature.MIG_BINDING_CONDITIONS,
            "alpha",
            "The same for MIG devices that are created on demand. Their pods start 5 s later, because kube-scheduler"
            " looks at the conditions every 5 s.",
            needs=(Feature.BINDING_CONDITIONS,),
        ),
        Gate(
            Feature.DEVICE_METADATA,
            "beta",
            "Containers get a file with the attributes of their devices (KEP-5304); KubeVirt needs it.",
        ),
        Gate(
            Feature.MIG_CLASSES,
            "beta",
            "The controller creates a DeviceClass for each MIG profile that a node publishes.",
        ),
        Gate(
            Feature.MIG_EXTENDED_RESOURCES,
            "alpha",
            "Those classes serve extended resources such as `nvidia.com/mig-1g.10gb`, as a device plugin does.",
            needs=(Feature.MIG_CLASSES,),
        ),
        Gate(
            Feature.COMPUTE_DOMAINS,
            "beta",
            "Nodes offer IMEX channels, and the controller manages ComputeDomains: pods that share memory over NVLink.",
        ),
        Gate(
            Feature.HOST_IMEX,
            "alpha",
            "Nodes run their IMEX daemons themselves: ComputeDomains start none, and wait for the node's daemon.",
            needs=(Feature.COMPUTE_DOMAINS,),
        ),
        Gate(
            Feature.FABRIC_PARTITIONS,
            "alpha",
            "Where Fabric Manager shares the NVSwitches (FABRIC_MODE=1), the GPUs of a claim must be one fabric"
            " partition, which is active while the claim has them.",
        ),
        Gate(
            Feature.LIST_ATTRIBUTES,
            "alpha",
            "NUMA nodes and NVLink peers are lists if the API server stores lists. Needs Kubernetes' gate of the same"
            " name in API server **and** scheduler: a scheduler without it fails for every pod that selects GPUs. In"
            " kube-scheduler 1.36.2 `matchAttribute` on lists matches nothing (kubernetes/kubernetes#139332).",
        ),
    )
}

_OF_NVIDIA = frozenset(
    {
        "IMEXDaemonsWithDNSNames",
        "ComputeDomainCliques",
        "CrashOnNVLinkFabricErrors",
        "ContextualLogging",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
    }
)
"""Gates of NVIDIA's driver that have no effect here; setting them is an error that says so."""


@dataclass(frozen=True, slots=True)
class Gates:
    """The features that are allowed. `Gates.DEFAULT` applies if no gates are set."""

    on: frozenset[Feature]

    DEFAULT: ClassVar["Gates"]

    def __contains__(self, feature: Feature) -> bool:
        return feature in self.on

    def __str__(self) -> str:
        """All of them, in the form of the command line: `ConsumableShares=true,…`."""
        return ",".join(f"{feature}={str(feature in self.on).lower()}" for feature in sorted(Feature))

    @classmethod
    def parse(cls, text: str) -> "Gates":
        """`A=true,B=false`, the others as by default; empty is the default.

        Raises InvalidInput with all problems: unknown names, values that are neither true nor false, a gate given twice
        with different values, a gate that is on while a gate it needs is off.
        """
        given: dict[Feature, bool] = {}
        problems: list[str] = []
        for word in filter(None, (part.strip() for part in text.split(","))):
            problems += _take(word, given)
        problems = problems or list(_unmet(given))
        if problems:
            raise InvalidInput("; ".join(problems), problems=problems)
        return cls(frozenset(feature for feature, gate in GATES.items() if given.get(feature, gate.default)))


Gates.DEFAULT = Gates(frozenset(feature for feature, gate in GATES.items() if gate.default))


def check_strategy(strategy: str, gates: Gates, *, field: str) -> None:
    """Checks the gate for a config's `sharing.strategy`; the policy's offers are checked with the policy. Raises
    InvalidConfig (final) with `field` if the gate is off.
    """
    feature = Feature.MPS if strategy == "MPS" else Feature.TIME_SLICING
    if feature not in gates:
        raise InvalidConfig(
            f"sharing.strategy {strategy} is switched off in this cluster by feature gate {feature}; leave `sharing`"
            " out of the config, or ask an administrator for the gate",
            field=field,
        )


def _take(word: str, given: dict[Feature, bool]) -> Iterable[str]:
    """Put one `NAME=BOOLEAN` into `given`; yields what is wrong with it."""
    name, equals, value = (part.strip() for part in word.partition("="))
    if name not in list(Feature):
        yield _unknown(name)
    elif not equals or value.lower() not in ("true", "false"):
        yield f"{word!r} is not {name}=true or {name}=false"
    else:
        feature, wanted = Feature(name), value.lower() == "true"
        if given.setdefault(feature, wanted) != wanted:
            yield f"{name} is given twice, as true and as false"


def _unknown(name: str) -> str:
    if name in _OF_NVIDIA:
        return f"{name} is a feature gate of NVIDIA's own driver that has no effect in this one; leave it out"
    close = get_close_matches(name, list(Feature), n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(Feature))}"
    return f"there is no feature gate {name!r}; {hint}"


def _unmet(given: Mapping[Feature, bool]) -> Iterable[str]:
    for feature, gate in GATES.items():
        if given.get(feature, gate.default):
            for needed in gate.needs:
                if not given.get(needed, GATES[needed].default):
                    yield f"{feature} needs {needed}, which is off"
