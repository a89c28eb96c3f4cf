"""From a claim's devices and holds to a plan: the entry for the journal, and the CDI file. Pure.

The service enters here with what the claim wants (`kubelet_plugin.prepare.wanted`), a repair with what the journal says
that it has. What a claim without holds gets is known at once. A claim with holds is planned twice: `plan_for` before
they are made, and `finished_plan` when the journal says what came of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.api.inventory import ComputeInstanceFacts, GpuFacts, GpuInstanceFacts
from dra_driver.cdi.edits import ClaimDevice, MpsClient, claim_spec
from dra_driver.cdi.model import DeviceNode, encode, fitted
from dra_driver.devices.model import DeviceKind
from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    Hold,
    HoldRecord,
    Made,
    MigMode,
    MpsDaemon,
    Records,
    UnknownHold,
    VfioBinding,
    described,
)
from kubelet_plugin.prepare.known_node import ContainerFiles, KnownNode
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice, digest_of
from kubelet_plugin.prepare.metadata import RequestMetadata, metadata_digest, metadata_files
from kubelet_plugin.prepare.ours import KEPT, kept_text
from kubelet_plugin.prepare.wanted import WantedClaim


@dataclass(frozen=True, slots=True)
class Plan:
    """`entry` goes into the journal first; then the CDI file gets its content, and the device metadata is written.

    With holds that are not made there is no content yet. `remembered` are facts of the hardware, which the journal gets
    with the intent to make them.
    """

    entry: Entry
    content: bytes | None = field(repr=False)
    remembered: tuple[tuple[Hold, Made], ...] = ()
    metadata: tuple[RequestMetadata, ...] = ()

    def __str__(self) -> str:
        devices = ", ".join(f"{device.device} ({device.gpu_uuid})" for device in self.entry.devices) or "nothing"
        lines = [f"{self.entry.claim} holds {devices}", *(f"  {described(hold)}" for hold in self.entry.holds)]
        if self.content is not None:
            lines.append(f"  write the CDI file ({len(self.content)} bytes, {digest_of(self.content)[:12]})")
        lines += [f"  write the device metadata of request {file.request}" for file in self.metadata]
        return "\n".join(lines)


def plan_for(claim: ClaimRef, wanted: WantedClaim, node: KnownNode, files: ContainerFiles) -> Plan:
    """What must be done so that containers can use the devices. Raises NodeNotReady when one is missing now."""
    for device in wanted.devices:
        _check_present(claim, device, node, files)
    entry = Entry(
        claim, node.boot_id, wanted.devices, None, wanted.holds, metadata=wanted.metadata, binding=wanted.binding
    )
    if wanted.holds:
        return Plan(entry, None, tuple(_remembered(wanted.holds, node)))
    return finished_plan(entry, {}, node, files)


def finished_plan(entry: Entry, records: Records, node: KnownNode, files: ContainerFiles) -> Plan:
    """The plan of an entry whose holds are made, with its files. Raises NodeNotReady when something is not there."""
    spec = claim_spec(node.driver, entry.claim.uid, _claim_devices(entry, records, node, files), files.driver)
    content = encode(fitted(spec, files.readable))
    digest = digest_of(content)
    if entry.metadata is None or node.metadata is None:
        return Plan(replace(entry, cdi_digest=digest, metadata=None), content)
    metadata = metadata_files(entry, node, node.metadata, _made_mig_devices(entry, records))
    known = replace(entry.metadata, digest=metadata_digest(metadata))
    return Plan(replace(entry, cdi_digest=digest, metadata=known), content, metadata=metadata)


def check_releasable(entry: Entry) -> None:
    """Raises NodeNotReady for an entry with a hold of a newer release: it stays until that release runs again."""
    unknown = [hold.kind for hold in entry.holds if isinstance(hold, UnknownHold)]
    if unknown:
        raise NodeNotReady(
            f"was prepared by a newer release of the driver in a way that this one does not know ({unknown[0]});"
            " run that release again, or reboot the node",
            about=str(entry.claim),
        )


def _check_present(claim: ClaimRef, device: HeldDevice, node: KnownNode, files: ContainerFiles) -> None:
    """A GPU that is lent to a virtual machine cannot be asked, and MIG devices have nodes only when they exist."""
    if device.gpu_uuid in files.taken and not device.admin_access:
        raise _missing(claim, device, files.taken[device.gpu_uuid])
    if device.kind is DeviceKind.VFIO:
        return
    gpu = node.gpus.get(device.gpu_uuid)
    if gpu is None:
        raise _missing(claim, device, "does not answer now")
    # It is still among the GPUs, as it was last seen. Who only looks at all of them is not kept from the others.
    lost = next((condition for condition in gpu.health.conditions if condition.type == "GpuLost"), None)
    if lost is not None and not device.admin_access:
        raise _missing(claim, device, f"is lost: {lost.message}")
    if device.kind is DeviceKind.GPU:
        try:
            files.gpu_nodes(device.gpu_uuid)
        except NodeNotReady as error:
            raise _missing(claim, device, error.message) from error
    if device.mig_uuid is not None and _existing(gpu, device.mig_uuid) is None:
        raise _missing(claim, device, f"no longer exists: MIG device {device.mig_uuid} was not found")
    if device.mig_uuid in node.lost:
        raise _missing(claim, device, _destroyed(device.mig_uuid))


def _destroyed(mig_uuid: str | None) -> str:
    return f"no longer exists: MIG device {mig_uuid} was deleted while the claim held it; delete the pods that use it"


def _missing(claim: ClaimRef, device: HeldDevice, reason: str) -> NodeNotReady:
    return NodeNotReady(f"{device.device} ({device.gpu_uuid}) {reason}", about=str(claim))


def _remembered(holds: Sequence[Hold], node: KnownNode) -> Iterator[tuple[Hold, Made]]:
    """Facts that cannot be read of a GPU while it is partitioned or lent."""
    for hold in holds:
        if isinstance(hold, MigMode | VfioBinding) and (gpu := node.gpus.get(hold.gpu.uuid)) is not None:
            yield hold, Made(((KEPT, kept_text(gpu)),))


def _claim_devices(entry: Entry, records: Records, node: KnownNode, files: ContainerFiles) -> tuple[ClaimDevice, ...]:
    by_id: dict[tuple[str, ...], ClaimDevice] = {}
    for device in entry.devices:
        # A device that a claim has twice, once for admin access, is one device for the container.
        known = by_id.get(device.cdi_ids)
        if known is None or (known.admin_access and not device.admin_access):
            by_id[device.cdi_ids] = _claim_device(entry, device, records, node, files)
    return tuple(by_id.values())


def _claim_device(
    entry: Entry, device: HeldDevice, records: Records, node: KnownNode, files: ContainerFiles
) -> ClaimDevice:
    _check_present(entry.claim, device, node, files)
    if device.kind is DeviceKind.VFIO:
        return _vfio_device(entry, device, records, files)
    gpu = node.gpus[device.gpu_uuid]
    identity, nodes = device.gpu_uuid, files.nodes_there(device.gpu_uuid)
    if device.kind is DeviceKind.MIG and not (device.admin_access and device.mig_uuid is None):
        identity, nodes = _mig_nodes(entry, device, records, node, files)
    return ClaimDevice(
        device.device,
        gpu,
        nodes,
        device.admin_access,
        identity=identity,
        share_id=device.share_id,
        mps=_mps_client(entry, device, records),
    )


def _mig_nodes(
    entry: Entry, device: HeldDevice, records: Records, node: KnownNode, files: ContainerFiles
) -> tuple[str, tuple[DeviceNode, ...]]:
    """The UUID of a MIG device and its nodes. One for admin access that is made on demand may not exist at all: then
    its GPU is what there is to look at."""
    gpu = node.gpus[device.gpu_uuid]
    if device.mig_uuid is not None:
        existing = _existing(gpu, device.mig_uuid)
        assert existing is not None
        instance, part = existing
        nodes = files.mig_nodes(gpu.uuid, gpu.minor, instance.id, part.id)
        return part.uuid, (*nodes, *_graphics_nodes(instance.profile, gpu, files))
    hold = _compute_instance(entry, device)
    made = _record(entry, hold, records).made
    if made["uuid"] in node.lost:
        raise _missing(entry.claim, device, _destroyed(made["uuid"]))
    minor = int(made.get("minor") or gpu.minor)
    nodes = files.mig_nodes(gpu.uuid, minor, int(made["gi"]), int(made["ci"]))
    return made["uuid"], (*nodes, *_graphics_nodes(hold.parent.profile, gpu, files))


def _made_mig_devices(entry: Entry, records: Records) -> dict[HeldDevice, str]:
    """The UUIDs of MIG devices that were made for the claim."""
    return {
        device: _record(entry, _compute_instance(entry, device), records).made["uuid"]
        for device in entry.devices
        if device.kind is DeviceKind.MIG and device.mig_uuid is None and not device.admin_access
    }


def _graphics_nodes(profile: str, gpu: GpuFacts, files: ContainerFiles) -> tuple[DeviceNode, ...]:
    """The GPU's DRM nodes if the MIG profile allows graphics: Vulkan and EGL find no device without them."""
    nodes = files.nodes_there(gpu.uuid) if "+gfx" in profile else ()
    return tuple(node for node in nodes if node.path.startswith("/dev/dri/"))


