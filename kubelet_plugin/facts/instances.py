"""Which MIG device is meant: by the ids that an event carries, and by the device that a claim has.

An administrator's MIG devices are in the node's facts, those made for claims in the journal's records. Pure.
"""

from collections.abc import Iterator

from dra_driver.api.inventory import GpuFacts
from dra_driver.devices.model import Kind, Offer, Partition
from kubelet_plugin.prepare.holds import ComputeInstance, HoldRecord, Records


def instance_uuid(gpu: GpuFacts | None, records: Records, gpu_uuid: str, gi: int, ci: int) -> str | None:
    """UUID of the MIG device with these ids on this GPU; None when nobody knows it (any more)."""
    for _, record in _made(records, gpu_uuid):
        if (record.made.get("gi"), record.made.get("ci")) == (str(gi), str(ci)):
            return record.made.get("uuid")
    if gpu is None or gpu.mig is None:
        return None
    for instance in gpu.mig.instances:
        for part in instance.compute_instances:
            if (instance.id, part.id) == (gi, ci):
                return part.uuid
    return None


def instance_of(offer: Offer, records: Records) -> str | None:
    """UUID of the MIG device that an offer stands for: empty while it does not exist, None for what is none."""
    if offer.kind is not Kind.MIG:
        return None
    if offer.existing is not None:
        return offer.existing.uuid
    for hold, record in _made(records, offer.gpu.uuid):
        parent = hold.parent
        if Partition(parent.profile, parent.start, parent.size, hold.slices, hold.start) == offer.partition:
            return record.made.get("uuid") or ""
    return ""


def _made(records: Records, gpu_uuid: str) -> Iterator[tuple[ComputeInstance, HoldRecord]]:
    for hold, record in records.items():
        if isinstance(hold, ComputeInstance) and hold.parent.gpu.uuid == gpu_uuid:
            yield hold, record
