"""Texts that are not what will be applied: templates and values of Helm charts, JSON patches, objects by which Flux and
Argo CD pass values to a chart, files that SOPS encrypted, and manifests in ConfigMaps. Pure.

They stay unchanged. Their places with GPUs are reported, and what is rendered from them can be migrated. Programs that
read a ConfigMap may parse it with types that drop claims, or create the pod in another namespace.
"""

import re
from collections.abc import Iterator

from dra_driver.api.documents import Document, ReadDocuments
from dra_driver.api.manifest_nodes import BadDocument, normalized
from dra_driver.api.untyped import Path, places_in
from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import DocumentPlace, ManifestText, MigrationFinding, ObjectRef, finding
from dra_driver.migration.read.kind_table import kind_of
from dra_driver.phrases import and_more

_HELM = re.compile(
    r"\{\{-?\s*(?:\(\s*)?(?:[a-zA-Z]+\s+)*(?:\$?\.(?:Values|Release|Chart|Capabilities|Files|Template)\b|\"[^\"]*\"\s+(?:\.|\$))"
    r"|\{\{-?\s*(?:define|include|template|toYaml|tpl)\b"
)
"""Actions that only Helm has; braces alone are used by workflows and alerts, too."""
OF_SYSTEMS = r"volcano\.sh/v?gpu|aliyun\.com/gpu|tencent\.com/vcuda"
"""How names of resources of systems that share GPUs begin."""
_GPU = re.compile(rf"nvidia\.com(?:/|~1)(?:gpu|mig-|mps-|vgpu)|{OF_SYSTEMS}|hami\.io/[a-z-]*gpu|NVIDIA_VISIBLE_DEVICES")
_ASKS = re.compile(r"\b(?:limits|requests|extra_resource_limits|resource_limits)\b")
_MANIFEST = re.compile(r"^[\s-]*[\"']?apiVersion[\"']?\s*:", re.MULTILINE)
_MOST_PLACES = 5


def speaks_of_gpus(text: str) -> bool:
    return _GPU.search(text) is not None


def template_findings(source: ManifestText) -> Iterator[MigrationFinding]:
    """Of a file that is a template: one, at the first line that is about GPUs."""
    lines = [
        number for number, line in enumerate(normalized(source.text).split("\n"), 1) if _GPU.search(line) is not None
    ]
    where = and_more(list(map(str, lines)), _MOST_PLACES)
    more = f"; it mentions GPUs in line{'s' if len(lines) > 1 else ''} {where}" if lines else ""
    advice = (
        "Migrate the rendered manifests (helm template … | dractl migrate -), then change the chart in the same way."
    )
    yield _of_file(source.file, lines[0] if lines else 1, f"is a template and stays unchanged{more}", advice)


def problem_finding(problem: BadDocument, text: str) -> MigrationFinding | None:
    """Of a document that cannot be read. None where that does not matter, because no GPUs are mentioned: in a JSON
    patch, say, or in what is no manifest, such as a template of CloudFormation."""
    is_list = problem.message.startswith("is a list")
    if not speaks_of_gpus(text) and (is_list or _MANIFEST.search(text) is None):
        return None
    if is_list:
        advice = "If it is a JSON patch: remove its operations on GPUs, and ask for them in the patched object."
        return _of_file(problem.file, problem.line, "is a list of operations and stays unchanged", advice)
    message = f"column {problem.column}: {problem.message}"
    return _of_file(problem.file, problem.line, message, codes.UNREADABLE.advice, codes.UNREADABLE)


def values_findings(document: Document) -> Iterator[MigrationFinding]:
    """Of a document that is no object, such as a chart's values: where it speaks of GPUs."""
    if document.kind or document.api_version:
        return
    for path in list(gpu_keys(document.obj))[:_MOST_PLACES]:
        message = "is not a Kubernetes object; its result asks for the extended resource"
        advice = (
            "Take it out, and give the chart resourceClaims for the pod and resources.claims for the container; "
            "migrating the rendered manifests shows which."
        )
        yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


