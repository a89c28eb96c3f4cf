"""Claims of ComputeDomains: from an allocated claim to its devices, the journal's transitions, and the CDI file. Pure.

A claim is for one domain, and two domains never have channels on one node.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dra_driver.api.config import ComputeDomainChannelConfig, ComputeDomainDaemonConfig, domain_of
from dra_driver.api.opaque import ListedConfig, config_for, listed_configs
from dra_driver.api.resource import ResourceClaim
from dra_driver.cdi.edits import NOTHING_ELSE, cdi_device_id, claim_kind
from dra_driver.cdi.model import CdiDevice, ContainerEdits, DeviceNode, encode, fitted, spec_of
from dra_driver.errors import DeviceInUse, InvalidConfig, InvalidInput, NodeNotReady
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, RequestName
from kubelet_plugin.prepare.journal import DomainClaim, DomainDevice, DomainName, Journal
from kubelet_plugin.prepare.lifecycle import BindingStage, PreparedDevice

DAEMON_DEVICE = "daemon-0"
"""As `dra_driver.slices.domains` names it; every other device is a channel."""

DOMAIN_ANNOTATION = "resource.nvidia.com/computeDomain"
"""In the CDI file, for people who look at it: the UID of the domain."""


def wanted_devices(claim: ResourceClaim, pool: str, *, daemons_in: str) -> tuple[DomainDevice, ...]:
    """Sorted by name. Raises InvalidInput: not allocated, nothing of this node, or invalid configs; also for
    several domains, for channels and daemons in one claim, and for a daemon outside of namespace `daemons_in`, the
    driver's own: a daemon can open all GPUs of its node, and manages its fabric."""
    about = f"claim {claim.metadata.namespace}/{claim.metadata.name}"
    if claim.status.allocation is None:
        raise InvalidInput("is not allocated, so there is nothing to prepare", about=about)
    configs = listed_configs(claim.status.allocation.devices.config, COMPUTE_DOMAIN_DRIVER, claim.spec.devices)
    devices: dict[str, DomainDevice] = {}
    for result in claim.results_of(COMPUTE_DOMAIN_DRIVER, pool):
        request = RequestName.of(result.request)
        try:
            device = _wanted(result.device, request, configs, admin=bool(result.admin_access))
        except InvalidConfig as error:
            raise InvalidConfig(str(error), about=about, problems=error.problems) from error
        known = devices.get(result.device)
        requests = {*(known.requests if known is not None else ()), *device.requests}
        devices[result.device] = replace(device, requests=tuple(sorted(requests)))
    _agree(tuple(devices.values()), about, pool)
    is_daemon = any(device.name == DAEMON_DEVICE and not device.admin for device in devices.values())
    if is_daemon and claim.metadata.namespace != daemons_in:
        raise InvalidInput(
            f"has the daemon device of node {pool}, which is reserved for daemons in namespace {daemons_in}; delete the"
            " claim, and request channels with the template that the ComputeDomain names",
            about=about,
        )
    return tuple(devices[name] for name in sorted(devices))


def _wanted(name: str, request: RequestName, configs: Sequence[ListedConfig], *, admin: bool) -> DomainDevice:
    if name == DAEMON_DEVICE:
        daemon = config_for(request, configs, ComputeDomainDaemonConfig)
        return DomainDevice(name, "daemon", (request.request,), domain_of(daemon, field=str(request)), None, admin)
    channel = config_for(request, configs, ComputeDomainChannelConfig)
    uid = "" if admin else domain_of(channel, field=str(request))
    return DomainDevice(name, "channel", (request.request,), uid, channel.allocation_mode, admin)


def _agree(devices: tuple[DomainDevice, ...], about: str, pool: str) -> None:
    if not devices:
        raise InvalidInput(f"has no device of node {pool}", about=about)
    domains = {device.domain_uid for device in devices if not device.admin}
    if len(domains) > 1:
        raise InvalidInput(f"is for several ComputeDomains: {', '.join(sorted(domains))}", about=about)
    if len({device.kind for device in devices}) > 1:
        raise InvalidInput("has a channel and a daemon; a workload asks for channels alone", about=about)


