"""GpuPolicies as a whole: makes those of the installation, and writes in the status of each what became of it.

What happens on a node, its publisher writes in the status of the node's inventory (`dra_driver.publish.decisions`).
Here it is added up, so that it does not matter who publishes. Runs while this process leads.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from dra_driver.api.gpu_settings import WaitingGpu
from dra_driver.api.gpupolicy import (
    ACCEPTED,
    FOLLOWED,
    GATE_OFF,
    MOST_EXAMPLES,
    MOST_LISTED,
    GpuPolicy,
    GpuPolicySpec,
    GpuPolicyStatus,
    PolicyProblem,
    PolicyWait,
    combined,
)
from dra_driver.api.inventory import Limitation, NodeInventoryStatus
from dra_driver.api.meta import GPU_POLICIES, NODE_INVENTORIES, Condition, JsonObject, dated, wire_time
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, InvalidInput, NotFound, Rejected
from dra_driver.features import Gates
from dra_driver.kube.events import News, Regarding
from dra_driver.kube.watch import Backoff, Mirror, Watches
from dra_driver.phrases import how_many

_log = structlog.get_logger(__name__)

FROM_FILE = "dra.gpu/from"
"""Label of the policies of the installation, which its values decide on; its value is `installation`."""

WAITING = "Waiting"
"""Reason of the condition Followed, and of an Event, while GPUs change later: claims use them, or their MIG mode is
switched."""

_GATHER_S = 0.5
_GATHER_PART = 20.0
_LONGEST_GATHER_S = 5.0
"""Changes within this time are written together: a policy for 5,000 nodes changes 5,000 inventories. `_GATHER_PART` is
added for each second that the last look at all nodes and its writes took, so that they stay a small part of the work.
"""


@dataclass(frozen=True, slots=True)
class _OnNode:
    """What one policy leads to on one node."""

    gpus: int
    offered: Mapping[str, int]
    waiting: tuple[WaitingGpu, ...]
    problems: tuple[Limitation, ...]


type _Node = Mapping[str, _OnNode]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A policy as the server has it. `policy` is None if it is invalid, and `error` says why."""

    policy: GpuPolicy | None
    error: str
    generation: int | None
    status: GpuPolicyStatus
    made_here: bool
    uid: str


