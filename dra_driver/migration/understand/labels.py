"""Labels of nodes as conditions on devices: what is asked of a label, of which devices, and what the answer can be.

`dra_driver.migration.demands.node_labels` has what each label becomes. What labels say about the meaning of resources
is read here. Pure.

Source: GPU Feature Discovery 0.20 (names and spelling of labels); the operators of node selectors in core/v1.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from dra_driver.api.meta import requirement_holds
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import Want


@dataclass(frozen=True, slots=True)
class Requirement:
    """One entry of `matchExpressions`, or of a `nodeSelector`, which is `In` with one value."""

    key: str
    operator: str
    """`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`."""
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is selected."""
        return requirement_holds(self.operator, labels.get(self.key), self.values)

    def __str__(self) -> str:
        if self.operator in ("Exists", "DoesNotExist"):
            return f"{self.key} {self.operator}"
        return f"{self.key} {self.operator} {', '.join(self.values)}"


class Fate(Enum):
    ON_DEVICE = auto()
    """A condition on the device takes its place."""
    IMPLIED = auto()
    """Every node with the devices has it."""
    KEPT = auto()
    """It stays with the pod."""
    NEVER = auto()
    """Nothing that has such devices fulfils it."""


@dataclass(frozen=True, slots=True)
class LabelVerdict:
    """What becomes of one requirement. `expression` is set with ON_DEVICE only; `code` is None where all is said."""

    fate: Fate
    expression: str = ""
    code: FindingCode | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class RequestedDevices:
    """The devices that a pod asks for, which its node's labels are about."""

    want: Want
    domain: str
    """Of the driver's attributes."""
    total: int = 1
    """How many of them the pod asks for, all containers together."""
    single: bool = False
    """Under the MIG strategy `single`, where the labels of GPUs are about the node's MIG devices."""

    @property
    def attributes(self) -> str:
        return f"device.attributes[{quoted(self.domain)}]"

    @property
    def capacity(self) -> str:
        return f"device.capacity[{quoted(self.domain)}]"


def quoted(text: str) -> str:
    """A string of CEL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def whole_number_in(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


# -- profiles and products

NVIDIA = "nvidia.com/"
PROFILE = r"(?:[1-8]c\.)?[1-8]g\.[0-9]+gb(?:[.+-][a-z]+)*"
_SUFFIX = re.compile(r"((?:[1-8]c\.)?[1-8]g\.[0-9]+gb)((?:[.+-][a-z]+)*)")


def restored_profile(text: str) -> str | None:
    """As NVML spells it: `1g.10gb.me` is `1g.10gb+me`, and `1g.10gb.me.all` `1g.10gb+me.all`. None: not a profile.

    Resource names and labels cannot hold `+`, for which the device plugin writes a dot; `-me` it leaves.
    """
    match = _SUFFIX.fullmatch(text)
    if match is None:
        return None
    base, suffix = match.groups()
    return base + (f"+{suffix[1:]}" if suffix.startswith(".") else suffix)


@dataclass(frozen=True, slots=True)
class Product:
    """A value of `gpu.product`: `NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED` in its parts."""

    name: str
    profile: str | None
    shared: bool

    @classmethod
    def of(cls, value: str) -> "Product":
        name = value.removesuffix("-SHARED")
        base, mig, profile = name.rpartition("-MIG-")
        restored = restored_profile(profile) if mig else None
        return cls(base if restored is not None else name, restored, name != value)


# -- what labels say about resources

SHARING_WORDS = {"none": "exclusive", "time-slicing": "time-slicing", "mps": "mps"}


@dataclass(frozen=True, slots=True)
class Hints:
    """What the labels that a pod asks for say about the meaning of its resources. None: nothing."""

    mig_strategy: str | None = None
    mig_profile: str | None = None
    """Of the nodes' MIG devices, by the suffix of the product or the name of the layout."""
    shared: bool | None = None
    mps: bool = False


def hints_of(requirements: Sequence[Requirement]) -> Hints:
    """Of requirements that all hold."""
    strategy, profile, gke_profile, shared, mps = None, None, None, None, False
    for requirement in requirements:
        value = requirement.values[0] if requirement.operator == "In" and len(requirement.values) == 1 else ""
        if requirement.key == f"{NVIDIA}gpu.product" and requirement.operator == "In" and requirement.values:
            products = [Product.of(text) for text in requirement.values]
            profiles = {product.profile for product in products}
            profile = profile or (profiles.pop() if len(profiles) == 1 else None)
            if all(product.shared for product in products):
                shared = True
        if requirement.key == f"{NVIDIA}mig.strategy" and value:
            strategy = value
        if requirement.key == f"{NVIDIA}mig.config" and (uniform := re.fullmatch(rf"all-({PROFILE})", value)):
            profile = profile or restored_profile(uniform[1])
        if requirement.key == f"{NVIDIA}gpu.sharing-strategy" and value in SHARING_WORDS:
            shared, mps = value != "none", value == "mps"
        if requirement.key == f"{NVIDIA}mps.capable" and value == "true":
            shared, mps = True, True
        if requirement.key == f"{NVIDIA}gpu.replicas" and _asks_for_several(requirement):
            shared = True
        if requirement.key == "cloud.google.com/gke-gpu-partition-size":
            gke_profile = restored_profile(value) or gke_profile
        if requirement.key == "cloud.google.com/gke-gpu-sharing-strategy" and value in ("time-sharing", "mps"):
            shared, mps = True, value == "mps"
    return Hints(strategy, gke_profile or profile, shared, mps)


def _asks_for_several(requirement: Requirement) -> bool:
    numbers = [whole_number_in(value) or 0 for value in requirement.values]
    if requirement.operator == "In":
        return bool(numbers) and min(numbers) > 1
    return requirement.operator == "Gt" and numbers[:1] >= [1]


_OTHER_VENDORS = re.compile(
    r"(amd\.com|gpu\.intel\.com|habana\.ai|aws\.amazon\.com|google\.com|huawei\.com"
    r"|birentech\.com|iluvatar\.(ai|com)|metax-tech\.com|mthreads\.com)/.*"
)
"""Source of the second line: the examples of HAMi 2.10, which shares GPUs of these vendors, too."""
_NETWORK = re.compile(
    r"nvidia\.com/(?!.*(gpu|mig|mps))(hostdev.*|.*(nic|rdma|sriov|roce|mlnx|infiniband|resibs|bluefield|connectx).*)"
)
"""Network cards. Source: the NVIDIA Network Operator, whose examples have `nvidia.com/hostdev`, `mlnxnics`, `resibs_…`:
the SR-IOV device plugin has this prefix there, and names that its users choose."""


def is_other(resource: str, named: Collection[str] = ()) -> bool:
    """`named` are those of which a person says so."""
    return resource in named or any(pattern.fullmatch(resource) for pattern in (_OTHER_VENDORS, _NETWORK))
