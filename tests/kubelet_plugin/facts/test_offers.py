"""The table of devices that prepare looks names up in: kubelet_plugin/facts/container_runtime.py."""

from dataclasses import dataclass, field, replace

import pytest
from support.claims import NODE, a_gpu, device_name, node_facts

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import NodeNotReady, Unreachable
from kubelet_plugin.facts.offers import NodeOffers

SHARED = {"nodes": {"labelSelector": {"matchLabels": {"pool": "shared"}}}, "strategy": "MPS", "replicas": 2}
BY_LABEL = PublishingPolicy.of({"sharing": [SHARED]})


@dataclass
class FakeNodes:
    labels: dict[str, str] = field(default_factory=dict)
    away: bool = False
    reads: int = 0

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        self.reads += 1
        if self.away:
            raise Unreachable("no answer")
        assert (resource.plural, name) == ("nodes", NODE)
        return {"metadata": {"name": name, "labels": self.labels}}


def test_without_a_policy_every_gpu_is_offered_by_its_name() -> None:
    offers = NodeOffers(FakeNodes(), PublishingPolicy.EVERYTHING, NODE)

    assert list(offers.of(node_facts(2))) == [device_name(0), device_name(1)]


def test_the_table_is_made_anew_only_for_other_facts() -> None:
    offers = NodeOffers(FakeNodes(), PublishingPolicy.EVERYTHING, NODE)
    facts = node_facts(2)

    assert offers.of(facts) is offers.of(facts)
    assert len(offers.of(replace(facts, gpus=facts.gpus[:1]))) == 1


def test_a_withheld_device_is_still_found_by_claims_that_have_it() -> None:
    policy = PublishingPolicy.of({"withhold": [{"gpus": {"names": [device_name(0)]}}]})

    assert device_name(0) in NodeOffers(FakeNodes(), policy, NODE).of(node_facts([a_gpu(0)]))


async def test_labels_are_read_only_when_the_policy_goes_by_them() -> None:
    nodes = FakeNodes()

    await NodeOffers(nodes, PublishingPolicy.EVERYTHING, NODE).refresh()
    assert nodes.reads == 0
    await NodeOffers(nodes, BY_LABEL, NODE).refresh()
    assert nodes.reads == 1


async def test_nothing_is_guessed_before_the_labels_are_known() -> None:
    nodes = FakeNodes(away=True)
    offers = NodeOffers(nodes, BY_LABEL, NODE)

    await offers.refresh()

    with pytest.raises(NodeNotReady, match="labels"):
        offers.of(node_facts(1))


async def test_other_labels_are_another_table_and_the_last_ones_stand_while_the_api_is_away() -> None:
    nodes = FakeNodes({"pool": "shared"})
    offers = NodeOffers(nodes, BY_LABEL, NODE)
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))

    nodes.away = True
    await offers.refresh()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))

    nodes.away, nodes.labels = False, {}
    await offers.refresh()
    assert list(offers.of(node_facts(1))) == [device_name(0)]
