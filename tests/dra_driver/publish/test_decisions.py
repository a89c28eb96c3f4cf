"""What of the policies holds for a node: dra_driver/api/gpupolicy.py and dra_driver/publish/decisions.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import gpu, gpu_policy, inventory_spec
from support.mig import MODELS, gpu_of

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.gpupolicy import GpuPolicy, combined, policies_of
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec, NodeInventoryStatus
from dra_driver.api.policy import PublishingPolicy, rules_before, rules_of
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import InvalidInput
from dra_driver.publish.decisions import decided, settled

A, B = gpu_of(MODELS[0]), gpu_of(MODELS[0], 1)
NODE = NodeInventorySpec.of(inventory_spec("node-a", [A, B]))
DYNAMIC = {"mig": {"mode": "Dynamic"}}
TWO_SHARES = {"sharing": [{"strategy": "TimeSlicing", "replicas": 2}]}


def decide(*policies: GpuPolicy, labels: Mapping[str, str] | None = None) -> NodePolicy:
    return decided(combined(policies), policies, NODE, labels or {})


def of(node: NodePolicy, chosen: GpuFacts) -> Any:
    (group,) = (group for group in node.gpus if chosen.uuid in group.uuids)
    return group


def names(node: NodePolicy) -> list[str]:
    return [offer.name for offer in offers(NODE, rules_of(node), {}).offers]


def test_a_policy_for_all_gpus_that_can_be_divided_says_nothing_of_those_that_cannot() -> None:
    node = inventory_spec("node-a", [A, gpu(9)])
    for spec, expected in ((DYNAMIC, []), ({**DYNAMIC, "gpus": {"names": ["*"]}}, ["NoMig"])):
        policies = [gpu_policy("all", **spec)]
        node_offers = offers(node, rules_of(decided(combined(policies), policies, node, {})), {})
        assert [note.cause.reason for note in node_offers.notes] == expected


# -- which policy wins


def test_without_policies_everything_is_published_as_it_is() -> None:
    node = decide()
    assert len(node.gpus) == 1
    assert names(node) == [A.name, B.name]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_higher_priority_overrides_what_it_sets_and_nothing_else(order: Sequence[int]) -> None:
    low = gpu_policy(
        "z", priority=1, publish=False, mig={"mode": "Dynamic"}, attributes={"a": {"int": 1}, "b": {"int": 1}}
    )
    high = gpu_policy("a", priority=2, publish=True, attributes={"a": {"int": 2}})
    both = [(low, high)[index] for index in order]
    rules = of(decide(*both), A)
    assert (rules.publish, rules.mig.mode, rules.policies) == (True, "Dynamic", ["a", "z"])
    extra = rules_of(decide(*both)).extra_attributes("node-a", {}, A)
    assert {name: value.int_ for name, value in extra.items()} == {"a": 2, "b": 1}


def test_of_equal_priorities_the_first_name_overrides() -> None:
    assert of(decide(gpu_policy("b", publish=False), gpu_policy("a", publish=True)), A).publish


def test_the_first_entry_of_sharing_that_fits_decides() -> None:
    shared = gpu_policy("p", sharing=[{"strategy": "MPS", "replicas": 3}, {"strategy": "TimeSlicing", "replicas": 2}])
    rule = rules_of(decide(shared)).sharing_rule("node-a", {}, A)
    assert rule is not None and (rule.strategy, rule.replicas) == ("MPS", 3)


def test_policies_select_nodes_and_gpus() -> None:
    ml = gpu_policy("ml", nodes={"labelSelector": {"matchLabels": {"pool": "ml"}}}, gpus={"names": [A.name]}, **DYNAMIC)
    assert of(decide(ml), A).mig is None
    chosen = decide(ml, labels={"pool": "ml"})
    assert (of(chosen, A).mig.mode, of(chosen, B).mig) == ("Dynamic", None)
    assert (of(chosen, A).policies, of(chosen, B).policies) == (["ml"], [])
    assert of(chosen, A).mig.rule == "mig of GpuPolicy ml"


def test_passthrough_and_mig_can_be_taken_back() -> None:
    off = gpu_policy("off", priority=1, passthrough=False, mig={"mode": "Static"})
    on = gpu_policy("on", passthrough=True, **DYNAMIC)
    rules = of(decide(on, off), A)
    assert (rules.passthrough, rules.mig.mode) == (None, "Static")


@pytest.mark.parametrize(
    ("spec", "mistake"),
    [
        ({"gpus": {"names": ["a"]}, "health": {"evict": True}}, "whole nodes"),
        ({"gpus": {"names": ["a"]}, "computeDomains": {"channels": 2}}, "whole nodes"),
        ({"mig": {"mode": "Static", "profiles": ["1g.*"]}}, "mode Dynamic"),
        ({"sharing": [{"strategy": "MPS"}]}, "exactly one of replicas"),
        ({"sharing": []}, "at least 1 item"),
        ({"attributes": {"a": {}}}, "exactly one of int"),
        ({"attributes": {"a": {"int": 1, "bool": True}}}, "exactly one of int"),
        ({"attributes": {"uuid": {"string": "x"}}}, "published by the driver itself"),
        ({"attributes": {"a": {"int": 2**63}}}, "64 bits"),
        ({"publsh": True}, "publsh"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(spec: dict[str, Any], mistake: str) -> None:
    with pytest.raises(InvalidInput, match=mistake):
        gpu_policy("p", **spec)


# -- files and objects say the same

_SELECTIONS: Sequence[dict[str, Any]] = (
    {},
    {"gpus": {"names": [A.name]}},
    {"nodes": {"names": ["node-*"]}},
    {"nodes": {"names": ["other"]}},
    {"nodes": {"labelSelector": {"matchLabels": {"pool": "ml"}}}, "gpus": {"uuids": [B.uuid]}},
)
_SELECTION = st.sampled_from(_SELECTIONS)


def _rules(*settings: dict[str, Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.builds(lambda where, what: where | what, _SELECTION, st.sampled_from(settings)), max_size=3)


_FILES = st.fixed_dictionaries(
    {
        "withhold": _rules({}),
        "attributes": _rules({"values": {"a": 1}}, {"values": {"a": 2, "b": {"version": "1.0.0"}}}),
        "mig": _rules({"mode": "Dynamic"}, {"mode": "Static"}, {"mode": "Dynamic", "profiles": ["1g.*"]}),
        "sharing": _rules(
            {"strategy": "MPS", "replicas": 2},
            {"strategy": "Exclusive"},
            {"strategy": "TimeSlicing", "unlimited": True},
        ),
        "passthrough": _rules({}),
        "health": st.sampled_from([{}, {"evict": True}]),
    },
    optional={"publish": _rules({}).filter(len)},
)


@given(_FILES, st.sampled_from([{}, {"pool": "ml"}]))
def test_the_policies_of_a_file_say_what_the_file_says(file: dict[str, Any], labels: dict[str, str]) -> None:
    given_rules = PublishingPolicy.of(file)
    policies = policies_of(given_rules, "installed")
    assert policies == [GpuPolicy.read(each.to_object()) for each in policies], "they survive the API server"
    made = combined(policies)
    node = decided(made, policies, NODE, labels)
    for rules in (made, rules_of(node)):
        assert rules.publishes_node("node-a", labels) == given_rules.publishes_node("node-a", labels)
        assert dict(rules.health_of("node-a", labels)) == dict(given_rules.health)
        for chosen in (A, B):
            assert rules.publishes("node-a", labels, chosen) == given_rules.publishes("node-a", labels, chosen)
            assert rules.extra_attributes("node-a", labels, chosen) == given_rules.extra_attributes(
                "node-a", labels, chosen
            )
        assert _offered(rules, labels) == _offered(given_rules, labels)


def _offered(rules: PublishingPolicy, labels: Mapping[str, str]) -> list[object]:
    node_offers = offers(NODE, rules, labels)
    return [
        (
            offer.name,
            offer.kind,
            offer.partition,
            None if offer.sharing is None else (offer.sharing.strategy, offer.sharing.replicas),
        )
        for offer in (*node_offers.offers, *node_offers.withheld)
    ]


def test_what_was_decided_survives_the_inventory() -> None:
    node = decide(gpu_policy("p", attributes={"a": {"version": "1.0.0"}}, passthrough=True, **DYNAMIC, **TWO_SHARES))
    node = settled(node, decide(), NODE, {A.name: ["team/one"]})
    assert NodeInventoryStatus.of(NodeInventoryStatus(policy=node).to_wire()).policy == node


# -- when it holds


def test_a_gpu_that_no_claim_uses_changes_at_once() -> None:
    node = settled(decide(), decide(gpu_policy("p", publish=False)), NODE, {})
    assert names(node) == []
    assert node.waiting == []


def test_a_gpu_in_use_stays_until_its_claims_are_gone_and_the_other_changes() -> None:
    before, wanted = decide(), decide(gpu_policy("p", **TWO_SHARES))
    claims = sorted(f"team/{number}" for number in range(8))
    users = {A.name: list(reversed(claims))}
    node = settled(before, wanted, NODE, users)
    assert names(node) == [A.name, f"{B.name}-share-0", f"{B.name}-share-1", B.name]
    (waiting,) = node.waiting
    assert (waiting.gpu, waiting.claims, waiting.policies) == (A.name, claims, ["p"])
    assert rules_of(node).changes_later(A) and not rules_of(node).changes_later(B)
    assert of(node, A).policies == ["p"], "it is selected, though it waits"
    assert settled(node, wanted, NODE, users) == node, "it stays so"
    after = settled(node, wanted, NODE, {})
    assert f"{A.name}-share-0" in names(after)
    assert after.waiting == []


def test_a_gpu_that_is_to_be_withheld_stays_published_while_it_is_used() -> None:
    node = settled(decide(), decide(gpu_policy("p", publish=False)), NODE, {A.name: ["team/one"]})
    assert node.publish
    assert names(node) == [A.name]


def test_what_leaves_the_claims_device_as_it_is_holds_at_once() -> None:
    with_more = decide(gpu_policy("p", attributes={"rack": {"string": "r1"}}, health={"evict": True}, **DYNAMIC))
    node = settled(decide(), with_more, NODE, {A.name: ["team/one"]})
    assert node.waiting == []
    assert node.health.evict
    assert set(names(node)) > {A.name, B.name}, "the whole GPU is still what the claim has, beside its parts"


def test_a_partition_in_use_keeps_its_gpu_divided() -> None:
    divided = decide(gpu_policy("p", **DYNAMIC))
    partition = next(name for name in names(divided) if name.startswith(f"{A.name}-mig"))
    node = settled(divided, decide(), NODE, {partition: ["team/one"]})
    assert partition in names(node)
    assert [waiting.gpu for waiting in node.waiting] == [A.name]


def test_a_claim_that_was_allocated_during_the_change_takes_its_gpu_back() -> None:
    """The scheduler chose from the old slices while the new ones were written."""
    shared, plain = decide(gpu_policy("p", **TWO_SHARES)), decide()
    changed = settled(shared, plain, NODE, {})
    late = f"{A.name}-share-0"
    assert late not in names(changed)
    assert late in by_name(offers(NODE, rules_before(changed), {})), "the plugin still knows what it is"
    back = settled(changed, plain, NODE, {late: ["team/late"]})
    assert late in names(back)
    assert [waiting.gpu for waiting in back.waiting] == [A.name]
    (undone,) = (group for group in back.before if A.uuid in group.uuids)
    assert undone.sharing == [], "a claim may have been allocated meanwhile, by what held until now"
    assert names(settled(back, plain, NODE, {})) == [A.name, B.name]


def test_a_gpu_does_not_change_back_for_a_claim_that_has_what_holds_now() -> None:
    shared, plain = decide(gpu_policy("p", **TWO_SHARES)), decide()
    changed = settled(shared, plain, NODE, {})
    assert settled(changed, plain, NODE, {A.name: ["team/one"]}) == changed


def test_a_device_that_only_the_change_offers_changes_nothing_back() -> None:
    node = settled(decide(), decide(gpu_policy("p", **TWO_SHARES)), NODE, {f"{A.name}-share-0": ["team/one"]})
    assert [waiting.gpu for waiting in node.waiting] == [A.name]


def test_a_gpu_that_is_lost_keeps_its_decision_while_the_node_is_in_use() -> None:
    """It is the same when it is back, also if other rules hold by then."""
    shared, less = decide(gpu_policy("p", **TWO_SHARES)), NODE.model_copy(update={"gpus": [B]})
    users = {B.name: ["team/one"], f"{A.name}-share-0": ["team/two"]}
    lost = settled(shared, decided(combined(()), (), less, {}), less, users)
    assert of(lost, A).sharing
    back = settled(lost, decide(), NODE, users)
    assert f"{A.name}-share-0" in names(back)
    assert A.name in [waiting.gpu for waiting in back.waiting]
    assert not any(
        A.uuid in group.uuids for group in settled(shared, decided(combined(()), (), less, {}), less, {}).gpus
    )


def test_channels_in_use_stay() -> None:
    four, single = decide(gpu_policy("p", computeDomains={"channels": 4})), decide()
    assert settled(four, single, NODE, {}, 3).channels == 3
    assert settled(four, single, NODE, {}, 0).channels == 1
    assert settled(single, four, NODE, {}, 1).channels == 4


def test_devices_of_other_drivers_and_unknown_names_keep_nothing() -> None:
    node = settled(decide(), decide(gpu_policy("p", publish=False)), NODE, {"gpu-unknown": ["team/one"]})
    assert names(node) == []


def test_a_new_gpu_gets_what_is_wanted() -> None:
    less = NODE.model_copy(update={"gpus": [A]})
    before = decided(combined(()), (), less, {})
    wanted = decide(gpu_policy("p", **TWO_SHARES))
    node = settled(before, wanted, NODE, {A.name: ["team/one"]})
    assert f"{B.name}-share-0" in names(node)
    assert gpu(2).uuid not in {uuid for group in node.gpus for uuid in group.uuids}