def _existing(gpu: GpuFacts, mig_uuid: str) -> tuple[GpuInstanceFacts, ComputeInstanceFacts] | None:
    instances = gpu.mig.instances if gpu.mig is not None else []
    pairs = ((instance, part) for instance in instances for part in instance.compute_instances)
    return next((pair for pair in pairs if pair[1].uuid == mig_uuid), None)


def _vfio_device(entry: Entry, device: HeldDevice, records: Records, files: ContainerFiles) -> ClaimDevice:
    nodes: tuple[DeviceNode, ...] = ()
    if not device.admin_access:
        made = _record(entry, _of_gpu(entry, device), records).made
        paths = [made.get("node"), made.get("api") if device.vfio_api else None]
        nodes = tuple(_host_node(entry, device, path, files) for path in paths if path is not None)
    return ClaimDevice(
        device.device,
        None,
        nodes,
        device.admin_access,
        identity=device.pci_bus_id,
        share_id=device.share_id,
        driver_files=False,
    )


def _host_node(entry: Entry, device: HeldDevice, path: str, files: ContainerFiles) -> DeviceNode:
    node = files.host_node(path)
    if node is None:
        raise _missing(entry.claim, device, f"has no device node {path} now")
    return replace(node, permissions="rw")


def _mps_client(entry: Entry, device: HeldDevice, records: Records) -> MpsClient | None:
    daemon = _daemon(entry, device)
    if daemon is None:
        return None
    made = _record(entry, daemon, records).made
    sharing = device.sharing
    return MpsClient(
        pipe=made["pipe"],
        shm=made["shm"],
        thread_percentage=sharing.thread_percentage if sharing is not None else None,
        memory_bytes=sharing.memory_bytes if sharing is not None else None,
    )


