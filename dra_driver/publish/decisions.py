"""What of the cluster's policies holds for one node, and when: decisions for each GPU, kept while claims use the GPU.

`decided` applies the rules to the node's GPUs. `settled` compares that with what held before: a GPU that claims use
keeps what it has, and its devices get a taint, so that no new claim comes; it changes when the claims are gone. What
leaves the devices of those claims as they are changes at once. Pure.

Some models (A100, A30) switch MIG mode only by a reset of the GPU. A policy may let the driver do that (`modeChange:
WhenIdle`). `with_mode_changes` decides which mode each GPU should have. The answer is written in the node's inventory:
the GPU's devices get a taint, so that no new claim comes, and the node's plugin switches the mode when no claim uses
the GPU (`kubelet_plugin.claims.mode_changes`). What the GPU offers then follows from its facts, as always.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from dra_driver.api.gpu_settings import (
    AttributeValue,
    GpuDecision,
    GpuDecisions,
    ModeName,
    NodeAttributes,
    NodeHealth,
    NodeMig,
    NodePassthrough,
    NodePolicy,
    NodeSharing,
    OfferedDevices,
    WaitingGpu,
)
from dra_driver.api.gpupolicy import GpuPolicy, in_order
from dra_driver.api.inventory import MOST_GPUS, GpuFacts, MigFacts, NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy, rules_before, rules_of, selects, settings_of
from dra_driver.api.resource import Device
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.grouping import grouped
from dra_driver.slices.describe import Description

_MOST_CLAIMS = 8

type Users = Mapping[str, Sequence[str]]
"""Claims (`namespace/name`) by the published name of the device that they were allocated."""


def decided(
    rules: PublishingPolicy, policies: Iterable[GpuPolicy], inventory: NodeInventorySpec, labels: Mapping[str, str]
) -> NodePolicy:
    """What `rules`, those of `policies`, say about the node. `labels` are the node's."""
    node = inventory.node_name
    selecting = [policy for policy in in_order(policies) if selects(policy.spec.nodes, node, labels)]
    gpus = {gpu.uuid: _decision(rules, selecting, node, labels, gpu) for gpu in inventory.gpus}
    return NodePolicy(
        publish=rules.publishes_node(node, labels),
        channels=rules.domain_rule(node, labels).channels,
        health=NodeHealth(**dict(rules.health_of(node, labels))),
        gpus=_grouped(gpus),
    )


def _decision(
    rules: PublishingPolicy, selecting: Sequence[GpuPolicy], node: str, labels: Mapping[str, str], gpu: GpuFacts
) -> GpuDecision:
    mig = rules.mig_rule(node, labels, gpu)
    if mig is not None and mig.nodes is None and mig.gpus is None and gpu.mig is None:
        mig = None  # Such a rule is for all GPUs that can, and no one need know that others cannot.
    passthrough = rules.passthrough_rule(node, labels, gpu)
    return GpuDecision(
        publish=rules.publishes(node, labels, gpu),
        attributes=[
            NodeAttributes(
                values={name: AttributeValue.of(value.to_wire()) for name, value in rule.values.items()},
                rule=_name(rules, rule),
            )
            for rule in rules.attributes
            if rule.matches(node, labels, gpu)
        ],
        mig=None if mig is None else NodeMig(**settings_of(mig), rule=_name(rules, mig)),
        sharing=[
            NodeSharing(**settings_of(rule), rule=_name(rules, rule))
            for rule in rules.sharing
            if rule.matches(node, labels, gpu)
        ],
        passthrough=None if passthrough is None else NodePassthrough(rule=_name(rules, passthrough)),
        policies=[policy.name for policy in selecting if policy.spec.gpus is None or policy.spec.gpus.matches(gpu)],
    )


def _name(rules: PublishingPolicy, rule: object) -> str:
    return rules.field_of(rule) or ""


def _grouped(gpus: Mapping[str, GpuDecision]) -> list[GpuDecisions]:
    groups = grouped(gpus, lambda uuid: gpus[uuid].model_dump_json())
    return [GpuDecisions(**dict(gpus[uuids[0]]), uuids=uuids) for uuids in groups.values()]


def _by_gpu(groups: Iterable[GpuDecisions]) -> dict[str, GpuDecision]:
    """A GPU that is named twice, as only another program writes it, is in the first group."""
    decisions: dict[str, GpuDecision] = {}
    for group in groups:
        decision = GpuDecision(**{name: value for name, value in dict(group).items() if name != "uuids"})
        for uuid in group.uuids:
            decisions.setdefault(uuid, decision)
    return decisions


