"""Claims, templates and classes, each for itself: limits and forms, gates, requests that are named, selectors; and the
templates that are made of ComputeDomains, for pods that name them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from importlib.resources import files

from dra_driver.allocation.domains import with_uid
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Key
from dra_driver.api.documents import Document
from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.api.resource import ResourceClaimSpec
from dra_driver.api.untyped import value_at
from dra_driver.apirules.dra_claims import default_claim_spec, problems_of_claim_spec, problems_of_class_spec
from dra_driver.apirules.metadata import dns_subdomain, problems_of_metadata
from dra_driver.apirules.schema import Schema
from dra_driver.apirules.status import FieldProblem, invalid
from dra_driver.bundled import read_yaml
from dra_driver.checking import codes
from dra_driver.checking.codes import Code, Severity
from dra_driver.checking.fields import Cleaner
from dra_driver.checking.findings import CheckReport
from dra_driver.checking.manifests import ClaimPart, Manifests
from dra_driver.checking.selectors import KnownNames, check_selector, unknown
from dra_driver.domains.objects import workload_template
from dra_driver.kubernetes import GATES, KNOWN, FeatureGates
from dra_driver.phrases import shown

_CODES: dict[str, Code] = {
    "FieldValueRequired": codes.MISSING_FIELD,
    "FieldValueTooMany": codes.TOO_MANY,
    "FieldValueTooLong": codes.TOO_MANY,
    "FieldValueDuplicate": codes.DUPLICATE,
}
_REFERENCE = re.compile(r".*\.(constraints|config)\[[0-9]+\]\.requests\[[0-9]+\]")


def report_problems(problems: Iterable[FieldProblem], report: CheckReport) -> None:
    """What the API server's own rules say, where nothing was found yet."""
    for problem in problems:
        code = _CODES.get(problem.reason, codes.INVALID)
        if not _is_misspelt(problem, code, report) and not report.has(problem.field):
            report.find(code, problem.field, problem.message)


def _is_misspelt(problem: FieldProblem, code: Code, report: CheckReport) -> bool:
    """Whether what is missing stands beside or below, under a name that is not right."""
    if code is codes.MISSING_FIELD and report.has_unknown_below(problem.field):
        return True
    empty = problem.message.startswith('Invalid value: "":')
    return (empty or code is codes.MISSING_FIELD) and report.has_unknown_below(problem.field.rpartition(".")[0])


def check_claim(part: ClaimPart, manifests: Manifests) -> None:
    """One claim, or the claim of a template."""
    defaulted = deepcopy(part.spec)
    default_claim_spec(defaulted, zero_is_missing=False)
    problems = problems_of_claim_spec(defaulted, part.path, _no_cel, consumable=True)
    # That there is no such request is said by `_check_named_requests`, with what was meant.
    others = [item for item in problems if item.reason != "FieldValueInvalid" or not _REFERENCE.fullmatch(item.field)]
    report_problems(others, part.report)
    _check_named_requests(part)
    _check_gates(part, manifests.knowledge.minor)
    _check_constraints(part, manifests.names)
    for _, path, request in part.alternatives():
        check_selectors(request.get("selectors") or (), f"{path}.selectors", part.report, manifests)
        _check_capacity(request, path, part.report, manifests)


def check_class(spec: JsonObject, report: CheckReport, manifests: Manifests) -> None:
    report_problems(problems_of_class_spec(spec, _no_cel), report)
    check_selectors(spec.get("selectors") or (), "spec.selectors", report, manifests)
    if spec.get("extendedResourceName"):
        check_gate("DRAExtendedResource", "spec.extendedResourceName", report, manifests.knowledge.minor)


def check_selectors(selectors: Sequence[JsonObject], path: str, report: CheckReport, manifests: Manifests) -> None:
    for index, selector in enumerate(selectors):
        expression = (selector.get("cel") or {}).get("expression")
        where = f"{path}[{index}].cel.expression"
        if isinstance(expression, str) and not report.has(where):
            check_selector(expression, where, report, manifests.knowledge.server, manifests.names)


def check_gate(gate: str, path: str, report: CheckReport, minor: int) -> None:
    """A field that a server drops whose gate is off."""
    if FeatureGates(minor).enabled(gate):
        return
    since = GATES[gate].on
    later = f"; it is on from 1.{since} on" if since in KNOWN else ""
    name = path.rpartition(".")[2]
    message = f"Kubernetes 1.{minor} drops `{name}` because its gate {gate} is off by default{later}"
    report.find(codes.NEEDS_GATE, path, message, fix=f"switch on {gate} in kube-apiserver and kube-scheduler")


def _no_cel(expression: str) -> None:
    """Selectors are looked at by `check_selector`, which knows more of where."""


def request_names(part: ClaimPart) -> dict[str, tuple[str, ...]]:
    """With the names of their alternatives."""
    return {
        str(request.get("name", "")): tuple(str(sub.get("name", "")) for sub in request.get("firstAvailable") or ())
        for request in part.listed("requests")
    }


def _check_named_requests(part: ClaimPart) -> None:
    requests = request_names(part)
    known = [*requests, *(f"{name}/{sub}" for name, subs in requests.items() for sub in subs)]
    only = f"write `{known[0]}`" if len(known) == 1 else None
    for field in ("constraints", "config"):
        for index, item in enumerate(part.listed(field)):
            for at, name in enumerate(item.get("requests") or ()):
                if name not in known:
                    message, fix = unknown(f"the claim has no request {shown(name)}", name, known)
                    path = f"{part.path}.devices.{field}[{index}].requests[{at}]"
                    part.report.find(codes.UNKNOWN_REQUEST, path, message, fix=fix or only)


