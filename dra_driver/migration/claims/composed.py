"""Documents that together make one pod must ask for GPUs in one way. Pure.

KServe puts an InferenceService over a ServingRuntime and an LLMInferenceService over its configs, Kubeflow's trainer a
TrainJob over a runtime. Where one of them keeps the extended resource, claims of another would add to it: the pod would
have both.
"""

from collections.abc import Iterator, Mapping, Sequence

from dra_driver.api.documents import Document
from dra_driver.migration.claims.drafting import Draft, without_claims
from dra_driver.migration.model import Options, value_at
from dra_driver.migration.read.kind_table import kind_of
from dra_driver.migration.read.kserve import configs_of, may_be_chosen
from dra_driver.migration.read.kustomize import Folders


def agree(drafts: Sequence[Draft], folders: Folders, options: Options) -> None:
    """Takes claims back where what makes one pod would ask twice."""
    asking = [draft for draft in drafts if draft.asking]
    reasons: dict[int, str] = {}
    for draft, reason in (*_of_configs(asking), *_added_to(asking, folders)):
        reasons.setdefault(id(draft), reason)
    for draft in asking:
        if id(draft) in reasons:
            without_claims(draft, reasons[id(draft)], options)


def _of_configs(asking: Sequence[Draft]) -> Iterator[tuple[Draft, str]]:
    """LLMInferenceServices that name a config which asks for GPUs, too."""
    documents = [draft.document for draft in asking]
    for draft in asking:
        config = next(configs_of(draft.document, documents), None)
        if config is not None:
            yield draft, f"{config.title} asks for GPUs, too, and cannot have claims; the pod is made of both"


# -- runtimes

_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")


def _added_to(asking: Sequence[Draft], folders: Folders) -> Iterator[tuple[Draft, str]]:
    by_name: dict[tuple[str, str], list[Draft]] = {}
    for draft in asking:
        by_name.setdefault((draft.document.kind, draft.document.name), []).append(draft)
    for draft in asking:
        document = draft.document
        group, kind = kind_of(document.obj)
        if (group, kind) == ("trainer.kubeflow.org", "TrainJob"):
            runtime = value_at(document.obj, ("spec", "runtimeRef"))
            runtime = runtime if isinstance(runtime, dict) else {}
            key = (str(runtime.get("kind") or "ClusterTrainingRuntime"), str(runtime.get("name")))
            for other in by_name.get(key, ()):
                if _serves(other.document, document, folders):
                    yield other, f"TrainJob {document.name} asks for GPUs itself, which would be added to its claims"
        elif (group, kind) == ("serving.kserve.io", "InferenceService"):
            for other in _runtimes(document, by_name):
                if not _serves(other.document, document, folders):
                    continue
                title = other.document.title
                if value_at(document.obj, ("spec", "predictor", "model", "runtime")) is None:
                    advice = "name the runtime that it is to have"
                    yield draft, f"KServe may take {title} for it, whose GPUs would be added to its claims; {advice}"
                else:
                    yield draft, f"{title} asks for GPUs, too, and cannot have claims; the pod is made of both"


def _serves(runtime: Document, user: Document, folders: Folders) -> bool:
    """Whether it can be for this one: it is of the cluster, or of the same namespace, as far as both say theirs."""
    spaces = {_namespace(one, folders) for one in (runtime, user)}
    return runtime.kind.startswith("Cluster") or None in spaces or len(spaces) == 1


def _namespace(document: Document, folders: Folders) -> str | None:
    """None: not known, or a kustomization sets it."""
    moved = any(one.document.obj.get("namespace") for one in folders.builders(document.file))
    return None if moved else document.namespace


def _runtimes(service: Document, by_name: Mapping[tuple[str, str], list[Draft]]) -> Iterator[Draft]:
    """Those that it names, or all that KServe may choose by the format of the model."""
    model = value_at(service.obj, ("spec", "predictor", "model"))
    if not isinstance(model, dict):
        return
    named = model.get("runtime")
    for (kind, name), drafts in by_name.items():
        if kind in _RUNTIMES and named is None:
            yield from (one for one in drafts if may_be_chosen(one.document.obj, model))
        elif kind in _RUNTIMES and named == name:
            yield from drafts