def settled(
    now: NodePolicy | None, wanted: NodePolicy, inventory: NodeInventorySpec, users: Users, channels_used: int = 0
) -> NodePolicy:
    """What holds from now on. `now` is what held until now; None if nothing was decided yet.

    A GPU that is used stays as it is, and is named in `waiting`. If a claim was allocated a device that existed before
    the last change while that change was made, the GPU changes back. ComputeDomains keep the channels that they
    use, which are the first `channels_used`.
    """
    if now is None:
        return wanted
    change = _Change(now, wanted, inventory, users)
    decisions = {gpu.uuid: change.decision(gpu) for gpu in inventory.gpus}
    if users:
        # A GPU that is lost may be in use, and is the same when it is back.
        gone = [uuid for uuid in _by_gpu(now.gpus) if uuid not in decisions]
        decisions |= {uuid: _by_gpu(now.gpus)[uuid] for uuid in gone[: MOST_GPUS - len(decisions)]}
    return wanted.model_copy(
        update={
            "publish": wanted.publish or bool(change.waiting),
            "channels": max(wanted.channels, min(now.channels, channels_used)),
            "gpus": _grouped(decisions),
            "before": _grouped(change.before),
            "waiting": change.waiting,
        }
    )


class _Change:
    """From what holds on a node to what is wanted, GPU by GPU."""

    def __init__(self, now: NodePolicy, wanted: NodePolicy, inventory: NodeInventorySpec, users: Users) -> None:
        self._now, self._wanted = _by_gpu(now.gpus), _by_gpu(wanted.gpus)
        self.before = {uuid: decision for uuid, decision in _by_gpu(now.before).items() if uuid in self._wanted}
        self.waiting: list[WaitingGpu] = []
        self._users = users
        self._inventory = inventory
        self._rules = {
            "now": partial(rules_of, now),
            "before": partial(rules_before, now),
            "wanted": partial(rules_of, wanted),
        }
        self._tables: dict[str, Mapping[str, Offer]] = {}
        """What the GPUs offer by each of these, made when it is needed."""

    def decision(self, gpu: GpuFacts) -> GpuDecision:
        """What holds for the GPU from now on; called once for each."""
        wanted = self._wanted[gpu.uuid]
        held, source = self._held(gpu, wanted)
        if held == wanted:
            return wanted
        used = self._used(gpu)
        if used and not self._stays(used, self._table(source), wanted):
            claims = sorted({claim for name in used for claim in self._users[name]})[:_MOST_CLAIMS]
            waiting = WaitingGpu(gpu=gpu.name, uuid=gpu.uuid, claims=claims, policies=wanted.policies)
            self.waiting.append(waiting)
            return held
        self.before[gpu.uuid] = held
        return wanted

    def _held(self, gpu: GpuFacts, wanted: GpuDecision) -> tuple[GpuDecision, str]:
        """What holds now, and which table has what it offers; with the names of the policies that select the GPU
        today."""
        names = {"policies": wanted.policies}
        held, before = self._now.get(gpu.uuid, wanted).model_copy(update=names), self.before.get(gpu.uuid)
        if before is not None and any(name not in self._table("now") for name in self._used(gpu)):
            self.before[gpu.uuid] = held
            return before.model_copy(update=names), "before"
        return held, "now"

    def _used(self, gpu: GpuFacts) -> list[str]:
        """Devices of the GPU that claims have."""
        if not self._users:
            return []
        tables = [self._table(name) for name in self._rules]
        return [
            name
            for name in self._users
            if any((offer := table.get(name)) is not None and offer.gpu.uuid == gpu.uuid for table in tables)
        ]

    def _stays(self, used: Iterable[str], table: Mapping[str, Offer], wanted: GpuDecision) -> bool:
        """Whether all that claims have of these devices stays as it is."""
        after = self._table("wanted")
        return wanted.publish and all(
            name in table and name in after and _substance(table[name]) == _substance(after[name]) for name in used
        )

    def _table(self, name: str) -> Mapping[str, Offer]:
        if name not in self._tables:
            self._tables[name] = by_name(offers(self._inventory, self._rules[name](), {}))
        return self._tables[name]


def _substance(offer: Offer) -> object:
    """What a claim relies on; not attributes, and not which rule it comes from."""
    sharing = None if offer.sharing is None else settings_of(offer.sharing)
    return offer.kind, offer.partition, offer.existing, offer.share, sharing


