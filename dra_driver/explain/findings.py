"""What keeps a pod or claim waiting besides devices that do not fit, and what a look at the cluster brings up. Pure.

Each finding says what is wrong, with which object, and what to do. Those that `stops` keep the pod from every node.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView, provides, selector_matches
from dra_driver.allocation.placement import class_by_resource, extended_resources
from dra_driver.allocation.prospects import Site
from dra_driver.allocation.world import PodClaim, World, claim_key, claims_of
from dra_driver.api.core import Pod
from dra_driver.api.meta import DEVICE_CLASSES, RESOURCE_SLICES
from dra_driver.api.resource import ExactRequest, ResourceClaim, SubRequest
from dra_driver.cel.errors import CelError, CelNotJudged, CelRuntimeError, CelUnreadableDevice
from dra_driver.explain.verdicts import NodeVerdict, ReasonCode, holder_of
from dra_driver.grouping import grouped
from dra_driver.names import ADMIN_ACCESS_LABEL, FORMER_CLASSES, RequestName
from dra_driver.phrases import and_more, how_many
from dra_driver.quantity import Quantity

_MOST_CONSUMERS = 256
_MOST_NAMED = 3
_RELEASED = (
    "kube-controller-manager removes the reservation. If this persists, check that it runs and may write claims."
)


@dataclass(frozen=True, slots=True)
class WaitFinding:
    """`code` is stable. `stops` is true when no node can help as long as this is so."""

    code: str
    about: str
    text: str
    fix: str
    stops: bool = False


def findings_of(
    world: World, pod: Pod | None, claims: Sequence[PodClaim], verdicts: Sequence[NodeVerdict]
) -> tuple[WaitFinding, ...]:
    """Those that stop everything first, otherwise in a fixed order of kinds."""
    known = [claim.claim for claim in claims if claim.claim is not None]
    findings = [
        *_of_pod(pod),
        *_of_entries(world, pod, claims),
        *(finding for claim in known for finding in _of_claim(world, claim)),
        *_of_users(world, pod, known),
        *_of_reservations(world, known),
        *_of_places(known),
        *_of_labels(world, pod),
        *_of_resources(world, pod),
        *_of_scheduler(pod, verdicts),
        *_of_errors(world, known, verdicts),
        *_of_quotas(world, claims),
        *_of_gates(world),
        *(() if all(verdict.fits for verdict in verdicts) else pool_findings(world, world.nodes.values())),
        *plugin_findings(world, world.registered),
        *_of_forgotten(world, verdicts),
        *_of_nodes(world),
    ]
    unique = list(dict.fromkeys(findings))
    return tuple(sorted(unique, key=lambda finding: not finding.stops))


# -- the pod and its entries


def _of_pod(pod: Pod | None) -> Iterator[WaitFinding]:
    if pod is not None and pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        text = f"has scheduling gates ({gates}); the scheduler ignores it until they are removed"
        fix = "Remove the scheduling gates, or wait for the controller that added them."
        yield WaitFinding("scheduling-gates", f"pod {pod}", text, fix, stops=True)


def _of_entries(world: World, pod: Pod | None, claims: Sequence[PodClaim]) -> Iterator[WaitFinding]:
    for claim in claims:
        if claim.claim is None and claim.missing is not None:
            if claim.invalid:
                text, fix = claim.missing, "Correct it; dractl check says what is wrong with it."
                yield WaitFinding("invalid-claim", f"pod {pod}, claim entry {claim.entry}", text, fix, stops=True)
                continue
            if claim.template is not None and "Template" in claim.missing:
                kind, code = "ResourceClaimTemplate", "missing-template"
            else:
                kind, code = "ResourceClaim", "missing-claim"
            fix = f"Create it in the pod's namespace{_close(world, kind, claim)}."
            yield WaitFinding(code, f"pod {pod}, claim entry {claim.entry}", claim.missing, fix, stops=True)
        elif pod is not None and _is_foreign(world, pod, claim):
            text = f"claim {claim.claim.metadata.name if claim.claim else ''} was not created for this pod"
            fix = "Delete the pod, so that it is created again with its own claim."
            yield WaitFinding("foreign-claim", f"pod {pod}, claim entry {claim.entry}", text, fix, stops=True)
        # A pod that a workload would make has its name as UID, and no claim either.
        if claim.generated and world.live and claim.claim is not None and pod is not None and pod.uid != pod.name:
            text = f"its claim has not been created from template {claim.template} yet"
            fix = "If this persists, see the pod's events: kube-controller-manager reports why it creates none."
            yield WaitFinding("claim-not-made", f"pod {pod}, claim entry {claim.entry}", text, fix, stops=True)


def _is_foreign(world: World, pod: Pod, entry: PodClaim) -> bool:
    if entry.claim is None or entry.template is None or entry.generated:
        return False
    owners = entry.claim.metadata.owner_references
    return world.live and not any(owner.uid == pod.uid and owner.controller for owner in owners)


def _close(world: World, kind: str, entry: PodClaim) -> str:
    """Where one of that name is, when it is in another namespace."""
    name = (entry.missing or "").rpartition("/")[2]
    known = world.templates if kind == "ResourceClaimTemplate" else world.claims
    others = [namespace for namespace, other in known if other == name]
    return f" (there is one in namespace {others[0]}; pods can use only those of their own namespace)" if others else ""


# -- claims


def _of_claim(world: World, claim: ResourceClaim) -> Iterator[WaitFinding]:
    about = f"claim {'/'.join(claim_key(claim))}"
    if claim.metadata.deletion_timestamp:
        fix = "It is removed after its last pod; then create it again."
        yield WaitFinding("claim-deleted", about, "is being deleted, so no more pods may use it", fix, stops=True)
    if len(claim.status.reserved_for) >= _MOST_CONSUMERS:
        text = f"is in use by {len(claim.status.reserved_for)} pods, which is the maximum"
        yield WaitFinding("too-many-users", about, text, "Use another claim for further pods.", stops=True)
    for name, spec in _requests(claim):
        yield from _of_request(world, claim, f'{about}, request "{name}"', spec)
    for constraint in claim.spec.devices.constraints:
        if constraint.distinct_attribute is not None and not world.behavior.consumable:
            yield _gate(about, "distinctAttribute", "DRAConsumableCapacity", world.behavior)


def _requests(claim: ResourceClaim) -> Iterator[tuple[RequestName, ExactRequest | SubRequest]]:
    return chain.from_iterable(request.ways for request in claim.spec.devices.requests)


def _of_request(
    world: World, claim: ResourceClaim, about: str, spec: ExactRequest | SubRequest
) -> Iterator[WaitFinding]:
    if spec.device_class_name not in world.classes and not world.is_unread(DEVICE_CLASSES):
        classes = ", ".join(sorted(world.classes)) or "none"
        text = f"there is no DeviceClass {spec.device_class_name}"
        fix = f"create it, or use an existing class: {classes}"
        if spec.device_class_name.endswith(".mig.nvidia.com"):
            fix = (
                "the driver's controller creates the class of a MIG profile when a GPU offers the profile; an"
                " administrator offers profiles with a GpuPolicy, such as `spec: {mig: {mode: Dynamic}}`"
                " (docs/sharing.md)"
            )
        if not spec.device_class_name:
            text, fix = "names no DeviceClass", f"set deviceClassName to one of these: {classes}"
        fix = FORMER_CLASSES.get(spec.device_class_name, fix)
        yield WaitFinding("missing-class", about, text, f"{fix[0].upper()}{fix[1:]}.", stops=True)
    if isinstance(spec, ExactRequest) and spec.admin_access:
        namespace = claim_key(claim)[0]
        labels = world.namespaces.get(namespace)
        if labels is not None and labels.get(ADMIN_ACCESS_LABEL) != "true":
            text = (
                f"requests admin access, but namespace {namespace} lacks the label that allows it;"
                " the API server refuses the claim"
            )
            fix = f"kubectl label namespace {namespace} {ADMIN_ACCESS_LABEL}=true"
            yield WaitFinding("admin-access", about, text, fix, stops=True)
    if spec.capacity is not None and not world.behavior.consumable:
        yield _gate(about, "capacity", "DRAConsumableCapacity", world.behavior)
    if spec.tolerations and not world.behavior.taints:
        yield _gate(about, "tolerations", "DRADeviceTaints", world.behavior)


def _gate(about: str, field: str, gate: str, behavior: Behavior) -> WaitFinding:
    text = f"Kubernetes 1.{behavior.minor} drops `{field}` with these feature gates"
    fix = f"Enable {gate} in the API server and the scheduler, or remove the field."
    return WaitFinding("dropped-field", about, text, fix)


# -- who has the claims already, or waits for them


def _of_users(world: World, pod: Pod | None, claims: Iterable[ResourceClaim]) -> Iterator[WaitFinding]:
    """Of a claim that is looked at alone: pods that wait for it and may want more."""
    if pod is not None:
        return
    keys = {claim_key(claim) for claim in claims}
    for other in world.pods.values():
        if other.waits and any(
            pod_claim.claim is not None and claim_key(pod_claim.claim) in keys for pod_claim in claims_of(world, other)
        ):
            fix = f"dractl explain pod {other.name} -n {other.namespace} looks at all that it needs."
            yield WaitFinding("pod-waits", f"pod {other}", "waits for this claim and may need more", fix)


def _of_reservations(world: World, claims: Iterable[ResourceClaim]) -> Iterator[WaitFinding]:
    for claim in claims:
        holder = holder_of(claim, world)
        if holder.gone:
            text = f"is reserved for pod {holder.gone[0]}, which no longer exists"
            yield WaitFinding("held-by-deleted-pod", f"claim {holder}", text, _RELEASED)


def _of_places(claims: Sequence[ResourceClaim]) -> Iterator[WaitFinding]:
    """Claims that have devices already, in places that exclude each other."""
    placed: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        if claim.node_selector is not None:
            placed[", ".join(dict.fromkeys(result.pool for result in claim.results))].append(claim.metadata.name)
    if len(placed) > 1 and not _have_a_node_in_common(claims):
        where = "; ".join(f"{' and '.join(names)} on {pools}" for pools, names in sorted(placed.items()))
        fix = "Delete one of them, so that both are allocated together. No other pod may use it."
        yield WaitFinding(
            "claims-apart", "the pod's claims", f"have devices of different nodes: {where}", fix, stops=True
        )


def _have_a_node_in_common(claims: Sequence[ResourceClaim]) -> bool:
    """Whether one of the nodes that the claims name is in all selectors; selectors on labels may meet anywhere."""
    selectors = [claim.node_selector for claim in claims if claim.node_selector is not None]
    terms = [term for selector in selectors for term in selector.get("nodeSelectorTerms") or ()]
    if any(term.get("matchExpressions") for term in terms):
        return True
    fields = [field for term in terms for field in term.get("matchFields") or ()]
    names = {value for field in fields for value in field.get("values") or ()}
    return any(all(selector_matches(selector, NodeView(name)) for selector in selectors) for name in names)


# -- extended resources, errors, quota, and what the scheduler says itself


def _of_scheduler(pod: Pod | None, verdicts: Sequence[NodeVerdict]) -> Iterator[WaitFinding]:
    """Where we see no reason to wait, the scheduler's own words."""
    if pod is None or not any(verdict.fits for verdict in verdicts):
        return
    for condition in pod.status.conditions:
        if (condition.type, condition.status) == ("PodScheduled", "False") and condition.message:
            fix = "This is its last message; devices may have become free since then."
            yield WaitFinding("scheduler-says", f"pod {pod}", f"the scheduler says: {condition.message}", fix)


