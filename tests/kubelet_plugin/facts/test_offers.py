"""The table of devices that prepare looks names up in: kubelet_plugin/facts/offers.py."""

from dataclasses import dataclass, field, replace

import pytest
from support.claims import NODE, a_gpu, device_name, node_facts

from dra_driver.api.gpu_settings import GpuDecisions, NodePolicy, NodeSharing
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import NodeNotReady, NotFound, Unreachable
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.facts.offers import NodeOffers, NodeRules

UUID = a_gpu(0).uuid
PLAIN = NodePolicy(gpus=[GpuDecisions(uuids=[UUID])])
SHARED = NodePolicy(
    gpus=[GpuDecisions(uuids=[UUID], sharing=[NodeSharing(strategy="TimeSlicing", replicas=2, rule="r")])],
    health={"evict": True},
)


@dataclass
class Inventory:
    """What the API server answers for the node's inventory."""

    policy: NodePolicy | None = None
    away: bool = False
    gone: bool = False
    more: JsonObject = field(default_factory=dict)

    async def read(self) -> JsonObject:
        if self.away:
            raise Unreachable("no answer")
        if self.gone:
            raise NotFound("no inventory", status=404)
        status = {} if self.policy is None else {"policy": self.policy.to_wire() | self.more}
        return {"metadata": {"name": NODE}, "status": status}


def test_without_a_policy_every_gpu_is_offered_by_its_name() -> None:
    offers = NodeOffers(NodeRules(PublishingPolicy.EVERYTHING), NODE)

    assert list(offers.of(node_facts(2))) == [device_name(0), device_name(1)]


def test_the_table_is_made_anew_only_for_other_facts() -> None:
    offers = NodeOffers(NodeRules(PublishingPolicy.EVERYTHING), NODE)
    facts = node_facts(2)

    assert offers.of(facts) is offers.of(facts)
    assert len(offers.of(replace(facts, gpus=facts.gpus[:1]))) == 1


def test_a_device_is_described_anew_only_for_other_facts_and_other_rules() -> None:
    rules = NodeRules(PublishingPolicy.EVERYTHING)
    offers, facts = NodeOffers(rules, NODE), node_facts(1)
    offer = offers.of(facts)[device_name(0)]
    described = offers.attributes(facts, GPU_DRIVER)(offer)

    assert offers.attributes(facts, GPU_DRIVER)(offer) is described
    assert described["driverVersion"] == {"version": "580.105.8"}
    assert facts.driver is not None
    newer = replace(facts, driver=facts.driver.model_copy(update={"version": "590.44.1"}))
    assert offers.attributes(newer, GPU_DRIVER)(offer)["driverVersion"] == {"version": "590.44.1"}
    rules.rules = PublishingPolicy.of({"attributes": [{"values": {"example.com/rack": "r1"}}]})
    assert offers.attributes(newer, GPU_DRIVER)(offer)["example.com/rack"] == {"string": "r1"}


def test_a_device_is_described_as_shared_and_as_whole() -> None:
    """A claim that was allocated before the device was shared has all of it."""
    rule = {"strategy": "TimeSlicing", "replicas": 2}
    offers, facts = NodeOffers(NodeRules(PublishingPolicy.of({"sharing": [rule]})), NODE), node_facts(1)
    describe = offers.attributes(facts, GPU_DRIVER)
    offer = next(offer for offer in offers.of(facts).values() if offer.sharing is not None)

    assert describe(offer)["sharing"] == {"string": "time-slicing"}
    assert describe(replace(offer, sharing=None))["sharing"] == {"string": "exclusive"}


def test_a_withheld_device_is_still_found_by_claims_that_have_it() -> None:
    policy = PublishingPolicy.of({"withhold": [{"gpus": {"names": [device_name(0)]}}]})

    assert device_name(0) in NodeOffers(NodeRules(policy), NODE).of(node_facts([a_gpu(0)]))


async def test_nothing_is_guessed_before_it_was_decided() -> None:
    inventory = Inventory(away=True)
    rules = NodeRules(read=inventory.read)
    offers = NodeOffers(rules, NODE)
    for inventory.away in (True, False):
        await offers.refresh()
        with pytest.raises(NodeNotReady, match="has not been read"):
            offers.of(node_facts(1))


@pytest.mark.parametrize("gone", [False, True])
async def test_where_nothing_was_decided_the_policy_of_the_installation_holds(gone: bool) -> None:
    """The publisher is of an older release, or there is no inventory at all."""
    inventory = Inventory(away=True)
    rules = NodeRules(read=inventory.read, installed=PublishingPolicy.EVERYTHING)
    offers = NodeOffers(rules, NODE)
    await offers.refresh()
    with pytest.raises(NodeNotReady, match="has not been read"):
        offers.of(node_facts(1))
    inventory.away, inventory.gone = False, gone
    await offers.refresh()
    assert list(offers.of(node_facts(1))) == [device_name(0)]
    inventory.gone, inventory.policy = False, SHARED
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))
    inventory.policy = None
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1)), "what was decided stands"


async def test_a_decision_is_another_table_and_the_last_one_stands_while_the_api_is_away() -> None:
    inventory, heard = Inventory(SHARED), []
    rules = NodeRules(read=inventory.read)
    rules.subscribe(lambda: heard.append(rules.health().evict))
    offers = NodeOffers(rules, NODE)
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))

    inventory.away = True
    await offers.refresh()
    inventory.away, inventory.policy = False, None
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))

    inventory.policy = PLAIN
    await offers.refresh()
    await offers.refresh()
    assert list(offers.of(node_facts(1))) == [device_name(0)]
    assert heard == [True, False], "told once for each decision"


async def test_a_claim_that_was_allocated_while_its_gpu_changed_finds_its_device() -> None:
    inventory = Inventory(PLAIN.model_copy(update={"before": SHARED.gpus}))
    offers = NodeOffers(NodeRules(read=inventory.read), NODE)
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))


async def test_a_gpu_that_nothing_was_decided_about_is_not_guessed() -> None:
    """As one that was lost when the publisher decided, and is back: campaign, seed 95849153."""
    rules = NodeRules(read=Inventory(SHARED).read, installed=PublishingPolicy.EVERYTHING)
    offers = NodeOffers(rules, NODE)
    await offers.refresh()
    facts = node_facts(2)
    assert device_name(1) not in offers.of(facts)
    assert offers.undecided(facts) == (device_name(1),)
    assert f"{device_name(0)}-share-0" in offers.of(facts)


async def test_what_a_newer_publisher_adds_is_ignored_and_nonsense_changes_nothing() -> None:
    inventory = Inventory(PLAIN, more={"surprise": {"a": 1}})
    offers = NodeOffers(NodeRules(read=inventory.read), NODE)
    await offers.refresh()
    assert list(offers.of(node_facts(1))) == [device_name(0)]
    inventory.more = {"gpus": "no"}
    await offers.refresh()
    assert list(offers.of(node_facts(1))) == [device_name(0)]
