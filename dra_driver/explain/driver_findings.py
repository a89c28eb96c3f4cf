"""Findings about objects of this driver: policy rules that a node cannot follow, claims that it prepares before a pod
is bound, and ComputeDomains. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dra_driver.allocation.domains import channel_number, channels, domain_uid
from dra_driver.allocation.placement import extended_resources
from dra_driver.allocation.world import DeviceReport, PodClaim, World, claim_key
from dra_driver.api.binding import BINDING_READY, binding_failure, waiting_results
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Pod
from dra_driver.api.inventory import Limitation
from dra_driver.api.meta import JsonObject, condition_of
from dra_driver.api.resource import ResourceClaim
from dra_driver.domains.status import READY
from dra_driver.explain.findings import WaitFinding, some
from dra_driver.explain.verdicts import DeviceVerdict, NodeVerdict, ReasonCode
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, DeviceId
from dra_driver.phrases import how_many

_MIG_ONLY = re.compile(r"\b(profile|parentUUID)\b")
_SHARED_ONLY = re.compile(r"\b(sharing|isolation|allowMultipleAllocations|shares|cores)\b")


def policy_findings(
    world: World, pod: Pod | None, claims: Sequence[PodClaim], verdicts: Iterable[NodeVerdict]
) -> tuple[WaitFinding, ...]:
    """One for each limitation that equal nodes have in common; none for nodes where it would not help."""
    by_name = _asks_for_mig_by_name(pod, claims)
    groups: dict[tuple[str, str, str], dict[str, Limitation]] = defaultdict(dict)
    for verdict in verdicts:
        for limitation in world.limitations.get(verdict.node, ()):
            kind = limitation.rule_field or "mig"
            if not verdict.fits and ((by_name and kind == "mig") or _would_help(kind, verdict)):
                key = limitation.rule or "", limitation.reason, limitation.message
                groups[key][verdict.node] = limitation
    return tuple(_finding(nodes) for _, nodes in sorted(groups.items()))


_OFFERED_BY = {
    "mig.nvidia.com": ("MIG devices", "mig: {mode: Dynamic}"),
    "shared.gpu.nvidia.com": ("shares of GPUs", "sharing: [{strategy: MPS, capacity: [memory, cores]}]"),
    "vfio.gpu.nvidia.com": ("GPUs for virtual machines", "passthrough: true"),
}
"""Classes of devices that GPUs do not offer without a GpuPolicy: what they are, and a rule that offers them."""
_BEFORE_DEVICES = (ReasonCode.CORDONED, ReasonCode.NODE_SELECTOR, ReasonCode.NODE_TAINT, ReasonCode.NO_DEVICES)


def offering_findings(claims: Iterable[PodClaim], verdicts: Sequence[NodeVerdict]) -> Iterator[WaitFinding]:
    """What only an administrator can offer, if no node has a device of the class that a request names."""
    lacking = [verdict for verdict in verdicts if verdict.code not in _BEFORE_DEVICES]
    if not all(verdict.code is ReasonCode.CLASS for verdict in lacking):
        return
    asked = {(verdict.claim, verdict.request) for verdict in lacking}
    known = [claim.claim for claim in claims if claim.claim is not None]
    requests = ((claim.metadata.name, item) for claim in known for item in claim.spec.devices.requests)
    names = [
        item.device_class_name
        for claim, request in requests
        for name, item in request.ways
        if (claim, str(name)) in asked
    ]
    for name in dict.fromkeys(names):
        if name in _OFFERED_BY:
            devices, rule = _OFFERED_BY[name]
            text = f"publishes no {devices}; without a GpuPolicy, GPUs are published as they are"
            fix = f"An administrator offers them with a GpuPolicy, such as `spec: {{{rule}}}` (docs/sharing.md)."
            yield WaitFinding("not-offered", "driver gpu.nvidia.com", text, fix)


def limitation_findings(world: World, node: str) -> tuple[WaitFinding, ...]:
    """All that the policy asks for and the node does not offer."""
    return tuple(_finding({node: limitation}) for limitation in world.limitations.get(node, ()))


def waiting_findings(world: World, nodes: Iterable[str]) -> tuple[WaitFinding, ...]:
    """GPUs of these nodes that get other devices when the claims that use them are gone, or their MIG mode is
    switched."""
    claims = "Wait until the pods of these claims end, or delete them. No new claim gets the GPU until then."
    mode = "Wait until the node's plugin has switched it. No new claim gets the GPU until then."
    return tuple(
        WaitFinding("policy-waits", f"node {node}", str(gpu), claims if gpu.claims else mode)
        for node in nodes
        for gpu in world.waiting.get(node, ())
    )


def binding_findings(world: World, claims: Iterable[ResourceClaim]) -> tuple[WaitFinding, ...]:
    """What the nodes of claims say about devices that they must prepare before a pod is bound."""
    return tuple(finding for claim in claims for finding in _of_binding(world, claim))


def _of_binding(world: World, claim: ResourceClaim) -> Iterator[WaitFinding]:
    reports = {id_: report for (key, id_), report in world.reports.items() if key == claim_key(claim)}
    wire = claim.to_wire()
    wire["status"]["devices"] = [_device_status(id_, report) for id_, report in reports.items()]
    for result in waiting_results(wire):
        report = reports.get(DeviceId(result["driver"], result["pool"], result["device"]), DeviceReport())
        text = f"prepares {result['device']} before the pod is bound"
        for item in report.conditions:
            if item.type == BINDING_READY:
                text += f"; so far it fails: {item.reason}: {item.message}"
        yield WaitFinding("node-prepares", f"node {result['pool']}", text, _PREPARES)
    if (failure := binding_failure(wire)) is not None:
        text = f"its node gave up: {failure}"
        fix = "Wait: the scheduler takes the devices back and chooses others."
        yield WaitFinding("binding-failed", f"claim {'/'.join(claim_key(claim))}", text, fix)


def _device_status(device: DeviceId, report: DeviceReport) -> JsonObject:
    """As an entry of `status.devices`."""
    conditions = [condition.to_wire() for condition in report.conditions]
    return {"driver": device.driver, "pool": device.pool, "device": device.device, "conditions": conditions}


_PREPARES = (
    "Wait. If it cannot, the node gives up (GPUs after 15 s, channels of a ComputeDomain after 2 minutes), and the"
    " scheduler chooses other devices. If it does not answer, check its plugin and the controller; the scheduler tries"
    " again after 10 minutes."
)


def _finding(nodes: dict[str, Limitation]) -> WaitFinding:
    (first, limitation), *others = nodes.items()
    number = sum(len(node.gpus) for node in nodes.values())
    gpus = limitation.subject if number <= 1 else f"{number} GPUs"
    rule = f"rule {limitation.rule_named} cannot be followed on {gpus}" if limitation.rule else gpus
    fix = f"{limitation.fix[:1].upper()}{limitation.fix[1:]}."
    if others:
        fix += f" This is for {first}; do the same on {some([name for name, _ in others])}."
    return WaitFinding("policy-not-followed", f"node {some(list(nodes))}", f"{rule}: {limitation.message}", fix)


def _asks_for_mig_by_name(pod: Pod | None, claims: Iterable[PodClaim]) -> bool:
    """By a class or extended resource of a MIG profile: such a class is not made before a GPU offers the profile."""
    if pod is not None and any(name.startswith("nvidia.com/mig-") for name in extended_resources(pod.spec)):
        return True
    requests = [request for entry in claims if entry.claim is not None for request in entry.claim.spec.devices.requests]
    wanted = [item for request in requests for _, item in request.ways]
    return any(item.device_class_name.endswith(".mig.nvidia.com") for item in wanted)


def _would_help(kind: str, verdict: NodeVerdict) -> bool:
    """Whether devices of `kind`, a field of the policy, could be what the request lacks on the node."""
    if kind == "mig" and verdict.code is ReasonCode.ERROR:
        return _MIG_ONLY.search(verdict.text) is not None
    return any(_lacks(kind, device) for device in verdict.devices)


def _lacks(kind: str, device: DeviceVerdict) -> bool:
    texts = [f"{part.text} {part.explanation}" for part in device.parts]
    if kind == "mig":
        return any("mig" in text.lower() or _MIG_ONLY.search(text) for text in texts)
    if kind == "passthrough":
        return any("vfio" in text for text in texts)
    if kind == "sharing":
        return device.code is ReasonCode.IN_USE or any(_SHARED_ONLY.search(text) for text in (*texts, device.text))
    return False


def domain_findings(
    world: World, pod: Pod | None, claims: Sequence[PodClaim], verdicts: Sequence[NodeVerdict]
) -> tuple[WaitFinding, ...]:
    """How domains are involved. Of a pod that has its node, `verdicts` are empty: it may wait for the domain."""
    uids = dict.fromkeys(
        uid for claim in claims if claim.claim is not None and (uid := domain_uid(claim.claim)) is not None
    )
    findings = [*_of_templates(world, pod, claims)]
    for uid in uids:
        findings += _of_domain(world, uid)
        if any(not verdict.fits for verdict in verdicts):
            findings += _of_nodes(world, uid)
    return tuple(findings)


def _of_templates(world: World, pod: Pod | None, claims: Sequence[PodClaim]) -> Iterator[WaitFinding]:
    """The template that a pod misses is one that a domain's controller has not made, or could not."""
    missing = {claim.template for claim in claims if claim.claim is None and claim.template is not None}
    for domain in world.domains.values():
        name = domain.spec.channel.resource_claim_template.name
        if pod is not None and domain.metadata.namespace == pod.namespace and name in missing:
            text = f"its controller has not created ResourceClaimTemplate {name} yet{_status_text(domain)}"
            fix = "If this persists, check that the driver's controller runs with feature gate ComputeDomains."
            yield WaitFinding("domain-template", f"ComputeDomain {domain}", text, fix)


