"""What this node offers under the cluster's policy, by published name: the table that prepare looks devices up in.

The publisher asks the same (`dra_driver.devices.offers`), with the same policy file, so both mean the same hardware by
a name. `kubelet_plugin.main` gives a `NodeOffers` to the claim service.
"""

from collections.abc import Mapping

from dra_driver.api.inventory import NodeInventorySpec, summary_of
from dra_driver.api.policy import PublishingPolicy
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import NodeNotReady
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.own_node import OwnNode


class NodeOffers:
    """The table of one node; made again when the facts or the labels change."""

    def __init__(self, node: OwnNode, policy: PublishingPolicy) -> None:
        self._node = node
        self._policy = policy
        self._last: tuple[NodeFacts, Mapping[str, str], Mapping[str, Offer]] | None = None

    def of(self, facts: NodeFacts) -> Mapping[str, Offer]:
        """Withheld devices too. Raises NodeNotReady while labels that matter are not known."""
        labels = self._node.labels if self._policy.asks_for_labels else {}
        if labels is None:
            raise NodeNotReady(
                "the policy goes by labels, and those of this node have not been read from the API server yet",
                about=f"node {self._node.name}",
            )
        last = self._last
        if last is None or last[0] is not facts or last[1] != labels:
            inventory = NodeInventorySpec(
                node_name=self._node.name,
                boot_id=facts.boot_id,
                driver=facts.driver,
                gpus=list(facts.gpus),
                summary=summary_of(facts.driver, facts.gpus, facts.problems),
            )
            self._last = last = facts, labels, by_name(offers(inventory, self._policy, labels))
        return last[2]
