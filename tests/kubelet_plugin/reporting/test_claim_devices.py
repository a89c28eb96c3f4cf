"""Which entries of `status.devices` are this driver's to write, and which stay as they are."""

from typing import Any

import pytest

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import Unreachable
from dra_driver.kube.envelope import enveloped, opened
from dra_driver.simulation.apiserver.protobuf import decode, encode
from kubelet_plugin.reporting import claim_devices
from kubelet_plugin.reporting.claim_devices import Entries, entries_of, key_of

OURS, NIC = "gpu.nvidia.com", "nic.example.com"
_IN_FRONT = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


def entry(device: Any, driver: str = OURS, **more: Any) -> JsonObject:
    return {"driver": driver, "pool": "node-a", "device": device, **more}


def claim(*entries: JsonObject) -> JsonObject:
    return {"metadata": {"uid": "u"}, "status": {"reservedFor": [{"uid": "p"}], "devices": list(entries)}}


def with_entries(there: JsonObject, driver: str, entries: Entries, keys: list[Any] | tuple[()]) -> Any:
    """In JSON: `status.devices` afterwards, None when nothing is to be written. Nothing else of the claim changes."""
    written = claim_devices.with_entries(_message(there), driver, entries, keys)
    if written is None:
        return None
    after = decode(_enveloped(written))
    devices = after.get("status", {}).pop("devices", [])
    rest = {**_IN_FRONT, **there, "status": {k: v for k, v in there.get("status", {}).items() if k != "devices"}}
    assert after == rest
    return devices


def _message(claim: JsonObject) -> bytes:
    return opened(encode({**_IN_FRONT, **claim}) or b"")


def _enveloped(message: bytes) -> bytes:
    return enveloped(RESOURCE_CLAIMS, message)


def test_a_first_entry_stands_behind_those_of_others() -> None:
    assert with_entries(claim(entry("nic", NIC)), OURS, (entry("a"),), ()) == [entry("nic", NIC), entry("a")]
    assert with_entries({"metadata": {}}, OURS, (entry("a"),), ()) == [entry("a")]


def test_what_is_so_already_is_not_written_whatever_others_said_and_in_which_order() -> None:
    there = claim(entry("b"), entry("nic", NIC), entry("a"))
    assert with_entries(there, OURS, (entry("a"), entry("b")), ()) is None
    assert with_entries(claim(entry("nic", NIC)), OURS, (), [key_of(entry("a"))]) is None


def test_what_was_said_before_and_is_not_said_any_more_goes() -> None:
    there = claim(entry("a"), entry("nic", NIC), entry("b", data={"x": "1"}))
    keys = [key_of(entry("a")), key_of(entry("b"))]
    assert with_entries(there, OURS, (entry("b"),), keys) == [entry("nic", NIC), entry("b")]
    assert with_entries(claim(entry("a")), OURS, (), keys) == []


def test_an_entry_that_was_never_said_here_is_of_the_allocation_that_followed() -> None:
    elsewhere = {**entry("a"), "pool": "node-b"}
    assert with_entries(claim(elsewhere), OURS, (), [key_of(entry("a"))]) is None


def test_shares_of_a_device_are_told_apart() -> None:
    first, second = entry("a", shareID="1"), entry("a", shareID="2")
    assert with_entries(claim(first, second), OURS, (), [key_of(first)]) == [second]
    assert entries_of(claim(second, first, entry("nic", NIC)), OURS) == (first, second)


@pytest.mark.parametrize(
    "devices",
    [5, "x", {"a": 1}, [1], [None], [{}], [{"driver": OURS}], [entry("a", conditions=5)], [entry("a", conditions=[1])],
     [entry("a"), entry(5)]],
)  # fmt: skip
def test_what_no_api_server_has_in_the_status_is_tried_again(devices: Any) -> None:
    with pytest.raises(Unreachable, match=r"status\.devices"):
        entries_of({"metadata": {"uid": "u"}, "status": {"devices": devices}}, OURS)


def test_what_another_release_of_kubernetes_adds_to_an_entry_of_others_stays() -> None:
    """Field 15 of an entry, and field 9 of the status."""
    added = b"\x7a\x03new"
    foreign = b"\x0a\x01n\x12\x01p\x1a\x01d" + added
    status = b"\x4a\x05newer" + b"\x22" + bytes([len(foreign)]) + foreign
    message = b"\x1a" + bytes([len(status)]) + status
    written = claim_devices.with_entries(message, OURS, (entry("a"),), ())
    assert written is not None
    assert added in written
    assert b"\x4a\x05newer" in written
