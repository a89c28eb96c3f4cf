"""Whether a cluster has what this migration's result needs. Pure.

About the result alone: whether nodes, driver and runtime are sound is what `dractl doctor` looks at.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import GATES, OLDEST
from dra_driver.migration.claims.own_classes import made_by_values
from dra_driver.migration.model import Migration, Options, Target
from dra_driver.migration.understand.offering import Offering
from dra_driver.migration.write.chart_values import kept_resources

ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the cluster. None: not known."""

    minor: int | None = None
    classes: Collection[str] | None = None
    """Names of the DeviceClasses that it has."""
    answered: Collection[str] | None = None
    """Extended resources that some DeviceClass of it answers to."""
    admin_namespaces: Collection[str] | None = None
    """Namespaces with the label for admin access."""
    offering: Offering | None = None
    slices_missing: bool = False
    """Whether `offering` comes from files without any slice: nobody knows whether the cluster has some."""
    unread: Collection[str] = ()
    """Kinds that the cluster did not let us list."""


@dataclass(frozen=True, slots=True)
class Check:
    question: str
    answer: Answer
    why: str
    """A sentence: what is known, and who needs it."""
    advice: str = ""


def readiness(migration: Migration, options: Options, facts: Facts) -> tuple[Check, ...]:
    """In the order in which a person would set things right."""
    return tuple(_checks(migration, options, facts))


def _checks(migration: Migration, options: Options, facts: Facts) -> Iterator[Check]:
    minor = facts.minor if facts.minor is not None else options.kubernetes_minor
    targets = [one.choice.target for one in migration.workloads]
    texts = [str(one.obj) for one in migration.objects]
    claims, extended = targets.count(Target.CLAIMS), targets.count(Target.EXTENDED)
    yield _version(minor)
    if extended:
        yield _gate(
            "DRAExtendedResource",
            minor,
            options.extended_resource_gate,
            f"{_count(extended, 'workload')} stay{'s' * (extended == 1)} with the extended resource",
        )
        yield from _answered(migration, facts)
    if any("'capacity'" in text and "'requests'" in text for text in texts if "ResourceClaimTemplate" in text):
        yield _gate("DRAConsumableCapacity", minor, None, "claims ask for shares of devices")
    if migration.policy is not None and any(one.get("mode") == "Dynamic" for one in migration.policy.get("mig") or ()):
        yield _gate("DRAPartitionableDevices", minor, None, "the policy makes MIG devices on demand")
    if claims or extended:
        yield from _classes(migration, facts)
    yield from _namespaces(migration, facts)
    yield from _offered(facts)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _version(minor: int | None) -> Check:
    question = f"Kubernetes 1.{OLDEST} or newer"
    if minor is None:
        return Check(question, Answer.UNKNOWN, "The version is not known.", "Say it with `--kubernetes`, or ask the "
                     "cluster with `--cluster`.")  # fmt: skip
    answer = Answer.YES if minor >= OLDEST else Answer.NO
    advice = "" if minor >= OLDEST else "Upgrade before anything else: there are no claims of version v1."
    return Check(question, answer, f"It is 1.{minor}.", advice)


def _gate(name: str, minor: int | None, told: bool | None, why: str) -> Check:
    question = f"Feature gate {name}"
    if told is not None:
        advice = "" if told else f"Switch {name} on in API server, controller manager, scheduler and kubelets."
        return Check(question, Answer.YES if told else Answer.NO, f"So it was said; needed, since {why}.", advice)
    if minor is None:
        advice = f"It is on by default from 1.{GATES[name].on}."
        return Check(question, Answer.UNKNOWN, f"The version is not known; needed, since {why}.", advice)
    if GATES[name].default(minor):
        return Check(question, Answer.YES, f"On by default in 1.{minor}; needed, since {why}.")
    advice = (
        f"Upgrade to 1.{GATES[name].on}, or switch {name} on in API server, controller manager, scheduler and kubelets."
    )
    return Check(question, Answer.NO, f"Off by default in 1.{minor}; needed, since {why}.", advice)


def _answered(migration: Migration, facts: Facts) -> Iterator[Check]:
    question = "DeviceClasses that answer to extended resources"
    wanted = sorted(kept_resources(migration))
    made = {str((one.obj.get("spec") or {}).get("extendedResourceName")) for one in migration.objects}
    if facts.answered is None:
        why = f"Needed for {', '.join(wanted)}; the cluster's classes are not known."
        yield Check(question, Answer.UNKNOWN, why, "The driver's chart brings them with the values of this report.")
        return
    missing = [one for one in wanted if one not in facts.answered and one not in made]
    if missing:
        advice = (
            "Install the driver's chart with the values of this report; the controller makes those of MIG profiles."
        )
        yield Check(question, Answer.NO, f"None answers to {', '.join(missing)} yet.", advice)
    else:
        yield Check(question, Answer.YES, f"There are some for {', '.join(wanted)}.")


