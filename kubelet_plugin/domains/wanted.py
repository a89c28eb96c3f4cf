"""From an allocated claim to the devices of this node that it wants, each with the domain that it is for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dra_driver.api.config import ComputeDomainChannelConfig, ComputeDomainDaemonConfig, domain_of
from dra_driver.api.opaque import ListedConfig, config_for, listed_configs
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.edits import NOTHING_ELSE, cdi_device_id, claim_kind
from dra_driver.cdi.model import CdiDevice, ContainerEdits, DeviceNode, encode, spec_of
from dra_driver.cdi.runtimes import fitted
from dra_driver.errors import InvalidConfig, InvalidInput
from dra_driver.names import ClaimRef, RequestName
from kubelet_plugin.prepare.lifecycle import PreparedDevice

DAEMON_DEVICE = "daemon-0"
"""As `dra_driver.slices.domains` names it; every other device is a channel."""


@dataclass(frozen=True, slots=True)
class WantedDevice:
    """`mode` is that of a channel; a daemon has none. `admin`: it may look on, and is part of no domain."""

    name: str
    kind: Literal["channel", "daemon"]
    requests: tuple[str, ...]
    domain_uid: str
    mode: Literal["Single", "All"] | None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class DomainName:
    """Where a domain is in the cluster, for the environment of its daemon."""

    namespace: str
    name: str
    uid: str
    clique: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One claim. `domain` is None for a claim that only looks on (admin access)."""

    claim: ClaimRef
    devices: tuple[WantedDevice, ...]
    domain: DomainName | None


def wanted_devices(claim: ResourceClaim, driver: str, pool: str) -> tuple[WantedDevice, ...]:
    """Sorted by name. Raises InvalidInput: not allocated, nothing of this node, or configs that make no sense; a claim
    is for one domain, and channels and daemons are not asked for in one claim."""
    about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if claim.status.allocation is None:
        raise InvalidInput("is not allocated, so there is nothing to prepare", about=about)
    configs = listed_configs(claim.status.allocation.devices.config, driver)
    found: dict[str, WantedDevice] = {}
    for result in claim.status.allocation.devices.results:
        if (result.driver, result.pool) != (driver, pool):
            continue
        request = RequestName.of(result.request)
        try:
            device = _wanted(result.device, request, configs, admin=bool(result.admin_access))
        except InvalidConfig as error:
            raise InvalidConfig(str(error), about=about, problems=error.problems) from error
        known = found.get(result.device)
        requests = (*(known.requests if known is not None else ()), *device.requests)
        found[result.device] = WantedDevice(
            device.name, device.kind, tuple(sorted(set(requests))), device.domain_uid, device.mode, device.admin
        )
    _agree(tuple(found.values()), about, pool)
    return tuple(found[name] for name in sorted(found))


def _wanted(name: str, request: RequestName, configs: Sequence[ListedConfig], *, admin: bool) -> WantedDevice:
    if name == DAEMON_DEVICE:
        daemon = config_for(request, configs, ComputeDomainDaemonConfig)
        return WantedDevice(name, "daemon", (request.request,), domain_of(daemon, field=str(request)), None, admin)
    channel = config_for(request, configs, ComputeDomainChannelConfig)
    uid = "" if admin else domain_of(channel, field=str(request))
    return WantedDevice(name, "channel", (request.request,), uid, channel.allocation_mode, admin)


def _agree(devices: tuple[WantedDevice, ...], about: str, pool: str) -> None:
    if not devices:
        raise InvalidInput(f"has no device of node {pool}", about=about)
    domains = {device.domain_uid for device in devices if not device.admin}
    if len(domains) > 1:
        raise InvalidInput(f"is for several ComputeDomains: {', '.join(sorted(domains))}", about=about)
    if len({device.kind for device in devices}) > 1:
        raise InvalidInput("has a channel and a daemon; a workload asks for channels alone", about=about)


def answer_of(devices: tuple[WantedDevice, ...], pool: str, cdi_ids: Mapping[str, str]) -> tuple[PreparedDevice, ...]:
    """What kubelet is told; `cdi_ids` are by device name."""
    return tuple(PreparedDevice(device.requests, pool, device.name, (cdi_ids[device.name],)) for device in devices)


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
