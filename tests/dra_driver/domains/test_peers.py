"""What a daemon has to know of its peers, and what has to happen when that changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.domains.peers import Peers, PeerUpdate, hosts, knows_names, node_list, peers_of, step_after


def status(*nodes: tuple[str, str, str, int]) -> ComputeDomainStatus:
    entries: list[Any] = [
        {"name": name, "ipAddress": ip, "cliqueID": clique, "index": index, "status": "NotReady"}
        for name, ip, clique, index in nodes
    ]
    return ComputeDomainStatus.of({"nodes": entries})


def test_peers_are_those_of_the_same_clique_that_have_an_address() -> None:
    seen = status(
        ("a", "10.0.0.1", "r.0", 1), ("b", "10.0.0.2", "r.1", 0), ("c", "10.0.0.3", "r.0", 0), ("d", "", "r.0", 2)
    )
    assert peers_of(seen, "a", "10.0.0.1") == Peers("r.0", 1, ((0, "10.0.0.3"), (1, "10.0.0.1")))


@pytest.mark.parametrize(("node", "address"), [("a", "10.0.0.9"), ("z", "10.0.0.1")])
def test_a_daemon_that_nobody_can_find_has_no_peers(node: str, address: str) -> None:
    assert peers_of(status(("a", "10.0.0.1", "r.0", 0)), node, address) is None


def test_without_a_clique_a_node_is_alone() -> None:
    assert peers_of(status(("a", "10.0.0.1", "", 0), ("b", "10.0.0.2", "", 1)), "a", "10.0.0.1") == Peers(
        "", 0, ((0, "10.0.0.1"),)
    )


@rows(
    "version, expected",
    [("570.158.01", True), ("570.158", False), ("570.133.20", False), ("580.65.06", True), (None, True), ("odd", True)],
)
def test_drivers_look_names_up_again_since_570_158_01(version: str | None, expected: bool) -> None:
    assert knows_names(version) is expected


def test_the_list_of_names_is_the_same_on_all_and_the_list_of_addresses_is_of_those_there_are() -> None:
    peers = Peers("r.0", 1, ((0, "10.0.0.3"), (1, "10.0.0.1")))
    names = "compute-domain-daemon-0000\ncompute-domain-daemon-0001\ncompute-domain-daemon-0002\n"
    assert node_list(peers, 3, by_name=True) == names
    assert node_list(peers, 3, by_name=False) == "10.0.0.3\n10.0.0.1\n"


addresses = st.dictionaries(st.integers(0, 20), st.ip_addresses(v=4).map(str), max_size=6)


@given(
    first=addresses,
    second=addresses,
    other=st.lists(st.sampled_from(["127.0.0.1\tlocalhost", "# mine", ""]), max_size=4),
)
def test_the_file_of_hosts_keeps_what_is_not_ours_and_has_only_the_newest_peers(
    first: dict[int, str], second: dict[int, str], other: list[str]
) -> None:
    before = "".join(f"{line}\n" for line in other)
    once = hosts(before, Peers("r.0", 0, tuple(sorted(first.items()))))
    twice = hosts(once, Peers("r.0", 0, tuple(sorted(second.items()))))
    assert twice == hosts(before, Peers("r.0", 0, tuple(sorted(second.items()))))
    assert twice.startswith(before)
    assert twice.count("compute-domain-daemon-") == len(second)


def test_a_change_of_addresses_is_looked_up_and_a_change_of_place_is_a_new_daemon() -> None:
    before = Peers("r.0", 0, ((0, "10.0.0.1"),))
    more = Peers("r.0", 0, ((0, "10.0.0.1"), (1, "10.0.0.2")))
    assert step_after(None, before, by_name=True) is PeerUpdate.RESTART
    assert step_after(before, before, by_name=True) is PeerUpdate.NOTHING
    assert step_after(before, more, by_name=True) is PeerUpdate.LOOK_UP
    assert step_after(before, more, by_name=False) is PeerUpdate.RESTART
    assert step_after(before, Peers("r.1", 0, ((0, "10.0.0.1"),)), by_name=True) is PeerUpdate.RESTART
    assert step_after(before, Peers("r.0", 1, ((1, "10.0.0.1"),)), by_name=True) is PeerUpdate.RESTART
