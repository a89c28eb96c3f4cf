"""Whether a workload stays as it is, with its extended resources answered by DeviceClasses, or gets claims. Pure.

Source: the reference on migration sources, section 1 (targets T0 and T1).
"""

from dra_driver.migration.model import Choice, Form, Options, PodReading, PodSpecAt, Role, StrategyOption, Target

_FIRST_MINOR = 36
"""The first Kubernetes where DRAExtendedResource is on unless somebody switches it off."""


def choose(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    """For a pod that asks for GPUs."""
    if reading.leave is not None:
        return Choice(Target.LEAVE, reading.leave)
    shares = [want.share for demand in reading.demands for want in (demand.want, *demand.alternatives)]
    if any(share is not None and share.memory_percent is not None and share.memory is None for share in shares):
        return Choice(Target.LEAVE, "percent of a memory whose size is not known cannot be asked for")
    if pod.form is Form.NONE:
        return _without_claims(pod, reading, options)
    if options.strategy is StrategyOption.CLAIMS:
        return Choice(Target.CLAIMS, "claims were asked for")
    if reading.needs_claims is not None:
        if options.strategy is StrategyOption.EXTENDED:
            reason = f"extended resources were asked for, and cannot keep the meaning: {reading.needs_claims}"
            return Choice(Target.LEAVE, reason)
        return Choice(Target.CLAIMS, reading.needs_claims)
    if options.strategy is StrategyOption.EXTENDED:
        return _extended(pod, reading, "extended resources were asked for")
    if reading.prefers_claims is not None:
        return Choice(Target.CLAIMS, reading.prefers_claims)
    if not knows_extended_resources(options):
        reason = f"the cluster does not answer extended resources by DeviceClasses ({_why_not(options)})"
        return Choice(Target.CLAIMS, reason)
    return _extended(pod, reading, "it asks for whole devices and nothing else, which extended resources express")


def knows_extended_resources(options: Options) -> bool:
    if options.extended_resource_gate is not None:
        return options.extended_resource_gate
    return options.kubernetes_minor is None or options.kubernetes_minor >= _FIRST_MINOR


def _why_not(options: Options) -> str:
    if options.extended_resource_gate is False:
        return "feature gate DRAExtendedResource is off"
    return f"Kubernetes 1.{options.kubernetes_minor}: feature gate DRAExtendedResource is off before 1.{_FIRST_MINOR}"


def _without_claims(pod: PodSpecAt, reading: PodReading, options: Options) -> Choice:
    if reading.needs_claims is not None:
        reason = f"{pod.why_no_claims}, and extended resources cannot keep the meaning: {reading.needs_claims}"
        return Choice(Target.LEAVE, reason)
    if not knows_extended_resources(options):
        return Choice(Target.LEAVE, f"{pod.why_no_claims}, and {_why_not(options)}")
    return _extended(pod, reading, pod.why_no_claims)


def _extended(pod: PodSpecAt, reading: PodReading, reason: str) -> Choice:
    cannot = ["choosing among GPUs by their attributes", "sharing one GPU between containers", "settings of the driver"]
    asks = {container.path: container for demand in reading.demands for container in demand.containers}
    if any(container.role is Role.INIT for container in asks.values()):
        cannot.append("giving an init container's GPUs to the containers after it before Kubernetes 1.36")
    return Choice(Target.EXTENDED, reason, tuple(cannot))
