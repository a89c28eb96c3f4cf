"""Every mistake in a config gives its message: `bad_configs.yaml`, from the allocation to the device.

That nothing on the node changes is shown by `tests/kubelet_plugin/test_config_refusals.py`.
"""

from typing import Any

import pytest
from support.rows import rows
from support.wrong_configs import TABLE, configs_of, messages_of, place_of

from dra_driver.api.inventory import NodeInventorySpec, summary_of
from dra_driver.api.opaque import config_for, listed_configs
from dra_driver.api.resource import AllocatedConfig
from dra_driver.devices.fit import CONFIG_KIND, checked_against
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import InvalidConfig
from dra_driver.names import GPU_DRIVER, RequestName


def offered(row: dict[str, Any]) -> Offer:
    place = place_of(row)
    inventory = NodeInventorySpec(
        node_name="node-a", boot_id="boot", gpus=[place.gpu], summary=summary_of(None, [place.gpu], [])
    )
    return by_name(offers(inventory, place.policy, {}))[place.device]


@rows("row", TABLE)
def test_every_mistake_gives_its_message(row: dict[str, Any]) -> None:
    device = offered(row)
    kind = CONFIG_KIND[device.kind]
    listed = listed_configs([AllocatedConfig.of(config) for config in configs_of(row)], GPU_DRIVER)

    with pytest.raises(InvalidConfig) as refused:
        checked_against(config_for(RequestName("gpu"), listed, kind), [device])

    assert list(refused.value.problems) == messages_of(row)
    assert str(refused.value) == "; ".join(messages_of(row))
    assert refused.value.retry_after_s is None


def test_the_table_is_large_and_no_row_is_there_twice() -> None:
    assert len(TABLE) >= 45
    assert len({str(row) for row in TABLE}) == len(TABLE)
