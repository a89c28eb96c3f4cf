"""Queues of Volcano and of KAI, which Run:ai has, too, and elastic quotas: what they count of claims; and groups of
pods that start together, which wait for resources. Pure.

Source: Volcano's keys of queues for devices and for their capacities; KAI's Queue, whose GPUs are a number, whatever
asked for them: devices of claims count as whole ones.
"""

from fractions import Fraction

from dra_driver.migration.claims import class_name
from dra_driver.migration.codes import QUOTA, Severity
from dra_driver.migration.counting import Found, World, amount_of
from dra_driver.migration.model import Path, Put, Remove, Target, Want, Workload, value_at


def volcano_queue(found: Found, world: World) -> None:
    for at in (("capability",), ("deserved",), ("guarantee", "resource")):
        amounts = value_at(found.obj, ("spec", *at))
        if isinstance(amounts, dict):
            _volcano_amounts(found, world, ("spec", *at), amounts)


def _volcano_amounts(found: Found, world: World, at: Path, amounts: dict[str, object]) -> None:
    """What several resources became one key of is added up."""
    added: dict[str, list[tuple[str, Fraction]]] = {}
    for resource, value in amounts.items():
        if not world.is_old(str(resource)) or "deviceclass/" in str(resource):
            continue
        path = (*at, str(resource))
        state = world.state(str(resource))
        amount = amount_of(value)
        if not state.claims:
            message = f"{resource} goes on counting: workloads stay with the extended resource"
            found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
        elif amount is None or (world.unit_of(str(resource)) is None and not world.is_number(str(resource))):
            found.say(QUOTA, path, f"{resource}: {value} cannot be said of claims", advice="Take it away, or keep it.")
        else:
            for name in state.classes:
                added.setdefault(_volcano_key(world, str(resource), name), []).append((str(resource), amount.value))
            if not state.old:
                found.edits.append(Remove(path))
    for key, parts in added.items():
        _put_volcano(found, world, at, key, parts, there=key in amounts)


def _volcano_key(world: World, resource: str, class_of: str) -> str:
    unit = world.unit_of(resource)
    return f"deviceclass/{class_of}" if unit is None else f"{unit.dimension}.deviceclass/{class_of}"


def _put_volcano(
    found: Found, world: World, at: Path, key: str, parts: list[tuple[str, Fraction]], *, there: bool
) -> None:
    names = ", ".join(resource for resource, _ in parts)
    both = any(world.state(resource).old for resource, _ in parts)
    if not there:
        unit = world.unit_of(parts[0][0])
        total = sum((amount for _, amount in parts), Fraction(0))
        found.edits.append(Put((*at, key), unit.written(total) if unit is not None else str(total)))
    found.reason = "Volcano counts claims by class"
    message = f"{key} limits claims as {names} did{'; both keys count' if both else ''}"
    advice = (
        "Volcano counts claims by its capacity plugin; see that its `capacity.DynamicResourceAllocationEnable` is on."
    )
    found.say(QUOTA, (*at, parts[0][0]), message, fixed=True, advice=advice, severity=None if both else Severity.INFO)


def pod_group(found: Found, world: World) -> None:
    """Volcano's, and those of scheduler-plugins: their pods wait until the cluster has `minResources` left.

    Source: Volcano's action `enqueue`; Coscheduling of kubernetes-sigs/scheduler-plugins.
    """
    amounts = value_at(found.obj, ("spec", "minResources"))
    for resource, value in amounts.items() if isinstance(amounts, dict) else ():
        if not world.is_old(str(resource)):
            continue
        path: Path = ("spec", "minResources", str(resource))
        state = world.state(str(resource), found.document.namespace or "default")
        if not state.claims:
            message = f"minResources {resource} goes on counting: workloads stay with the extended resource"
            found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
        elif state.known and not state.old:
            found.edits.append(Remove(path))
            found.reason = "its pods have claims, which the group does not wait for"
            message = (
                f"minResources {resource}: {value} is taken out: nodes of the driver have none, and pods would wait"
            )
            found.say(QUOTA, path, message, severity=Severity.INFO, fixed=True, advice="")
        else:
            message = (
                f"minResources {resource}: {value}: nodes of the driver have none, and pods with claims would wait"
            )
            found.say(QUOTA, path, message, advice="Take it out where the pods of the group have claims.")


