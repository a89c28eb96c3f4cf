"""The CDI file of a claim of a ComputeDomain: channels for a workload, or what an IMEX daemon needs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.cdi.edits import NOTHING_ELSE, cdi_device_id, claim_kind
from dra_driver.cdi.model import CdiDevice, ContainerEdits, DeviceNode, encode, spec_of
from dra_driver.cdi.runtimes import fitted
from kubelet_plugin.domains.records import DomainName, Record

DOMAIN_ANNOTATION = "resource.nvidia.com/computeDomain"
"""In the CDI file, for people who look at it: the UID of the domain."""


@dataclass(frozen=True, slots=True)
class DaemonNeeds:
    """`common` is what every container with a GPU gets, `nodes` are the node's GPUs and the capability to manage the
    fabric."""

    common: ContainerEdits
    nodes: tuple[DeviceNode, ...]


def cdi_ids(driver: str, record: Record) -> dict[str, str]:
    """What kubelet passes on to the runtime, by device name."""
    return {device.name: cdi_device_id(driver, record.claim.uid, device.name) for device in record.devices}


def channel_file(driver: str, record: Record, channels: Sequence[DeviceNode], readable: str | None = None) -> bytes:
    """`channels` are the domain's: the same for all its containers, whichever of the node's places they have.
    `readable` is the highest CDI version that the container runtime reads; None when that is not known."""
    edits = ContainerEdits(env=(NOTHING_ELSE,), device_nodes=tuple(channels))
    return _file(driver, record, edits, ContainerEdits(), readable)


def daemon_file(
    driver: str, record: Record, needs: DaemonNeeds, domain: DomainName, readable: str | None = None
) -> bytes:
    variables = (
        f"CLIQUE_ID={domain.clique}",
        f"COMPUTE_DOMAIN_UUID={domain.uid}",
        f"COMPUTE_DOMAIN_NAME={domain.name}",
        f"COMPUTE_DOMAIN_NAMESPACE={domain.namespace}",
    )
    own = ContainerEdits(env=variables, device_nodes=needs.nodes)
    return _file(driver, record, own, needs.common, readable)


def _file(driver: str, record: Record, own: ContainerEdits, common: ContainerEdits, readable: str | None) -> bytes:
    devices = tuple(CdiDevice(f"{record.claim.uid}-{device.name}", own) for device in record.devices)
    uid = record.domain.uid if record.domain is not None else ""
    spec = spec_of(claim_kind(driver), devices, common, {DOMAIN_ANNOTATION: uid} if uid else None)
    return encode(fitted(spec, readable))