def with_offered(policy: NodePolicy, description: Description) -> NodePolicy:
    """`policy` with the devices that are published because of each GpuPolicy, by kind."""
    names = {uuid: group.policies for group in policy.gpus for uuid in group.uuids}
    offered: Counter[tuple[str, str]] = Counter()
    for gpu in description.gpus:
        for device in gpu.devices:
            offered.update((name, kind_of(device)) for name in names.get(gpu.uuid, ()))
    devices = [OfferedDevices(policy=name, kind=kind, devices=count) for (name, kind), count in sorted(offered.items())]
    return policy.model_copy(update={"offered": devices})


def kind_of(device: Device) -> str:
    """`gpu`, `mig` or `vfio`, with `-share` for a device that several claims can have."""
    return f"{device.text('type')}{'-share' if device.allow_multiple_allocations else ''}"


def with_mode_changes(policy: NodePolicy, inventory: NodeInventorySpec, users: Users) -> NodePolicy:
    """`policy` with these GPUs in `waiting`, beside those that wait for something else. `users` are claims by the
    published name of their device.

    A claim can have been allocated a device that only the other mode has: from a slice of a moment ago, while the mode
    was switched. Such a claim cannot be prepared, so no program uses the GPU, and the mode is switched back for it.

    While something is in the way on the node (`MigFacts.obstacle`) nothing is switched, and claims get the GPU as it
    is; unless a change is stuck halfway. In a virtual machine nothing is even tried: the mode would be set, and the GPU
    unusable until the machine boots. Source: issue 883 of kubernetes-sigs/dra-driver-nvidia-gpu.
    """
    decisions = {uuid: group for group in policy.gpus for uuid in group.uuids}
    waiting = {gpu.uuid for gpu in policy.waiting}
    changes = [
        change
        for gpu in inventory.gpus
        if policy.publish and gpu.uuid in decisions and gpu.uuid not in waiting
        if (change := _mode_change(gpu, decisions[gpu.uuid], users)) is not None
    ]
    return policy.model_copy(update={"waiting": [*policy.waiting, *changes]}) if changes else policy


def after_mode_changes(inventory: NodeInventorySpec, policy: NodePolicy) -> NodeInventorySpec:
    """The node as it will be when all of its GPUs have the mode that they wait for."""
    modes = {gpu.uuid: gpu.mig_mode == "On" for gpu in policy.waiting if gpu.mig_mode is not None}
    if not modes:
        return inventory
    gpus = list(inventory.gpus)
    for number, gpu in enumerate(gpus):
        if gpu.mig is not None and (on := modes.get(gpu.uuid)) is not None:
            mig = gpu.mig.model_copy(update={"enabled": on, "pending": on, "switched": on, "instances": []})
            gpus[number] = gpu.model_copy(update={"mig": mig})
    return inventory.model_copy(update={"gpus": gpus})


def _mode_change(gpu: GpuFacts, decision: GpuDecisions, users: Users) -> WaitingGpu | None:
    mig = gpu.mig
    if mig is None or mig.switchable or gpu.virtualization is not None:
        return None
    stuck = mig.obstacle is not None and mig.obstacle.reason == "Stuck"
    if mig.obstacle is not None and not stuck:
        return None
    wanted = _wanted_mode(decision, mig)
    used = {name: claims for name, claims in users.items() if f"{name}-".startswith(f"{gpu.name}-")}
    unusable = bool(used) and all(name.startswith(f"{gpu.name}-mig-") != mig.enabled for name in used)
    if unusable and (mig.switched or wanted is not None):
        wanted, used = not mig.enabled, {}
    if wanted is None:
        wanted = mig.enabled
    if wanted == mig.enabled and not stuck:
        return None
    claims = sorted({claim for claims in used.values() for claim in claims})[:_MOST_CLAIMS]
    mode: ModeName = "On" if wanted else "Off"
    return WaitingGpu(gpu=gpu.name, uuid=gpu.uuid, claims=claims, policies=decision.policies, mig_mode=mode)


def _wanted_mode(decision: GpuDecision, mig: MigFacts) -> bool | None:
    """Whether MIG mode should be on; None: that is not for the driver to decide. It never switches off what an
    administrator switched on."""
    rule = decision.mig
    if rule is not None and rule.mode == "Dynamic" and decision.publish:
        return True if rule.changes_mode and mig.profiles else None
    return False if mig.switched else None
