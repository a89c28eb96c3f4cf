"""What the journal says is ours on the hardware, for discovery (`kubelet_plugin.prepare.ours`). Pure."""

from collections.abc import Iterator

from pydantic import ValidationError

from dra_driver.api.inventory import GpuInstanceFacts
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import HeldDevice
from kubelet_plugin.prepare.ours import InUse, Ours, ours_of


def claimed(journal: Journal, boot_id: str) -> Ours:
    """What was made for claims, and what of an administrator's MIG devices they hold."""
    return ours_of(journal.holds, boot_id, tuple(_in_use(journal)))


def _in_use(journal: Journal) -> Iterator[InUse]:
    for uid in sorted(journal.held):
        for device in journal.held[uid].devices:
            if device.mig_uuid is not None and not device.admin_access:
                yield InUse(device.gpu_uuid, device.mig_uuid, _instance(device))


def _instance(device: HeldDevice) -> GpuInstanceFacts | None:
    try:
        return GpuInstanceFacts.model_validate_json(device.gpu_instance)
    except ValidationError:
        return None