def _of_labels(world: World, pod: Pod | None) -> Iterator[WaitFinding]:
    """Labels of the pod's nodeSelector that no node has."""
    if pod is None or not world.live:
        return
    for key, value in pod.spec.node_selector.items():
        values = sorted({node.labels[key] for node in world.nodes.values() if key in node.labels})
        if world.nodes and value not in values:
            has = f"nodes have {key}={some(values)}" if values else f"no node has the label {key}"
            fix = "Correct the pod, or label its nodes."
            if key.startswith("nvidia.com/"):
                fix = (
                    "GPU Feature Discovery sets such labels. Without them, select the GPU with a claim: dractl migrate"
                    " converts the pod."
                )
            yield WaitFinding("label-of-no-node", f"pod {pod}", f"selects nodes with {key}={value}; {has}", fix)


def _of_resources(world: World, pod: Pod | None) -> Iterator[WaitFinding]:
    if pod is None:
        return
    served = class_by_resource(world.classes.values())
    for resource in extended_resources(pod.spec):
        if resource not in served and not any(provides(node, resource) for node in world.nodes.values()):
            text = f"no node has {resource} from a device plugin, and no DeviceClass provides it"
            fix = f"Set extendedResourceName: {resource} in a DeviceClass, or use a claim instead."
            if resource == "nvidia.com/gpu.shared" or resource.startswith("nvidia.com/mig-"):
                fix += " For pods of NVIDIA's device plugin, dractl migrate writes the claims, or the chart's values."
            yield WaitFinding("unknown-resource", f"pod {pod}", text, fix, stops=True)


