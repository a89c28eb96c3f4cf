"""Which of several sources says what resources mean, because a cluster has one answer. Pure.

What was given only for that (`--with`, `--cluster`) goes before what is among the files that are migrated. If several
sources define the same thing differently, the last one counts, and a finding names the others.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.api.documents import Document
from dra_driver.api.untyped import Path, map_in
from dra_driver.grouping import grouped
from dra_driver.migration import codes
from dra_driver.migration.model import MigrationFinding, Options, finding, title_of
from dra_driver.migration.understand.labels import restored_profile
from dra_driver.migration.understand.plugin_config import PluginConfig
from dra_driver.phrases import and_more

_FEW = 3


@dataclass(frozen=True, slots=True)
class Given[T]:
    """What a document says."""

    document: Document
    says: T
    at: Path = ()


def settled[T](
    what: str, given: Sequence[Given[T]], documents: Collection[Document], findings: list[MigrationFinding]
) -> Given[T] | None:
    """The one that counts; None where there is none. `what` they are about, at the beginning of a sentence; `findings`
    get one that names the others."""
    taken = _preferred(given, documents)
    if not taken:
        return None
    last = taken[-1]
    findings += _others(what, last, [item for item in given if item.says != last.says])
    return last


def configs_in_force(
    given: Sequence[Given[PluginConfig]],
    operator: tuple[str, str | None] | None,
    documents: Collection[Document],
    findings: list[MigrationFinding],
) -> tuple[dict[str, Given[PluginConfig]], str | None]:
    """By name, and the name of the one for nodes that name none. Of several ConfigMaps, the one that the operator or
    Helm names; if neither names one, all of them. Of configurations with one name the last one counts."""
    default = None
    if operator is not None:
        where, default = operator
        given = [item for item in given if (item.document.name or item.document.file) == where] or given
    taken = _preferred(given, documents)
    named: dict[str, Given[PluginConfig]] = {item.says.name: item for item in taken}
    for name, last in named.items():
        alike = (item for item in given if item.says.name == name)
        findings += _others(_title(name), last, [item for item in alike if _meant(item.says) != _meant(last.says)])
    for item in given:
        if item not in taken and item.says.name not in named:
            findings += _others(_title(item.says.name), taken[-1], [item])
    if default not in named:
        default = "default" if "default" in named else next(iter(named)) if len(named) == 1 else default
    return named, default


def _title(name: str) -> str:
    return f"configuration {name}" if name else "the device plugin's configuration"


def _preferred[T](given: Sequence[Given[T]], documents: Collection[Document]) -> Sequence[Given[T]]:
    return [item for item in given if item.document in documents] or given


def _meant(config: PluginConfig) -> tuple[object, ...]:
    return config.mig_strategy, config.sharing or {}, config.driver_root


def _others[T](what: str, last: Given[T], others: Sequence[Given[T]]) -> Iterator[MigrationFinding]:
    if others:
        places = list(dict.fromkeys(place(given.document) for given in others))
        say = "says" if len(places) == 1 else "say"
        message = f"{what} is taken from {place(last.document)}; {and_more(places, _FEW)} {say} otherwise"
        yield finding(codes.NOT_TAKEN, last.document, last.at, message)


def place(document: Document) -> str:
    """For sentences: `ConfigMap gpu/device-plugin in plugin.yaml:12`."""
    where = f"{document.file}:{document.place('')[0]}"
    return f"{title_of(document)} in {where}" if document.kind else document.file


@dataclass(frozen=True, slots=True)
class MigLayout:
    """A named layout of mig-parted: MIG devices by profile on each kind of GPU."""

    name: str
    profiles: tuple[str, ...]
    """Sorted."""
    everywhere: bool = True
    """Whether no GPU stays whole."""


def layouts_in_force(
    given: Sequence[Given[MigLayout]], documents: Collection[Document], findings: list[MigrationFinding]
) -> tuple[MigLayout, ...]:
    """By name, sorted. If several with one name differ, the last one counts, and a finding names the others."""
    taken: list[MigLayout] = []
    for name, alike in sorted(grouped(given, lambda item: item.says.name).items()):
        last = settled(f"layout {name}", alike, documents, findings)
        if last is not None:
            taken.append(last.says)
            if last.says.profiles:
                message = f"layout {name} has MIG devices: {', '.join(last.says.profiles)}"
                findings.append(finding(codes.MIG_LAYOUT, last.document, last.at, message))
    return tuple(taken)


def uniform_profile(name: str, layouts: Sequence[MigLayout]) -> str | None:
    """Of all MIG devices of a node with this layout; None where they differ, or it is not known.

    Layouts that were not given are known by the names that mig-parted's own have: `all-1g.10gb`.
    """
    layout = next((mig_layout for mig_layout in layouts if mig_layout.name == name), None)
    if layout is not None:
        return layout.profiles[0] if layout.everywhere and len(layout.profiles) == 1 else None
    usual = re.fullmatch(r"all-(.+)", name)
    return restored_profile(usual[1]) if usual else None


def by_default_layout(usual: Given[str], profile: str) -> MigrationFinding:
    """What nodes were taken for of which nothing else is known."""
    message = (
        f"nodes are assumed to have the layout {usual.says}, so nvidia.com/gpu is {profile}; nodes with another value "
        "of the label nvidia.com/mig.config may differ"
    )
    advice = "Give the nodes (`--cluster`, or the output of `kubectl get nodes -o yaml` with `--with`)."
    return finding(codes.MIG_LAYOUT, usual.document, usual.at, message, advice=advice)


def is_assumed_whole(
    strategy: Given[str], usual: Given[str] | None, layouts: Sequence[MigLayout], options: Options
) -> bool:
    """Whether GPUs count as whole although the GPU Operator has the MIG strategy `single`: that is its default, and on
    nodes without MIG devices it offers whole GPUs. Other settings, and layouts, say it on purpose."""
    decided = options.mig_strategy or options.mig_profile
    if strategy.says != "single" or "migStrategy" in strategy.document.obj or decided:
        return False
    if usual is None:
        return not any(layout.profiles for layout in layouts)
    known = next((layout for layout in layouts if layout.name == usual.says), None)
    return not known.profiles if known is not None else usual.says == "all-disabled"


def assumed_whole(strategy: Given[str], usual: Given[str] | None) -> MigrationFinding:
    if usual is not None:
        because = f"nodes are assumed to have the layout {usual.says}"
    else:
        because = "the MIG strategy single is the GPU Operator's default, and no input mentions MIG devices"
    message = f"{because}, so nvidia.com/gpu is assumed to be a whole GPU"
    advice = "If it is not, give the nodes (`--cluster`, or `kubectl get nodes -o yaml` with `--with`), or decide "
    return finding(
        codes.MEANING_UNKNOWN, strategy.document, strategy.at, message, advice=f"{advice}`migProfile: 1g.10gb`."
    )


def layout_of(name: str, entries: object) -> MigLayout | None:
    """None: it is no list of what becomes of GPUs."""
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        return None
    profiles: set[str] = set()
    for entry in entries:
        profiles |= set(map(str, map_in(entry.get("mig-devices"))))
    everywhere = all(bool(entry.get("mig-enabled")) for entry in entries)
    return MigLayout(name, tuple(sorted(profiles)), everywhere)
