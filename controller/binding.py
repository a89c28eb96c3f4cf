"""Names, in the status of each node's inventory, the claims whose pods wait until the node has prepared them.

A node plugin may not watch the claims of the cluster, so it learns here what to prepare before the kubelet asks
(`dra_driver.api.binding`). A claim is named as long as it waits: the plugin's answer in the claim's `status.devices`
ends that, and so does the scheduler when it takes the allocation back.
"""

from collections.abc import Collection

import structlog

from dra_driver.api.binding import waiting_results
from dra_driver.api.inventory import MOST_BINDING_CLAIMS, BindingClaim
from dra_driver.api.meta import NODE_INVENTORIES, RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.watch import Key, Mirror, MirrorChange, Watches
from dra_driver.kube.workqueue import WorkQueue

_log = structlog.get_logger(__name__)

_AGAIN_S = 60.0
"""While claims wait, they are named again: the inventory may have been deleted and made again, or an earlier leader was
late."""

type Waiting = tuple[tuple[str, BindingClaim], ...]
"""Node and claim, for each driver that has a device of the claim to prepare; a pool has the name of its node."""


def waiting_for_nodes(claim: JsonObject, drivers: Collection[str]) -> Waiting:
    """Empty for a claim that waits for no node, that is being deleted, or that no pod has reserved."""
    metadata = claim["metadata"]
    if metadata.get("deletionTimestamp") or not (claim.get("status") or {}).get("reservedFor"):
        return ()
    places = {(result["pool"], result["driver"]) for result in waiting_results(claim) if result["driver"] in drivers}
    return tuple(
        (
            node,
            BindingClaim(driver=driver, namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]),
        )
        for node, driver in sorted(places)
    )


class BindingClaims:
    """Of `drivers`, in the whole cluster."""

    def __init__(self, watches: Watches, drivers: Collection[str], *, workers: int, again_s: float = _AGAIN_S) -> None:
        self._again_s = again_s
        self._kube = watches.kube
        self._drivers = frozenset(drivers)
        self._workers = workers
        self._of_nodes: dict[str, dict[tuple[str, Key], BindingClaim]] = {}
        self._queue = WorkQueue()
        self._claims = Mirror(watches, RESOURCE_CLAIMS, keep=self._waiting, on_change=self._saw)
        self._named = Mirror(watches, NODE_INVENTORIES, keep=_names_claims)

    async def run(self) -> None:
        """Writes until cancelled; the watches must run."""
        await self._claims.synced.wait()
        await self._named.synced.wait()
        for (_, node), named in self._named.objects.items():
            if named:
                # An earlier leader may have named claims that no longer wait.
                self._queue.add(node)
        await self._queue.work(self._write, self._workers)

    def _waiting(self, claim: JsonObject) -> Waiting:
        return waiting_for_nodes(claim, self._drivers)

    def _saw(self, change: MirrorChange[Waiting]) -> None:
        before, after = change.before or (), change.after or ()
        if before == after:
            return
        for node, claim in before:
            self._of_nodes.get(node, {}).pop((claim.driver, change.key), None)
        for node, claim in after:
            self._of_nodes.setdefault(node, {})[claim.driver, change.key] = claim
        for node, _ in (*before, *after):
            self._queue.add(node)

    async def _write(self, node: str) -> None:
        claims = self._of_nodes.get(node, {})
        named = [claims[key].to_wire() for key in sorted(claims)[:MOST_BINDING_CLAIMS]]
        try:
            await self._kube.merge_patch(
                NODE_INVENTORIES, node, {"status": {"bindingClaims": named}}, subresource="status"
            )
        except NotFound:
            if claims:
                self._queue.retry(node)  # its plugin may write the inventory soon
            else:
                self._written(node)
        except ClusterError as error:
            pause_s = self._queue.retry(node, error.retry_after_s or 0.0)
            _log.warning("claims are not named to their node", node=node, error=str(error), retry_s=round(pause_s, 1))
        else:
            self._written(node)

    def _written(self, node: str) -> None:
        self._queue.succeeded(node)
        if self._of_nodes.get(node):
            self._queue.add_after(node, self._again_s)
        else:
            self._of_nodes.pop(node, None)


def _names_claims(inventory: JsonObject) -> bool:
    return bool((inventory.get("status") or {}).get("bindingClaims"))