def _of_errors(world: World, claims: Sequence[ResourceClaim], verdicts: Sequence[NodeVerdict]) -> Iterator[WaitFinding]:
    if any(spec.device_class_name not in world.classes for claim in claims for _, spec in _requests(claim)):
        return  # a class that is missing has a finding of its own, and ends every attempt
    errors = grouped(
        (verdict for verdict in verdicts if verdict.code is ReasonCode.ERROR),
        # A selector that fails on each node for the same reason is one mistake.
        lambda verdict: _ON_DEVICE.sub("on device", verdict.text),
    )
    for failing in errors.values():
        about, text = _split_about(failing[0].text)
        what = "claim"
        if about.endswith("/"):  # without a name: the one that the scheduler would make
            about, what = "the pod's extended resources", "pod"
        cause = failing[0].error.__cause__ if failing[0].error is not None else None
        if isinstance(cause, CelError):
            where = f"This stops the pod on every node, not only on {some([verdict.node for verdict in failing])}."
            yield WaitFinding("selector-error", about, text, f"{where} {_mending(cause)}", stops=True)
        else:
            yield WaitFinding(
                "invalid-claim", about, text, f"Change the {what}; trying again will not help.", stops=True
            )


_ON_DEVICE = re.compile(r"on device \S+(?=: )")


