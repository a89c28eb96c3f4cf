"""Prepares the claims whose pods wait for this node, before the kubelet asks (binding conditions, KEP-5007).

The controller names these claims in the status of the node's inventory (`dra_driver.api.inventory.BindingClaim`), which
the reporter's watch shows to `NodeBinding.saw`. Each is prepared by the same journaled operation as a call of the
kubelet, which then finds it prepared. The answer goes to the claim's `status.devices`
(`kubelet_plugin.reporting.device_status`), where the scheduler reads it; then the controller no longer names the claim.
A claim that is named still is looked at again.

* A failure is tried again, because most end by themselves: the GPU is in use for a moment, or the claim before is still
  being released. After `patience_s` the node gives the claim up. One attempt before, its devices get a taint, because
  the scheduler acts on the answer at once, and must not choose them again.
* A channel on a node that is meanwhile in another domain is given up at once. Nothing is wrong with the node, and its
  slices keep the scheduler from it.
* What only the author of the claim can correct would fail on every node. The pod is bound, and the kubelet reports it.
* If the scheduler gives the claim up, what was prepared is released at once, unless the kubelet has asked meanwhile.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from dra_driver.api.inventory import NodeInventoryStatus
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import AllocatedDevice, Allocation
from dra_driver.devices.model import Offer
from dra_driver.errors import ClusterError, DomainLack, DomainNotReady, DriverError, InvalidInput, NodeNotReady
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, ClaimRef
from dra_driver.runtime.tasks import until
from kubelet_plugin.facts.node_watch import NodeWatch
from kubelet_plugin.facts.offers import NodeOffers
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.listener import AllocatedTo
from kubelet_plugin.reporting.device_status import BindingAnswer, DeviceStatusWriter, PrepareRefusal, refusal_of
from kubelet_plugin.settings import NodePluginSettings

_log = structlog.get_logger(__name__)

_PATIENCE_S = 15.0
"""How long a node tries to prepare GPUs before it gives a claim up. The scheduler's default is to wait for 600 s."""
_DAEMON_PATIENCE_S = 120.0
"""The same for a channel: the IMEX daemon of its domain starts on the node, and its image may be pulled first."""
_AGAIN_S = 5.0
"""Between two attempts, and between two looks at a claim that is named although it was answered."""
_GIVEN_UP_S = 10.0
"""Between two looks for claims that the scheduler gave up, while some are prepared and the kubelet has not asked."""


class PreparesAhead(Protocol):
    """What is needed of the service of claims."""

    async def prepare_ahead(self, claim: ClaimRef) -> DriverError | None:
        """Prepare a claim whose pod waits for binding conditions, as the kubelet will ask. None when it is prepared."""

    async def release_given_up(self) -> bool:
        """Release what was prepared ahead for claims that the scheduler has given up. Whether there was any claim that
        the kubelet had not asked for. Never raises."""


type Outcome = Callable[[Collection[str], DriverError | None], None]
"""Gets the names of a claim's devices, and why the node gave them up; None: they were prepared."""


@dataclass(slots=True)
class _Wait:
    """One allocation of a claim. A node that cannot prepare it by `deadline`, by the event loop's clock, gives it up at
    the attempt after that."""

    allocation: Allocation
    deadline: float
    refusal: PrepareRefusal | None = None
    """The last one."""
    blamed: bool = False
    """Whether its devices have got a taint."""


