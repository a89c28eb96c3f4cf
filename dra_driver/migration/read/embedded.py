"""Manifests that ConfigMaps hold as texts, for programs that make pods of them. Pure.

Airflow's pod template, Jupyter's, Spark's, what a Job applies with kubectl: the text is a manifest like any other, but
who makes an object of it is not known. Many parse it with types of their own that drop claims, so that pods would start
without GPUs; many make it in another namespace than the ConfigMap's, where no template would be; and some take one
document only, so that a template cannot stand in the text. With the extended resource none of that matters.
"""

import re
from collections.abc import Iterator

from dra_driver.api.documents import Document, read_documents
from dra_driver.migration.model import Options, Path, PodSpecAt, StrategyOption
from dra_driver.migration.read.named import strategy_of
from dra_driver.migration.read.unrendered import speaks_of_gpus

_FILLED_IN = re.compile(r"\{\{|\{%|<%|\$\{|\$\(")
"""What templates of all kinds put values into."""


def manifests_in(document: Document) -> Iterator[tuple[Path, str]]:
    """Values of a ConfigMap that speak of GPUs and are objects of Kubernetes from beginning to end."""
    data = document.obj.get("data") if (document.api_version, document.kind) == ("v1", "ConfigMap") else None
    for key, text in data.items() if isinstance(data, dict) else ():
        if isinstance(text, str) and speaks_of_gpus(text) and _FILLED_IN.search(text) is None:
            read = read_documents(text, document.file)
            if read.documents and not read.problems and all(one.kind and one.api_version for one in read.documents):
                yield ("data", str(key)), text


def why_no_claims(pod: PodSpecAt, place: str, options: Options) -> str | None:
    """Of a pod in such a text, at this place, as a sentence; None: a person named it, who knows who reads it."""
    if strategy_of(pod.document, _unnamed(options)) is StrategyOption.CLAIMS:
        return None
    name = f"{pod.document.kind}/{pod.document.name or '*'}"
    return (
        f"{place}, and whoever makes pods of it may drop claims or make them in another namespace "
        f"(if you know that it does neither: `workloads: [{{name: {name}, strategy: claims}}]`)"
    )


def _unnamed(options: Options) -> Options:
    """Without what is wanted of all workloads."""
    return Options(strategy_of=options.strategy_of)