def _check_gates(part: ClaimPart, minor: int) -> None:
    for _, path, request in part.alternatives():
        if request.get("tolerations"):
            check_gate("DRADeviceTaints", f"{path}.tolerations", part.report, minor)
        if request.get("capacity"):
            check_gate("DRAConsumableCapacity", f"{path}.capacity", part.report, minor)
    for index, constraint in enumerate(part.listed("constraints")):
        if constraint.get("distinctAttribute"):
            path = f"{part.path}.devices.constraints[{index}].distinctAttribute"
            check_gate("DRAConsumableCapacity", path, part.report, minor)


def _check_constraints(part: ClaimPart, names: KnownNames) -> None:
    for index, constraint in enumerate(part.listed("constraints")):
        path = f"{part.path}.devices.constraints[{index}]"
        if constraint.get("matchAttribute") and constraint.get("distinctAttribute"):
            message = "one constraint is either about matchAttribute or about distinctAttribute"
            part.report.find(codes.INVALID, path, message)
        for field in ("matchAttribute", "distinctAttribute"):
            domain, _, id_ = str(constraint.get(field) or "").rpartition("/")
            problem = names.problem("attributes", domain, id_) if domain and id_ else None
            if problem is not None:
                fix, guess = problem.fix, problem.guess
                if fix is not None and "/" not in guess and "device." not in guess:
                    fix = f"write `{domain}/{guess.split('`')[1]}`" if domain in names.attributes else fix
                message, where = f"{problem.message}; no devices satisfy this", f"{path}.{field}"
                part.report.find(codes.UNKNOWN_ATTRIBUTE, where, message, fix=fix, severity=problem.severity)


def _check_capacity(request: JsonObject, path: str, report: CheckReport, manifests: Manifests) -> None:
    driver = manifests.knowledge.driver
    if not str(request.get("deviceClassName", "")).endswith(driver):
        return  # an unqualified name is the driver's, and whose devices these are is not known
    for name in ((request.get("capacity") or {}).get("requests")) or ():
        domain, _, id_ = name.rpartition("/")
        problem = manifests.names.problem("capacity", domain or driver, id_)
        if problem is not None:
            where = f"{path}.capacity.requests[{name}]"
            report.find(codes.UNKNOWN_ATTRIBUTE, where, problem.message, fix=problem.fix, severity=problem.severity)


# -- ComputeDomains

DOMAIN = (COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind)
_TEMPLATE = "spec.channel.resourceClaimTemplate.name"


def check_domain(document: Document, report: CheckReport, minor: int) -> ClaimPart | None:
    """The template that will be made of it, for pods that name it; None when it is not known. `report` is that of the
    document."""
    written = {"spec": document.obj["spec"]} if "spec" in document.obj else {}
    cleaned = Cleaner(report, minor).clean(written, _schema())
    if isinstance(name := value_at(document.obj, ("metadata", "name")), str):
        report_problems(problems_of_metadata(("", ""), {"name": name}), report)
    report_problems(_problems(cleaned.get("spec") or {}), report)
    if any(finding.severity is Severity.ERROR for finding in report.findings):
        return None
    if cleaned["spec"].get("numNodes"):
        message = "`numNodes` is deprecated by NVIDIA; it only decides when the domain is Ready"
        fix = "leave it out, unless the NVIDIA driver is older than 570.158.01"
        report.find(codes.DEPRECATED_FIELD, "spec.numNodes", message, fix=fix)
    domain = ComputeDomain.or_none(document.obj)
    if domain is None:
        return None
    spec = workload_template(with_uid(domain), several_channels=True)["spec"]["spec"]
    typed = ResourceClaimSpec.or_none(spec)
    return ClaimPart(CheckReport(document, lambda _: _TEMPLATE), "spec.spec", spec, typed)


def check_templates(made: Iterable[ClaimPart], manifests: Manifests) -> None:
    """Makes the templates of domains known; one that the files have already, or that two domains want, is an error."""
    of_domains: dict[Key, ClaimPart] = {}
    for part in made:
        document = part.report.document
        key = (document.namespace or "", document.obj["spec"]["channel"]["resourceClaimTemplate"]["name"])
        first = of_domains.setdefault(key, part)
        if first is not part:
            _taken(part.report, first.report.document, "makes one of this name")
        elif key in manifests.templates:
            _taken(part.report, manifests.templates[key].report.document, "has this name")
    for key, part in of_domains.items():
        manifests.templates.setdefault(key, part)


def _taken(report: CheckReport, other: Document, does: str) -> None:
    message = f"{other.title} in {other.file}:{other.line} {does}, too; the controller leaves it as it is"
    report.find(codes.TEMPLATE_TAKEN, _TEMPLATE, message, fix="name another template, which the controller makes")


def _problems(spec: JsonObject) -> Iterator[FieldProblem]:
    """What types do not say. The controller makes a template of the name, and the API server has rules for that."""
    if spec.get("numNodes", 0) < 0:
        yield invalid("spec.numNodes", spec["numNodes"], "should be greater than or equal to 0")
    name = value_at(spec, ("channel", "resourceClaimTemplate", "name"))
    why = dns_subdomain(name) if isinstance(name, str) else None
    if why is not None:
        yield invalid(_TEMPLATE, name, why)


@cache
def _schema() -> Schema:
    """Of what users write: metadata is the API server's, and the status the controller's."""
    text = files("dra_driver.api").joinpath("crds", "computedomain.yaml").read_text("utf-8")
    whole = read_yaml(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = {"type": "object", "properties": {"spec": whole["properties"]["spec"]}, "required": ["spec"]}
    return Schema(spec, {})
