"""Whether a workload stays as it is, with its extended resources answered by DeviceClasses, or gets claims. Pure.

Source: the reference on migration sources, section 1 (targets T0 and T1).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dra_driver.kubernetes import GATES
from dra_driver.migration.demands.placement import BY_LABELS
from dra_driver.migration.model import Choice, Form, Options, PodReading, PodSpecAt, Role, Share, StrategyOption, Target
from dra_driver.migration.read.named import shared_group, strategy_of
from dra_driver.migration.read.variables import sees_all

_GATE = GATES["DRAExtendedResource"]


def choose(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    """For a pod that asks for GPUs."""
    found = _chosen(pod, reading, options)
    if reading.held and found.target is not Target.LEAVE:
        return replace(found, reason=f"{found.reason}; its claims of other devices stay as they are")
    return found


def _chosen(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    if reading.leave is not None:
        return Choice(Target.LEAVE, reading.leave)
    shares = [demand.want.share for demand in reading.demands]
    if any(share is not None and share.memory_percent is not None and share.memory is None for share in shares):
        reason = "percent of a memory of unknown size cannot be asked for: decide `gpuMemory: 80Gi`, or give nodes"
        return Choice(Target.LEAVE, reason)
    if shared_group(pod.document, options) is not None and pod.form is not Form.NONE:
        return _with_others(shares)
    if pod.form is Form.NONE:
        return _without_claims(pod, reading, options)
    strategy = strategy_of(pod.document, options)
    if strategy is StrategyOption.CLAIMS:
        return Choice(Target.CLAIMS, "claims were asked for")
    if reading.needs_claims is not None:
        if strategy is StrategyOption.EXTENDED:
            reason = f"extended resources were asked for, and cannot keep the meaning: {reading.needs_claims}"
            return Choice(Target.LEAVE, reason)
        return Choice(Target.CLAIMS, reading.needs_claims)
    if strategy is StrategyOption.EXTENDED:
        return _extended(pod, reading, "extended resources were asked for")
    if reading.prefers_claims is not None:
        return Choice(Target.CLAIMS, reading.prefers_claims)
    if not knows_extended_resources(options):
        reason = f"the cluster does not answer extended resources by DeviceClasses ({_why_not(options)})"
        return Choice(Target.CLAIMS, reason)
    return _extended(pod, reading, "it asks for whole devices and nothing else, which extended resources express")


def _with_others(shares: Sequence[Share | None]) -> Choice:
    """One claim for all of them would be one part for all of them, where each had a part."""
    if any(share is not None and (share.memory is not None or share.cores is not None) for share in shares):
        reason = "it has a part of a GPU to itself, in memory or cores, which one claim for several would divide"
        return Choice(Target.LEAVE, reason)
    return Choice(Target.CLAIMS, "it was said to have the same devices as others")


def knows_extended_resources(options: Options) -> bool:
    if options.extended_resource_gate is not None:
        return options.extended_resource_gate
    return options.kubernetes_minor is None or _GATE.default(options.kubernetes_minor)


def _why_not(options: Options) -> str:
    if options.extended_resource_gate is False:
        return "feature gate DRAExtendedResource is off"
    return f"Kubernetes 1.{options.kubernetes_minor}: feature gate DRAExtendedResource is off before 1.{_GATE.on}"


def _without_claims(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    if reading.needs_claims is not None:
        reason = f"{pod.why_no_claims}, and extended resources cannot keep the meaning: {reading.needs_claims}"
        return Choice(Target.LEAVE, reason)
    if not knows_extended_resources(options):
        return Choice(Target.LEAVE, f"{pod.why_no_claims}, and {_why_not(options)}")
    return _extended(pod, reading, pod.why_no_claims)


def _extended(pod: PodSpecAt, reading: PodReading, reason: str) -> Choice:
    return Choice(Target.EXTENDED, reason, tuple(_cannot(pod, reading)))


def _cannot(pod: PodSpecAt, reading: PodReading) -> Iterator[str]:
    """What would matter to this pod, and is not said by an extended resource."""
    asking = {container.path: container for demand in reading.demands for container in demand.containers}
    if reading.prefers_claims == BY_LABELS:
        yield "labels of nodes go on choosing its GPUs, and what a node has of several models may be any of them"
    if len(asking) > 1:
        yield "its containers cannot share a GPU, nor have GPUs that are near each other"
    elif any(demand.want.count > 1 for demand in reading.demands):
        yield "its GPUs need not be near each other (NVLink, one NUMA node)"
    if any(sees_all(one) for one in pod.containers if one.path not in asking):
        yield "containers that see all GPUs by NVIDIA_VISIBLE_DEVICES cannot be given those of the others"
    if any(container.role is Role.INIT for container in asking.values()):
        yield "before Kubernetes 1.36 an init container's GPUs are not given to the containers after it"
