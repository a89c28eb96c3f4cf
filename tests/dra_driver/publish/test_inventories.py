"""An inventory as the publisher keeps it: bytes, and no trust in what a node wrote."""

from typing import Any

import pytest

from dra_driver.api.inventory import NodeInventoryStatus
from dra_driver.api.meta import JsonObject
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.inventories import kept_inventory


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
    assert kept_inventory(owned(*owners), GPU_DRIVER).owner_uid == "Node/node-1"
    assert kept_inventory(owned(*owners[:2]), GPU_DRIVER).owner_uid is None


@pytest.mark.parametrize("status", [None, {"conditions": 7}, {"conditions": [{"type": 7}]}])
def test_a_status_that_makes_no_sense_is_written_again(status: Any) -> None:
    kept = kept_inventory(stored(status=status), GPU_DRIVER)
    assert kept.status() == NodeInventoryStatus()