class PolicyKeeper:
    """`installed` are the policies of the installation, `tell` takes Events about policies."""

    def __init__(
        self,
        watches: Watches,
        gates: Gates,
        installed: Sequence[GpuPolicy] = (),
        tell: Callable[[News], None] = lambda news: None,
    ) -> None:
        self._tell = tell
        self._kube = watches.kube
        self._gates = gates
        self._installed = {policy.name: policy for policy in installed}
        self._changed = asyncio.Event()
        self._loop_time = asyncio.get_running_loop().time
        self._foreign: set[str] = set()
        """Policies of others that have the name of one of the installation."""
        self._policies = Mirror(watches, GPU_POLICIES, keep=_stored, on_change=lambda _: self._changed.set())
        self._nodes = Mirror(watches, NODE_INVENTORIES, keep=_node, on_change=lambda _: self._changed.set())

    async def several_channels(self) -> bool:
        """Whether any node may have more than one channel of ComputeDomains; waits until the policies are known."""
        await self._policies.synced.wait()
        there = {
            name: stored.policy for (_, name), stored in self._policies.objects.items() if stored.policy is not None
        }
        return combined({**self._installed, **there}.values()).several_channels

    async def run(self) -> None:
        """Writes until cancelled; the watches must run."""
        await self._policies.synced.wait()
        await self._nodes.synced.wait()
        retry = Backoff(first_s=1.0, longest_s=60.0)
        while True:
            self._changed.clear()
            began = self._loop_time()
            try:
                refused = await self._install()
                refused = await self._write_statuses(self._nodes.objects) or refused
                if refused is not None:
                    raise refused
            except ClusterError as error:
                pause_s = retry.next_s(error.retry_after_s or 0.0)
                _log.warning("a GpuPolicy was not written", error=str(error), retry_s=round(pause_s, 1))
                await asyncio.sleep(pause_s)
                continue
            retry.reset()
            took_s = self._loop_time() - began
            await self._changed.wait()
            await asyncio.sleep(min(_GATHER_S + _GATHER_PART * took_s, _LONGEST_GATHER_S))

    async def _install(self) -> Rejected | None:
        """Make the policies of the installation as they should be, and remove those that it no longer has. Returns the
        first refusal: what the API server refuses of one policy keeps no other from being written.

        The publisher goes by them even before they are made, so that an upgrade publishes nothing in between that they
        withhold. Therefore they are made again after a user deletes or changes them.
        """
        refused: Rejected | None = None
        for policy in self._installed.values():
            try:
                await self._make(policy)
            except Rejected as error:
                refused = refused or error
        for (_, name), stored in list(self._policies.objects.items()):
            if stored.made_here and name not in self._installed:
                with suppress(NotFound):
                    await self._kube.delete(GPU_POLICIES, name)
                    _log.info("policy removed, because the installation no longer has it", policy=name)
        return refused

    async def _make(self, policy: GpuPolicy) -> None:
        stored = self._policies.objects.get(("", policy.name))
        wanted = policy.to_object()
        wanted["metadata"]["labels"] = {FROM_FILE: "installation"}
        if stored is None:
            try:
                await self._kube.create(GPU_POLICIES, wanted)
                _log.info("policy of the installation made", policy=policy.name)
            except AlreadyExists:
                pass
        elif not stored.made_here:
            if policy.name not in self._foreign:
                _log.warning(
                    "a policy of this name exists, and stays instead of the installation's", policy=policy.name
                )
            self._foreign.add(policy.name)
        elif stored.policy is None or stored.policy.spec != policy.spec:
            current = await self._kube.get(GPU_POLICIES, policy.name)
            await self._kube.replace(GPU_POLICIES, {**current, "spec": wanted["spec"]})
            _log.info("policy of the installation changed", policy=policy.name)

    async def _write_statuses(self, nodes: Mapping[tuple[str, str], _Node]) -> Rejected | None:
        """As `_install`."""
        refused: Rejected | None = None
        shares: dict[str, list[tuple[str, _OnNode]]] = {}
        for (_, node), shares_of_node in sorted(nodes.items()):
            for name, share in shares_of_node.items():
                shares.setdefault(name, []).append((node, share))
        time = wire_time(datetime.now(UTC))
        for (_, name), stored in sorted(self._policies.objects.items()):
            status = _status(stored, shares.get(name, ()), self._gates, time)
            if status != stored.status:
                # A merge patch removes nothing that is not named, so empty lists are written, too.
                body = status.model_dump(mode="json", by_alias=True)
                try:
                    await self._kube.merge_patch(GPU_POLICIES, name, {"status": body}, subresource="status")
                except (NotFound, Conflict):
                    continue
                except Rejected as error:
                    refused = refused or error
                    continue
                self._tell_change(name, stored, status)
        return refused

    def _tell_change(self, name: str, stored: _Stored, status: GpuPolicyStatus) -> None:
        """An Event of the policy when the reason of a condition changed; not that a new policy is followed."""
        before = {condition.type: condition.reason for condition in stored.status.conditions}
        for condition in status.conditions:
            good = condition.status == "True"
            if before.get(condition.type) == condition.reason or (good and condition.type not in before):
                continue
            note = condition.message or f"The policy is {condition.reason.lower()} again."
            about = Regarding(GPU_POLICIES.api_version, GPU_POLICIES.kind, name, stored.uid)
            kind: Literal["Normal", "Warning"] = "Normal" if good or condition.reason == WAITING else "Warning"
            self._tell(News(about, kind, condition.reason, "Publishing", note, condition.last_transition_time))


def _stored(obj: JsonObject) -> _Stored:
    policy, error = None, ""
    # Another release's status is written again.
    status = GpuPolicyStatus.or_none(obj.get("status") or {}) or GpuPolicyStatus()
    try:
        policy = GpuPolicy.read({**obj, "status": {}})
    except InvalidInput as problem:
        error = problem.message
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    return _Stored(policy, error, metadata.get("generation"), status, FROM_FILE in labels, metadata["uid"])