_ELASTIC_MEMORY = "nos.nebuly.com/gpu-memory"
"""Of nos: gigabytes, which it works out of a pod's GPUs, MIG devices and slices."""


def elastic_quota(found: Found, world: World) -> None:
    """Of schedulers that lend among namespaces what is not used: they add up what pods request, and claims are no
    request of a pod. Source: plugins of kubernetes-sigs/scheduler-plugins, Koordinator and nos."""
    listed = value_at(found.obj, ("spec", "namespaces"))
    own = found.document.namespace or "default"
    namespaces = [str(one) for one in listed] if isinstance(listed, list) else [own]
    for name in ("min", "max"):
        amounts = value_at(found.obj, ("spec", name))
        for resource, value in amounts.items() if isinstance(amounts, dict) else ():
            if resource != _ELASTIC_MEMORY and not world.is_old(str(resource)):
                continue
            path: Path = ("spec", name, str(resource))
            if not _may_have_claims(world, str(resource), namespaces):
                message = f"{name} {resource} goes on counting: workloads stay with the extended resource"
                found.say(QUOTA, path, message, severity=Severity.INFO, advice="")
            else:
                message = f"{name} {resource}: {value}: its scheduler counts what pods request, and no claims"
                found.say(QUOTA, path, message, advice=_LENT)


def _may_have_claims(world: World, resource: str, namespaces: list[str]) -> bool:
    """Of memory whatever asks for GPUs counts."""
    if resource != _ELASTIC_MEMORY:
        return any(world.state(resource, one).claims for one in namespaces)
    asking = [one for one in world.workloads if (one.pod.document.namespace or "default") in namespaces]
    return not asking or any(one.choice.target is Target.CLAIMS for one in asking)


_LENT = (
    "Limit claims by a ResourceQuota of each namespace, or by Kueue, whose cohorts lend what is not used, too; or keep "
    "the workloads with `--strategy extended`."
)


def kai_queue(found: Found, world: World) -> None:
    """`quota`, `limit` and `overQuotaWeight` stay as they are."""
    if value_at(found.obj, ("spec", "resources", "gpu")) is None:
        return
    message = "the queue's GPUs stay as they are: devices of claims count as one each, where the scheduler's DRA is on"
    found.say(QUOTA, ("spec", "resources", "gpu"), message, severity=Severity.INFO, advice="")
    claims = [one for one in world.workloads if one.choice.target is Target.CLAIMS]
    fractions = [one for one in claims if any(_is_share(want) for want in _wants(one))]
    if fractions:
        message = f"a share counts as one GPU, where fractions counted as such: {_titles(fractions)}"
        found.say(QUOTA, ("spec", "resources", "gpu"), message, advice="Raise quota and limit for claims of shares.")
    names = {class_name(want, world.options) for one in claims for want in _wants(one)}
    uncounted = sorted(name for name in names if "gpu" not in name.lower())
    if uncounted:
        message = (
            f"claims of class {' and '.join(uncounted)} are not counted: KAI counts classes with gpu in their name"
        )
        advice = "Name a class of your own whose name has gpu in it (`--mig-class`), or limit them by a ResourceQuota."
        found.say(QUOTA, ("spec", "resources", "gpu"), message, advice=advice)


def runai_project(found: Found, world: World) -> None:
    """Of the commercial Run:ai, whose projects say how many GPUs they deserve; its controller makes queues of them."""
    for path in (("spec", "deservedGpus"), ("spec", "nodePoolsResources")):
        if value_at(found.obj, path) is not None:
            message = "the project's GPUs stay as they are; whether claims count is for its release of Run:ai to say"
            found.say(QUOTA, path, message, advice="Ask for Run:ai's own notes on DRA before its workloads get claims.")


def _wants(workload: Workload) -> list[Want]:
    return [want for demand in workload.reading.demands for want in demand.alternatives or (demand.want,)]


def _is_share(want: Want) -> bool:
    return want.share is not None


def _titles(workloads: list[Workload]) -> str:
    titles = sorted({one.pod.document.title for one in workloads})
    return ", ".join(titles[:3]) + (f" and {len(titles) - 3} more" if len(titles) > 3 else "")
