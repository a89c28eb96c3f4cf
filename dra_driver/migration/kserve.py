"""Claims that KServe makes itself, of annotations of an LLMInferenceService. Pure.

It makes one template with one request, and gives a claim of it to every pod of the service: its template, its workers
and those of prefill. Whatever needs more has claims of its own pods, which all releases keep that know the kind.
Source: KServe 0.20, its controller of LLMInferenceServices; the annotations are experimental there, and earlier
releases pass over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims import Claims
from dra_driver.migration.codes import NO_CLAIMS_HERE, Severity
from dra_driver.migration.kinds import kind_of, pods_of
from dra_driver.migration.model import Edit, Finding, Options, Put, Remove, Target, Workload, finding

_KIND = ("serving.kserve.io", "LLMInferenceService")
_ANNOTATION = "serving.kserve.io/exp-dra-"
_SAID = {"deviceClassName", "selectors", "count"}
"""Of a request, what annotations can say."""


@dataclass(frozen=True, slots=True)
class Managed:
    """`edits` None: the pods have claims of their own."""

    edits: tuple[Edit, ...] | None
    findings: tuple[Finding, ...] = ()


def managed(workloads: Sequence[Workload], claims: Sequence[Claims], options: Options) -> Managed:
    """For all workloads of one document, and the claims that some of them are to have."""
    if not (options.kserve_managed_claims and claims and kind_of(workloads[0].pod.document.obj) == _KIND):
        return Managed(None)
    document = workloads[0].pod.document
    why = _why_not(workloads, claims, options)
    if why is not None:
        message = f"KServe's annotations cannot say this, so its pods name claims: {why}"
        said = finding(NO_CLAIMS_HERE, document, (), message, advice="", severity=Severity.INFO, fixed=True)
        return Managed(None, (said,))
    edits = tuple(edit for one in workloads for edit in _without_the_old(one))
    message = "KServe makes claims of these annotations from 0.20 on; before, the pods would start without GPUs"
    advice = "See that the cluster has KServe 0.20 or newer, or migrate without `--kserve-managed-claims`."
    return Managed(
        (*edits, *_annotations(workloads, claims[0].template)),
        (finding(NO_CLAIMS_HERE, document, ("metadata", "annotations"), message, advice=advice),),
    )


def _why_not(workloads: Sequence[Workload], claims: Sequence[Claims], options: Options) -> str | None:
    pods = pods_of(workloads[0].pod.document, options)
    converted = [one for one in workloads if one.choice.target is Target.CLAIMS]
    if len(converted) < len(pods):
        return "every pod of the service would get the devices, also those that ask for none"
    if any(one.ref.kind != "ResourceClaimTemplate" for one in claims):
        return "several pods share one claim"
    if any(one.reading.held for one in workloads):
        return "its pods have claims of other devices"
    requests = [one.template["spec"]["spec"]["devices"] for one in claims]
    if any(one != requests[0] for one in requests):
        return "its pods ask for different devices"
    if requests[0].keys() > {"requests"} or len(requests[0]["requests"]) > 1:
        return "it takes several requests, a constraint or a config"
    if not _request(claims[0].template).keys() <= _SAID:
        return "a request takes more than class, count and selectors"
    users = [{one.path: one for demand in work.reading.demands for one in demand.containers} for work in converted]
    if any(len(one) > 1 for one in users):
        return "several containers share the devices"
    if len(set(_targets(converted))) > 1:
        return "in each pod another container has the devices"
    return None


def _request(template: JsonObject) -> JsonObject:
    found = template["spec"]["spec"]["devices"]["requests"][0].get("exactly")
    return found if isinstance(found, dict) else {"firstAvailable": None}


def _targets(workloads: Sequence[Workload]) -> Iterator[str]:
    """The container's name by pod; empty where it is the first, which needs no name."""
    for one in workloads:
        container = one.reading.demands[0].containers[0]
        yield "" if container.path == (*one.pod.path, "containers", 0) else container.name


def _without_the_old(workload: Workload) -> Iterator[Edit]:
    yield from (Remove(path) for demand in workload.reading.demands for path in demand.removes)
    yield from workload.reading.edits


def _annotations(workloads: Sequence[Workload], template: JsonObject) -> Iterator[Put]:
    request = _request(template)
    selectors = [one["cel"]["expression"] for one in request.get("selectors", ())]
    name = next(_targets(workloads))
    for key, value in (
        ("device-class", request["deviceClassName"]),
        ("device-count", str(request["count"]) if request["count"] > 1 else ""),
        # One selector a line.
        ("cel-selector", "\n".join(" ".join(one.split()) for one in selectors)),
        ("container-name", name),
    ):
        if value:
            yield Put(("metadata", "annotations", f"{_ANNOTATION}{key}"), value)