def is_channel(claim: DomainClaim) -> bool:
    """Whether it is for a program of a domain, not for the domain's daemon, and not for an observer."""
    return claim.domain is not None and claim.devices[0].name != DAEMON_DEVICE


def with_domain_claim(claim: DomainClaim, node: str) -> Callable[[Journal], Journal]:
    """The journal with this claim. Raises DeviceInUse when another domain has channels on the node, regardless of
    labels and statuses."""

    def change(journal: Journal) -> Journal:
        for other in journal.domains.values() if is_channel(claim) else ():
            if is_channel(other) and claim.domain and other.domain and other.domain.uid != claim.domain.uid:
                raise DeviceInUse(
                    f"node {node} is in ComputeDomain {other.domain.namespace}/{other.domain.name} until"
                    f" {other.claim} is released",
                    about=str(claim.claim),
                )
        known = journal.domains.get(claim.claim.uid)
        # Perhaps at another instance of the plugin.
        asked = claim.binding is BindingStage.AHEAD and known is not None and known.binding is not BindingStage.AHEAD
        entered = replace(claim, binding=BindingStage.ASKED) if asked else claim
        return replace(journal, domains={**journal.domains, claim.claim.uid: entered})

    return change


def asked_for(uid: str) -> Callable[[Journal], Journal]:
    """The kubelet gets an answer about a claim that was prepared ahead. Raises NodeNotReady if it was released."""

    def change(journal: Journal) -> Journal:
        claim = journal.domains.get(uid)
        if claim is None:
            raise NodeNotReady("was released while it was prepared; the kubelet tries again", about=f"claim UID {uid}")
        return replace(journal, domains={**journal.domains, uid: replace(claim, binding=BindingStage.ASKED)})

    return change


def binding_stage(claim: ResourceClaim, pool: str, *, ahead: bool) -> BindingStage:
    """`ahead`: it is prepared before the kubelet asks."""
    if not any(result.binding_conditions for result in claim.results_of(COMPUTE_DOMAIN_DRIVER, pool)):
        return BindingStage.NONE
    return BindingStage.AHEAD if ahead else BindingStage.ASKED


def without_domain_claim(uid: str) -> Callable[[Journal], Journal]:
    return lambda journal: replace(
        journal, domains={known: claim for known, claim in journal.domains.items() if known != uid}
    )


def answer_of(claim: DomainClaim, pool: str) -> tuple[PreparedDevice, ...]:
    """What the kubelet gets."""
    return tuple(
        PreparedDevice(
            device.requests,
            pool,
            device.name,
            (cdi_device_id(COMPUTE_DOMAIN_DRIVER, claim.claim.uid, device.name),),
        )
        for device in claim.devices
    )


def channel_file(claim: DomainClaim, channels: Sequence[DeviceNode], readable: str | None) -> bytes:
    """`channels` are the domain's, the same for all its containers. `readable` is the highest CDI version that the
    container runtime reads; None when that is not known."""
    edits = ContainerEdits(env=(NOTHING_ELSE,), device_nodes=tuple(channels))
    return _file(claim, edits, ContainerEdits(), readable)


def daemon_file(
    claim: DomainClaim,
    domain: DomainName,
    common: ContainerEdits,
    nodes: tuple[DeviceNode, ...],
    readable: str | None,
) -> bytes:
    """`common` is what every container with a GPU gets, `nodes` are the node's GPUs and the capability to manage the
    fabric."""
    variables = (
        f"CLIQUE_ID={domain.clique}",
        f"COMPUTE_DOMAIN_UUID={domain.uid}",
        f"COMPUTE_DOMAIN_NAME={domain.name}",
        f"COMPUTE_DOMAIN_NAMESPACE={domain.namespace}",
    )
    return _file(claim, ContainerEdits(env=variables, device_nodes=nodes), common, readable)


def _file(claim: DomainClaim, own: ContainerEdits, common: ContainerEdits, readable: str | None) -> bytes:
    devices = tuple(CdiDevice(f"{claim.claim.uid}-{device.name}", own) for device in claim.devices)
    uid = claim.domain.uid if claim.domain is not None else ""
    spec = spec_of(claim_kind(COMPUTE_DOMAIN_DRIVER), devices, common, {DOMAIN_ANNOTATION: uid} if uid else None)
    return encode(fitted(spec, readable))
