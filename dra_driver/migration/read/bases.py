"""Objects of KServe that are merged into a pod: runtimes, and the configs that a service names. Pure.

Lists of tolerations are not merged: a service with its own list has none of its runtime. A config in the namespace
of the service wins over one in the namespace of KServe.
Source: KServe, MergePodSpec of InferenceServices, getConfig and MergeSpecs of LLMInferenceServices; core/v1 PodSpec.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import PodSpecAt, value_at
from dra_driver.migration.read.kind_table import kind_of

_KIND = ("serving.kserve.io", "LLMInferenceService")
_CONFIG = ("serving.kserve.io", "LLMInferenceServiceConfig")


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
        isinstance(format_, dict)
        and format_.get("autoSelect") is True
        and format_.get("name") == wanted.get("name")
        and wanted.get("version") in (None, format_.get("version"))
        for format_ in (formats if isinstance(formats, list) else ())
    )


# -- configs


def configs_of(document: Document, others: Iterable[Document]) -> Iterator[Document]:
    """Those that an LLMInferenceService names, as far as they are here."""
    if kind_of(document.obj) != _KIND:
        return
    refs = value_at(document.obj, ("spec", "baseRefs"))
    names = {value_at(ref, ("name",)) for ref in (refs if isinstance(refs, list) else ())}
    named: dict[str, list[Document]] = {}
    for item in others:
        if kind_of(item.obj) == _CONFIG and item.name in names:
            named.setdefault(item.name, []).append(item)
    for some in named.values():
        own = [one for one in some if one.namespace == document.namespace]
        yield from own or some


_GROUP = "serving.kserve.io"
_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
_FIELDS = ("nodeSelector", "affinity", "tolerations", "schedulerName")


@dataclass(frozen=True, slots=True)
class Bases:
    """All that are known."""

    documents: tuple[Document, ...] = ()

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Bases":
        kinds = {*((_GROUP, kind) for kind in _RUNTIMES), _CONFIG}
        return cls(tuple(document for document in documents if kind_of(document.obj) in kinds))

    def completed(self, pod: PodSpecAt) -> PodSpecAt:
        """With what it does not say itself."""
        if not self.documents or pod.patch:
            return pod
        bases = list(self._under(pod))
        found = {
            name: value
            for name in _FIELDS
            if not pod.spec.get(name) and (value := next((base[name] for base in bases if base.get(name)), None))
        }
        return replace(pod, spec={**pod.spec, **found}, inherited=pod.inherited | found.keys()) if found else pod

    def _under(self, pod: PodSpecAt) -> Iterator[JsonObject]:
        """Specs of pods, those first that go before others."""
        group, kind = kind_of(pod.document.obj)
        if group != _GROUP:
            return
        if kind == "InferenceService" and pod.path == ("spec", "predictor"):
            results = [runtime.obj.get("spec") for runtime in self._runtimes(pod)]
        elif kind == "LLMInferenceService":
            refs = value_at(pod.document.obj, ("spec", "baseRefs"))
            names = [value_at(ref, ("name",)) for ref in (refs if isinstance(refs, list) else ())]
            configs = sorted(configs_of(pod.document, self.documents), key=lambda document: -names.index(document.name))
            results = [value_at(config.obj, pod.path) for config in configs]
        else:
            return
        yield from (item for item in results if isinstance(item, dict))

    def _runtimes(self, pod: PodSpecAt) -> list[Document]:
        """The one that it names, or the only one that KServe may take for it."""
        model = pod.spec.get("model")
        if not isinstance(model, dict):
            return []
        there = [
            document for document in self.documents if document.kind in _RUNTIMES and _serves(document, pod.document)
        ]
        there.sort(key=lambda document: _RUNTIMES.index(document.kind))
        named = model.get("runtime")
        fitting = [
            document for document in there if (document.name == named if named else may_be_chosen(document.obj, model))
        ]
        return fitting[:1] if named or len(fitting) == 1 else []


def _serves(runtime: Document, service: Document) -> bool:
    """Whether they are of one namespace, as far as that is said."""
    own, other = runtime.namespace, service.namespace
    return runtime.kind == "ClusterServingRuntime" or own == other or own is None or other is None
