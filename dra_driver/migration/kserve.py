"""What KServe makes of an LLMInferenceService: of the configs that it names, and of annotations by which KServe makes
claims itself; and which runtimes it may take for an InferenceService. Pure.

A config is merged with the service that names it, whose own spec goes before. It is looked up in the namespace of the
service, and else in KServe's own, whose configs are for the services of all namespaces. Pods are made in the service's.
Source: KServe, getConfig and MergeSpecs of its controller of LLMInferenceServices.

It makes one template with one request, and gives a claim of it to every pod of the service: its template, its workers
and those of prefill. Whatever needs more has claims of its own pods, which all releases keep that know the kind.
Source: KServe 0.20, its controller of LLMInferenceServices; the annotations are experimental there, and earlier
releases pass over them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims import Claims
from dra_driver.migration.codes import NO_CLAIMS_HERE, Severity
from dra_driver.migration.kind_table import kind_of
from dra_driver.migration.kinds import pods_of
from dra_driver.migration.model import Edit, Finding, Options, Put, Remove, Target, Workload, finding, value_at

_KIND = ("serving.kserve.io", "LLMInferenceService")
_CONFIG = ("serving.kserve.io", "LLMInferenceServiceConfig")
_USUAL_NAMESPACE = "kserve"
"""Where KServe's installation puts itself."""
_ANNOTATION = "serving.kserve.io/exp-dra-"
_SAID = {"deviceClassName", "selectors", "count"}
"""Of a request, what annotations can say."""


# -- runtimes


def may_be_chosen(runtime: JsonObject, model: JsonObject) -> bool:
    """Whether KServe may take it for a model that names no runtime.

    Source: KServe, GetSupportingRuntimes; versions of protocols, and which of several comes first, are not looked at.
    """
    if value_at(runtime, ("spec", "disabled")) is True:
        return False
    formats = value_at(runtime, ("spec", "supportedModelFormats"))
    wanted = model.get("modelFormat")
    wanted = wanted if isinstance(wanted, dict) else {}
    return any(
        isinstance(one, dict)
        and one.get("autoSelect") is True
        and one.get("name") == wanted.get("name")
        and wanted.get("version") in (None, one.get("version"))
        for one in (formats if isinstance(formats, list) else ())
    )


# -- configs


def configs_of(document: Document, others: Iterable[Document]) -> Iterator[Document]:
    """Those that an LLMInferenceService names, as far as they are here."""
    if kind_of(document.obj) != _KIND:
        return
    refs = value_at(document.obj, ("spec", "baseRefs"))
    names = {value_at(one, ("name",)) for one in (refs if isinstance(refs, list) else ())}
    named: dict[str, list[Document]] = {}
    for one in others:
        if kind_of(one.obj) == _CONFIG and one.name in names:
            named.setdefault(one.name, []).append(one)
    for some in named.values():
        own = [one for one in some if one.namespace == document.namespace]
        yield from own or some


def for_other_namespaces(workloads: Sequence[Workload], documents: Sequence[Document]) -> Iterator[Finding]:
    """Of configs that name a template now, which must be where the pods are made."""
    for one in workloads:
        config = one.pod.document
        if kind_of(config.obj) == _CONFIG and one.templates:
            users = [other for other in documents if config in configs_of(other, documents)]
            where = sorted({user.namespace or "default" for user in users} - {config.namespace or "default"})
            yield from _told(one, where)


def _told(workload: Workload, where: Sequence[str]) -> Iterator[Finding]:
    config = workload.pod.document
    names = " and ".join(ref.name for ref in workload.templates)
    if where:
        message = f"services in {', '.join(where)} name this config; the template {names} must be there, too"
        advice = f"Apply ResourceClaimTemplate {names} in {', '.join(where)} as well, before the config."
        yield finding(NO_CLAIMS_HERE, config, workload.pod.path, message, advice=advice)
    elif config.namespace in (None, _USUAL_NAMESPACE):
        message = (
            "a config in KServe's own namespace is for the services of all namespaces; the template that it names now "
            f"({names}) must be in each where a service uses it"
        )
        advice = (
            f"Apply ResourceClaimTemplate {names} in the namespaces of the services that name the config, before it; "
            "none of another namespace is among what was given."
        )
        severity = Severity.WARNING if config.namespace else Severity.INFO
        yield finding(NO_CLAIMS_HERE, config, workload.pod.path, message, advice=advice, severity=severity)


# -- claims of its own


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
    advice = "See that the cluster has KServe 0.20 or newer, or migrate without `kserveManagedClaims`."
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
    if value_at(workloads[0].pod.document.obj, ("spec", "baseRefs")):
        return "a config that it names may have claims of its own"
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
