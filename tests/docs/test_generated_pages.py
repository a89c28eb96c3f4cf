"""What pages have from the code is what it says: settings, attributes, classes, policy, metrics, events and errors."""

import re

import pytest
import yaml
from support.pages import anchors
from support.rows import rows

from docs import generate
from docs.from_code import errors, settings
from docs.from_code.tables import check_names
from dra_driver.errors import DriverError

FAMILIES = (*generate.plugin_families(), *generate.publisher_families(), *generate.controller_families())
PACKAGE = generate.FOLDER.parent / "dra_driver"
TEXTS = {str(path.relative_to(generate.FOLDER.parent)): path.read_text(encoding="utf-8") for path in generate.PAGES}


@rows("name", [name for name, text in TEXTS.items() if generate.parts_in(text)])
def test_the_page_has_what_the_code_says(name: str) -> None:
    assert TEXTS[name] == generate.written(TEXTS[name]), "run `make generate`"


def test_every_part_is_on_one_page_and_every_mark_is_of_a_part() -> None:
    parts = [part for text in TEXTS.values() for part in generate.parts_in(text)]
    assert sorted(parts) == sorted(generate.PARTS)
    marks = [
        name for text in TEXTS.values() for name in re.findall("^<!-- (\\S+): (?:begin|end)\\b", text, re.MULTILINE)
    ]
    assert sorted(marks) == sorted([*parts, *parts])


def test_every_kind_of_error_can_be_reached_by_an_anchor() -> None:
    there = anchors(generate.FOLDER / "troubleshooting.md")
    kinds = [kind.__name__ for kind in errors.kinds()]
    assert len(kinds) > 20 and len(set(kinds)) == len(kinds)
    assert {name for name in kinds if name.lower() not in there} == set()


def test_a_kind_of_error_without_help_is_refused() -> None:
    class Undocumented(DriverError):
        pass

    with pytest.raises(LookupError, match="Undocumented"):
        list(errors._section(Undocumented, ()))


def test_a_name_that_is_not_explained_is_refused_and_so_is_one_that_is_not_there() -> None:
    with pytest.raises(LookupError, match="new"):
        check_names(["old", "new"], ["old"], "attribute")
    with pytest.raises(LookupError, match="old"):
        check_names(["new"], ["old", "new"], "attribute")


def test_no_list_of_attributes_is_forgotten() -> None:
    """Who publishes more attributes makes another list, which docs/attributes.md then has to have."""
    lists = {
        name
        for path in [*(PACKAGE / "slices").glob("*.py"), PACKAGE / "names.py"]
        for name in re.findall(r"^([A-Z]+_ATTRIBUTES) = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert lists == {"GPU_ATTRIBUTES", "MIG_ATTRIBUTES", "VFIO_ATTRIBUTES", "DEVICE_ATTRIBUTES", "CHANNEL_ATTRIBUTES"}


def test_no_family_of_metrics_is_forgotten() -> None:
    families = {
        name
        for package in ("dra_driver", "kubelet_plugin", "controller")
        for path in (PACKAGE.parent / package).rglob("*.py")
        for name in re.findall(r'"((?:gpu|nvidia)_dra_[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(families) > 30
    assert {name.removesuffix("_total") for name in families} - {
        family.name.removesuffix("_total") for family in FAMILIES
    } == set()


def test_every_family_is_looked_at_by_a_test_that_provokes_it() -> None:
    """By its name, where values are compared; what queries and pages name does not count."""
    tests = PACKAGE.parent / "tests"
    texts = [
        path.read_text(encoding="utf-8")
        for path in tests.rglob("test_*.py")
        if path.relative_to(tests).parts[0] not in ("docs", "observability")
    ]
    named = {name for text in texts for name in re.findall(r"(?:gpu|nvidia)_dra_[a-z_]+", text)}
    plain = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in named}
    assert {family.name for family in FAMILIES if family.name.removesuffix("_total") not in plain} == set()


def test_every_setting_is_set_by_a_value_or_known_not_to_be() -> None:
    """The table of values is found in templates: a flag that it does not see would look like one that nobody sets."""
    for parser, template, _ in settings.PROGRAMS.values():
        if template is None:
            continue
        given = set(
            re.findall(r"^ *- .*?--(?:\{\{.*?\}\})?([a-z-]+)", (settings.TEMPLATES / template).read_text(), re.M)
        )
        flags = {setting.flag.removeprefix("--") for setting in parser.declared}
        assert given & flags, f"no flag is seen in {template}"
        assert given & flags <= {
            flag.removeprefix("--") for flag in settings.chart_values(settings.TEMPLATES / template)
        }
    by_value = settings.chart_values(settings.TEMPLATES / "kubelet-plugin.yaml")
    assert by_value["--driver-root"] == "`kubeletPlugin.driverRoot`"
    assert by_value["--policy"] == "*the chart*"


def test_values_that_set_settings_exist() -> None:
    values = yaml.safe_load((settings.TEMPLATES.parent / "values.yaml").read_text())
    templates = [template for _, template, _ in settings.PROGRAMS.values() if template is not None]
    assert templates
    for template in templates:
        for path in settings.chart_values(settings.TEMPLATES / template).values():
            value = values
            for key in path.strip("`").split(".") if path.startswith("`") else ():
                assert key in value, path
                value = value[key]


def test_every_family_has_a_meaning_and_our_prefix_or_that_of_nvidias_driver() -> None:
    for family in FAMILIES:
        assert family.meaning.endswith("."), family
        assert family.name.startswith(("gpu_dra_", "nvidia_dra_")), family
