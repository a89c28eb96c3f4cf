"""What this node offers, by published name: the table that prepare looks devices up in.

The publisher decides what holds for the node and writes that in the status of the node's inventory
(`dra_driver.publish.decisions`). `NodeRules` has it here, as the reporter's watch shows it, so that both mean the same
hardware by a name. `kubelet_plugin.main` gives a `NodeOffers` to the claim service.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache

import structlog

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import NodeInventorySpec, NodeInventoryStatus, summary_of
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy, rules_before, rules_of
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.errors import ClusterError, InvalidInput, NodeNotReady, NotFound
from dra_driver.slices.properties import DeviceAttributes, device_capacity
from kubelet_plugin.facts.hardware import NodeFacts

_log = structlog.get_logger(__name__)


class NodeRules:
    """What was decided for this node; `rules` is None until that is known, and the last decision stands.

    Where the publisher has not decided anything, as one of an older release, `installed` holds. `before` are the rules
    of GPUs before their last change: a claim can have been allocated at that moment. `read` asks the API server for the
    node's inventory.
    """

    def __init__(
        self,
        rules: PublishingPolicy | None = None,
        read: Callable[[], Awaitable[JsonObject]] | None = None,
        installed: PublishingPolicy | None = None,
    ) -> None:
        self.rules = rules
        self._installed = installed
        self.before: PublishingPolicy | None = None
        self.modes: Mapping[str, bool] = {}
        """By UUID of a GPU: the MIG mode that the plugin may switch it to now, by a reset."""
        self.decided: frozenset[str] | None = None
        """UUIDs of the GPUs that were decided about; None: `rules` are for all GPUs."""
        self._read = read
        self._status: object = None
        self._listeners: list[Callable[[], None]] = []

    def health(self) -> HealthPolicy:
        return HealthPolicy() if self.rules is None else self.rules.health

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Called after each change of the rules."""
        self._listeners.append(listener)

    def saw(self, inventory: JsonObject) -> None:
        """Take over what the inventory's status says."""
        written = (inventory.get("status") or {}).get("policy")
        if written is None:
            self._nothing_decided()
            return
        if written == self._status:
            return
        self._status = written
        try:
            policy = NodeInventoryStatus.of({"policy": written}).policy
        except InvalidInput as error:
            _log.error("the publisher's decision for this node cannot be parsed", error=str(error))
            return
        assert policy is not None
        self.rules, self.before = rules_of(policy), rules_before(policy)
        self.modes = {
            gpu.uuid: gpu.mig_mode == "On" for gpu in policy.waiting if gpu.mig_mode is not None and not gpu.claims
        }
        self.decided = frozenset(uuid for group in policy.gpus for uuid in group.uuids)
        for listener in self._listeners:
            listener()

    def _nothing_decided(self) -> None:
        if self.rules is None:
            self.rules = self._installed

    async def refresh(self) -> None:
        """Ask the API server; what is known stands when that is not possible. Never raises."""
        if self._read is None:
            return
        try:
            self.saw(await self._read())
        except NotFound:
            self._nothing_decided()
        except ClusterError as error:
            _log.warning("the publisher's decision for this node cannot be read", error=str(error))


class NodeOffers:
    """The table of one node; made again when the facts or the rules change."""

    def __init__(self, rules: NodeRules, node_name: str) -> None:
        self._rules = rules
        self._node_name = node_name
        self._last: tuple[NodeFacts, PublishingPolicy, Mapping[str, Offer]] | None = None
        self._attributes: tuple[NodeFacts, PublishingPolicy, str, Callable[[Offer], JsonObject]] | None = None

    def of(self, facts: NodeFacts) -> Mapping[str, Offer]:
        """Also withheld devices, and devices from before a change. Raises NodeNotReady until the rules are known."""
        rules = self._rules.rules
        if rules is None:
            raise NodeNotReady(
                "the publisher's decision for this node has not been read from its NodeInventory yet;"
                " can the node reach the API server?",
                about=f"node {self._node_name}",
            )
        last = self._last
        if last is None or last[0] is not facts or last[1] is not rules:
            inventory, before, undecided = self._inventory(facts), self._rules.before, self.undecided(facts)
            known = [gpu for gpu in inventory.gpus if gpu.name not in undecided]
            inventory = inventory.model_copy(update={"gpus": known})
            table = {} if before is None else by_name(offers(inventory, before, {}))
            self._last = last = facts, rules, {**table, **by_name(offers(inventory, rules, {}))}
        return last[2]

    def attributes(self, facts: NodeFacts, driver: str) -> Callable[[Offer], JsonObject]:
        """What `driver` publishes of a device of the table, as in its ResourceSlice; by the present rules, also for
        devices from before a change."""
        rules = self._rules.rules or PublishingPolicy.EVERYTHING
        last = self._attributes
        if last is None or last[0] is not facts or last[1] is not rules or last[2] != driver:
            self._attributes = last = facts, rules, driver, self._describing(facts, rules, driver)
        return last[3]

    def _describing(self, facts: NodeFacts, rules: PublishingPolicy, driver: str) -> Callable[[Offer], JsonObject]:
        """Describes each device when it is first needed."""
        described = cache(lambda: DeviceAttributes(self._inventory(facts), rules, {}, driver))
        known: dict[tuple[str, bool], JsonObject] = {}

        def of(offer: Offer) -> JsonObject:
            key = offer.name, offer.sharing is not None
            if key not in known:
                attributes, _ = described().of(offer, device_capacity(offer))
                known[key] = {name: attribute.to_wire() for name, attribute in attributes.items()}
            return known[key]

        return of

    def _inventory(self, facts: NodeFacts) -> NodeInventorySpec:
        return NodeInventorySpec(
            node_name=self._node_name,
            boot_id=facts.boot_id,
            driver=facts.driver,
            gpus=list(facts.gpus),
            summary=summary_of(facts.driver, facts.gpus, facts.problems),
        )

    def undecided(self, facts: NodeFacts) -> tuple[str, ...]:
        """Names of GPUs about which nothing was decided, as one that was lost and is back: whether claims share it, and
        how, is not known."""
        decided = self._rules.decided
        return () if decided is None else tuple(gpu.name for gpu in facts.gpus if gpu.uuid not in decided)

    async def refresh(self) -> None:
        """Read the rules again. Never raises."""
        await self._rules.refresh()
