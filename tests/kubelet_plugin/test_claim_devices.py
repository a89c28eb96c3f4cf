"""Which entries of `status.devices` are this driver's to write, and which stay as they are."""

from typing import Any

from dra_driver.api.meta import JsonObject
from kubelet_plugin.claim_devices import entries_of, key_of, with_entries

OURS, NIC = "gpu.nvidia.com", "nic.example.com"


def entry(device: str, driver: str = OURS, **more: Any) -> JsonObject:
    return {"driver": driver, "pool": "node-a", "device": device, **more}


def claim(*entries: JsonObject) -> JsonObject:
    return {"metadata": {}, "status": {"devices": list(entries)}}


def test_a_first_entry_stands_behind_those_of_others() -> None:
    assert with_entries(claim(entry("nic", NIC)), OURS, (entry("a"),), ()) == [entry("nic", NIC), entry("a")]
    assert with_entries({"metadata": {}}, OURS, (entry("a"),), ()) == [entry("a")]


def test_what_is_so_already_is_not_written_whatever_others_said_and_in_which_order() -> None:
    there = claim(entry("b"), entry("nic", NIC), entry("a"))
    assert with_entries(there, OURS, (entry("a"), entry("b")), ()) is None
    assert with_entries(claim(entry("nic", NIC)), OURS, (), [key_of(entry("a"))]) is None


def test_what_was_said_before_and_is_not_said_any_more_goes() -> None:
    there = claim(entry("a"), entry("nic", NIC), entry("b", data={"x": "1"}))
    said = [key_of(entry("a")), key_of(entry("b"))]
    assert with_entries(there, OURS, (entry("b"),), said) == [entry("nic", NIC), entry("b")]
    assert with_entries(claim(entry("a")), OURS, (), said) == []


def test_an_entry_that_was_never_said_here_is_of_the_allocation_that_followed() -> None:
    elsewhere = {**entry("a"), "pool": "node-b"}
    assert with_entries(claim(elsewhere), OURS, (), [key_of(entry("a"))]) is None


def test_shares_of_a_device_are_told_apart() -> None:
    one, two = entry("a", shareID="1"), entry("a", shareID="2")
    assert with_entries(claim(one, two), OURS, (), [key_of(one)]) == [two]
    assert entries_of(claim(two, one, entry("nic", NIC)), OURS) == (one, two)
