"""What a user wants of GPUs, before it is a claim: values, and how they are read from words. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.config import Interval, SharingStrategy
from dra_driver.api.inventory import GpuFacts
from dra_driver.devices.model import DeviceKind
from dra_driver.errors import InvalidInput
from dra_driver.quantity import Quantity


class ObjectForm(StrEnum):
    """Which object to write."""

    CLAIM = "claim"
    """For pods that name it; it outlives them."""
    TEMPLATE = "template"
    """A claim is made of it for each pod, and goes with the pod."""
    CLASS = "class"
    """What an administrator offers under a name."""


class WorkloadKind(StrEnum):
    """What to write beside a template or claim, to use it."""

    POD = "Pod"
    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    JOB = "Job"
    JOB_SET = "JobSet"


class Same(StrEnum):
    """What several devices of one claim have in common."""

    NODE = "node"
    NUMA = "numa"
    PCIE = "pcie"
    NVLINK = "nvlink"
    GPU = "gpu"
    """MIG devices of one GPU."""


SAME_ATTRIBUTES = {
    Same.NUMA: "resource.kubernetes.io/numaNode",
    Same.PCIE: "resource.kubernetes.io/pcieRoot",
    Same.NVLINK: "gpu.nvidia.com/nvlinkDomain",
    Same.GPU: "gpu.nvidia.com/parentUUID",
}
"""`node` needs none: all devices of a claim are always on one node."""


@dataclass(frozen=True, slots=True)
class MpsWish:
    """Programs of the claim run at once; limits for each of them."""

    threads: int | None = None
    memory: str | None = None


DRANET_CLASS = "dranet"
"""What DRANET's own documentation calls the class of its network devices."""
IMAGE = "ubuntu:24.04"


@dataclass(frozen=True, slots=True)
class Intent:
    """Everything that can be wanted of one claim or class. What is None or False is not asked for."""

    form: ObjectForm = ObjectForm.TEMPLATE
    name: str | None = None
    gpu: str | None = None
    """Words of a product's name, as `h100` or `rtx-pro-6000`."""
    prefer: tuple[str, ...] = ()
    """The same, the best one first."""
    count: int | None = None
    same: Same | None = None
    memory: str | None = None
    """At least, of each device."""
    mig: str | None = None
    share: Mapping[str, str] | None = None
    """Of a device that others have shares of: quantities of `cores` (percent of its multiprocessors), `memory` and
    `shares`. What is not there is what the device gives by default."""
    nic: bool = False
    nic_class: str = DRANET_CLASS
    mps: MpsWish | None = None
    interval: Interval | None = None
    isolated: bool = False
    admin: bool = False
    vm: bool = False
    tolerate: tuple[str, ...] = ()
    """`KEY` or `KEY=VALUE`."""
    workload: WorkloadKind | None = None
    """Any but a pod has a template."""
    replicas: int = 1
    """Pods of the workload."""
    image: str | None = None
    """None is IMAGE, which shows the devices and ends."""
    command: tuple[str, ...] = ()
    """Empty runs the program of the image."""

    @property
    def kind(self) -> DeviceKind | None:
        """None is a share of a GPU or of a MIG device, whichever has room."""
        if self.vm:
            return DeviceKind.VFIO
        if self.mig is not None:
            return DeviceKind.MIG
        return None if self.share is not None else DeviceKind.GPU

    @property
    def strategy(self) -> SharingStrategy | None:
        """How the claim's own programs share its devices."""
        if self.mps is not None:
            return "MPS"
        return "TimeSlicing" if self.interval is not None else None

    @property
    def devices(self) -> int:
        """How many GPUs or parts; 1 by default."""
        return 1 if self.count is None else self.count

    @property
    def shows_devices(self) -> bool:
        """Whether the pod has no program of its own."""
        return self.image is None and not self.command


MIG_PROFILE = re.compile(r"(?:[1-7]c\.)?[1-7]g\.[0-9]+gb(?:[+-][a-z.]+)*")
MODEL = re.compile(r"[A-Za-z0-9]+(?:[ -][A-Za-z0-9]+)*")


def product_pattern(model: str) -> str:
    """A regular expression (RE2) that finds the words of a model in a product's name: `a10` is not `A100`."""
    return rf"(?i)\b{spelled(model).replace('-', '[ -]')}\b"


def spelled(model: str) -> str:
    """One spelling of a model: `RTX PRO 6000` is `rtx-pro-6000`."""
    return "-".join(re.split("[ -]", model.lower()))


def is_model(gpu: GpuFacts, model: str) -> bool:
    return re.search(product_pattern(model), gpu.product_name) is not None


def parse_share(text: str) -> dict[str, str]:
    """From `cores=50,memory=8Gi`, or `shares=2`. Raises InvalidInput."""
    settings = _settings(text, ("cores", "memory", "shares"), "--share")
    for name in ("cores", "shares"):
        if name in settings:
            _whole_number(settings[name], f"--share {name}", 1, 100 if name == "cores" else 10_000)
    if "memory" in settings:
        quantity(settings["memory"], "--share memory")
    return dict(sorted(settings.items()))


def parse_mps(text: str) -> MpsWish:
    """From `threads=50,memory=8Gi`, or nothing for no limits. Raises InvalidInput."""
    settings = _settings(text, ("threads", "memory"), "--mps-limits") if text else {}
    threads = _whole_number(settings["threads"], "--mps-limits threads", 1, 100) if "threads" in settings else None
    if "memory" in settings:
        quantity(settings["memory"], "--mps-limits memory")
    return MpsWish(threads, settings.get("memory"))


_IN_BYTES = re.compile(r"([0-9.]+) ?([mgtMGT])i?[bB]")
"""As `80GB`."""


def quantity(text: str, about: str) -> Quantity:
    """Of memory, 1Mi at least. Raises InvalidInput."""
    try:
        amount = Quantity.parse(text)
    except ValueError:
        unit = _IN_BYTES.fullmatch(text)
        like = f"{unit[1]}{unit[2].upper()}i" if unit is not None else "one like 40Gi"
        raise InvalidInput(f"{text!r} is not an amount; write {like}", about=about) from None
    if amount < Quantity.parse("1Mi"):
        bytes_ = f"is {amount.value} bytes" if amount.value > 0 else "is not more than zero"
        raise InvalidInput(f"{text!r} {bytes_}; write an amount like {text if text.isdecimal() else 40}Gi", about=about)
    return amount


def _settings(text: str, names: Sequence[str], about: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in names or not equals or not value or name in settings:
            wanted = " and ".join(f"{known}=…" for known in names)
            raise InvalidInput(f"{part!r} is none of {wanted}, each at most once, separated by commas", about=about)
        settings[name] = value
    return settings


def _whole_number(text: str, about: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise InvalidInput(f"{text!r} is not a whole number from {least} to {most}", about=about)
    return int(text)
