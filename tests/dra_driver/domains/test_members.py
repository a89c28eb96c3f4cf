"""Which nodes are in a domain, who joins and leaves, and the index of each."""

from itertools import permutations

import pytest
from support.domain_values import OTHER, RACK, daemon, domain, entry, known, member, node, observed, use

from dra_driver.domains.names import DomainReason
from dra_driver.domains.observed import ObservedDomain
from dra_driver.domains.status import Membership, membership

MAX = 3


def of(seen: ObservedDomain) -> Membership:
    return membership(seen, MAX)


def indices(state: Membership) -> dict[str, int]:
    return {joined.node: joined.index for joined in state.members}


def test_a_node_joins_because_a_claim_has_its_channel_and_leaves_with_the_last_of_them() -> None:
    two_claims = observed(uses=[use("a", "one"), use("a", "two")], nodes=[node("a")])
    assert of(two_claims).join == ("a",)
    one_left = observed(uses=[use("a", "two")], nodes=[member("a")])
    assert (of(one_left).join, of(one_left).leave) == ((), ())
    assert of(observed(nodes=[member("a")])).leave == ("a",)


@pytest.mark.parametrize(
    ("seen", "reason", "message"),
    [
        (observed(uses=[use("a")]), DomainReason.NODE_GONE, "has left the cluster"),
        (observed(uses=[use("a")], nodes=[node("a", OTHER)]), DomainReason.NODE_IN_OTHER_DOMAIN, OTHER),
        (
            observed(uses=[use("a")], nodes=[node("a", problem="GPU x is InProgress")]),
            DomainReason.FABRIC_INCOMPLETE,
            "InProgress",
        ),
        (
            observed(uses=[use(name) for name in "abcd"], nodes=[member("a"), member("b"), member("c"), node("d")]),
            DomainReason.CLIQUE_FULL,
            f"clique {RACK} has {MAX} nodes",
        ),
    ],
)
def test_a_node_that_cannot_join_is_kept_out_with_the_reason(seen: ObservedDomain, reason: str, message: str) -> None:
    (refused,) = of(seen).kept_out
    assert refused.reason == reason
    assert message in refused.message
    assert refused.node not in of(seen).join


def test_what_is_in_the_way_is_not_asked_of_a_node_that_is_in_already() -> None:
    inside = observed(uses=[use("a")], nodes=[member("a", problem="GPU x is InProgress")])
    assert (of(inside).kept_out, of(inside).leave) == ((), ())


def test_each_clique_has_its_own_room_and_nodes_without_one_need_none() -> None:
    names = "abcdef"
    cliques = ["r.0", "r.0", "r.0", "r.1", "", ""]
    nodes = [node(name, clique=clique) for name, clique in zip(names, cliques, strict=True)]
    alone = [node(f"x{number}", clique="") for number in range(MAX + 2)]
    every = observed(uses=[use(each.name) for each in (*nodes, *alone)], nodes=[*nodes, *alone])
    assert of(every).kept_out == ()
    assert set(of(every).join) == {each.name for each in (*nodes, *alone)}


def test_of_more_nodes_than_a_clique_may_have_the_first_by_name_join_and_one_takes_the_place_of_one_that_left() -> None:
    nodes = [node(name) for name in "abcd"]
    assert of(observed(uses=[use(name) for name in "abcd"], nodes=nodes)).join == ("a", "b", "c")
    left = observed(uses=[use(name) for name in "abd"], nodes=[member("a"), member("b"), node("d")])
    assert of(left).join == ("d",)


def test_a_node_whose_daemon_still_ends_takes_room_and_keeps_its_index() -> None:
    """Its label is gone; another node with its index would be taken for it by the peers."""
    seen = observed(
        domain(status=known(entry("a", 0), entry("b", 1), entry("c", 2))),
        uses=[use("b"), use("c"), use("d")],
        nodes=[node("a"), member("b"), member("c"), node("d")],
        daemons=[daemon("a", deleting=True), daemon("b"), daemon("c")],
    )
    assert indices(of(seen)) == {"a": 0, "b": 1, "c": 2}
    assert [refused.reason for refused in of(seen).kept_out] == [DomainReason.CLIQUE_FULL]
    ended = observed(seen.domain, uses=seen.channel_uses, nodes=seen.nodes.values(), daemons=[daemon("b"), daemon("c")])
    assert of(ended).join == ("d",)
    joined = observed(seen.domain, uses=seen.channel_uses, nodes=[member(name) for name in "bcd"])
    assert indices(of(joined)) == {"b": 1, "c": 2, "d": 0}


def test_an_index_is_kept_whoever_else_comes_and_goes_and_the_lowest_free_one_is_given() -> None:
    status = known(entry("c", 0), entry("a", 2))
    seen = observed(domain(status=status), uses=[use(name) for name in "abc"], nodes=[member(name) for name in "abc"])
    assert indices(of(seen)) == {"c": 0, "b": 1, "a": 2}


def test_indices_are_given_for_each_clique_and_anew_in_another_one() -> None:
    status = known(entry("a", 0, "r.0"), entry("b", 1, "r.0"), entry("c", 0, "r.1"))
    moved = [member("a", "r.0"), member("b", "r.1"), member("c", "r.1")]
    seen = observed(domain(status=status), uses=[use(name) for name in "abc"], nodes=moved)
    assert {(joined.node, joined.clique, joined.index) for joined in of(seen).members} == {
        ("a", "r.0", 0),
        ("b", "r.1", 1),
        ("c", "r.1", 0),
    }


def test_a_node_that_is_gone_or_whose_fabric_is_not_complete_stays_in_its_place() -> None:
    status = known(entry("a", 1, "r.0"), entry("b", 2, "r.0"))
    seen = observed(
        domain(status=status),
        uses=[use("a"), use("b")],
        nodes=[member("b", "", "GPU x is InProgress")],
        daemons=[daemon("a"), daemon("b")],
    )
    assert {(joined.node, joined.clique, joined.index) for joined in of(seen).members} == {
        ("a", "r.0", 1),
        ("b", "r.0", 2),
    }


def test_two_entries_with_one_index_are_put_right() -> None:
    """Nobody but the controller writes the status; a person with enough rights may all the same."""
    status = known(entry("a", 0), entry("b", 0))
    seen = observed(domain(status=status), uses=[use("a"), use("b")], nodes=[member("a"), member("b")])
    assert indices(of(seen)) == {"a": 0, "b": 1}


def test_the_order_in_which_things_are_seen_does_not_matter() -> None:
    nodes = [member("a"), node("b"), node("c", OTHER), member("d", "r.1")]
    answers = {
        repr(of(observed(uses=[use(each.name) for each in order], nodes=order, daemons=[daemon("a"), daemon("d")])))
        for order in permutations(nodes)
    }
    assert len(answers) == 1
