"""What the documents define together, as far as it can be read, and what values of this driver's chart add to them.

Helm makes objects of `deviceClasses.extra` and `policy`; it knows no expressions and no configs, so what is wrong there
would be found when half of the release is installed. Charts of others have a `policy`, too: this one is known by
its fields. Pure.
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.api.core import Key
from dra_driver.api.documents import Document, ReadDocuments
from dra_driver.api.manifest_nodes import TEMPLATE
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass, ResourceClaimSpec
from dra_driver.api.untyped import list_in, value_at
from dra_driver.checking.findings import CheckReport
from dra_driver.checking.knowledge import Knowledge
from dra_driver.checking.selectors import KnownNames

_POLICY_FIELDS = frozenset(("publish", "withhold", "mig", "sharing", "passthrough", "computeDomains"))
"""Charts of others have a `policy`, too."""


def with_chart_values(reading: ReadDocuments) -> ReadDocuments:
    """With a document more for each class and policy in values files among the documents."""
    made = [part for document in reading.documents for part in (document, *_made_of(document))]
    return ReadDocuments(tuple(made), reading.problems)


def patch_files(reading: ReadDocuments) -> frozenset[str]:
    """Files among these that kustomizations among them name as patches, which are parts of objects."""
    named = set()
    for document in reading.documents:
        folder, name = posixpath.split(document.file)
        if name in KUSTOMIZATION_FILES:
            named |= {posixpath.normpath(posixpath.join(folder, path)) for path in _patches(document.obj)}
    files = {document.file for document in reading.documents} | {problem.file for problem in reading.problems}
    return frozenset(file for file in files if posixpath.normpath(file) in named)


def template_files(reading: ReadDocuments) -> frozenset[str]:
    """Files among these that are templates of charts among them, and not YAML before Helm has rendered them."""
    files = (posixpath.split(document.file) for document in reading.documents)
    folders = [posixpath.join(folder, "templates", "") for folder, name in files if name == "Chart.yaml"]
    templates = {problem.file for problem in reading.problems if problem.message == TEMPLATE}
    return frozenset(file for file in templates if file.startswith(tuple(folders)))


KUSTOMIZATION_FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")


def _patches(kustomization: JsonObject) -> Iterator[str]:
    for field_name in ("patches", "patchesJson6902", "patchesStrategicMerge"):
        for entry in list_in(kustomization.get(field_name)):
            path = entry.get("path") if isinstance(entry, dict) else entry
            if isinstance(path, str):
                yield path


def without_files(reading: ReadDocuments, files: Collection[str]) -> ReadDocuments:
    return ReadDocuments(
        tuple(document for document in reading.documents if document.file not in files),
        tuple(problem for problem in reading.problems if problem.file not in files),
    )


def _made_of(document: Document) -> Iterator[Document]:
    if document.kind or document.api_version:
        return
    for index, item in enumerate(list_in(value_at(document.obj, ("deviceClasses", "extra")))):
        if isinstance(item, dict):
            yield document.part(f"deviceClasses.extra[{index}]", _class(item))
    policy = document.obj.get("policy")
    if isinstance(policy, dict) and not policy.keys().isdisjoint(_POLICY_FIELDS):
        kind = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}
        yield document.part("policy", {**policy, **kind})


def _class(value: JsonObject) -> JsonObject:
    metadata = {"name": value.get("name"), **({"labels": value["labels"]} if "labels" in value else {})}
    spec = {"spec": value["spec"]} if "spec" in value else {}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, **spec}


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """The spec of a claim, in its v1 form and with fields of the right types. `path` is where it is in `report`."""

    report: CheckReport
    path: str
    spec: JsonObject
    typed: ResourceClaimSpec | None
    """None when it breaks rules, so that nothing can be allocated for it."""

    def listed(self, field: str) -> Sequence[JsonObject]:
        """A list of `devices`: `requests`, `constraints` or `config`."""
        results: Sequence[JsonObject] = (self.spec.get("devices") or {}).get(field) or ()
        return results

    def alternatives(self) -> Iterator[tuple[str, str, JsonObject]]:
        """Each request or alternative: its name (`request/alternative`), its path, and itself."""
        for index, request in enumerate(self.listed("requests")):
            path, name = f"{self.path}.devices.requests[{index}]", str(request.get("name", ""))
            if isinstance(request.get("exactly"), dict):
                yield name, f"{path}.exactly", request["exactly"]
            for at, item in enumerate(request.get("firstAvailable") or ()):
                yield f"{name}/{item.get('name', '')}", f"{path}.firstAvailable[{at}]", item


@dataclass(frozen=True, slots=True)
class ClassPart:
    report: CheckReport
    typed: DeviceClass | None


@dataclass(frozen=True, slots=True)
class PodPart:
    """The spec of a pod, wherever it was found. `whole`: in a kind of Kubernetes itself, with nothing left out."""

    report: CheckReport
    path: str
    spec: JsonObject
    namespace: str
    whole: bool = True
    beside: tuple[tuple[str, JsonObject], ...] = ()
    """What its framework makes containers of, with where it is: `model` of KServe."""


@dataclass
class Manifests:
    """All that the documents define."""

    knowledge: Knowledge
    names: KnownNames
    claims: dict[Key, ClaimPart] = field(default_factory=dict)
    templates: dict[Key, ClaimPart] = field(default_factory=dict)
    classes: dict[str, ClassPart] = field(default_factory=dict)
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels by name."""
    pods: list[PodPart] = field(default_factory=list)
    fitting: dict[str, bool] = field(default_factory=dict)
    """What is known already: whether a claim like this one fits somewhere."""

    def device_class(self, name: str) -> DeviceClass | None:
        """Of the files, else the one that is known; None when it is neither, or not valid."""
        written = self.classes.get(name)
        return written.typed if written is not None else self.knowledge.classes.get(name)

    def all_classes(self) -> Mapping[str, DeviceClass]:
        written = {name: class_.typed for name, class_ in self.classes.items() if class_.typed is not None}
        return {**self.knowledge.classes, **written}


def key_of(document: Document) -> Key:
    return document.namespace or "", document.name
