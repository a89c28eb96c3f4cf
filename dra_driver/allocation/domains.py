"""ComputeDomains in a world: the template that stands for one before its controller makes it, and why its pods wait.

A domain in files is as good as the ResourceClaimTemplate that will be made of it, so a pod that names it can be placed
and explained. In a cluster the template is there or is not, and the domain's conditions say what no device shows. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import NAMESPACE_URL, uuid5

from dra_driver.allocation.domain_nodes import domain_uid
from dra_driver.allocation.findings import Finding
from dra_driver.allocation.snapshot import PublishedSlice
from dra_driver.allocation.verdicts import NodeVerdict
from dra_driver.allocation.world import DEFAULT_NAMESPACE, Key, Pod, PodClaim, World
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.resource import Device, ResourceClaimTemplate
from dra_driver.domains.objects import workload_template
from dra_driver.domains.status import READY
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

_MOST_NAMED = 3


def with_uid(domain: ComputeDomain) -> ComputeDomain:
    """As it is, or with a UID of its own when it has none: no API server has seen it, and its name stands for it."""
    metadata = domain.metadata
    namespace = metadata.namespace or DEFAULT_NAMESPACE
    uid = metadata.uid or str(uuid5(NAMESPACE_URL, f"computedomain:{namespace}/{metadata.name}"))
    return domain.model_copy(update={"metadata": metadata.model_copy(update={"namespace": namespace, "uid": uid})})


def templates_to_be(
    domains: Mapping[Key, ComputeDomain], slices: Iterable[PublishedSlice]
) -> dict[Key, ResourceClaimTemplate]:
    """What the controller will make of these domains, all `with_uid`; `slices` show whether nodes have more than one
    channel."""
    several = any(_number(device) > 0 for _, device in _channels(slices))
    return {
        (namespace, domain.spec.channel.resource_claim_template.name): ResourceClaimTemplate.of(
            workload_template(domain, several_channels=several)
        )
        for (namespace, _), domain in domains.items()
    }


def domain_findings(
    world: World, pod: Pod | None, claims: Sequence[PodClaim], verdicts: Sequence[NodeVerdict]
) -> tuple[Finding, ...]:
    """What domains have to do with it. Of a pod that has its node, `verdicts` are empty: it may wait for the domain."""
    uids = dict.fromkeys(uid for one in claims if one.claim is not None and (uid := domain_uid(one.claim)) is not None)
    found = [*_of_templates(world, pod, claims)]
    for uid in uids:
        found += _of_domain(world, uid)
        if any(not one.fits for one in verdicts):
            found += _of_nodes(world, uid)
    return tuple(found)


def _of_templates(world: World, pod: Pod | None, claims: Sequence[PodClaim]) -> Iterator[Finding]:
    """The template that a pod misses is one that a domain's controller has not made, or could not."""
    missing = {one.template for one in claims if one.claim is None and one.template is not None}
    for domain in world.domains.values():
        name = domain.spec.channel.resource_claim_template.name
        if pod is not None and domain.metadata.namespace == pod.namespace and name in missing:
            text = f"its controller has not made ResourceClaimTemplate {name} yet{_said(domain)}"
            fix = "If this lasts: is the driver's controller running, with feature gate ComputeDomains?"
            yield Finding("domain-template", _about(domain), text, fix)


def _of_domain(world: World, uid: str) -> Iterator[Finding]:
    domain = _by_uid(world, uid)
    if domain is None:
        if world.live and not any(one.kind == "ComputeDomain" for one in world.unread):
            text = f"there is none with UID {uid}, so no channel of it is prepared"
            fix = "Delete the pod, and create it again from the template of an existing domain."
            yield Finding("domain-gone", "ComputeDomain", text, fix)
        return
    ready = next((one for one in domain.status.conditions if one.type == READY), None)
    if ready is not None and ready.status != "True" and ready.reason != "NoNodes":
        text = f"is not ready ({ready.reason}): {ready.message}"
        fix = f"dractl get domains {domain.metadata.name} -n {domain.metadata.namespace} has what each node says."
        yield Finding("domain-not-ready", _about(domain), text, fix)


def _of_nodes(world: World, uid: str) -> Iterator[Finding]:
    """Nodes that the domain cannot have, by what their channels say."""
    taken: dict[str, list[str]] = defaultdict(list)
    broken: dict[str, list[str]] = defaultdict(list)
    for node, device in _channels(world.slices):
        owner = device.attributes.get("domain")
        if _number(device) == 0 and owner is not None and owner.string not in (None, uid):
            taken[owner.string or ""].append(node)
        for taint in device.taints or () if _number(device) == 0 else ():
            if taint.key == f"{COMPUTE_DOMAIN_DRIVER}/fabric":
                broken[taint.value or "unknown"].append(node)
    for owner_uid, nodes in sorted(taken.items()):
        other = _by_uid(world, owner_uid)
        whose = _about(other) if other is not None else f"the ComputeDomain with UID {owner_uid}"
        fix = "A node is in one domain at a time: it is free when the last pod of that domain on it is gone."
        yield Finding("node-in-other-domain", _some(nodes), f"in {whose}", fix)
    for reason, nodes in sorted(broken.items()):
        fix = "Wait if the fabric manager still works on it; otherwise dractl get nodes has the node's problems."
        yield Finding("fabric-incomplete", _some(nodes), f"the NVLink fabric cannot be used: {reason}", fix)


def _channels(slices: Iterable[PublishedSlice]) -> Iterator[tuple[str, Device]]:
    """Node and channel device. An older generation of a pool may still be among them."""
    for one in slices:
        if one.spec.driver == COMPUTE_DOMAIN_DRIVER:
            for device in one.spec.devices or ():
                kind = device.attributes.get("type")
                if kind is not None and kind.string == "channel":
                    yield one.spec.node_name or one.spec.pool.name, device


def _number(device: Device) -> int:
    value = device.attributes.get("id")
    return value.int_ or 0 if value is not None else 0


def _by_uid(world: World, uid: str) -> ComputeDomain | None:
    return next((one for one in world.domains.values() if one.metadata.uid == uid), None)


def _about(domain: ComputeDomain) -> str:
    return f"ComputeDomain {domain.metadata.namespace}/{domain.metadata.name}"


def _said(domain: ComputeDomain) -> str:
    ready = next((one for one in domain.status.conditions if one.type == READY), None)
    return f"; it says: {ready.message}" if ready is not None and ready.message else ""


def _some(nodes: Iterable[str]) -> str:
    every = sorted(set(nodes))
    rest = len(every) - _MOST_NAMED
    named = ", ".join(every[:_MOST_NAMED])
    return f"{named} and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else named