def _daemon(entry: Entry, device: HeldDevice) -> MpsDaemon | None:
    if device.admin_access:
        return None
    for hold in entry.holds:
        if isinstance(hold, MpsDaemon) and any(gpu.uuid == device.gpu_uuid for gpu in hold.gpus):
            mig = hold.mig
            if isinstance(mig, ComputeInstance):
                served = _is_at(mig, device)
            else:
                served = mig == device.mig_uuid and (mig is not None or device.kind is DeviceKind.GPU)
            if served:
                return hold
    return None


def _compute_instance(entry: Entry, device: HeldDevice) -> ComputeInstance:
    holds = (hold for hold in entry.holds if isinstance(hold, ComputeInstance) and _is_at(hold, device))
    return next(holds)


def _of_gpu(entry: Entry, device: HeldDevice) -> Hold:
    holds = (hold for hold in entry.holds if isinstance(hold, VfioBinding) and hold.gpu.uuid == device.gpu_uuid)
    return next(holds)


def _is_at(hold: ComputeInstance, device: HeldDevice) -> bool:
    place = hold.parent.gpu.uuid, hold.partition
    return device.mig_uuid is None and place == (device.gpu_uuid, device.partition)


def _record(entry: Entry, hold: Hold, records: Records) -> HoldRecord:
    """Of a hold that must have been made. Raises NodeNotReady when the journal lost it."""
    record = records.get(hold)
    if record is None:
        raise NodeNotReady(f"needs {described(hold)}, which is not made", about=str(entry.claim))
    return record
