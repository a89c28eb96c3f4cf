"""What the documentation tells people to give to Helm is what the chart takes."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart_values import Values, merged
from support.helm import CHART

ROOT = CHART.parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "install.md", CHART / "README.md")

type Render = Any


def commands(page: Path) -> list[list[str]]:
    """Of every block, joined where a line goes on."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```$", page.read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("helm ", "kubectl ", "docker "))]


HELM = [(page.name, words) for page in PAGES for words in commands(page) if words[0] == "helm"]


def values_of(words: list[str]) -> Values:
    values: Values = {}
    for flag, setting in itertools.pairwise(words):
        if flag == "--set":
            path, _, value = setting.partition("=")
            one: Any = yaml.safe_load(value or '""')
            for key in reversed(re.split(r"(?<!\\)\.", path)):
                one = {key.replace("\\.", "."): one}
            values = merged(values, one)
    return values


@pytest.mark.parametrize(("page", "words"), HELM, ids=lambda one: one if isinstance(one, str) else " ".join(one[:2]))
def test_the_chart_takes_what_the_page_gives(page: str, words: list[str], render: Render) -> None:
    if words[1] in ("install", "upgrade"):
        assert words[2:4] == ["gpu-dra-driver", "charts/gpu-dra-driver"]
        assert render(values_of(words)).objects
    else:
        assert words[1] in ("test", "rollback", "uninstall") and words[2] == "gpu-dra-driver"
    assert words[words.index("--namespace") + 1] == "gpu-dra"


def test_values_that_the_table_names_exist(render: Render) -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("## Choose")[2].partition("\n## ")[0]
    named = re.findall(r"^\| [^|]* \| `([^`]*)`", table, re.M)
    assert len(named) > 8
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for text in named:
        path, _, value = text.partition(":")
        found = defaults
        for key in path.split("."):
            assert key in found, text
            found = found[key]
        if value.strip():
            one: Any = yaml.safe_load(value)
            for key in reversed(path.split(".")):
                one = {key: one}
            assert render(one).objects


def test_files_that_pages_name_are_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)
