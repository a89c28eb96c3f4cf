"""ComputeDomains: the form of their definition, and the template that is made of each, for pods that name it."""

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from dra_driver.allocation.domains import with_uid
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.documents import Document
from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.apirules.metadata import dns_subdomain, problems_of_metadata
from dra_driver.apirules.schema import Schema
from dra_driver.apirules.status import FieldProblem, invalid
from dra_driver.bundled import read_yaml
from dra_driver.checking.claims import report_problems
from dra_driver.checking.fields import Cleaner
from dra_driver.checking.findings import DEPRECATED_FIELD, TEMPLATE_TAKEN, CheckReport, Severity
from dra_driver.checking.knowledge import Key
from dra_driver.checking.manifests import ClaimPart, Manifests, typed_claim
from dra_driver.domains.objects import workload_template
from dra_driver.errors import InvalidInput

DOMAIN = (COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind)
_TEMPLATE = "spec.channel.resourceClaimTemplate.name"


def check_domain(document: Document, report: CheckReport, minor: int) -> ClaimPart | None:
    """The template that will be made of it, for pods that name it; None when it is not known. `report` is that of the
    document."""
    written = {"spec": document.obj["spec"]} if "spec" in document.obj else {}
    cleaned = Cleaner(report, minor).clean(written, _schema())
    metadata = document.obj.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
        report_problems(problems_of_metadata(("", ""), {"name": metadata["name"]}), report)
    report_problems(_problems(cleaned.get("spec") or {}), report)
    if any(finding.severity is Severity.ERROR for finding in report.findings):
        return None
    if cleaned["spec"].get("numNodes"):
        message = "`numNodes` is deprecated by NVIDIA; it makes each container wait until so many nodes are ready"
        report.find(DEPRECATED_FIELD, "spec.numNodes", message, fix="leave it out if each may start on its own")
    return _template(document)


def _template(document: Document) -> ClaimPart | None:
    try:
        domain = with_uid(ComputeDomain.of(document.obj))
    except InvalidInput:
        return None
    spec = workload_template(domain, several_channels=True)["spec"]["spec"]
    return ClaimPart(CheckReport(document, lambda _: _TEMPLATE), "spec.spec", spec, typed_claim(spec))


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
    report.find(TEMPLATE_TAKEN, _TEMPLATE, message, fix="name another template, which the controller makes")


def _problems(spec: JsonObject) -> Iterator[FieldProblem]:
    """What types do not say. The controller makes a template of the name, and the API server has rules for that."""
    if spec.get("numNodes", 0) < 0:
        yield invalid("spec.numNodes", spec["numNodes"], "should be greater than or equal to 0")
    channel: Any = spec.get("channel") or {}
    name = (channel.get("resourceClaimTemplate") or {}).get("name")
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
