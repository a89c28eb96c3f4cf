"""Which of several sources says what resources mean, for a cluster has one answer. Pure.

What was given for that alone (`--with`, `--cluster`) goes before what was found among the files that are migrated. What
lies among examples and tests of a repository says nothing of a cluster, unless all that was given lies there. Of
sources that speak of the same thing in different ways the last counts, and a person is told.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from dra_driver.api.documents import Document
from dra_driver.migration.codes import NOT_TAKEN
from dra_driver.migration.model import MigrationFinding, Path, finding, title_of
from dra_driver.migration.understand.plugin_config import PluginConfig
from dra_driver.phrases import and_more

_ASIDE = frozenset(
    {
        "test", "tests", "testing", "testdata", "e2e", "fixture", "fixtures", "mock", "mocks",
        "example", "examples", "sample", "samples", "demo", "demos", "doc", "docs",
        "hack", "vendor", "third_party",
    }
)  # fmt: skip
"""Folders of a repository, in lower case, for what is not of its cluster."""
_FEW = 3


@dataclass(frozen=True, slots=True)
class Given[T]:
    """What a document says."""

    document: Document
    says: T
    at: Path = ()


def among_examples(documents: Sequence[Document], told: Collection[Document]) -> frozenset[Document]:
    """Those in folders of examples and tests, below what all files have in common."""
    results = [document for document in documents if document not in told]
    folders = {document.file: PurePath(document.file).parts[:-1] for document in results}
    common = _common(list(folders.values()))
    return frozenset(
        document for document in results if _ASIDE & {part.lower() for part in folders[document.file][common:]}
    )


def _common(folders: Sequence[tuple[str, ...]]) -> int:
    """How many parts of these are alike, from the first on."""
    columns = list(zip(*folders, strict=False))
    return next((index for index, column in enumerate(columns) if len(set(column)) > 1), len(columns))


def passed_over(document: Document) -> MigrationFinding:
    """Of a document among examples."""
    message = f"{place(document)} lies among examples or tests, so what it says of GPUs is not taken for the cluster's"
    return finding(NOT_TAKEN, document, (), message)


def settled[T](
    what: str, given: Sequence[Given[T]], documents: Collection[Document]
) -> tuple[Given[T] | None, tuple[MigrationFinding, ...]]:
    """The one that counts; None where there is none. `what` they are about, at the beginning of a sentence."""
    taken = _told(given, documents)
    if not taken:
        return None, ()
    last = taken[-1]
    return last, tuple(_others(what, last, [item for item in given if item.says != last.says]))


def configs_in_force(
    given: Sequence[Given[PluginConfig]], operator: tuple[str, str | None] | None, documents: Collection[Document]
) -> tuple[dict[str, Given[PluginConfig]], str | None, tuple[MigrationFinding, ...]]:
    """By name, and the name of the one for nodes that name none. Of several ConfigMaps, the one that the operator or
    Helm names; where nobody names one, all, as long as they do not say of one name what others do not."""
    default = None
    if operator is not None:
        where, default = operator
        given = [item for item in given if (item.document.name or item.document.file) == where] or given
    taken = _told(given, documents)
    named: dict[str, Given[PluginConfig]] = {item.says.name: item for item in taken}
    findings = [
        finding
        for name, last in named.items()
        for finding in _others(
            _title(name),
            last,
            [item for item in given if item.says.name == name and _meant(item.says) != _meant(last.says)],
        )
    ]
    findings += [
        finding
        for item in given
        if item not in taken and item.says.name not in named
        for finding in _others(_title(item.says.name), taken[-1], [item])
    ]
    if default not in named:
        default = "default" if "default" in named else next(iter(named)) if len(named) == 1 else default
    return named, default, tuple(findings)


def _title(name: str) -> str:
    return f"configuration {name}" if name else "the device plugin's configuration"


def _told[T](given: Sequence[Given[T]], documents: Collection[Document]) -> Sequence[Given[T]]:
    return [item for item in given if item.document in documents] or given


def _meant(config: PluginConfig) -> tuple[object, ...]:
    return config.mig_strategy, config.sharing or {}, config.driver_root


def _others[T](what: str, last: Given[T], others: Sequence[Given[T]]) -> Iterator[MigrationFinding]:
    if others:
        places = list(dict.fromkeys(place(given.document) for given in others))
        say = "says" if len(places) == 1 else "say"
        message = f"{what} is taken from {place(last.document)}; {and_more(places, _FEW)} {say} otherwise"
        yield finding(NOT_TAKEN, last.document, last.at, message)


def place(document: Document) -> str:
    """For sentences: `ConfigMap gpu/device-plugin in plugin.yaml:12`."""
    where = f"{document.file}:{document.place('')[0]}"
    return f"{title_of(document)} in {where}" if document.kind else document.file
