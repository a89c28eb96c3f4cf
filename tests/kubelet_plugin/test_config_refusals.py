"""A claim with a wrong config is refused with the message of the table, and nothing on the node has changed."""

from pathlib import Path

import pytest
from support.claims import FakeFacts, a_claim, a_ref, a_result, node_facts
from support.prepared import Bench, prepare_one
from support.wrong_configs import PLACES, TABLE, configs_of, messages_of

from dra_driver.errors import InvalidConfig


def left_on_the_node(bench: Bench) -> dict[str, bytes]:
    """Every file that the plugin may write, by its path."""
    return {str(path): path.read_bytes() for path in bench.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", PLACES)
async def test_a_wrong_config_is_refused_and_changes_nothing(tmp_path: Path, place: str) -> None:
    """Without effects: whatever reached for the hardware would fail in another way."""
    facts = FakeFacts(node_facts([PLACES[place].gpu]))
    bench = Bench(tmp_path, facts=facts, policy=PLACES[place].policy, effects={})
    rows = [row for row in TABLE if row.get("for", "H100") == place]
    assert rows
    async with bench.plugin() as service:
        before = left_on_the_node(bench)
        for row in rows:
            claim = a_claim(a_ref(), a_result(PLACES[place].device), configs=configs_of(row))

            with pytest.raises(InvalidConfig) as refused:
                await prepare_one(service, bench.api.put(claim))

            assert str(refused.value) == f"claim team-a/train: {'; '.join(messages_of(row))}"
            assert left_on_the_node(bench) == before
            assert service.held == {}
