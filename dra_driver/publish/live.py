"""Where a publisher's rules come from: GpuPolicies of the cluster, or what another publisher decided.

`LivePolicies` follows GpuPolicies and allocated claims, and decides for one node at a time (`decisions`). A GpuPolicy
that is invalid, which an API server with the current definition does not accept, changes nothing: what held for a
node holds on, and nodes that nothing was decided for wait.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.gpupolicy import GpuPolicy, combined
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import GPU_POLICIES, RESOURCE_CLAIMS, JsonObject
from dra_driver.api.policy import PublishingPolicy, rules_of, selects
from dra_driver.errors import InvalidInput
from dra_driver.features import Gates
from dra_driver.kube.watch import Mirror, MirrorChange, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish.decisions import Users, decided, settled, with_mode_changes

_log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 30.0
"""How often a publisher of one node looks whether the claims that a change waits for are gone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The rules for a node. `policy` is written in its inventory before they are followed; None: nothing is written."""

    rules: PublishingPolicy
    policy: NodePolicy | None = None


class PolicySource(Protocol):
    """`labels_matter`: `decide` reads the labels of nodes."""

    labels_matter: bool

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """What must be synced before the first decision."""

    async def decide(
        self, facts: NodeInventorySpec, now: NodePolicy | None, labels: Mapping[str, str]
    ) -> Decision | None:
        """None: it is not known yet. `now` is what the status of the inventory says. Raises ClusterError."""


class DecidedPolicies:
    """What the publisher of GPUs decided; for the publisher of ComputeDomains."""

    labels_matter = False
    mirrors: tuple[Mirror[Any], ...] = ()

    async def decide(
        self, facts: NodeInventorySpec, now: NodePolicy | None, labels: Mapping[str, str]
    ) -> Decision | None:
        return None if now is None else Decision(rules_of(now))


@dataclass(frozen=True, slots=True)
class Changed:
    """What a source calls when it would decide otherwise: for all nodes that a function selects, by name and labels, or
    for one pool."""

    nodes: Callable[[Callable[[str, Mapping[str, str]], bool]], None]
    pool: Callable[[str], None]


class LivePolicies:
    """For all nodes, or for `node_name` alone; then claims are listed when it matters, rather than watched.

    `installed` are policies that hold although the cluster does not have them; one of the cluster with the same name
    replaces them.
    """

    labels_matter = True

    def __init__(
        self,
        watches: Watches,
        driver: str,
        gates: Gates,
        changed: Changed,
        node_name: str | None = None,
        installed: Sequence[GpuPolicy] = (),
    ) -> None:
        self._gates = gates
        self._installed = {policy.name: policy for policy in installed}
        self._changed = changed
        self._policies: Mirror[GpuPolicy | InvalidInput] = Mirror(
            watches, GPU_POLICIES, keep=_policy, on_change=self._policy_changed
        )
        self._users = _Users(watches, driver, self._users_changed, watched=node_name is None)
        self._node_name = node_name
        self._waiting: set[str] = set()
        self._logged_error = ""
        self._rules: tuple[tuple[GpuPolicy, ...], PublishingPolicy] | None = None

    @property
    def mirrors(self) -> tuple[Mirror[Any], ...]:
        return (self._policies, *self._users.mirrors)

    async def decide(
        self, facts: NodeInventorySpec, now: NodePolicy | None, labels: Mapping[str, str]
    ) -> Decision | None:
        node = facts.node_name
        invalid = [policy for policy in self._policies.objects.values() if isinstance(policy, InvalidInput)]
        if invalid:
            if str(invalid[0]) != self._logged_error:
                self._logged_error = str(invalid[0])
                _log.warning(
                    "rules for all nodes stay unchanged until the policy is corrected", error=self._logged_error
                )
            return None if now is None else Decision(rules_of(now), now)
        policies, rules = self._current()
        wanted = decided(rules, policies, facts, labels)
        if self._node_name is not None and (
            (now is not None and (wanted.gpus != now.gpus or now.waiting))
            or with_mode_changes(wanted, facts, {}).waiting
        ):
            await self._users.read()
        users = self._users.of(node)
        wanted = with_mode_changes(settled(now, wanted, facts, users, self._users.channels(node)), facts, users)
        self._waits(node, bool(wanted.waiting))
        return Decision(rules_of(wanted), wanted)

    def _waits(self, node: str, waits: bool) -> None:
        if not waits:
            self._waiting.discard(node)
            return
        self._waiting.add(node)
        if self._node_name is not None:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self._changed.pool, node)

    def _current(self) -> tuple[tuple[GpuPolicy, ...], PublishingPolicy]:
        if self._rules is None:
            policies = tuple(
                policy.model_copy(update={"spec": policy.spec.without(self._gates)[0]})
                for policy in {
                    **self._installed,
                    **{name: policy for (_, name), policy in self._policies.objects.items()},
                }.values()
                if isinstance(policy, GpuPolicy)
            )
            self._rules = policies, combined(policies)
        return self._rules

    def _policy_changed(self, change: MirrorChange[GpuPolicy | InvalidInput]) -> None:
        self._rules = None
        before, after = change.before, change.after
        if isinstance(before, GpuPolicy) and isinstance(after, GpuPolicy) and before.spec == after.spec:
            return  # Its status.
        if isinstance(before, InvalidInput) or isinstance(after, InvalidInput):
            self._changed.nodes(lambda node, labels: True)
            return
        # A change for one node must not wait for all others to be looked at.
        selections = [policy.spec.nodes for policy in (before, after) if policy is not None]
        self._changed.nodes(lambda node, labels: any(selects(nodes, node, labels) for nodes in selections))

    def _users_changed(self, node: str) -> None:
        if node in self._waiting:
            self._changed.pool(node)


def _policy(obj: JsonObject) -> GpuPolicy | InvalidInput:
    try:
        return GpuPolicy.read(obj)
    except InvalidInput as error:
        return error


type _Allocated = tuple[tuple[str, str, str], ...]
"""Driver, pool and device of each result of a claim."""


class _Users:
    """Which devices are allocated to which claims, by pool, which is the node."""

    def __init__(self, watches: Watches, driver: str, changed: Callable[[str], None], *, watched: bool) -> None:
        """Without `watched`, only `read` learns of claims."""
        self._kube = watches.kube
        self._drivers = (driver, COMPUTE_DOMAIN_DRIVER)
        self._driver = driver
        self._changed = changed
        self._by_pool: dict[tuple[str, str], dict[str, set[str]]] = {}
        self.mirrors: tuple[Mirror[_Allocated], ...] = (
            (Mirror(watches, RESOURCE_CLAIMS, keep=self._allocated, on_change=self._saw),) if watched else ()
        )

    def of(self, node: str) -> Users:
        return {device: sorted(claims) for device, claims in self._by_pool.get((self._driver, node), {}).items()}

    def channels(self, node: str) -> int:
        """How many channels of the node must stay, so that all that are used do."""
        names = self._by_pool.get((COMPUTE_DOMAIN_DRIVER, node), {})
        numbers = [int(number) for kind, _, number in (name.partition("-") for name in names) if kind == "channel"]
        return max(numbers, default=-1) + 1

    async def read(self) -> None:
        self._by_pool = {}
        async for page in self._kube.pages(RESOURCE_CLAIMS):
            for claim in page.items:
                self._add(_name(claim["metadata"]["namespace"], claim["metadata"]["name"]), self._allocated(claim))

    def _allocated(self, claim: JsonObject) -> _Allocated:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        return tuple(
            (result["driver"], result["pool"], result["device"])
            for result in (allocation.get("devices") or {}).get("results") or ()
            if result["driver"] in self._drivers and not result.get("adminAccess")
        )

    def _saw(self, change: MirrorChange[_Allocated]) -> None:
        claim, before, after = _name(*change.key), change.before or (), change.after or ()
        for driver, pool, device in before:
            devices = self._by_pool.get((driver, pool), {})
            devices.get(device, set()).discard(claim)
            if not devices.get(device):
                devices.pop(device, None)
            if not devices:
                self._by_pool.pop((driver, pool), None)
        self._add(claim, after)
        for pool in {pool for _, pool, _ in (*before, *after)}:
            self._changed(pool)

    def _add(self, claim: str, allocated: _Allocated) -> None:
        for driver, pool, device in allocated:
            self._by_pool.setdefault((driver, pool), {}).setdefault(device, set()).add(claim)


def _name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"
