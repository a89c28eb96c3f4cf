"""What this node offers under the cluster's policy, by published name: the table that prepare looks devices up in.

The publisher asks the same (`dra_driver.devices.offers`), with the same policy file, so both mean the same hardware by
a name. `kubelet_plugin.main` gives a `NodeOffers` to the claim service. The node's labels are read only when the policy
asks for them: at start, from time to time, and when a claim has an unknown device.
"""

import asyncio
from collections.abc import Mapping

import structlog

from dra_driver.api.inventory import NodeInventorySpec, summary_of
from dra_driver.api.meta import NODES
from dra_driver.api.policy import PublishingPolicy
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import ClusterError, NodeNotReady
from dra_driver.kube.client import Kube
from kubelet_plugin.facts.hardware import NodeFacts

_log = structlog.get_logger(__name__)

_INTERVAL_S = 60.0
_PATIENCE_S = 5.0


class NodeOffers:
    """The table of one node; made again when the facts or the labels change."""

    def __init__(self, api: Kube, policy: PublishingPolicy, node_name: str) -> None:
        self._api = api
        self._policy = policy
        self._node_name = node_name
        self._labels: Mapping[str, str] | None = None if policy.asks_for_labels else {}
        self._last: tuple[NodeFacts, Mapping[str, str], Mapping[str, Offer]] | None = None

    def of(self, facts: NodeFacts) -> Mapping[str, Offer]:
        """Withheld devices too. Raises NodeNotReady while labels that matter are not known."""
        labels = self._labels
        if labels is None:
            raise NodeNotReady(
                "the policy goes by labels, and those of this node have not been read from the API server yet",
                about=f"node {self._node_name}",
            )
        last = self._last
        if last is None or last[0] is not facts or last[1] is not labels:
            inventory = NodeInventorySpec(
                node_name=self._node_name,
                boot_id=facts.boot_id,
                driver=facts.driver,
                gpus=list(facts.gpus),
                summary=summary_of(facts.driver, facts.gpus, facts.problems),
            )
            self._last = last = facts, labels, by_name(offers(inventory, self._policy, labels))
        return last[2]

    async def refresh(self) -> None:
        """Read the node's labels, where they matter; the last ones stand when that is not possible. Never raises."""
        if not self._policy.asks_for_labels:
            return
        try:
            async with asyncio.timeout(_PATIENCE_S):
                node = await self._api.get(NODES, self._node_name)
        except (ClusterError, TimeoutError) as error:
            _log.warning("the node's labels cannot be read", node=self._node_name, error=str(error) or "no answer")
            return
        labels: Mapping[str, str] = node["metadata"].get("labels") or {}
        if labels != self._labels:
            self._labels = labels

    async def run(self) -> None:
        """Read the labels at every interval, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(_INTERVAL_S)
