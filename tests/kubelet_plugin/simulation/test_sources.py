"""Every number of a simulated model names its source, or that it was calculated; a file that does not is refused."""

from importlib.resources import files
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from kubelet_plugin.simulation.profiles import (
    CALCULATED,
    COLUMNS,
    Profile,
    SourcedMigTable,
    known_sources,
    load_mig_table,
    load_profile,
    mig_table_names,
    profile_names,
)


def document(folder: str, name: str) -> dict[str, Any]:
    text = files("kubelet_plugin.simulation").joinpath(folder, f"{name}.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture
def profile() -> dict[str, Any]:
    return document("profiles", "t4")


@pytest.fixture
def table() -> dict[str, Any]:
    return document("mig", "b200")


class TestProfiles:
    def test_a_field_without_a_source_is_refused(self, profile: dict[str, Any]) -> None:
        profile["gpu"]["pcie_width"] = 8
        with pytest.raises(ValidationError, match="pcie_width has no source; write one, or `calculated`"):
            Profile.model_validate(profile)

    def test_a_source_of_a_field_that_is_not_there_is_refused(self, profile: dict[str, Any]) -> None:
        profile["sources"]["calculated"].append("fabric")
        with pytest.raises(ValidationError, match="there is no field fabric in this file"):
            Profile.model_validate(profile)

    def test_a_source_that_is_not_listed_is_refused(self, profile: dict[str, Any]) -> None:
        profile["sources"]["hearsay"] = ["name"]
        with pytest.raises(ValidationError, match=r"there is no source hearsay in sources\.yaml"):
            Profile.model_validate(profile)

    def test_what_is_calculated_has_no_other_source(self, profile: dict[str, Any]) -> None:
        profile["sources"]["calculated"].append("vbios")
        with pytest.raises(ValidationError, match="vbios is calculated and has a source, too"):
            Profile.model_validate(profile)

    def test_a_profile_without_sources_is_refused(self, profile: dict[str, Any]) -> None:
        del profile["sources"]
        with pytest.raises(ValidationError, match="sources"):
            Profile.model_validate(profile)


class TestMigTables:
    def test_a_column_without_a_source_is_refused(self, table: dict[str, Any]) -> None:
        table["sources"]["calculated"].remove("placements")
        with pytest.raises(ValidationError, match=r"1g\.23gb\.placements.* have no source"):
            SourcedMigTable.model_validate(table)

    def test_the_nearest_source_counts(self, table: dict[str, Any]) -> None:
        mig = SourcedMigTable.model_validate(table)
        assert mig.sources_of("1g.45gb", "mib") == ("mig-parted-187",)
        assert mig.sources_of("3g.90gb", "mib") == (CALCULATED,)
        assert mig.sources_of("1g.45gb", "placements") == (CALCULATED,)
        table["sources"]["calculated"].append("1g.45gb.mib")
        assert SourcedMigTable.model_validate(table).sources_of("1g.45gb", "mib") == (CALCULATED,)

    def test_a_source_of_a_profile_that_is_not_there_is_refused(self, table: dict[str, Any]) -> None:
        table["sources"]["calculated"].append("2g.90gb")
        with pytest.raises(ValidationError, match=r"there is no field 2g\.90gb"):
            SourcedMigTable.model_validate(table)


def test_every_source_is_used() -> None:
    used = {name for profile in profile_names() for name in load_profile(profile).sources}
    for name in mig_table_names():
        mig = load_mig_table(name)
        used |= {source for one in mig.profiles for column in COLUMNS for source in mig.sources_of(one.name, column)}
    assert used == set(known_sources())


@pytest.mark.parametrize("folder", ["profiles", "mig"])
def test_no_file_has_a_key_twice(folder: str) -> None:
    """YAML lets the last one win, and a list of fields would be lost."""
    for entry in files("kubelet_plugin.simulation").joinpath(folder).iterdir():
        keys = [line.partition(":")[0] for line in entry.read_text(encoding="utf-8").splitlines() if "[" in line]
        named = [key for key in keys if key.startswith("  ") and not key.startswith("  -")]
        assert len(named) == len(set(named)), entry.name
