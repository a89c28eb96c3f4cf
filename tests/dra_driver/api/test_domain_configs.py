"""Configs of channels and daemons of a ComputeDomain."""

from typing import Any

import pytest
from support.configs import decode_config, encode_config

from dra_driver.api.config import ComputeDomainChannelConfig, ComputeDomainDaemonConfig, domain_of
from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION

UID = "7c0df1c2-0000-4000-8000-000000000001"


def parameters(kind: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": CONFIG_API_VERSION, "kind": kind, **fields}


def test_a_channel_has_a_domain_and_one_channel_unless_all_are_asked_for() -> None:
    channel = parameters("ComputeDomainChannelConfig", domainID=UID)
    assert decode_config(channel, ComputeDomainChannelConfig, field="f") == ComputeDomainChannelConfig(UID, "Single")
    every = {**channel, "allocationMode": "All"}
    config = decode_config(every, ComputeDomainChannelConfig, field="f")
    assert config == ComputeDomainChannelConfig(UID, "All")
    assert encode_config(config) == every


def test_a_daemon_has_a_domain() -> None:
    config = decode_config(parameters("ComputeDomainDaemonConfig", domainID=UID), ComputeDomainDaemonConfig, field="f")
    assert domain_of(config, field="f") == UID


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"domainID": ""}, "f.domainID: is ''; must be the UID of an object"),
        ({"domainID": 7}, "f.domainID: is 7; must be the UID of an object"),
        ({"domainId": UID}, "f.domainId: is no such field"),
        ({"domainID": UID, "allocationMode": "Every"}, "f.allocationMode: is 'Every'; must be one of `Single`, `All`"),
    ],
)
def test_what_is_wrong_is_said(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        decode_config(parameters("ComputeDomainChannelConfig", **fields), ComputeDomainChannelConfig, field="f")
    assert says.split(";")[0].split("is no")[0] in str(caught.value)


def test_a_domain_that_nobody_wrote_is_asked_for() -> None:
    with pytest.raises(InvalidConfig) as caught:
        domain_of(ComputeDomainChannelConfig(), field="f")
    assert str(caught.value) == "f.domainID: is missing; must be the UID of a ComputeDomain"
