"""From a claim and what this node has, to a plan: the entry for the journal, and the steps in their order. Pure.

The service enters here with everything it observed. Two questions are kept apart: which devices a claim gets
(`wanted_devices`: the claim and the node's table of names decide, nothing else), and what must be done for them
(`plan_for`, which a repair asks too, from the devices in the journal). What a user wrote wrong is found in the
first; nothing has happened by then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.api.config import GpuConfig
from dra_driver.api.inventory import GpuFacts, Problem
from dra_driver.api.resource import AllocatedDevice, Allocation, ResourceClaim
from dra_driver.cdi.edits import ClaimDevice, DriverFiles, cdi_device_id, claim_spec
from dra_driver.cdi.model import DeviceNode, encode
from dra_driver.errors import InvalidConfig, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.names import ClaimRef, RequestName, is_dns_label, is_dns_subdomain, is_uid
from dra_driver.opaque import config_for, listed_configs
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.steps import Step, Undo, UnknownRecord, WriteCdiFile


@dataclass(frozen=True, slots=True)
class Node:
    """What this node is and has. `gpus` is the table from published name to hardware."""

    driver: str
    pool: str
    boot_id: str
    gpus: Mapping[str, GpuFacts]
    problems: tuple[Problem, ...] = ()

    def gpu(self, uuid: str) -> GpuFacts | None:
        return next((gpu for gpu in self.gpus.values() if gpu.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """What containers need to use the GPUs: the driver's files, and the device nodes of each GPU by its UUID."""

    driver: DriverFiles
    nodes: Mapping[str, tuple[DeviceNode, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a GPU cannot be used in a container now, by its UUID."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`entry` goes into the journal first; then the steps are carried out in order, and undone in reverse."""

    entry: Entry
    steps: tuple[Step, ...]
    undo: tuple[Undo, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "undo", tuple(step.undo for step in reversed(self.steps)))

    def __str__(self) -> str:
        devices = ", ".join(f"{device.device} ({device.gpu_uuid})" for device in self.entry.devices) or "nothing"
        return "\n".join([f"{self.entry.claim} holds {devices}", *(f"  {step}" for step in self.steps)])


def well_formed(asked: ClaimRef) -> ClaimRef:
    """`asked` if there can be such a claim: its parts go into URLs and file names. Raises InvalidInput."""
    parts = (
        ("metadata.namespace", asked.namespace, is_dns_label, "the name of a namespace"),
        ("metadata.name", asked.name, is_dns_subdomain, "the name of a claim"),
        ("metadata.uid", asked.uid, is_uid, "the UID of an object"),
    )
    for place, value, is_right, what in parts:
        if not is_right(value):
            raise InvalidInput(f"{value[:80]!r} cannot be {what}", about=str(asked), field=place)
    return asked


def checked(claim: ResourceClaim, asked: ClaimRef) -> ResourceClaim:
    """`claim` if it is the object that kubelet asked for, and allocated. Raises InvalidInput."""
    if claim.metadata.uid != asked.uid:
        raise InvalidInput(
            f"has UID {claim.metadata.uid}, kubelet asked for UID {asked.uid}: the claim was deleted and created again;"
            " a pod that uses the new claim is prepared by itself",
            about=str(asked),
            field="metadata.uid",
        )
    if claim.status.allocation is None:
        raise InvalidInput(
            "is not allocated; the scheduler allocates it for a pod, kubelet tries again",
            about=str(asked),
            field="status.allocation",
        )
    return claim


def wanted_devices(claim: ResourceClaim, asked: ClaimRef, node: Node) -> tuple[HeldDevice, ...]:
    """The devices of this driver that the claim was allocated, one for each result, in the order of the results.

    Raises InvalidInput, InvalidConfig, UnknownDevice or NodeNotReady; each names the claim and the field.
    """
    allocation = checked(claim, asked).status.allocation
    assert allocation is not None
    ours = [
        (f"status.allocation.devices.results[{index}]", result)
        for index, result in enumerate(allocation.devices.results)
        if result.driver == node.driver
    ]
    if not ours:
        raise InvalidInput(
            f"has no device of driver {node.driver} in its allocation; this node's plugin serves no other",
            about=str(asked),
            field="status.allocation.devices.results",
        )
    _check_configs(asked, [RequestName.of(result.request) for _, result in ours], allocation, node)
    devices = tuple(_device(asked, place, result, node) for place, result in ours)
    _check_distinct(asked, devices)
    return devices


def _check_configs(asked: ClaimRef, requests: Sequence[RequestName], allocation: Allocation, node: Node) -> None:
    """There is nothing in a config yet that would change the plan, but what cannot be honoured is refused."""
    configs = listed_configs(allocation.devices.config, node.driver)
    for request in requests:
        try:
            sharing = config_for(request, configs, GpuConfig, GpuConfig()).sharing
            if sharing is not None:
                raise InvalidConfig(
                    f"sharing strategy {sharing.strategy} is not supported on full GPUs by this version of the driver",
                    field=next(f"{config.field}.sharing" for config in configs if "sharing" in config.parameters),
                )
        except InvalidConfig as error:
            raise InvalidConfig(error.message, about=str(asked), field=error.field, problems=error.problems) from error


def _device(asked: ClaimRef, place: str, result: AllocatedDevice, node: Node) -> HeldDevice:
    if result.pool != node.pool:
        raise InvalidInput(
            f"device {result.device} is in pool {result.pool}; this is node {node.pool}, which has its own pool only",
            about=str(asked),
            field=f"{place}.pool",
        )
    gpu = node.gpus.get(result.device)
    if gpu is None:
        raise _unknown(asked, place, result.device, node)
    return HeldDevice(
        request_names=(RequestName.of(result.request).request,),
        pool=result.pool,
        device=result.device,
        gpu_uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        cdi_ids=(cdi_device_id(node.driver, asked.uid, result.device),),
        admin_access=result.admin_access is True,
        share_id=result.share_id,
    )


def _unknown(asked: ClaimRef, place: str, device: str, node: Node) -> UnknownDevice | NodeNotReady:
    """A device that may be among those that cannot be read now is worth another try; any other is not."""
    about, field_path = str(asked), f"{place}.device"
    hiding = [problem for problem in node.problems if problem.subject == "driver" or problem.subject.startswith("GPU ")]
    if hiding:
        reasons = "; ".join(f"{problem.subject}: {problem.message}" for problem in hiding)
        return NodeNotReady(
            f"device {device} cannot be found on node {node.pool}, which has problems: {reasons}",
            about=about,
            field=field_path,
        )
    return UnknownDevice(
        f"node {node.pool} has no device {device}; it has {', '.join(sorted(node.gpus)) or 'none'}."
        " Delete the pod and its claim, so that the claim is allocated again",
        about=about,
        field=field_path,
    )


def _check_distinct(asked: ClaimRef, devices: Sequence[HeldDevice]) -> None:
    seen: dict[str, str] = {}
    for device in devices:
        if device.admin_access:
            continue
        if device.gpu_uuid in seen:
            raise InvalidInput(
                f"is allocated {device.gpu_uuid} twice, as {seen[device.gpu_uuid]} and {device.device};"
                " delete the claim, so that it is allocated again",
                about=str(asked),
                field="status.allocation.devices.results",
            )
        seen[device.gpu_uuid] = device.device


def plan_for(claim: ClaimRef, devices: Sequence[HeldDevice], node: Node, files: ContainerFiles) -> Plan:
    """What has to be done so that containers can use `devices`. Raises NodeNotReady when a GPU is not there now."""
    by_name: dict[str, ClaimDevice] = {}
    for device in devices:
        gpu = node.gpu(device.gpu_uuid)
        nodes = files.nodes.get(device.gpu_uuid)
        if gpu is None or not nodes:
            reason = files.missing.get(device.gpu_uuid, "has no device node now")
            missing = "does not answer now" if gpu is None else reason
            raise NodeNotReady(f"{device.device} ({device.gpu_uuid}) {missing}", about=str(claim))
        # A device that a claim has twice, once for admin access, is one device for the container.
        holds = not device.admin_access or (device.device in by_name and not by_name[device.device].admin_access)
        by_name[device.device] = ClaimDevice(device.device, gpu, nodes, admin_access=not holds)
    content = encode(claim_spec(node.driver, claim.uid, tuple(by_name.values()), files.driver))
    steps = (WriteCdiFile(claim.uid, content),)
    entry = Entry(claim, node.boot_id, tuple(devices), tuple(step.record for step in steps))
    return Plan(entry, steps)


def undo_of(entry: Entry) -> tuple[Undo, ...]:
    """How to take back what an entry says was done, from the entry alone: no claim object, no hardware.

    Raises NodeNotReady for an entry with a step of a newer release: it stays held until that release runs again.
    """
    undo: list[Undo] = []
    for step in reversed(entry.steps):
        if isinstance(step, UnknownRecord):
            raise NodeNotReady(
                f"was prepared by a newer release of the driver in a way that this one does not know ({step.kind});"
                " run that release again, or reboot the node",
                about=str(entry.claim),
            )
        undo.append(step.undo(entry.claim.uid))
    return tuple(undo)
