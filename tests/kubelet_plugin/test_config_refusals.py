"""A claim with a wrong config is refused with the message of the table, and nothing on the node has changed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.claims import a_claim, a_config, a_ref, a_result
from support.prepared import Bench, prepare_one

from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION

TABLE = Path(__file__).parents[1] / "dra_driver" / "api" / "bad_configs.yaml"
ROWS: list[dict[str, Any]] = [
    row
    for row in yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    if row["says"][0].startswith("{") and "for" not in row
]
"""Those about a full GPU, whatever GPU it is."""


def configs(row: dict[str, Any]) -> list[Any]:
    header = {} if row.get("bare") else {"apiVersion": CONFIG_API_VERSION}
    of_class = [a_config(header | one, "gpu", source="FromClass") for one in row.get("class", ())]
    named = ["gpu"] if row.get("names") else []
    return of_class + [a_config(header | one, *named) for one in row.get("claim", ())]


def placed(text: str) -> str:
    return re.sub(r"\{(\d)\}", r"status.allocation.devices.config[\1].opaque.parameters", text)


def left_on_the_node(bench: Bench) -> dict[str, bytes]:
    """Every file that the plugin may write, by its path."""
    return {str(path): path.read_bytes() for path in bench.root.rglob("*") if path.is_file()}


async def test_a_wrong_config_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    async with bench.plugin() as service:
        before = left_on_the_node(bench)
        for row in ROWS:
            ref = bench.api.put(a_claim(a_ref(), a_result(0, "gpu"), configs=configs(row)))

            with pytest.raises(InvalidConfig) as refused:
                await prepare_one(service, ref)

            assert str(refused.value) == f"claim team-a/train: {'; '.join(placed(text) for text in row['says'])}"
            assert left_on_the_node(bench) == before
            assert service.held == {}