def _node(obj: JsonObject) -> _Node:
    status = NodeInventoryStatus.or_none(obj.get("status") or {})
    if status is None or status.policy is None:
        return {}
    gpus: Counter[str] = Counter()
    for group in status.policy.gpus:
        gpus.update(dict.fromkeys(group.policies, len(group.uuids)))
    offered: dict[str, dict[str, int]] = {}
    for item in status.policy.offered:
        offered.setdefault(item.policy, {})[item.kind] = item.devices
    waiting: dict[str, list[WaitingGpu]] = {}
    for gpu in status.policy.waiting:
        for name in gpu.policies:
            waiting.setdefault(name, []).append(gpu)
    problems: dict[str, list[Limitation]] = {}
    for limitation in status.limitations:
        _, of, name = (limitation.rule or "").partition(" of GpuPolicy ")
        if of:
            problems.setdefault(name, []).append(limitation)
    return {
        name: _OnNode(gpus[name], offered.get(name, {}), tuple(waiting.get(name, ())), tuple(problems.get(name, ())))
        for name in gpus.keys() | waiting.keys() | problems.keys()
    }


def _status(stored: _Stored, shares: Sequence[tuple[str, _OnNode]], gates: Gates, time: str) -> GpuPolicyStatus:
    def condition(type_: str, reason: str, message: str | None = None) -> Condition:
        """True without a message."""
        status: Literal["True", "False"] = "True" if message is None else "False"
        text = (message or "")[:1024]
        made = Condition(type=type_, status=status, reason=reason, message=text, last_transition_time=time)
        return dated(made, stored.status.conditions)

    if stored.policy is None:
        refused = condition(ACCEPTED, "Invalid", stored.error)
        return GpuPolicyStatus(observed_generation=stored.generation, conditions=[refused])
    _, off = stored.policy.spec.without(gates)
    problems = [
        PolicyProblem(
            rule=f"{GpuPolicySpec.model_fields[field].alias} of GpuPolicy {stored.policy.name}",
            reason=GATE_OFF,
            nodes=len(shares),
            message=f"the field is ignored because feature gate {feature} is off",
            fix=f"switch the gate on (`featureGates: {{{feature}: true}}` of the chart), or remove the field",
        )
        for field, feature in off
    ]
    problems += _problems(shares)
    waiting = [
        PolicyWait(node=node, gpu=gpu.gpu, claims=gpu.claims, mig_mode=gpu.mig_mode)
        for node, share in shares
        for gpu in share.waiting
    ]
    offered: Counter[str] = Counter()
    for _, share in shares:
        offered.update(share.offered)
    if problems:
        first = problems[0]
        message = f"{first.rule}, {how_many(first.nodes, 'node')}: {first.message}. {first.fix}"
        followed = condition(FOLLOWED, first.reason, message)
    elif waiting:
        followed = condition(FOLLOWED, WAITING, f"{len(waiting)} GPUs do not follow yet; {waiting[0]}")
    else:
        followed = condition(FOLLOWED, "Followed")
    return GpuPolicyStatus(
        observed_generation=stored.generation,
        nodes=sum(share.gpus > 0 for _, share in shares),
        gpus=sum(share.gpus for _, share in shares),
        offered=", ".join(f"{count} {kind}" for kind, count in sorted(offered.items())),
        waiting_gpus=len(waiting),
        waiting=waiting[:MOST_LISTED],
        problems=problems[:MOST_LISTED],
        conditions=[condition(ACCEPTED, "Accepted"), followed],
    )


def _problems(shares: Iterable[tuple[str, _OnNode]]) -> list[PolicyProblem]:
    """The same problem of several nodes is one; that of most nodes first."""
    nodes: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for node, share in shares:
        for problem in share.problems:
            nodes.setdefault((problem.rule or "", problem.reason, problem.message), []).append((node, problem.fix))
    return [
        PolicyProblem(
            rule=rule,
            reason=reason,
            nodes=len(on_nodes),
            examples=[node for node, _ in on_nodes[:MOST_EXAMPLES]],
            message=message,
            fix=on_nodes[0][1],
        )
        for (rule, reason, message), on_nodes in sorted(nodes.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    ]