def _mending(error: CelError) -> str:
    match error:
        case CelNotJudged():
            return "Ask an API server whether it takes the expression: kubectl apply --dry-run=server."
        case CelUnreadableDevice():
            return (
                "The expression is not the cause: the attribute is a list or has no value. Have the device's driver"
                " publish it as one value, or enable DRAListTypeAttributes in the scheduler."
            )
        case CelRuntimeError(suggestion=str()):
            return "Correct the name. If only some devices have the attribute, guard the lookup: has(…) && …."
        case CelRuntimeError(name=str()):
            return "Guard the lookup: has(…) && …, or compare only where the attribute exists."
        case CelRuntimeError():
            return "Change the expression so that it has a value for every device."
    return "Correct the expression; dractl check shows where it is wrong."


def _split_about(text: str) -> tuple[str, str]:
    about, separator, rest = text.partition(": ")
    return (about, rest) if separator else ("claim", text)


def _of_quotas(world: World, claims: Sequence[PodClaim]) -> Iterator[WaitFinding]:
    new = [pod_claim.claim for pod_claim in claims if pod_claim.generated and pod_claim.claim is not None]
    asked: Counter[tuple[str, str]] = Counter()
    for claim in new:
        namespace = claim_key(claim)[0]
        asked[namespace, "count/resourceclaims.resource.k8s.io"] += 1
        for _, spec in _requests(claim):
            if spec.allocation_mode == "ExactCount":
                asked[namespace, f"{spec.device_class_name}.deviceclass.resource.k8s.io/devices"] += spec.count or 1
    for quota in world.quotas:
        for (namespace, resource), number in sorted(asked.items()):
            if namespace == quota.namespace and resource in quota.hard:
                hard, used = _number(quota.hard[resource]), _number(quota.used.get(resource, "0"))
                if used + number > hard:
                    text = f"allows {hard} of {resource}; {used} used, {number} more requested"
                    fix = "Delete claims that are not needed, or raise the quota."
                    yield WaitFinding("quota", f"quota {quota.namespace}/{quota.name}", text, fix, stops=True)


def _number(text: str) -> int:
    return int(Quantity.parse(str(text)).value)


# -- the cluster


def _of_gates(world: World) -> Iterator[WaitFinding]:
    """What slices say that this scheduler does not know."""
    behavior = world.behavior
    if behavior.partitionable and behavior.consumable and behavior.taints:
        return
    specs = [slice_.model.spec for slice_ in world.slices]
    devices = [device for spec in specs for device in spec.devices or ()]
    if not behavior.partitionable:
        skipped = sum(bool(spec.shared_counters or spec.per_device_node_selection) for spec in specs)
        drawing = sum(bool(device.consumes_counters) for device in devices)
        if skipped or drawing:
            text = f"skips {how_many(drawing, 'device')} that draw on counters, and {how_many(skipped, 'slice')}"
            yield _unknown(text, "DRAPartitionableDevices")
    if not behavior.consumable and (shareable := sum(bool(device.allow_multiple_allocations) for device in devices)):
        yield _unknown(
            f"assigns {how_many(shareable, 'device')} that could be shared to one claim each", "DRAConsumableCapacity"
        )
    if not behavior.taints and (world.taint_rules or any(device.taints for device in devices)):
        yield _unknown("ignores taints of devices", "DRADeviceTaints")