def _of_domain(world: World, uid: str) -> Iterator[WaitFinding]:
    domain = _by_uid(world, uid)
    if domain is None:
        if world.live and not any(unread.kind == "ComputeDomain" for unread in world.unread):
            text = f"there is none with UID {uid}, so no channel of it is prepared"
            fix = "Delete the pod, and create it again from the template of an existing domain."
            yield WaitFinding("domain-gone", "ComputeDomain", text, fix)
        return
    ready = condition_of(domain.status.conditions, READY)
    if ready is not None and ready.status != "True" and ready.reason != "NoNodes":
        text = f"is not ready ({ready.reason}): {ready.message}"
        able = len({node for node, device in channels(world.slices) if channel_number(device) == 0})
        if domain.spec.num_nodes > able:
            text += f"; only {how_many(able, 'node')} of the cluster can be in a domain, so it cannot become ready"
        fix = f"dractl get domains {domain.metadata.name} -n {domain.metadata.namespace} shows the status of each node."
        yield WaitFinding("domain-not-ready", f"ComputeDomain {domain}", text, fix)


def _of_nodes(world: World, uid: str) -> Iterator[WaitFinding]:
    """Nodes that the domain cannot have, by what their channels say."""
    taken: dict[str, list[str]] = defaultdict(list)
    broken: dict[str, list[str]] = defaultdict(list)
    for node, device in channels(world.slices):
        owner = device.text("domain")
        if channel_number(device) == 0 and owner not in ("", uid):
            taken[owner].append(node)
        for taint in device.taints or () if channel_number(device) == 0 else ():
            if taint.key == f"{COMPUTE_DOMAIN_DRIVER}/fabric":
                broken[taint.value or "unknown"].append(node)
    for owner_uid, nodes in sorted(taken.items()):
        other = _by_uid(world, owner_uid)
        whose = f"ComputeDomain {other}" if other is not None else f"the ComputeDomain with UID {owner_uid}"
        fix = "A node is in one domain at a time. It is free after the last pod of that domain on it ends."
        yield WaitFinding("node-in-other-domain", some(nodes), f"in {whose}", fix)
    for reason, nodes in sorted(broken.items()):
        fix = (
            "Wait while the fabric manager registers its GPUs; otherwise run dractl get nodes for the node's problems."
        )
        yield WaitFinding("fabric-incomplete", some(nodes), f"the NVLink fabric cannot be used: {reason}", fix)


def _by_uid(world: World, uid: str) -> ComputeDomain | None:
    return next((domain for domain in world.domains.values() if domain.metadata.uid == uid), None)


def _status_text(domain: ComputeDomain) -> str:
    ready = condition_of(domain.status.conditions, READY)
    return f"; it says: {ready.message}" if ready is not None and ready.message else ""
