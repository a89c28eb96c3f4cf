"""What a node does not offer although the policy asks for it or the hardware has it: causes, notes, and their groups.

Decisions (`offers`, `dra_driver.slices`) make a `Note` for each GPU; `limitations_of` groups them, so that eight equal
GPUs are one `Limitation`, and adds what ends each. Logs, the status of inventories, commands and, later, the status of
policies show the same values. Pure.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dra_driver.api.inventory import POLICY_FOLLOWED, GpuFacts, Limitation, NodeInventoryStatus, named_rule
from dra_driver.api.meta import Condition, dated
from dra_driver.api.policy import PublishingPolicy
from dra_driver.names import RELEASE_GPUS

_MOST = 50
_LONGEST = 1024
"""Of the condition's message."""


class LimitationCause(Enum):
    """Reason, meaning for the docs, and what ends it; the fix may name {node}, {addresses} of the GPUs, and {rule}."""

    RESET_NEEDED = (
        "ResetNeeded",
        "A `mig` rule asks for MIG on demand, and this model switches MIG mode only by a reset of the GPU.",
        f"drain {{node}}; `kubectl annotate node {{node}} {RELEASE_GPUS}=true`, so that the plugin closes the GPUs;"
        " then on {node}: `nvidia-smi -i {addresses} -mig 1`;"
        " if it says that a reset is pending: `nvidia-smi --gpu-reset -i {addresses}`, or reboot {node};"
        f" at last `kubectl annotate node {{node}} {RELEASE_GPUS}-` and uncordon {{node}}; docs/reset.md says more",
    )
    MODE_CHANGE_BLOCKED = (
        "ModeChangeBlocked",
        "A `mig` rule lets the driver switch MIG mode by a reset (`modeChange`), and something is in the way.",
        "docs/reset.md says what to do on {node}",
    )
    NO_MIG = (
        "NoMig",
        "A `mig` rule that selects nodes or GPUs asks for MIG on demand on GPUs that have no MIG mode.",
        "limit {rule} to GPUs with MIG (`gpus: products`)",
    )
    NO_MIG_PROFILES = (
        "NoMigProfiles",
        "A `mig` rule asks for MIG on demand, and the driver names no MIG profiles of the GPU, as on a vGPU guest.",
        "limit {rule} to other GPUs; on a vGPU guest, make MIG devices on its host",
    )
    NO_SUCH_PROFILE = (
        "NoSuchProfile",
        "A `mig` rule names profiles or compute instances that the GPU does not have.",
        "correct `profiles` and `computeInstances` of {rule}; on {node},"
        " `nvidia-smi mig -i {addresses} -lgip` lists what there is",
    )
    FOREIGN_INSTANCE = (
        "ForeignInstance",
        "A `mig` rule requires MIG on demand, but a GPU instance that the driver did not create blocks it.",
        "if no program uses it, on {node}: `nvidia-smi mig -i {addresses} -dci` and `nvidia-smi mig -i {addresses}"
        " -dgi`",
    )
    NO_MIG_DEVICES = (
        "NoMigDevices",
        "The GPU is in MIG mode but has no MIG devices, so it cannot be used.",
        "on {node}: `nvidia-smi mig -i {addresses} -cgi PROFILE -C` makes a MIG device, `nvidia-smi -i {addresses}"
        " -mig 0` ends MIG mode; or let a rule `mig: mode: Dynamic` of the policy divide it on demand",
    )
    NO_SHARING = (
        "NoSharing",
        "A `sharing` rule asks for what the GPU or MIG device cannot do.",
        "change {rule}, or limit it to other GPUs (`gpus: products`)",
    )
    NO_IOMMU = (
        "NoIommu",
        "A `passthrough` rule applies, and the node has no IOMMU, or the GPU is not alone in its IOMMU group.",
        "switch the IOMMU on in the firmware and kernel of {node} (`intel_iommu=on` or `amd_iommu=on`), and ACS where"
        " devices share a group; or limit {rule} to other nodes",
    )
    NO_PASSTHROUGH = (
        "NoPassthrough",
        "A `passthrough` rule applies to a GPU that cannot be passed to a virtual machine now.",
        "limit {rule} to other GPUs; a GPU in MIG mode, on {node}: `nvidia-smi -i {addresses} -mig 0`",
    )
    NO_PARTITIONABLE_DEVICES = (
        "NoPartitionableDevices",
        "The API server does not keep counters, without which parts of one GPU could be given away twice.",
        "switch on the feature gate DRAPartitionableDevices of the API server and the scheduler",
    )
    NO_CONSUMABLE_CAPACITY = (
        "NoConsumableCapacity",
        "The API server does not keep consumable capacity, without which a device is for one claim.",
        "switch on the feature gate DRAConsumableCapacity of the API server and the scheduler; full GPUs and existing"
        " MIG devices can be shared without it by `replicas`",
    )
    NO_ROOM_FOR_ATTRIBUTE = (
        "NoRoomForAttribute",
        "Devices have as many attributes as the API allows, so some are left out.",
        "give these devices fewer attributes in the policy",
    )
    FEWER_CHANNELS = (
        "FewerChannels",
        "A `computeDomains` rule asks for more channels than the NVIDIA driver of the node has.",
        "lower `channels` of {rule}, or raise the parameter NVreg_ImexChannelCount on {node}",
    )
    FABRIC_INCOMPLETE = (
        "FabricIncomplete",
        "The NVLink fabric of the node is not complete, so ComputeDomains do not get the node.",
        "see docs/compute-domains.md; on {node}: `nvidia-smi -q`, section Fabric",
    )
    UNHEALTHY = (
        "Unhealthy",
        "A GPU is unhealthy. Without device taints in the API server it is not published.",
        "`dractl doctor` says what to do about the GPU",
    )
    NAME_UNUSABLE = (
        "NameUnusable",
        "Two devices have the same name, or a name is not a DNS label.",
        "report it with `dractl bundle`: the driver makes these names",
    )
    TOO_MANY_DEVICES = (
        "TooManyDevices",
        "The policy asks for more devices of the node than the driver publishes for one node.",
        "lower `replicas` of `sharing` rules, or name fewer `profiles` and `computeInstances` in `mig` rules",
    )
    NOT_UNDERSTOOD = (
        "NotUnderstood",
        "The NodeInventory is invalid, so the devices of the node stay as they were published before.",
        "check that the images of the plugin on {node} and of the controller have one version; if they do,"
        " `kubectl delete nodeinventory {node}`: the plugin of the node makes it again",
    )

    def __init__(self, reason: str, meaning: str, fix: str) -> None:
        self.reason = reason
        self.meaning = meaning
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Note:
    """One limitation of one GPU, or of the node. `rule` is the policy's own rule object; None if no rule asks."""

    cause: LimitationCause
    text: str
    gpu: GpuFacts | None = None
    rule: object = None
    device: str | None = None
    """The published name of the device that it is about, if not about all of the GPU."""
    fix: str | None = None
    """What ends it, if the node knows that better than the cause."""

    def __str__(self) -> str:
        about = self.device or (self.gpu.name if self.gpu is not None else None)
        return f"{about}: {self.text}" if about is not None else self.text


