"""Whether a cluster has what this migration's result needs. Pure.

About the result only: `dractl doctor` checks nodes, driver and runtime. What is not known of the cluster is not asked.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration.claims.publishing import kept_resources
from dra_driver.migration.model import Migration, MigrationTarget, Options
from dra_driver.migration.understand.offering import Offering
from dra_driver.names import ADMIN_ACCESS_LABEL


class ReadinessAnswer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What is known of the cluster. None: not known."""

    minor: int | None = None
    classes: Collection[str] | None = None
    """Names of its DeviceClasses."""
    answered: Collection[str] | None = None
    """Extended resources that its DeviceClasses answer."""
    admin_namespaces: Collection[str] | None = None
    """Namespaces with the label for admin access."""
    offering: Offering | None = None
    slices_missing: bool = False
    """Whether `offering` comes from files without any slice, so slices of the cluster are not known."""
    unread: Collection[str] = ()
    """Kinds that this user may not list."""


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    question: str
    answer: ReadinessAnswer
    why: str
    """A sentence: what is known, and who needs it."""
    advice: str = ""


def readiness(migration: Migration, options: Options, facts: ReadinessFacts) -> tuple[ReadinessCheck, ...]:
    """In the order in which a person would fix things."""
    return tuple(_checks(migration, options, facts))


def _checks(migration: Migration, options: Options, facts: ReadinessFacts) -> Iterator[ReadinessCheck]:
    minor = facts.minor if facts.minor is not None else options.kubernetes_minor
    texts = [str(obj.obj) for obj in migration.objects if obj.obj.get("kind") == "ResourceClaimTemplate"]
    extended = sum(workload.choice.target is MigrationTarget.EXTENDED for workload in migration.workloads)
    yield _version(minor)
    if minor is not None:
        if extended:
            why = f"{extended} workload{'s' * (extended != 1)} keep the extended resource"
            yield _gate("DRAExtendedResource", minor, options.extended_resource_gate, why)
        if any("'capacity'" in text and "'requests'" in text for text in texts):
            yield _gate("DRAConsumableCapacity", minor, None, "claims ask for shares of devices")
        if any(item.get("mode") == "Dynamic" for item in (migration.policy or {}).get("mig") or ()):
            yield _gate("DRAPartitionableDevices", minor, None, "the policy creates MIG devices on demand")
    if extended and facts.answered is not None:
        yield _answered(migration, facts.answered)
    if facts.classes is not None:
        yield from _classes(migration, facts.classes)
    if facts.admin_namespaces is not None:
        yield from _namespaces(migration, facts.admin_namespaces)
    yield _offered(facts)


def _version(minor: int | None) -> ReadinessCheck:
    question = f"Kubernetes 1.{OLDEST} or newer"
    if minor is None:
        advice = "Pass `--kubernetes`, or ask the cluster with `--cluster`."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "The version is not known.", advice)
    if minor < OLDEST:
        return ReadinessCheck(
            question, ReadinessAnswer.NO, f"It is 1.{minor}.", "Upgrade first: it has no claims of v1."
        )
    return ReadinessCheck(question, ReadinessAnswer.YES, f"It is 1.{minor}.")


def _gate(name: str, minor: int, decided: bool | None, why: str) -> ReadinessCheck:
    question, why = f"Feature gate {name}", f"needed because {why}."
    enable = f"enable {name} in API server, controller manager, scheduler and kubelets."
    if decided is not None:
        advice = "" if decided else enable.capitalize()
        return ReadinessCheck(
            question, ReadinessAnswer.YES if decided else ReadinessAnswer.NO, f"As decided; {why}", advice
        )
    if GATES[name].default(minor):
        return ReadinessCheck(question, ReadinessAnswer.YES, f"On by default in 1.{minor}; {why}")
    advice = f"Upgrade to 1.{GATES[name].on}, or {enable}"
    return ReadinessCheck(question, ReadinessAnswer.NO, f"Off by default in 1.{minor}; {why}", advice)


