"""What a pod of KServe has from the objects that its own is merged over: a runtime, or the configs that it names. Pure.

Lists of tolerations are not merged: a service with one of its own has none of its runtime's. So whoever gives a service
tolerations repeats those that its pods had, as with the templates of workflows.
Source: KServe, MergePodSpec of its InferenceServices and MergeSpecs of its LLMInferenceServices; core/v1 PodSpec.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import PodSpecAt, value_at
from dra_driver.migration.read.kind_table import kind_of
from dra_driver.migration.read.kserve import configs_of, may_be_chosen

_GROUP = "serving.kserve.io"
_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")
_CONFIG = "LLMInferenceServiceConfig"
_FIELDS = ("nodeSelector", "affinity", "tolerations", "schedulerName")


@dataclass(frozen=True, slots=True)
class Bases:
    """All that are known."""

    documents: tuple[Document, ...] = ()

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Bases":
        kinds = {(_GROUP, kind) for kind in (*_RUNTIMES, _CONFIG)}
        return cls(tuple(one for one in documents if kind_of(one.obj) in kinds))

    def completed(self, pod: PodSpecAt) -> PodSpecAt:
        """With what it does not say itself."""
        if not self.documents or pod.patch:
            return pod
        bases = list(self._under(pod))
        found = {
            name: value
            for name in _FIELDS
            if not pod.spec.get(name) and (value := next((one[name] for one in bases if one.get(name)), None))
        }
        return replace(pod, spec={**pod.spec, **found}, inherited=pod.inherited | found.keys()) if found else pod

    def _under(self, pod: PodSpecAt) -> Iterator[JsonObject]:
        """Specs of pods, those first that go before others."""
        group, kind = kind_of(pod.document.obj)
        if group != _GROUP:
            return
        if kind == "InferenceService" and pod.path == ("spec", "predictor"):
            found = [one.obj.get("spec") for one in self._runtimes(pod)]
        elif kind == "LLMInferenceService":
            refs = value_at(pod.document.obj, ("spec", "baseRefs"))
            names = [value_at(one, ("name",)) for one in (refs if isinstance(refs, list) else ())]
            configs = sorted(configs_of(pod.document, self.documents), key=lambda one: -names.index(one.name))
            found = [value_at(one.obj, pod.path) for one in configs]
        else:
            return
        yield from (one for one in found if isinstance(one, dict))

    def _runtimes(self, pod: PodSpecAt) -> list[Document]:
        """The one that it names, or the only one that KServe may take for it."""
        model = pod.spec.get("model")
        if not isinstance(model, dict):
            return []
        there = [one for one in self.documents if one.kind in _RUNTIMES and _serves(one, pod.document)]
        there.sort(key=lambda one: _RUNTIMES.index(one.kind))
        named = model.get("runtime")
        fitting = [one for one in there if (one.name == named if named else _may_be(one, model))]
        return fitting[:1] if named or len(fitting) == 1 else []


def _may_be(runtime: Document, model: Mapping[str, Any]) -> bool:
    return may_be_chosen(runtime.obj, dict(model))


def _serves(runtime: Document, service: Document) -> bool:
    """Whether they are of one namespace, as far as that is said."""
    own, other = runtime.namespace, service.namespace
    return runtime.kind == "ClusterServingRuntime" or own == other or own is None or other is None
