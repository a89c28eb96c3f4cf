"""What KServe makes of an LLMInferenceService of the configs that it names; and which runtimes it may take for an
InferenceService. Pure.

A config is merged with the service that names it, whose own spec goes before. It is looked up in the namespace of the
service, and else in KServe's own, whose configs are for the services of all namespaces. Pods are made in the service's.
Source: KServe, getConfig and MergeSpecs of its controller of LLMInferenceServices.
"""

from collections.abc import Iterable, Iterator

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import value_at
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
        isinstance(one, dict)
        and one.get("autoSelect") is True
        and one.get("name") == wanted.get("name")
        and wanted.get("version") in (None, one.get("version"))
        for one in (formats if isinstance(formats, list) else ())
    )


# -- configs


def configs_of(document: Document, others: Iterable[Document]) -> Iterator[Document]:
    """Those that an LLMInferenceService names, as far as they are here."""
    if kind_of(document.obj) != _KIND:
        return
    refs = value_at(document.obj, ("spec", "baseRefs"))
    names = {value_at(one, ("name",)) for one in (refs if isinstance(refs, list) else ())}
    named: dict[str, list[Document]] = {}
    for one in others:
        if kind_of(one.obj) == _CONFIG and one.name in names:
            named.setdefault(one.name, []).append(one)
    for some in named.values():
        own = [one for one in some if one.namespace == document.namespace]
        yield from own or some