def _unknown(text: str, gate: str) -> WaitFinding:
    fix = f"Enable {gate} in the API server and the scheduler, or update them."
    return WaitFinding("gate-off", "the scheduler", text, fix)


def pool_findings(world: World, nodes: Iterable[NodeView]) -> Iterator[WaitFinding]:
    """Pools of which these nodes can use nothing."""
    nodes_of: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for node in nodes:
        for pool in Site(node, world.snapshot).pools:
            if pool.problem is not None:
                nodes_of[str(pool), pool.problem.text, pool.problem.lasting].append(node.name)
    for (name, problem, lasting), names in sorted(nodes_of.items()):
        code = "incomplete-pool"
        fix = "Until then none of its devices can be used. If this persists, its driver or controller is stuck."
        if lasting:
            code = "invalid-pool"
            fix = (
                "Its driver published it incorrectly; none of its devices can be used until it is published correctly."
            )
        yield WaitFinding(code, f"pool {name}", f"{problem} ({some(names)})", fix)


def plugin_findings(world: World, nodes: Collection[str]) -> Iterator[WaitFinding]:
    """Those of the nodes whose kubelet does not know a plugin that reported from there: pods with claims hang there."""
    known = {driver for drivers in world.registered.values() for driver in drivers}
    published: dict[str | None, set[str]] = defaultdict(set)
    for slice_ in world.slices:
        published[slice_.node_name].add(slice_.pool[0])
    silent: dict[str, list[str]] = defaultdict(list)
    for node, drivers in sorted((node, world.registered[node]) for node in nodes if node in world.registered):
        for driver in sorted((published[node] & known) - drivers) or ([""] if not drivers else []):
            silent[driver].append(node)
    for driver, nodes in sorted(silent.items()):
        subject = f"the plugin of driver {driver}" if driver else "the node plugin"
        text = f"{subject} is not registered with the kubelet"
        fix = "Check the node plugin's pod and its log. Without the plugin, the kubelet prepares no claim there."
        yield WaitFinding("plugin-not-registered", some(nodes), text, fix)


def _of_forgotten(world: World, verdicts: Sequence[NodeVerdict]) -> Iterator[WaitFinding]:
    """Claims in the way that no pod uses."""
    devices = (device for verdict in verdicts for device in verdict.devices)
    for holder in dict.fromkeys(holder for device in devices for holder in device.holders):
        if holder.is_forgotten and not holder.pods and world.live:
            text = "has devices that this needs, and no pod uses it"
            fix = "If this persists, delete the claim; kube-controller-manager should have freed its devices."
            yield WaitFinding("unused-claim", f"claim {holder}", text, fix)
        elif holder.is_forgotten and holder.pods:
            text = f"has devices that this needs, and is held by pod {holder.gone[0]}, which no longer exists"
            yield WaitFinding("held-by-deleted-pod", f"claim {holder}", text, _RELEASED)


def _of_nodes(world: World) -> Iterator[WaitFinding]:
    about = "the cluster" if world.live else "the files"
    if unread := [kind.plural for kind in (DEVICE_CLASSES, RESOURCE_SLICES) if world.is_unread(kind)]:
        text = f"you may not list {' and '.join(unread)}, so it is not known which devices there are for it"
        fix = "Ask an administrator for the right to list them, or to run dractl explain."
        yield WaitFinding("not-readable", about, text, fix, stops=True)
    elif not world.nodes:
        fix = (
            "Give ResourceSlices or Nodes with --slices, or simulated nodes with --nodes."
            if not world.live
            else "Add a node."
        )
        yield WaitFinding("no-nodes", about, "there is no node", fix, stops=True)
    elif not world.slices:
        fix = "Is a driver installed? Its node plugins or its controller publish ResourceSlices."
        yield WaitFinding("no-slices", about, "no devices are published", fix)


def some(nodes: Sequence[str]) -> str:
    return and_more(nodes, _MOST_NAMED)
