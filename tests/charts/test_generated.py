"""What the chart has from elsewhere is what is there now."""

import json
from pathlib import Path

import yaml

from charts import generate

CHART = Path(__file__).parents[2] / "charts" / "gpu-dra-driver"


def test_committed_files_are_those_that_make_generate_writes() -> None:
    generated = generate.generated()
    stale = [path for path, text in generated.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make generate`"
    there = {path for folder in generate.COPIES for path in (CHART / "files" / folder).iterdir()}
    assert there <= generated.keys(), "nothing else lies among the copies"


def test_every_value_is_documented() -> None:
    values = generate.read_values((CHART / "values.yaml").read_text())
    leaves = [leaf for value in values for leaf in value.leaves()]
    assert not [".".join(leaf.path) for leaf in leaves if not leaf.text]


def test_every_value_of_the_file_is_known_to_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema["properties"].keys() - {"global"} == values.keys()
