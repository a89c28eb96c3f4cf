"""For hardware.md: the source of each number of a simulated model, and the list of sources.

The sources are those of the simulation's files (`kubelet_plugin.simulation.profiles`). If several sources confirm a
number, it is in the column of the best one: read on hardware, then NVIDIA's own, then other models.
"""

from collections.abc import Iterable, Sequence

from docs.from_code.sources import CALCULATED, COLUMNS, confirmed, known_sources, sourced_fields, sources_of
from docs.from_code.tables import check_names, table
from kubelet_plugin.simulation.profiles import (
    MigTable,
    Profile,
    load_mig_table,
    load_profile,
    mig_table_names,
    profile_names,
)

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
    for column in COLUMNS:
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
