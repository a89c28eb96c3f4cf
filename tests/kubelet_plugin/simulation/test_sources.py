"""Every number of a simulated model names its source, or that it was calculated."""

from collections.abc import Collection, Iterable, Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

from docs.from_code.hardware import CALCULATED, MIG_COLUMNS, confirmed, known_sources, sourced_fields, sources_of
from kubelet_plugin.simulation.profiles import (
    MigTable,
    Profile,
    Sources,
    load_mig_table,
    load_profile,
    mig_table_names,
    profile_names,
)


def document(folder: str, name: str) -> dict[str, Any]:
    text = files("kubelet_plugin.simulation").joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def problems_of_profile(profile: Profile) -> list[str]:
    return list(_problems(profile.sources, sourced_fields(profile)))


def problems_of_table(table: MigTable) -> list[str]:
    rows = [profile.name for profile in table.profiles]
    cells = [f"{row}.{column}" for row in rows for column in MIG_COLUMNS]
    missing = [cell for cell in cells if not sources_of(table, *cell.rsplit(".", 1))]
    return [
        *_problems(table.sources, (), {*rows, *MIG_COLUMNS, *cells}),
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


def test_every_number_has_a_source_and_every_source_is_used() -> None:
    problems = {name: problems_of_profile(load_profile(name)) for name in profile_names()}
    problems |= {name: problems_of_table(load_mig_table(name)) for name in mig_table_names()}
    assert {name: mistakes for name, mistakes in problems.items() if mistakes} == {}
    used = {name for profile in profile_names() for name in load_profile(profile).sources}
    for name in mig_table_names():
        mig = load_mig_table(name)
        used |= {
            source
            for profile in mig.profiles
            for column in MIG_COLUMNS
            for source in sources_of(mig, profile.name, column)
        }
    assert used == set(known_sources())


def test_mistakes_in_a_profile_are_found() -> None:
    profile = document("profiles", "t4")
    profile["gpu"]["pcie_width"] = 8
    profile["sources"]["calculated"] += ["fabric", "vbios"]
    profile["sources"]["hearsay"] = ["name"]
    assert problems_of_profile(Profile.model_validate(profile)) == [
        "there is no source hearsay in sources.yaml",
        "there is no field fabric in this file",
        "pcie_width has no source; write one, or `calculated`",
        "vbios is calculated and has a source, too; remove one of them",
    ]


def test_the_nearest_source_of_a_mig_profile_counts() -> None:
    table = document("mig", "b200")
    mig = MigTable.model_validate(table)
    assert sources_of(mig, "1g.45gb", "mib") == ("mig-parted-187",)
    assert sources_of(mig, "3g.90gb", "mib") == (CALCULATED,)
    assert sources_of(mig, "1g.45gb", "placements") == (CALCULATED,)
    table["sources"]["calculated"].remove("placements")
    table["sources"]["calculated"] += ["1g.45gb.mib", "2g.90gb"]
    mig = MigTable.model_validate(table)
    assert sources_of(mig, "1g.45gb", "mib") == (CALCULATED,)
    problems = problems_of_table(mig)
    assert problems[0] == "there is no field 2g.90gb in this file"
    assert "1g.23gb.placements has no source; write one, or `calculated`" in problems


@pytest.mark.parametrize("folder", ["profiles", "mig"])
def test_no_file_has_a_key_twice(folder: str) -> None:
    """YAML lets the last one win, and a list of fields would be lost."""
    for entry in files("kubelet_plugin.simulation").joinpath(folder).iterdir():
        keys = [line.partition(":")[0] for line in entry.read_text(encoding="utf-8").splitlines() if "[" in line]
        named = [key for key in keys if key.startswith("  ") and not key.startswith("  -")]
        assert len(named) == len(set(named)), entry.name
