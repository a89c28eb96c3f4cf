"""What kustomizations build of what is not a manifest or a patch: generators, transformers, charts, vars, URLs. Pure.

What these bring and change is known when kustomize has done it. Those that speak of GPUs, or that rename what pods
name, keep all that they may change as it is; beside objects that nobody sees, a patch for many is for these, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, normalized
from dra_driver.migration.kustomize import resolved
from dra_driver.migration.model import Path
from dra_driver.migration.tree import NotATree, trees, value_of
from dra_driver.migration.unrendered import speaks_of_gpus

_CHANGING = ("generators", "transformers", "helmCharts", "helmChartInflationGenerator", "vars")
_BRINGING = ("generators", "helmCharts", "helmChartInflationGenerator")
_OF_PODS = re.compile(r"(?:^|\.)(?:resources|nodeSelector|tolerations|env\b)")
"""In the path of a var: what has amounts or labels of GPUs, or what the migration takes out of the middle of a list."""
_RENAMING = re.compile(r"^kind: *['\"]?Prefix|^kind: *['\"]?Suffix", re.MULTILINE)
_REPLACING = re.compile(r"^kind: *['\"]?ReplacementTransformer", re.MULTILINE)
_FILES = ("path", "paths", "valuesFile", "additionalValuesFiles", "files")


class Unseen:
    """Of all kustomizations. `texts` are the files by their names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def changes(self, document: Document) -> Iterator[tuple[Path, str]]:
        """What may change GPUs or names of templates: where it is, and how that is said."""
        for name in _CHANGING:
            told = document.obj.get(name)
            for index, one in enumerate(told if isinstance(told, list) else [told] if told else []):
                why = next((why for text in self._texts_of(document, one) if (why := _why(name, text))), None)
                if why is not None:
                    yield (name, index), why

    def _texts_of(self, document: Document, entry: Any) -> Iterator[str]:
        """Of an entry: itself, the file or all files of the folder that it names, and files that these name."""
        folder = PurePosixPath(document.file).parent
        first, values = [_written(entry)], [entry]
        if isinstance(entry, str):
            at = str(resolved(folder / entry)) if "\n" not in entry else ""
            inside = [text for file, text in self._texts.items() if at and file.startswith(f"{at}/")]
            first = [self._texts.get(at, ""), *inside] if at else [entry]
            values = [one for text in first for one in _values(text)]
        yield from first
        for name in _named_files(values):
            yield self._texts.get(str(resolved(folder / name)), "")


def _why(name: str, text: str) -> str | None:
    if speaks_of_gpus(text):
        return "speaks of GPUs"
    if name == "vars" and _OF_PODS.search(text):
        return "may copy what speaks of GPUs"
    if name == "transformers" and _RENAMING.search(text):
        return "renames ResourceClaimTemplates, but not where pods name them"
    return "may copy what speaks of GPUs" if name == "transformers" and _REPLACING.search(text) else None


def brings(document: Document, seen: Callable[[str], bool]) -> Iterator[str]:
    """By what it has objects that are not among the files: fields, URLs, folders."""
    yield from (f"{document.file} {name}" for name in _BRINGING if document.obj.get(name))
    for name in ("resources", "bases", "components"):
        listed = document.obj.get(name)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, str) and not seen(str(resolved(PurePosixPath(document.file).parent / one))):
                yield one


def _written(value: Any) -> str:
    """A map as its lines, as far as a search in them goes."""
    if isinstance(value, dict):
        return "".join(f"{key}: {_written(one)}\n" for key, one in value.items())
    return "".join(map(_written, value)) if isinstance(value, list) else f"{value}"


def _values(text: str) -> list[Any]:
    try:
        return [value_of(one) for one in trees(normalized(text))]
    except NotATree:
        return []


def _named_files(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _named_files(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in _FILES:
                yield from (name for name in (one if isinstance(one, list) else [one]) if isinstance(name, str))
            yield from _named_files(one)
