"""What is wrong with a pod that has its node: its devices, their claims, its containers, the node. Pure.

What is known of a GPU comes from its node's NodeInventory. Users who may not read that get what the driver wrote into
the claim's status.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.allocation.world import DeviceReport, PodClaim, World, claim_key
from dra_driver.api.core import ContainerStatus, Pod
from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import GpuFacts, HealthCondition
from dra_driver.api.resource import Device, ResourceClaim
from dra_driver.devices.health import affecting, evicts, judged, remedy
from dra_driver.explain.findings import WaitFinding, plugin_findings, some
from dra_driver.grouping import grouped

_XID = re.compile(r"Xid ([0-9]+):")
_STARTING = ("", "ContainerCreating", "PodInitializing")
_OF_IMAGES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_PASSING = ("Preparing", "Releasing")
"""Reasons of a device that is not ready, for a moment."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A condition of the device `name`. `pci` is the address of its GPU, empty if it is not known."""

    name: str
    node: str
    pci: str
    condition: HealthCondition
    critical: bool
    evicts: bool

    @property
    def kind(self) -> tuple[object, ...]:
        """Faults of one kind are one finding."""
        return self.node, self.critical, self.condition.type, self.condition.value, self.condition.message


def faults_of_gpu(world: World, node: str, gpu: GpuFacts) -> Iterator[DeviceFault]:
    yield from _faults(world, node, gpu.name, gpu, gpu.health.conditions)


def faults_of_claim(world: World, claim: ResourceClaim) -> Iterator[DeviceFault]:
    """Of the devices that it holds; none of those that it only observes."""
    for result in claim.results:
        if result.admin_access or result.id not in world.devices:
            continue
        node, device = world.devices[result.id]
        report = world.reports.get((claim_key(claim), result.id), DeviceReport())
        gpu = next((gpu for gpu in world.gpus.get(node, ()) if gpu.uuid in uuids_of(device)), None)
        if gpu is None:
            yield from _reported(node, result.device, report)
        else:
            instance = report.mig_uuid if "parentUUID" in device.attributes else None
            yield from _faults(world, node, result.device, gpu, affecting(gpu.health.conditions, instance))


def uuids_of(device: Device) -> list[str]:
    """Its own, and that of the GPU that contains it."""
    return [device.text(name) for name in ("uuid", "parentUUID") if name in device.attributes]


def _faults(
    world: World, node: str, name: str, gpu: GpuFacts, conditions: Iterable[HealthCondition]
) -> Iterator[DeviceFault]:
    """What the NVIDIA driver asks for comes after the reason."""
    policy = world.health_policies.get(node, HealthPolicy())
    for condition in sorted(conditions, key=lambda item: item.type == "RecoveryAction"):
        severity = judged(condition, policy)
        if severity in ("Critical", "Warning"):
            evicted = evicts(condition, policy)
            yield DeviceFault(name, node, gpu.pci_bus_id, condition, severity == "Critical", evicted)


def _reported(node: str, name: str, report: DeviceReport) -> Iterator[DeviceFault]:
    """As the claim's status has it: the worst of what is wrong, if that makes the device unhealthy."""
    for item in report.conditions:
        if (item.type, item.status) == ("Healthy", "False"):
            xid = _XID.match(item.message)
            condition = HealthCondition(
                type=item.reason,
                value=xid[1] if xid is not None else None,
                severity="Critical",
                message=item.message,
                since=item.last_transition_time or "",
            )
            yield DeviceFault(name, node, str(report.data.get("pciBusID") or ""), condition, True, False)


def fault_findings(faults: Iterable[DeviceFault], pod: Pod | None) -> Iterator[WaitFinding]:
    """One for each kind of fault and node, with what happens next. `pod` has the devices, if it is about one."""
    for first, *others in grouped(faults, lambda fault: fault.kind).values():
        since = [f"Since {first.condition.since}."] if first.condition.since else []
        advice = remedy(first.condition, first.node, first.pci or "the GPU's address")
        fix = " ".join((*since, *_consequences(first, pod), f"To repair it: {advice}."))
        about = f"device {some([fault.name for fault in (first, *others)])} of node {first.node}"
        code = "device-unhealthy" if first.critical else "device-degraded"
        yield WaitFinding(code, about, first.condition.message, fix, stops=first.critical)


def _consequences(fault: DeviceFault, pod: Pod | None) -> Iterator[str]:
    if not fault.critical:
        yield "It stays in use. If programs on it failed, restart them."
    elif pod is None:
        yield "No new claim gets it. " + ("Its pods are evicted." if fault.evicts else "Pods that have it keep it.")
    else:
        yield "The pod is being evicted." if fault.evicts else "The pod keeps it and is not evicted."
        yield f"To move to another device, delete the pod{_made_again(pod)}."


def _made_again(pod: Pod) -> str:
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return f"; {owner.kind} {owner.name} makes another" if owner is not None else ", and create it again"


