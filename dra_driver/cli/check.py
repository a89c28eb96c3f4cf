"""`dractl check FILES`: manifests judged before they are applied; nothing is asked or changed without `--live`."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from dra_driver import __version__
from dra_driver.api.core import Key
from dra_driver.api.documents import Document, ReadDocuments
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.check import check as findings_in
from dra_driver.checking.check import policies_for
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import Finding, as_data, as_github, as_sarif, sentence
from dra_driver.checking.knowledge import Knowledge, sites_of_cluster, sites_of_models
from dra_driver.checking.manifests import patch_files, template_files, with_chart_values, without_files
from dra_driver.cli.reading.files import known_classes, read_files
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask_all
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import CURRENT, KNOWN, named_minor
from dra_driver.phrases import how_many
from dra_driver.terminal import Format, Status, echo, print_data, print_message, print_table


def check(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="YAML or JSON files, folders with them, or - for standard input."),
    ],
    output: Annotated[
        Literal["table", "json", "yaml", "sarif", "github"],
        typer.Option(
            "--output", "-o", help="Output format: sarif for code scanning, github for annotations in GitHub Actions."
        ),
    ] = "table",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            "--kubernetes", metavar="1.36", help="Kubernetes version to check for; default with --live: the cluster's."
        ),
    ] = None,
    profiles: Annotated[
        str,
        typer.Option(
            "--profiles",
            metavar="MODEL,…",
            help="The cluster's GPU models, by the names of simulated nodes (dgx-h100, t4, …). A claim that fits none "
            "of them is an error; without this option all models are checked, and it is a warning.",
        ),
    ] = "",
    live: Annotated[
        bool, typer.Option("--live", help="Check against the nodes, classes and claims of a cluster.")
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Find what is wrong with claims, templates, DeviceClasses, pods and PublishingPolicies before they are applied.
    Values of this driver's chart may be among the files: their policy and DeviceClasses are looked at.

    Exit status 0 when there is nothing, or nothing but warnings; 1 when there are errors; 3 when a file cannot be read.

    \b
    Examples:
      dractl check manifests/
      dractl check manifests/ --live
      kustomize build . | dractl check - -o github
    """
    reading = _without_parts(with_chart_values(read_files(files)))
    if live:
        if profiles:
            raise InvalidInput("the nodes come from the cluster; leave it out with --live", about="--profiles")
        knowledge = _of_cluster(kubeconfig, context, kubernetes, reading.documents)
    else:
        knowledge = offline_knowledge(named_minor(kubernetes or f"1.{CURRENT}", KNOWN), profiles, reading.documents)
    findings = findings_in(reading, knowledge)
    _print(findings, output, len(reading.documents) + len(reading.problems))
    bad = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    if any(finding.severity in bad for finding in findings):
        raise SystemExit(Status.NO)


def _without_parts(reading: ReadDocuments) -> ReadDocuments:
    """What kustomize merges into other objects, and what Helm renders first, cannot be judged alone."""
    patches, templates = patch_files(reading), template_files(reading)
    for files, noun, whole, command in (
        (patches, "patch file", "kustomizations", "kustomize build FOLDER"),
        (templates, "template", "charts", "helm template CHART"),
    ):
        if files:
            text = f"{how_many(len(files), noun)} of {whole} not checked: check the result ({command} | dractl check -)"
            print_message(text)
    return without_files(reading, patches | templates)


def offline_knowledge(minor: int, profiles: str, documents: Sequence[Document]) -> Knowledge:
    """Of GPU models by the names of simulated nodes, separated by commas; all if there are none. Raises
    InvalidInput."""
    names = [name.strip() for name in profiles.split(",") if name.strip()]
    sites = sites_of_models(names, policies_for(documents), minor)
    return Knowledge(minor, sites, known_classes(), certain=bool(names))


# -- a cluster


_UNREAD = {
    NODES: "nodes are those that publish devices, without their labels",
    RESOURCE_SLICES: "claims are checked against all known GPU models",
    DEVICE_CLASSES: "only the driver's own classes are known",
    RESOURCE_CLAIMS: "whether claims that pods name exist is not checked",
    RESOURCE_CLAIM_TEMPLATES: "whether templates that pods name exist is not checked",
}
"""What is read of a cluster, and what is checked without it if the user may not list it."""


def _of_cluster(
    kubeconfig: Path | None, context: str | None, kubernetes: str | None, documents: Sequence[Document]
) -> Knowledge:
    server, objects = ask_all(kubeconfig, context, list(_UNREAD), required=False)
    for kind, without in _UNREAD.items():
        if kind not in objects:
            print_message(f"note: you may not list {kind.plural}: {without}")
    minor = named_minor(kubernetes, KNOWN) if kubernetes else min(max(server, KNOWN[0]), KNOWN[-1])
    slices, classes = objects.get(RESOURCE_SLICES), objects.get(DEVICE_CLASSES)
    return replace(
        offline_knowledge(minor, "", documents)
        if slices is None
        else Knowledge(minor, sites_of_cluster(objects.get(NODES), slices, minor), certain=True),
        classes=known_classes() if classes is None else {_key(obj)[1]: DeviceClass.of(obj) for obj in classes},
        existing={kind.kind: frozenset(map(_key, items)) for kind, items in objects.items()},
    )


def _key(obj: JsonObject) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


# -- printing


def _print(findings: Sequence[Finding], output: str, documents: int) -> None:
    if output == "table":
        _print_table(findings, documents)
    elif output == "sarif":
        typer.echo(json.dumps(as_sarif(findings, __version__), indent=2))
    elif output == "github":
        for line in as_github(findings):
            echo(line)
    else:
        print_data(as_data(findings), Format(output))


def _print_table(findings: Sequence[Finding], documents: int) -> None:
    if findings:
        print_table(("PLACE", "SEVERITY", "CODE", "WHAT"), [_row(finding) for finding in findings])
    counts = Counter(finding.severity for finding in findings)
    parts = [how_many(counts[severity], severity.noun) for severity in Severity if counts[severity]]
    print_message(f"{how_many(documents, 'document')}: {', '.join(parts) or 'no problems found'}")


def _row(finding: Finding) -> tuple[str, ...]:
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return place, str(finding.severity), finding.code, sentence(finding)
