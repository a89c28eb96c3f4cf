"""An inventory as the publisher keeps it: bytes, and no trust in what a node wrote."""

from typing import Any

import pytest

from dra_driver.api.inventory import NodeInventoryStatus
from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.publish.inventories import MOST_READ_BYTES, KeptInventory, kept_inventory


def stored(**parts: Any) -> JsonObject:
    return {"metadata": {"name": "node-1", "uid": "u", "resourceVersion": "1"}, **parts}


def owned(*owners: tuple[str, str]) -> JsonObject:
    obj = stored()
    obj["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": kind, "name": name, "uid": f"{kind}/{name}"} for kind, name in owners
    ]
    return obj


def test_its_owner_is_the_node_of_its_name() -> None:
    owners = ("Node", "node-2"), ("Pod", "node-1"), ("Node", "node-1")
    assert kept_inventory(owned(*owners)).owner_uid == "Node/node-1"
    assert kept_inventory(owned(*owners[:2])).owner_uid is None


@pytest.mark.parametrize("status", [None, {"conditions": 7}, {"conditions": [{"type": 7}]}])
def test_a_status_that_makes_no_sense_is_written_again(status: Any) -> None:
    stored_inventory = kept_inventory(stored(status=status))
    assert stored_inventory.status() == NodeInventoryStatus()


def test_its_registration_is_that_of_this_driver_and_a_time() -> None:
    other = {"driver": COMPUTE_DOMAIN_DRIVER, "time": "2026-01-01T00:00:00Z"}
    own = {"driver": GPU_DRIVER, "time": "2026-02-02T00:00:00Z"}

    def registration(*entries: Any) -> str | None:
        return kept_inventory(stored(spec={"registrations": list(entries)})).registrations.get(GPU_DRIVER)

    assert registration(other, own) == "2026-02-02T00:00:00Z"
    assert registration(other) is None
    assert registration(7, {**own, "time": 7}) is None


def test_an_inventory_of_the_largest_size_that_is_read_is_packed_and_a_larger_one_is_not() -> None:
    def of_size(size: int) -> KeptInventory:
        return kept_inventory(stored(spec="x" * (size - len('""'))))

    largest, larger = of_size(MOST_READ_BYTES), of_size(MOST_READ_BYTES + 1)
    assert (largest.size, bool(largest.packed)) == (MOST_READ_BYTES, True)
    assert larger.packed == b""
    with pytest.raises(InvalidInput, match="at most"):
        larger.facts()
    with pytest.raises(InvalidInput) as error:
        largest.facts()
    assert "at most" not in str(error.value)
