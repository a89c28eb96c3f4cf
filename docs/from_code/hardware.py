"""For hardware.md: the source of each number of a simulated model, and the list of sources.

The sources are those of the simulation's files (`kubelet_plugin.simulation.profiles`): `sources.yaml` lists them, and a
model's file has a map `sources`, for each source the fields that it confirms; `calculated` is the source of what has
not been published. If several sources confirm a number, it is in the column of the best one: read on hardware, then
NVIDIA's own, then other models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from docs.from_code.tables import check_names, table
from kubelet_plugin.simulation.profiles import (
    MigTable,
    Profile,
    Sources,
    load_mig_table,
    load_profile,
    mig_table_names,
    profile_names,
)

CALCULATED = "calculated"

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


def sources_of(mig: MigTable, profile: str, column: str) -> tuple[str, ...]:
    """Where a number comes from: what is said of this number, else of the listed profile, else of the column."""
    for key in (f"{profile}.{column}", *([profile] if column in _LISTED else []), column):
        if names := confirmed(mig.sources, key):
            return names
        if key in mig.sources.get(CALCULATED, ()):
            return (CALCULATED,)
    return ()


KINDS = {
    "hardware": "Read on hardware by others",
    "nvidia": "From NVIDIA's sources and documents",
    "model": "From other models of it",
    "us": "Calculated",
}

FIELDS = {
    "name": "name", "brand": "brand", "architecture": "architecture", "compute_capability": "compute capability",
    "cores": "cores", "memory_mib": "memory", "pci_device": "PCI device", "pci_subsystem": "PCI subsystem",
    "pci_class": "PCI class", "power_limit_mw": "power limit", "pcie_generation": "PCIe generation",
    "pcie_width": "PCIe width", "addressing_mode": "addressing mode", "ecc": "error correction", "mig": "MIG table",
    "vbios": "firmware", "nvlink": "NVLink", "machine": "machine", "driver": "NVIDIA driver with its CUDA",
    "missing": "functions that the driver lacks", "fabric": "fabric", "addresses": "PCI addresses",
    "roots": "PCIe roots", "numa": "NUMA nodes", "minors": "minor numbers", "modules": "module ids",
}  # fmt: skip
"""Fields of a profile, in the order of the page."""

MIG_COLUMNS = {
    "name": "names", "kind": "NVML's enumeration", "id": "ids", "max": "how many fit", "mib": "memory",
    "sm": "multiprocessors", "engines": "engines", "placements": "placements",
}  # fmt: skip
"""What of a MIG profile has a source: for all profiles, for one (`1g.10gb.mib`), or for all that one line lists."""

type Cell = tuple[str, str, Sequence[str]]
"""A field's name, its MIG profiles unless it is for all, and the names of its sources."""


def models() -> str:
    rows = ([f"`{name}`", item.gpu.name, *_by_kind(_profile_cells(item))] for name, item in _profiles().items())
    return table(["Profile", "GPU", *KINDS.values()], rows)


def mig_tables() -> str:
    """MIG profiles, by the table that a model uses."""
    tables = {name: load_mig_table(name) for name in mig_table_names()}
    rows = ([f"`{name}`", _users(name), *_by_kind(_mig_cells(item))] for name, item in tables.items())
    return table(["Table", "Used by", *KINDS.values()], rows)


def source_list() -> str:
    rows = (
        [f"`{name}`", KINDS[source.by], f"[{source.title}]({source.url})" if source.url else f"{source.title}."]
        for name, source in known_sources().items()
    )
    return table(["Source", "Kind", "What it is"], rows)


def _profiles() -> dict[str, Profile]:
    return {name: load_profile(name) for name in profile_names()}


def _profile_cells(profile: Profile) -> list[Cell]:
    fields = set(sourced_fields(profile))
    check_names(fields | set(FIELDS), FIELDS, "field of a profile")
    return [(word, "", confirmed(profile.sources, field)) for field, word in FIELDS.items() if field in fields]


def _mig_cells(mig: MigTable) -> list[Cell]:
    """One entry if all numbers of a column have the same sources, otherwise one for each group of profiles."""
    cells: list[Cell] = []
    for column in MIG_COLUMNS:
        rows: dict[tuple[str, ...], list[str]] = {}
        for profile in mig.profiles:
            rows.setdefault(sources_of(mig, profile.name, column), []).append(profile.name)
        for sources, names in rows.items():
            of = f" of {', '.join(names)}" if len(rows) > 1 else ""
            cells.append((MIG_COLUMNS[column], of, [name for name in sources if name != CALCULATED]))
    return cells


def _by_kind(cells: Iterable[Cell]) -> list[str]:
    """One cell for each kind of source: the numbers that each source confirms."""
    grouped: dict[str, dict[tuple[tuple[str, ...], str], list[str]]] = {kind: {} for kind in KINDS}
    for word, of, sources in cells:
        kinds = [known_sources()[name].by for name in sources]
        best = next((kind for kind in KINDS if kind in kinds), "us")
        names = tuple(name for name in sources if known_sources()[name].by == best)
        grouped[best].setdefault((names, of), []).append(word)
    return ["; ".join(_group(*key, words) for key, words in groups.items()) for groups in grouped.values()]


def _group(sources: Sequence[str], of: str, words: Sequence[str]) -> str:
    named = ", ".join(f"`{name}`" for name in sources)
    text = ", ".join(words) + of
    return f"{named}: {text}" if named else text


def _users(table_name: str) -> str:
    return ", ".join(f"`{name}`" for name, profile in _profiles().items() if profile.gpu.mig == table_name)
