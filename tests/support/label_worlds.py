"""Nodes of every simulated GPU model in every way that a device plugin can be set up: their labels, and the devices
that our driver publishes for them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from hypothesis import strategies as st
from support.gfd import Mode, labels_of

from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cel.device import CelDevice
from dra_driver.checking.knowledge import inventory_of_model, model_names
from dra_driver.migration.model import DeviceShare, Want, What
from dra_driver.migration.understand.labels import Requirement
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import described_devices
from dra_driver.slices.features import ALL_FEATURES

_MODES = (
    Mode(),
    Mode(replicas=4, strategy="time-slicing"),
    Mode(replicas=4, strategy="time-slicing", renamed=True),
    Mode(replicas=10, strategy="mps"),
)


@dataclass(frozen=True, eq=False)
class LabelWorld:
    """A node as a device plugin had it, and as our driver has it. `node` is as much of it as tells what it offers."""

    model: str
    mode: Mode
    labels: dict[str, str]
    want: Want
    node: NodeInventorySpec
    gpus: int

    @cached_property
    def devices(self) -> tuple[CelDevice, ...]:
        """Those that `want` can get."""
        return _devices(self.node, self.mode)


@cache
def worlds() -> tuple[LabelWorld, ...]:
    return tuple(_worlds())


def _worlds() -> Iterator[LabelWorld]:
    for model in model_names():
        node = inventory_of_model(model)
        for mode in (*_MODES, *(mode for mode in _mig_modes(node))):
            share = DeviceShare() if mode.replicas > 1 else None
            want = Want(What.MIG if mode.profile else What.GPU, profile=mode.profile, share=share)
            few = node.model_copy(update={"gpus": node.gpus[:1]}) if mode.profile else node
            yield LabelWorld(model, mode, labels_of(node, mode), want, few, len(node.gpus))


def _mig_modes(node: NodeInventorySpec) -> Iterator[Mode]:
    mig = node.gpus[0].mig
    for profile in mig.profiles if mig is not None else ():
        yield Mode("mixed", profile.name)
        yield Mode("single", profile.name)
    if mig is not None:
        yield Mode("mixed", mig.profiles[0].name, 2, "time-slicing")
        yield Mode("single", mig.profiles[0].name, 2, "time-slicing")


def _devices(node: NodeInventorySpec, mode: Mode) -> tuple[CelDevice, ...]:
    policy: dict[str, object] = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}
    if mode.profile:
        policy["mig"] = [{"mode": "Dynamic", "profiles": [mode.profile]}]
    if mode.replicas > 1:
        strategy = "MPS" if mode.strategy == "mps" else "TimeSlicing"
        devices = "mig" if mode.profile else "gpu"
        policy["sharing"] = [{"devices": devices, "strategy": strategy, "replicas": mode.replicas}]
    described = described_devices(node, PublishingPolicy.of(policy), {}, GPU_DRIVER, ALL_FEATURES)
    kind = "mig" if mode.profile else "gpu"
    offered = [device for device in described.devices if device.attributes["type"].string == kind]
    return tuple(CelDevice(GPU_DRIVER, device) for device in offered)


@cache
def label_values() -> dict[str, list[str]]:
    """By label, every value that some node has."""
    values_of: dict[str, set[str]] = {}
    for world in worlds():
        for key, value in world.labels.items():
            values_of.setdefault(key, set()).add(value)
    return {key: sorted(values) for key, values in sorted(values_of.items())}


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    """About labels that some node has, mostly with values that some node has."""
    values = label_values()
    key = draw(st.sampled_from(sorted(values)))
    operator = draw(st.sampled_from(["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))
    if operator in ("Exists", "DoesNotExist"):
        return Requirement(key, operator)
    if operator in ("Gt", "Lt"):
        numbers = [int(value) for value in values[key] if value.isdigit()]
        near = st.sampled_from(numbers or [0]).flatmap(lambda number: st.integers(number - 1, number + 1))
        return Requirement(key, operator, (str(draw(near)),))
    others = ["true", "false", "0", "1", "NVIDIA-H100-80GB-HBM3", "x"]
    chosen = draw(st.lists(st.sampled_from([*values[key], *others]), min_size=1, max_size=3, unique=True))
    return Requirement(key, operator, tuple(chosen))