class NodeBinding:
    """Of one driver on one node. `saw` may be called before `run`, which runs until cancelled."""

    def __init__(
        self,
        driver: str,
        node: str,
        claims: ClaimReader,
        service: PreparesAhead,
        answers: DeviceStatusWriter,
        outcome: Outcome,
        *,
        patience_s: float = _PATIENCE_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._driver = driver
        self._node = node
        self._claims = claims
        self._service = service
        self._answers = answers
        self._outcome = outcome
        self._patience_s = patience_s
        self._again_s = again_s
        self._named: frozenset[ClaimRef] = frozenset()
        self._raw: object = None
        self._changed = asyncio.Event()
        self._given_up = asyncio.Event()
        """A claim may have been given up."""
        self._followed: set[ClaimRef] = set()

    def saw(self, inventory: JsonObject) -> None:
        """Take over which claims the inventory of this node names."""
        raw = (inventory.get("status") or {}).get("bindingClaims") or []
        if raw == self._raw:
            return
        self._raw = raw
        try:
            named = NodeInventoryStatus.of({"bindingClaims": raw}).binding_claims
        except InvalidInput as error:
            _log.error("the claims that wait for this node cannot be understood", error=str(error))
            return
        refs = frozenset(ClaimRef(item.namespace, item.name, item.uid) for item in named if item.driver == self._driver)
        if refs != self._named:
            self._named = refs
            self._changed.set()
            self._given_up.set()

    async def run(self) -> None:
        self._followed.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._release_given_up())
            while True:
                self._changed.clear()
                for ref in self._named - self._followed:
                    self._followed.add(ref)
                    group.create_task(self._follow(ref))
                await self._changed.wait()

    async def _release_given_up(self) -> None:
        """Apart from the rest, because hardware that hangs keeps a release, and must keep no other claim."""
        while True:
            self._given_up.clear()
            unasked = await self._service.release_given_up()
            await until(self._given_up, _GIVEN_UP_S if unasked or self._followed else None)

    async def _follow(self, ref: ClaimRef) -> None:
        """Prepare the claim as long as it is named."""
        wait: _Wait | None = None
        while ref in self._named:
            try:
                wait = await self._attempt(ref, wait)
            except DriverError as error:
                _log.warning("a claim that waits for this node cannot be read", claim=str(ref), error=str(error))
            except Exception as error:  # noqa: BLE001 - one claim's defect is not the others'
                _log.error("failed unexpectedly", claim=str(ref), exc_info=error)
            await asyncio.sleep(self._again_s)
        self._followed.discard(ref)
        self._given_up.set()
        self._answers.waits_no_longer(ref.uid)

    async def _attempt(self, ref: ClaimRef, wait: _Wait | None) -> _Wait | None:
        """None when the claim is not allocated here, or no longer. Raises ClusterError."""
        allocation = await self._allocation(ref)
        if allocation is None:
            return None
        here = (self._driver, self._node)
        results = [result for result in allocation.devices.results if (result.driver, result.pool) == here]
        if not any(result.binding_conditions for result in results):
            return None
        if wait is None or wait.allocation != allocation:
            # What was said about an earlier allocation went with it.
            self._answers.say_again(ref.uid)
            patience_s = self._patience_s - self._again_s
            wait = _Wait(allocation, asyncio.get_running_loop().time() + patience_s)
        elif wait.refusal is None or wait.refusal.binding is not BindingAnswer.WAIT:
            # It was answered, and is named still.
            self._answers.say_again(ref.uid)
        if wait.refusal is None or wait.refusal.binding is not BindingAnswer.GIVE_UP:
            await self._prepare(ref, results, wait)
        return wait

    async def _allocation(self, ref: ClaimRef) -> Allocation | None:
        """Raises ClusterError."""
        claim = await self._claims.read(ref)
        return None if claim is None or claim.metadata.uid != ref.uid else claim.status.allocation

    async def _prepare(self, ref: ClaimRef, results: Collection[AllocatedDevice], wait: _Wait) -> None:
        error = await self._service.prepare_ahead(ref)
        names = [result.device for result in results if result.binding_conditions]
        if error is None:
            wait.refusal = None
            self._outcome(names, None)
            return
        answer = self._answer(error, wait)
        if answer is not BindingAnswer.WAIT and await self._allocation(ref) != wait.allocation:
            return  # The error may be about the next allocation, which the next attempt finds.
        if answer is BindingAnswer.GIVE_UP and not wait.blamed and not _is_taken(error):
            wait.blamed, answer = True, BindingAnswer.WAIT
            self._outcome(names, error)
        if answer is BindingAnswer.GIVE_UP:
            _log.warning("gave up a claim whose pod waits for this node", claim=str(ref), error=str(error))
        wait.refusal = refusal_of(ref, tuple(map(AllocatedTo.of, results)), error, answer)
        self._answers.waits_for_binding(wait.refusal)

    def _answer(self, error: DriverError, wait: _Wait) -> BindingAnswer:
        if isinstance(error, InvalidInput):
            return BindingAnswer.BIND
        if _is_taken(error):
            return BindingAnswer.GIVE_UP
        waits = isinstance(error, DomainNotReady) and error.lack is DomainLack.OTHER_NODES
        others = isinstance(error, ClusterError) or waits
        over = asyncio.get_running_loop().time() >= wait.deadline
        return BindingAnswer.GIVE_UP if over and not others else BindingAnswer.WAIT


def _is_taken(error: DriverError) -> bool:
    """Whether two domains raced for the node, and the other one has it."""
    return isinstance(error, DomainNotReady) and error.lack is DomainLack.FREE_NODE


def binding_of_gpus(
    settings: NodePluginSettings,
    claims: ClaimReader,
    service: PreparesAhead,
    answers: DeviceStatusWriter,
    watch: NodeWatch,
    offers: NodeOffers,
) -> NodeBinding:
    """For GPUs. What the node gives up is tainted by `watch`; `offers` says of which GPU a device is."""

    def outcome(devices: Collection[str], error: DriverError | None) -> None:
        try:
            facts = watch.facts.facts
        except NodeNotReady:
            return  # Nothing was seen since the plugin started, so there is nothing to taint.
        table: Mapping[str, Offer] = {}
        with suppress(NodeNotReady):
            table = offers.of(facts)
        gpus = {table[device].gpu.uuid for device in devices if device in table}
        if error is None:
            watch.prepared(gpus)
        else:
            watch.gave_up(gpus, error)

    return NodeBinding(settings.driver_name, settings.node_name, claims, service, answers, outcome)


def binding_of_domains(
    node: str,
    claims: ClaimReader,
    watch: NodeWatch,
    follow: Callable[[Callable[[JsonObject], None]], None],
    service: PreparesAhead,
    answers: DeviceStatusWriter,
) -> NodeBinding:
    """For channels. `follow` shows the node's inventory to a listener."""
    binding = NodeBinding(
        COMPUTE_DOMAIN_DRIVER,
        node,
        claims,
        service,
        answers,
        lambda devices, error: watch.channels_prepared(error),
        patience_s=_DAEMON_PATIENCE_S,
    )
    follow(binding.saw)
    return binding