def limitations_of(notes: Iterable[Note], policy: PublishingPolicy, driver: str, node: str) -> tuple[Limitation, ...]:
    """Grouped and sorted by rule and reason, at most `_MOST`. Same notes, same limitations."""
    groups: dict[tuple[str, LimitationCause, str, str | None], dict[str, str]] = {}
    for note in notes:
        gpus = groups.setdefault((policy.field_of(note.rule) or "", note.cause, note.text, note.fix), {})
        if note.gpu is not None:
            gpus[note.gpu.name] = note.gpu.pci_bus_id
    limitations = [
        Limitation(
            driver=driver,
            rule=rule or None,
            reason=cause.reason,
            gpus=list(gpus),
            message=text,
            fix=fix or cause.fix.format(node=node, addresses=",".join(gpus.values()), rule=named_rule(rule)),
        )
        for (rule, cause, text, fix), gpus in groups.items()
    ]
    return tuple(sorted(limitations, key=_order)[:_MOST])


def _order(limitation: Limitation) -> tuple[str, bool, str, str, str]:
    """Those of rules first."""
    return limitation.driver, limitation.rule is None, limitation.rule or "", limitation.reason, limitation.message


def wanted_status(
    now: NodeInventoryStatus, driver: str, limitations: Sequence[Limitation], time: str, beside: Collection[str] = ()
) -> NodeInventoryStatus:
    """`now` with the limitations of `driver` replaced, and the condition that follows; `now` itself if nothing changes.

    Those of the drivers in `beside` stay; those of a driver that is no longer published go.
    `time` (RFC 3339, UTC, seconds) is when the condition changed, if it does. A node of which there was never anything
    to say has no condition.
    """
    others = [known for known in now.limitations if known.driver != driver and known.driver in beside]
    wanted = sorted([*others, *limitations], key=_order)
    if wanted == now.limitations and (now.conditions or not wanted):
        return now
    broken = [known for known in wanted if known.rule is not None]
    condition = Condition(
        type=POLICY_FOLLOWED,
        status="False" if broken else "True",
        reason=broken[0].reason if broken else "Followed",
        message="; ".join(map(str, broken))[:_LONGEST],
        last_transition_time=time,
    )
    conditions = [known for known in now.conditions if known.type != POLICY_FOLLOWED]
    conditions = sorted([*conditions, dated(condition, now.conditions)], key=lambda known: known.type)
    return now.model_copy(update={"conditions": conditions, "limitations": wanted})