def _answered(migration: Migration, answered: Collection[str]) -> ReadinessCheck:
    question = "DeviceClasses that answer extended resources"
    wanted = sorted(kept_resources(migration))
    if missing := [text for text in wanted if text not in answered]:
        advice = "Install the driver's chart with the values of this report; the controller adds those of MIG profiles."
        return ReadinessCheck(question, ReadinessAnswer.NO, f"None answers {', '.join(missing)} yet.", advice)
    return ReadinessCheck(question, ReadinessAnswer.YES, f"They answer {', '.join(wanted)}.")


_DEFAULTS = Options()
_OF_THE_CHART = {_DEFAULTS.gpu_class, _DEFAULTS.mig_class, _DEFAULTS.shared_class, _DEFAULTS.vfio_class}


def _classes(migration: Migration, known: Collection[str]) -> Iterator[ReadinessCheck]:
    wanted = sorted({name for obj in migration.objects for name in _named_classes(obj.obj)})
    question = "DeviceClasses that claims name"
    if missing := [name for name in wanted if name not in known]:
        advice = (
            "Install the driver's chart, which has its classes, before you apply the manifests."
            if _OF_THE_CHART.issuperset(missing)
            else "Create these classes before you apply the manifests (`deviceClasses.extra` of the chart)."
        )
        yield ReadinessCheck(question, ReadinessAnswer.NO, f"The cluster has no {', '.join(missing)}.", advice)
    elif wanted:
        yield ReadinessCheck(question, ReadinessAnswer.YES, f"The cluster has {', '.join(wanted)}.")


def _named_classes(obj: JsonObject) -> Iterator[str]:
    spec = obj.get("spec") or {}
    for request in ((spec.get("spec") or spec).get("devices") or {}).get("requests") or ():
        if name := (request.get("exactly") or {}).get("deviceClassName"):
            yield str(name)


def _namespaces(migration: Migration, allowed: Collection[str]) -> Iterator[ReadinessCheck]:
    watching = (
        workload.pod.document.namespace or "default"
        for workload in migration.workloads
        if workload.choice.target is MigrationTarget.CLAIMS
        and any(demand.all_gpus for demand in workload.reading.demands)
    )
    for namespace in sorted(set(watching)):
        question = f"Namespace {namespace} allows admin access"
        if namespace in allowed:
            yield ReadinessCheck(question, ReadinessAnswer.YES, "It has the label.")
        else:
            advice = f"`kubectl label namespace {namespace} {ADMIN_ACCESS_LABEL}=true`"
            yield ReadinessCheck(question, ReadinessAnswer.NO, f"It lacks the label {ADMIN_ACCESS_LABEL}.", advice)


def _offered(facts: ReadinessFacts) -> ReadinessCheck:
    question = "Each GPU is offered by one side only"
    offering = facts.offering
    unread = [kind for kind in ("Node", "ResourceSlice") if kind in facts.unread]
    if offering is None and not unread:
        advice = "Ask the cluster with `--cluster`, or pass what `kubectl get nodes,resourceslices -o yaml` prints."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "Nodes and slices were not given.", advice)
    if offering is not None and offering.other_drivers:
        why = f"{', '.join(offering.other_drivers)} installs NVIDIA's own DRA driver, with the same driver name."
        return ReadinessCheck(question, ReadinessAnswer.NO, why, "Remove one of the two; until then there is no plan.")
    both = [node.name for node in offering.nodes if node.resources and node.driver] if offering is not None else []
    if both:
        why = f"Device plugin and driver both offer GPUs on {', '.join(both)}."
        return ReadinessCheck(question, ReadinessAnswer.NO, why, "Run the first steps of the cut-over plan now.")
    if unread:
        why = f"You may not list {' and '.join(f'{text}s' for text in unread)}."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, why, "Ask the cluster with an account that may.")
    if facts.slices_missing and offering is not None and any(node.resources for node in offering.nodes):
        advice = "Ask the cluster with `--cluster`, or check that `kubectl get resourceslices` has none of this driver."
        return ReadinessCheck(question, ReadinessAnswer.UNKNOWN, "Nodes were given, but no slices.", advice)
    return ReadinessCheck(question, ReadinessAnswer.YES, "No node has both.")