_DEFAULTS = Options()
_OF_THE_CHART = (_DEFAULTS.gpu_class, _DEFAULTS.mig_class, _DEFAULTS.shared_class, _DEFAULTS.vfio_class)
_OWN_CLASSES = (
    "Make classes of other names before the manifests are applied; the driver's chart does so for what "
    "`deviceClasses.extra` of its values lists."
)


def _classes(migration: Migration, facts: Facts) -> Iterator[Check]:
    made = {_name(one.obj) for one in migration.objects if one.obj.get("kind") == "DeviceClass"}
    by_values = made_by_values(migration)
    wanted = sorted({name for one in migration.objects for name in _named_classes(one.obj)} - made)
    question = "DeviceClasses that claims name"
    others = [name for name in wanted if name not in _OF_THE_CHART and name not in by_values]
    if facts.classes is None:
        if others:
            why = f"The driver's chart does not bring {', '.join(others)}; the cluster's classes are not known."
            yield Check(question, Answer.UNKNOWN, why, _OWN_CLASSES)
        return
    missing = [name for name in wanted if name not in facts.classes]
    if missing and set(missing) & set(others):
        yield Check(question, Answer.NO, f"The cluster has no {', '.join(missing)}.", _OWN_CLASSES)
    elif missing:
        yield Check(
            question,
            Answer.NO,
            f"The cluster has no {', '.join(missing)}.",
            f"Install the driver's chart{' with the values of this report' * bool(by_values)}, which brings its "
            "classes, before the manifests are applied.",
        )
    elif wanted:
        yield Check(question, Answer.YES, f"The cluster has {', '.join(wanted)}.")


def _name(obj: JsonObject) -> str:
    return str((obj.get("metadata") or {}).get("name"))


def _named_classes(obj: JsonObject) -> Iterator[str]:
    spec = obj.get("spec") or {}
    devices = (spec.get("spec") or spec).get("devices") or {}
    for request in devices.get("requests") or ():
        for one in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if isinstance(one, dict) and one.get("deviceClassName"):
                yield str(one["deviceClassName"])


def _namespaces(migration: Migration, facts: Facts) -> Iterator[Check]:
    wanted = sorted(
        {
            one.pod.document.namespace or "default"
            for one in migration.workloads
            if one.choice.target is Target.CLAIMS and any(demand.all_gpus for demand in one.reading.demands)
        }
    )
    for namespace in wanted:
        question = f"Namespace {namespace} allows admin access"
        advice = f"`kubectl label namespace {namespace} {ADMIN_ACCESS_LABEL}=true`"
        if facts.admin_namespaces is None:
            yield Check(question, Answer.UNKNOWN, "Its labels are not known.", advice)
        elif namespace in facts.admin_namespaces:
            yield Check(question, Answer.YES, "It has the label.")
        else:
            yield Check(question, Answer.NO, f"It lacks the label {ADMIN_ACCESS_LABEL}.", advice)


_WHO_OFFERS = ("Node", "ResourceSlice")


def _offered(facts: Facts) -> Iterator[Check]:
    question = "Each GPU is offered by one side only"
    offering = facts.offering
    unread = [kind for kind in _WHO_OFFERS if kind in facts.unread]
    if offering is None and not unread:
        yield Check(
            question,
            Answer.UNKNOWN,
            "Nodes and slices were not given.",
            "Ask the cluster with `--cluster`, or give what `kubectl get nodes,resourceslices -o yaml` prints.",
        )
        return
    if offering is not None and offering.other_drivers:
        why = f"{', '.join(offering.other_drivers)} brings NVIDIA's own DRA driver, under the name of this one."
        yield Check(question, Answer.NO, why, "Switch one of the two off; until then there is no plan.")
        return
    both = [one.name for one in offering.nodes if one.resources and one.driver] if offering is not None else []
    if both:
        advice = "Do the first steps of the cut-over plan now."
        yield Check(question, Answer.NO, f"Device plugin and driver both offer GPUs on {', '.join(both)}.", advice)
    elif unread:
        advice = "Ask the cluster with an account that may."
        yield Check(question, Answer.UNKNOWN, f"You may not list {' and '.join(f'{one}s' for one in unread)}.", advice)
    elif facts.slices_missing and offering is not None and any(one.resources for one in offering.nodes):
        advice = "Ask the cluster with `--cluster`, or see that `kubectl get resourceslices` has none of this driver."
        yield Check(question, Answer.UNKNOWN, "Nodes were given, but no slices.", advice)
    else:
        yield Check(question, Answer.YES, "No node has both.")
