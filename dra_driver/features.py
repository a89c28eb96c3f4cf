"""Feature gates: whether a behaviour may be used at all in a cluster. Only this module knows their names and defaults.

Controller and node plugin take the same `--feature-gates A=true,B=false`; the chart's `featureGates` and
`docs/feature-gates.md` are made from the table below. A gate that is off does not hide anything: a policy or a claim
that asks for the behaviour is refused with the gate's name. Where and how a behaviour is used is for policy and claims.

What NVIDIA's own driver has a gate for, and means the same here, has the same name. There, most gates exclude each
other; here none does, for what excludes what is decided for each GPU (`dra_driver.devices.exclusion`).
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
    """What code asks for; the value is how people write it."""

    TIME_SLICING = "TimeSlicingSettings"
    MPS = "MPSSupport"
    DYNAMIC_MIG = "DynamicMIG"
    SHARES = "ConsumableShares"
    PASSTHROUGH = "PassthroughSupport"
    HEALTH = "NVMLDeviceHealthCheck"
    DEVICE_STATUS = "DeviceStatus"
    MIG_CLASSES = "MigProfileClasses"
    MIG_EXTENDED_RESOURCES = "MigExtendedResources"
    COMPUTE_DOMAINS = "ComputeDomains"
    HOST_IMEX = "HostManagedIMEXDaemon"


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
            "The policy may offer MIG devices that are made on demand (`mig: [{mode: Dynamic}]`).",
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
            "GPUs are watched: conditions in the inventory, taints on devices, health in the status of pods.",
        ),
        Gate(
            Feature.DEVICE_STATUS,
            "beta",
            "The status of claims says how their devices are (`status.devices`): two small writes for each claim.",
        ),
        Gate(
            Feature.MIG_CLASSES,
            "beta",
            "The controller keeps a DeviceClass for each MIG profile that some node publishes.",
        ),
        Gate(
            Feature.MIG_EXTENDED_RESOURCES,
            "alpha",
            "Those classes answer to `nvidia.com/mig-1g.10gb` and the like, as a device plugin does.",
            needs=(Feature.MIG_CLASSES,),
        ),
        Gate(
            Feature.COMPUTE_DOMAINS,
            "beta",
            "Nodes offer IMEX channels, and the controller keeps ComputeDomains: pods that share memory over NVLink.",
        ),
        Gate(
            Feature.HOST_IMEX,
            "alpha",
            "Nodes run their IMEX daemons themselves: ComputeDomains make none, and wait until the node's is ready.",
            needs=(Feature.COMPUTE_DOMAINS,),
        ),
    )
}

_OF_NVIDIA = frozenset(
    {
        "IMEXDaemonsWithDNSNames",
        "ComputeDomainCliques",
        "CrashOnNVLinkFabricErrors",
        "DeviceMetadata",
        "DRAListTypeAttributes",
        "FabricManagerPartitioning",
        "ContextualLogging",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
    }
)
"""Gates of NVIDIA's driver that switch nothing here; who brings them along is told so."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Which behaviours may be used. `Gates.DEFAULT` is what holds when nobody says anything."""

    on: frozenset[Feature]

    DEFAULT: ClassVar["Gates"]

    def __contains__(self, feature: Feature) -> bool:
        return feature in self.on

    def __str__(self) -> str:
        """As on the command line, all of them: `ConsumableShares=true,…`."""
        return ",".join(f"{feature}={str(feature in self.on).lower()}" for feature in sorted(Feature))

    @classmethod
    def parse(cls, text: str) -> "Gates":
        """`A=true,B=false`, the others as by default; empty is the default.

        Raises InvalidInput with everything that is wrong: names that do not exist, values that are neither true nor
        false, a gate that is given both ways, one that is on without what it needs.
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
    """Of what a config asks for by `sharing.strategy`; what a policy offers is looked at with the policy.

    Raises InvalidConfig (final), with `field`, where the gate is off.
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
        return f"{name} is a feature gate of NVIDIA's own driver that switches nothing in this one; leave it out"
    close = get_close_matches(name, list(Feature), n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(Feature))}"
    return f"there is no feature gate {name!r}; {hint}"


def _unmet(given: Mapping[Feature, bool]) -> Iterable[str]:
    for feature, gate in GATES.items():
        if given.get(feature, gate.default):
            for needed in gate.needs:
                if not given.get(needed, GATES[needed].default):
                    yield f"{feature} needs {needed}, which is off"
