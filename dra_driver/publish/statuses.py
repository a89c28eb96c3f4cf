"""Writes in the status of inventories what of the policy their nodes cannot follow; an Event when that begins and ends.

Entered by `pools` after each look at a pool. Nothing is written while the status says the same. A status that cannot be
written keeps no pool from being published.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.inventory import POLICY_FOLLOWED, Limitation, NodeInventoryStatus
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject, wire_time
from dra_driver.devices.limitations import wanted_status
from dra_driver.errors import Conflict, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.events import News, Regarding
from dra_driver.publish.inventories import KeptInventory

_log = structlog.get_logger(__name__)

NOT_FOLLOWED = "PolicyNotFollowed"
"""Reason of an Event."""


@dataclass
class InventoryStatuses:
    """Of one driver's limitations. `tell` takes Events, if any. `now` is the wall clock. `beside` are the
    drivers whose limitations others write."""

    kube: Kube
    driver: str
    tell: Callable[[News], None] | None
    now: Callable[[], datetime]
    beside: Collection[str] = ()
    look_again: Callable[[str], None] = lambda name: None
    _written_at: dict[str, str] = field(default_factory=dict)
    """By inventory: the resourceVersion on which the last write was based. The watch has not shown that write as long
    as the inventory still has this version."""
    _made: dict[str, str] = field(default_factory=dict)
    """By inventory: the resourceVersion that the last write made."""
    _shown: dict[str, str | None] = field(default_factory=dict)
    """By inventory that is being written: the resourceVersion that the watch has shown meanwhile."""
    _refused: str | None = None

    async def write(
        self,
        inventory: KeptInventory,
        before: NodeInventoryStatus,
        limitations: Sequence[Limitation],
        policy: NodePolicy | None = None,
    ) -> bool:
        """Make the status say these limitations of the driver, and `policy`; None leaves that as it is. `before` is
        what the inventory's status says.

        Whether it says so now; if not, the watch is about to show a newer version. Raises Unreachable.
        """
        version = inventory.resource_version
        time = wire_time(self.now())
        after = wanted_status(before, self.driver, limitations, time, self.beside)
        if policy is not None and policy != before.policy:
            after = after.model_copy(update={"policy": policy})
        if after is before:
            return True
        if self._written_at.get(inventory.name) == version:
            self._made.pop(inventory.name, None)  # The version that the watch is about to show must be looked at.
            return False
        patch = {"metadata": {"resourceVersion": version}, "status": after.to_wire()}
        try:
            await self._patch(inventory.name, patch)
        except Conflict:
            return False  # The watch is about to show a newer version, which is looked at then.
        except (NotFound, Rejected) as error:
            # The inventory is gone, which the watch shows; or definition or permissions are of an older release.
            self._complain(inventory.name, str(error))
            return False
        self._written_at[inventory.name] = version
        self._refused = None
        if self.tell is not None and (news := _news(inventory.name, before, after)) is not None:
            self.tell(news)
        return True

    async def _patch(self, name: str, patch: JsonObject) -> None:
        made = None
        self._shown[name] = None
        try:
            stored = await self.kube.merge_patch(NODE_INVENTORIES, name, patch, subresource="status", answer="metadata")
            made = self._made[name] = stored["metadata"]["resourceVersion"]
        finally:
            if self._shown.pop(name) not in (None, made):
                self.look_again(name)

    def has_news(self, inventory: KeptInventory) -> bool:
        """Whether the version must be looked at. That which the last write made need not: it is a version that was
        looked at, and that write. The watch may show it before the write is answered; then `look_again` is called if it
        was another.
        """
        if inventory.name in self._shown:
            self._shown[inventory.name] = inventory.resource_version
            return False
        return self._made.get(inventory.name) != inventory.resource_version

    def forget(self, name: str) -> None:
        self._written_at.pop(name, None)
        self._made.pop(name, None)

    def _complain(self, name: str, error: str) -> None:
        if self._refused != error:
            self._refused = error
            _log.warning(
                "the status of an inventory was not written; upgrade the chart if its NodeInventory definition or"
                " permissions are of an older release",
                inventory=name,
                error=error,
            )


def _news(node: str, before: NodeInventoryStatus, after: NodeInventoryStatus) -> News | None:
    """When a rule cannot be followed that could be before, and when all can be followed again."""
    known = {(item.rule, item.reason) for item in before.limitations}
    new = [item for item in after.limitations if item.rule is not None and (item.rule, item.reason) not in known]
    condition = next((item for item in after.conditions if item.type == POLICY_FOLLOWED), None)
    if condition is None:
        return None
    since, about = condition.last_transition_time, Regarding.node(node)
    if new:
        note = " ".join(f"{item}. To end this: {item.fix}." for item in new)
        return News(about, "Warning", NOT_FOLLOWED, "Publishing", note, since)
    if condition.status == "True" and any(item.status == "False" for item in before.conditions):
        return News(
            about, "Normal", POLICY_FOLLOWED, "Publishing", "All rules of the policy are followed again.", since
        )
    return None
