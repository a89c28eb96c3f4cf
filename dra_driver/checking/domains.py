"""ComputeDomains, each for itself: the form of their definition, and the name of the template that is made."""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import COMPUTE_DOMAINS, JsonObject
from dra_driver.checking.claims import report_problems
from dra_driver.checking.fields import Cleaner
from dra_driver.checking.findings import Report
from dra_driver.simulation.apiserver.metadata import dns_subdomain, problems_of_metadata
from dra_driver.simulation.apiserver.schema import Schema
from dra_driver.simulation.apiserver.status import Problem, invalid

DOMAIN = (COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind)
_TEMPLATE = "spec.channel.resourceClaimTemplate.name"


def check_domain(document: Document, report: Report, minor: int) -> None:
    """`report` is that of the document."""
    written = {"spec": document.obj["spec"]} if "spec" in document.obj else {}
    cleaned = Cleaner(report, minor).clean(written, _schema())
    metadata = document.obj.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("name"), str):
        report_problems(problems_of_metadata(("", ""), {"name": metadata["name"]}), report)
    report_problems(_problems(cleaned.get("spec") or {}), report)


def _problems(spec: JsonObject) -> Iterator[Problem]:
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
    whole = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = {"type": "object", "properties": {"spec": whole["properties"]["spec"]}, "required": ["spec"]}
    return Schema(spec, {})
