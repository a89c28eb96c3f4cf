"""Builders for tests of the migration: documents of pods in few words, and what is read of them."""

from typing import Any

import yaml

from dra_driver.api.documents import Document, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import path_text, value_at
from dra_driver.migration.demands import reading
from dra_driver.migration.model import Edit, MigrationFinding, Options, PodReading, PodSpecAt, Remove
from dra_driver.migration.read.kinds import pods_of
from dra_driver.migration.understand import surroundings
from dra_driver.migration.understand.meaning import Meaning

GPU = "nvidia.com/gpu"


def documents_of(*objects: str | JsonObject) -> list[Document]:
    texts = [obj if isinstance(obj, str) else yaml.safe_dump(obj, sort_keys=False) for obj in objects]
    return [
        document for n, text in enumerate(texts) for document in read_documents(text, f"f{n}.yaml").raise_problems()
    ]


def limits(amounts: JsonObject | None, **more: Any) -> JsonObject:
    """A container; without amounts it has no resources."""
    return {"name": "main", "image": "i", **({"resources": {"limits": amounts}} if amounts is not None else {}), **more}


def pod(*containers: JsonObject, annotations: JsonObject | None = None, kind: str = "Pod", **spec: Any) -> JsonObject:
    """`containers` may be left out when `spec` has something else."""
    metadata: JsonObject = {"name": "p", "namespace": "team"}
    own = {"metadata": {**metadata, "annotations": annotations}} if annotations is not None else {"metadata": metadata}
    inner = {**spec, "containers": list(containers)}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, **own, "spec": inner}
    template = {"metadata": {"annotations": annotations or {}}, "spec": inner}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": template}}


def meaning_of(*texts: str | JsonObject, options: Options | None = None) -> Meaning:
    return surroundings.read(documents_of(*texts), options or Options())


def pod_of(obj: str | JsonObject) -> PodSpecAt:
    (document,) = documents_of(obj)
    (reading,) = pods_of(document, Options())
    return reading


def read(obj: str | JsonObject, meaning: Meaning | None = None, **options: Any) -> PodReading:
    given = Options(**options)
    return reading.demands(pod_of(obj), meaning or surroundings.read([], given), given)


def codes(findings: tuple[MigrationFinding, ...]) -> list[str]:
    return sorted({finding.code.name for finding in findings})


def all_codes(reading: PodReading) -> list[str]:
    """Those of a pod that gets claims."""
    return codes((*reading.findings, *reading.claim_findings))


def removed(edits: tuple[Edit, ...]) -> list[str]:
    return sorted(path_text(edit.path) for edit in edits if isinstance(edit, Remove))


def there(obj: JsonObject, reading: PodReading) -> bool:
    """Whether everything that is to be taken out is there."""
    paths = [path for demand in reading.demands for path in demand.removes]
    paths += [edit.path for edit in reading.edits if isinstance(edit, Remove)]
    return all(_has(value_at(obj, path[:-1]), path[-1]) for path in paths)


def _has(parent: Any, key: str | int) -> bool:
    if isinstance(parent, list):
        return isinstance(key, int) and key < len(parent)
    return isinstance(parent, dict) and key in parent
