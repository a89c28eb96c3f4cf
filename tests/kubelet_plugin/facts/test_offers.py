"""The table of devices that prepare looks names up in: kubelet_plugin/facts/offers.py."""

import asyncio
from dataclasses import replace

import pytest
from support.claims import NODE, a_gpu, device_name, node_facts

from dra_driver.api.meta import NODES
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import NodeNotReady
from dra_driver.kube.client import Kube
from kubelet_plugin.facts.offers import NodeOffers
from kubelet_plugin.facts.own_node import OwnNode

SHARED = {"nodes": {"labelSelector": {"matchLabels": {"pool": "shared"}}}, "strategy": "MPS", "replicas": 2}
BY_LABEL = PublishingPolicy.of({"sharing": [SHARED]})


def test_without_a_policy_every_gpu_is_offered_by_its_name() -> None:
    offers = NodeOffers(OwnNode(NODE), PublishingPolicy.EVERYTHING)

    assert list(offers.of(node_facts(2))) == [device_name(0), device_name(1)]


def test_the_table_is_made_anew_only_for_other_facts() -> None:
    offers = NodeOffers(OwnNode(NODE), PublishingPolicy.EVERYTHING)
    facts = node_facts(2)

    assert offers.of(facts) is offers.of(facts)
    assert len(offers.of(replace(facts, gpus=facts.gpus[:1]))) == 1


def test_a_withheld_device_is_still_found_by_claims_that_have_it() -> None:
    policy = PublishingPolicy.of({"withhold": [{"gpus": {"names": [device_name(0)]}}]})

    assert device_name(0) in NodeOffers(OwnNode(NODE), policy).of(node_facts([a_gpu(0)]))


def test_nothing_is_guessed_before_the_labels_are_known() -> None:
    with pytest.raises(NodeNotReady, match="labels"):
        NodeOffers(OwnNode(NODE), BY_LABEL).of(node_facts(1))


async def test_other_labels_are_another_table(kube: Kube) -> None:
    metadata = {"name": NODE, "labels": {"pool": "shared"}}
    await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    own = OwnNode(NODE)
    offers = NodeOffers(own, BY_LABEL)
    following = asyncio.create_task(own.follow(kube))
    await own.first_read()
    assert f"{device_name(0)}-share-0" in offers.of(node_facts(1))

    await kube.merge_patch(NODES, NODE, {"metadata": {"labels": {"pool": None}}})
    async with asyncio.timeout(20):
        while own.labels:  # noqa: ASYNC110 - the watch makes it true
            await asyncio.sleep(0.02)
    assert list(offers.of(node_facts(1))) == [device_name(0)]
    following.cancel()