def running_findings(world: World, pod: Pod, claims: Sequence[PodClaim]) -> tuple[WaitFinding, ...]:
    """In the order in which they cause each other: node, devices, claims, plugin, containers."""
    known = [claim.claim for claim in claims if claim.claim is not None]
    faults = (fault for claim in known for fault in faults_of_claim(world, claim))
    return (
        *_of_the_end(pod),
        *node_findings(world, pod.node or ""),
        *fault_findings(faults, pod),
        *(finding for entry in claims for finding in preparation_findings(world, entry)),
        *(() if pod.ready else plugin_findings(world, [pod.node or ""])),
        *_of_containers(pod),
    )


def failed_findings(pod: Pod) -> Iterator[WaitFinding]:
    """Of a pod that has ended: what failed."""
    for status in pod.status.container_statuses:
        ended = status.state.terminated
        if pod.status.phase == "Failed" and ended is not None and ended.exit_code != 0:
            text = f"ended with status {ended.exit_code}{f' ({ended.reason})' if ended.reason else ''}"
            fix = f"Run kubectl logs -n {pod.namespace} {pod.name} -c {status.name}."
            yield WaitFinding("container-failed", f"container {status.name} of pod {pod}", text, fix, stops=True)


def _of_the_end(pod: Pod) -> Iterator[WaitFinding]:
    if pod.metadata.deletion_timestamp is not None:
        fix = "It ends when its containers have ended and the node plugin has released its claims; if that fails, the"
        fix += " Event UnprepareFailed of the claim says why (kubectl describe resourceclaim)."
        yield WaitFinding("pod-ends", f"pod {pod}", f"is being deleted since {pod.metadata.deletion_timestamp}", fix)


def node_findings(world: World, node: str) -> Iterator[WaitFinding]:
    view = world.nodes.get(node)
    if view is not None and view.not_ready is not None:
        fix = "Look at its kubelet and its network. After five minutes, its pods are evicted."
        yield WaitFinding("node-not-ready", f"node {node}", f"is not ready: {view.not_ready}", fix, stops=True)


def preparation_findings(world: World, entry: PodClaim) -> Iterator[WaitFinding]:
    """Why the node plugin has not prepared the claim."""
    claim = entry.claim
    if claim is None:
        return
    conditions = [
        (item.reason, item.message)
        for (key, _), report in world.reports.items()
        if key == claim_key(claim)
        for item in report.conditions
        if (item.type, item.status) == ("Ready", "False")
    ]
    for reason, message in dict.fromkeys(conditions):
        about = f"claim {'/'.join(claim_key(claim))}"
        yield WaitFinding(
            "not-prepared", about, message or reason, _prepare_advice(entry, reason), stops=reason not in _PASSING
        )


def _prepare_advice(entry: PodClaim, reason: str) -> str:
    """By the kind of error, which the node plugin writes as the reason (dra_driver/errors.py)."""
    if reason in ("InvalidConfig", "InvalidInput"):
        owners = entry.claim.metadata.owner_references if entry.claim is not None else ()
        if entry.template is not None or any(owner.kind == "Pod" for owner in owners):
            template = (
                f"ResourceClaimTemplate {entry.template}" if entry.template else "the pod's ResourceClaimTemplate"
            )
            return (
                f"Trying again does not help. Correct {template}, or the DeviceClass that has the config; then delete"
                " the pod, so that a new claim is created for it."
            )
        return (
            "Trying again does not help. Claims cannot be changed: correct the claim, or the DeviceClass that has the"
            " config, delete the claim and its pods, and create them again."
        )
    if reason == "UnknownDevice":
        return "Its node does not have this device: delete the pod, so that its claim is allocated again."
    if reason == "DeviceInUse":
        return "Another claim must be released first. The kubelet tries again."
    return "The kubelet tries again until it works. If this persists, read the log of the node plugin on the node."


def _of_containers(pod: Pod) -> Iterator[WaitFinding]:
    for status in pod.status.container_statuses:
        waiting = status.state.waiting
        if waiting is not None and not status.ready and waiting.reason not in _STARTING:
            text = f"{waiting.reason}{f': {waiting.message}' if waiting.message else ''}"
            about = f"container {status.name} of pod {pod}"
            yield WaitFinding("container-waits", about, text, _advice(pod, status, waiting.reason), stops=True)


def _advice(pod: Pod, status: ContainerStatus, reason: str) -> str:
    if reason in _OF_IMAGES:
        return "Check the name of the image, and the pod's imagePullSecrets."
    last = status.last_state.terminated
    if last is not None:
        log = f"kubectl logs -n {pod.namespace} {pod.name} -c {status.name} --previous"
        return f"Its program ended {status.restart_count} times, the last time with status {last.exit_code}. Run {log}."
    return f"Run kubectl describe pod -n {pod.namespace} {pod.name}."