_FLUX = "its chart is rendered with these values in the cluster"
_PATCHED = "what it delivers is patched in the cluster"
_DELIVERS = {
    ("helm.toolkit.fluxcd.io", "HelmRelease"): _FLUX,
    ("helm.cattle.io", "HelmChart"): _FLUX,
    ("helm.cattle.io", "HelmChartConfig"): _FLUX,
    ("argoproj.io", "Application"): "what it delivers is rendered by Argo CD with this",
    ("argoproj.io", "ApplicationSet"): "what it delivers is rendered by Argo CD with this",
    ("kustomize.toolkit.fluxcd.io", "Kustomization"): _PATCHED,
}
"""Group and kind of objects that say how others are rendered, and how."""


def delivers(document: Document) -> bool:
    """Whether others are made of it, and changed by what it says."""
    return kind_of(document.obj) in _DELIVERS


def delivery_findings(document: Document) -> Iterator[MigrationFinding]:
    """Of an object that delivers others: where it speaks of GPUs."""
    how = _DELIVERS[kind_of(document.obj)]
    advice = (
        "Render it as it is delivered (helm template … | dractl migrate -, or kubectl kustomize … | dractl migrate -); "
        "then put the result there: claims with values of the chart or with a patch, and no GPUs in limits."
    )
    places = places_in(document.obj)
    texts = (path for path, value in places if isinstance(value, str) and _IN_A_STRING.search(value))
    paths = [*gpu_keys(document.obj), *texts]
    for path in paths[:_MOST_PLACES]:
        yield finding(codes.NOT_EDITABLE, document, path, f"mentions GPUs: {how}; it stays unchanged", advice=advice)


_IN_A_STRING = re.compile(_GPU.pattern.replace("nvidia\\.com", r"nvidia\\?\.com"))
"""Also as Helm's `--set` and Argo's parameters have it, with a backslash before the dot."""


def is_sealed(document: Document) -> bool:
    """Whether SOPS keeps a checksum of it: a change makes it unreadable."""
    seal = document.obj.get("sops")
    return isinstance(seal, dict) and "mac" in seal


def sealed_findings(document: Document) -> Iterator[MigrationFinding]:
    advice = "Decrypt it (sops --decrypt), migrate that, and encrypt the result."
    for path in list(gpu_keys(document.obj))[:1]:
        message = "is encrypted by SOPS, whose checksum would become invalid, so it stays unchanged"
        yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


def gpu_keys(value: object) -> Iterator[Path]:
    """Keys that are names of GPU resources."""
    return (path for path, _ in places_in(value) if path and isinstance(path[-1], str) and _GPU.match(path[-1]))


def gpu_texts(value: object) -> Iterator[Path]:
    """Strings of several lines or of JSON that ask for GPUs: manifests and patches inside of objects."""
    for path, text in places_in(value):
        if isinstance(text, str) and ("\n" in text or text.lstrip().startswith("{")) and asks_for_gpus(text):
            yield path


def asks_for_gpus(text: str) -> bool:
    """Whether a text has amounts of GPUs, as an object or as operations on one."""
    return _GPU.search(text) is not None and _ASKS.search(text) is not None


def is_refused(source: ManifestText, reading: ReadDocuments) -> bool:
    """Whether the file is a template of Helm or a similar tool, and so is not changed."""
    if any("is a template" in problem.message for problem in reading.problems):
        return True
    actions = len(_HELM.findall(source.text))
    if not actions or reading.problems:
        return actions > 0
    return actions > sum(_of_others(document.obj) for document in reading.documents)


_OF_ALERTS = re.compile(r"\{\{-?\s*template\s+\\?\"")


def _of_others(value: object) -> int:
    """How many actions are for programs in the cluster: in texts of several lines, such as a configuration, and in
    messages of Alertmanager. Manifests that Helm rendered have them, too."""
    if isinstance(value, dict | list):
        return sum(map(_of_others, value.values() if isinstance(value, dict) else value))
    if not isinstance(value, str):
        return 0
    return len((_HELM if "\n" in value else _OF_ALERTS).findall(value))


def _of_file(
    file: str, line: int, message: str, advice: str, code: FindingCode = codes.NOT_EDITABLE
) -> MigrationFinding:
    return MigrationFinding(code, code.severity, ObjectRef("", None, file), DocumentPlace(file, line), message, advice)
