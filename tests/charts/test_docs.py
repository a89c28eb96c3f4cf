"""Values that docs/install.md recommends are what the chart takes; tests/docs runs the commands of all pages."""

import json
import re
from typing import Any

import jsonschema
import yaml
from support.helm import CHART

ROOT = CHART.parents[1]


def test_values_that_the_table_names_exist() -> None:
    table = (ROOT / "docs" / "install.md").read_text().partition("## Chart values")[2].partition("\n## ")[0]
    named = re.findall(r"^\| [^|]* \| `([^`]*)`", table, re.M)
    assert len(named) > 8
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    for text in named:
        path, _, value = text.partition(":")
        nested = defaults
        for key in path.split("."):
            assert key in nested, text
            nested = nested[key]
        if value.strip():
            given: Any = yaml.safe_load(value)
            for key in reversed(path.split(".")):
                given = {key: given}
            jsonschema.validate(given, schema)
