"""The sources of the numbers of simulated models: which numbers need one, and what is wrong with a file's `sources`.

`sources.yaml` beside the models lists all sources. A model's file has a map `sources`: for each source, the fields that
it confirms; `calculated` is the source of what has not been published.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from kubelet_plugin.simulation.profiles import MigTable, Profile, Sources

CALCULATED = "calculated"

COLUMNS = ("name", "kind", "id", "max", "mib", "sm", "engines", "placements")
"""What of a MIG profile has a source: for all profiles, for one (`1g.10gb.mib`), or for all that one line lists."""
_LISTED = frozenset({"name", "id", "max", "mib", "sm", "engines"})
"""Of these `nvidia-smi mig -lgip` has a line for each profile: its name is the key of them."""


@dataclass(frozen=True, slots=True)
class Source:
    """`by`: `hardware`, read on hardware by others; `nvidia`; `model`, another model of the hardware; or only `us`."""

    by: str
    title: str
    url: str | None = None


@cache
def known_sources() -> Mapping[str, Source]:
    """The sources of `sources.yaml` by name, in the order of the file."""
    text = files("kubelet_plugin.simulation").joinpath("sources.yaml").read_text(encoding="utf-8")
    return {name: Source(**source) for name, source in yaml.safe_load(text).items()}


def confirmed(sources: Sources, field: str) -> tuple[str, ...]:
    """The names of the sources of a field; empty when it has none, or is calculated."""
    return tuple(name for name, fields in sources.items() if field in fields and name != CALCULATED)


def sourced_fields(profile: Profile) -> tuple[str, ...]:
    """What needs a source: fields of the GPU, and those of the node, each for all GPUs together."""
    node = {
        "machine": profile.machine != "x86_64",
        "driver": True,
        "missing": bool(profile.driver.missing),
        "fabric": profile.fabric is not None,
        "addresses": True,
        "roots": True,
        "numa": True,
        "minors": True,
        "modules": any(place.module is not None for place in profile.gpus),
    }
    return (*profile.gpu.model_fields_set, *(name for name, is_set in node.items() if is_set))


def sources_of(table: MigTable, profile: str, column: str) -> tuple[str, ...]:
    """Where a number comes from: what is said of this number, else of the listed profile, else of the column."""
    for key in (f"{profile}.{column}", *([profile] if column in _LISTED else []), column):
        if names := confirmed(table.sources, key):
            return names
        if key in table.sources.get(CALCULATED, ()):
            return (CALCULATED,)
    return ()


def problems_of_profile(profile: Profile) -> list[str]:
    return list(_problems(profile.sources, sourced_fields(profile)))


def problems_of_table(table: MigTable) -> list[str]:
    rows = [profile.name for profile in table.profiles]
    cells = [f"{row}.{column}" for row in rows for column in COLUMNS]
    missing = [cell for cell in cells if not sources_of(table, *cell.rsplit(".", 1))]
    return [
        *_problems(table.sources, (), {*rows, *COLUMNS, *cells}),
        *(f"{cell} has no source; write one, or `calculated`" for cell in missing),
    ]


def _problems(sources: Sources, fields: Iterable[str], more: Collection[str] = ()) -> Iterator[str]:
    """Each of `fields` needs a source; `more` may have one."""
    wanted = set(fields)
    named = {field for names in sources.values() for field in names}
    yield from (f"there is no source {name} in sources.yaml" for name in sorted(set(sources) - set(known_sources())))
    yield from (f"there is no field {field} in this file" for field in sorted(named - wanted - set(more)))
    yield from (f"{field} has no source; write one, or `calculated`" for field in sorted(wanted - named))
    for field in sorted(set(sources.get(CALCULATED, ()))):
        if confirmed(sources, field):
            yield f"{field} is calculated and has a source, too; remove one of them"
