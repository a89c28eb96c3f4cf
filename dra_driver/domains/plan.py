"""What to do next for one domain: from what is observed to actions, each of which can be the last that happens.

There is no memory besides the cluster's objects: whoever leads next observes and goes on. A domain is built in the
order finalizer, daemons, template, so that no pod can want what nobody would take down; and taken down in the order
template, users, labels, daemons, finalizer, so that nothing is taken from under a program. An action that finds the
world changed fails by its precondition, and the next observation decides anew.
"""

from dataclasses import dataclass

from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.domains.members import Membership, membership
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.observed import ObservedDomain, Standing
from dra_driver.domains.status import domain_status


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Before anything else is made: from then on the domain does not go before what belongs to it."""


@dataclass(frozen=True, slots=True)
class MakeDaemonTemplate:
    pass


@dataclass(frozen=True, slots=True)
class MakeDaemonSet:
    pass


@dataclass(frozen=True, slots=True)
class MakeTemplate:
    """The workload's; pods can start from here on."""


@dataclass(frozen=True, slots=True)
class LabelNode:
    """The node joins. Only when it still has no label: that is what keeps two domains apart."""

    node: str


@dataclass(frozen=True, slots=True)
class UnlabelNode:
    """The node leaves. Only when its label is still this domain's."""

    node: str


@dataclass(frozen=True, slots=True)
class DeleteTemplate:
    pass


@dataclass(frozen=True, slots=True)
class DeleteDaemonSet:
    pass


@dataclass(frozen=True, slots=True)
class DeleteDaemonTemplate:
    pass


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """The last one: nothing of the domain is left."""


type Action = (
    AddFinalizer
    | MakeDaemonTemplate
    | MakeDaemonSet
    | MakeTemplate
    | LabelNode
    | UnlabelNode
    | DeleteTemplate
    | DeleteDaemonSet
    | DeleteDaemonTemplate
    | RemoveFinalizer
)


@dataclass(frozen=True, slots=True)
class Decision:
    """`actions` in order; the first that fails ends them. `status` is what to write; None: it is as it should be."""

    actions: tuple[Action, ...]
    status: ComputeDomainStatus | None


def decide(observed: ObservedDomain, now: str, *, max_nodes: int, host_imex: bool = False) -> Decision:
    """Called after each change that concerns the domain. With `host_imex` no daemons are made."""
    members = membership(observed, max_nodes)
    actions = _taking_down(observed, members) if observed.deleting else _building(observed, members, host_imex)
    if FINALIZER not in observed.domain.metadata.finalizers:
        return Decision(actions, None)
    if actions == (RemoveFinalizer(),):
        return Decision(actions, None)
    status = domain_status(observed, members, now, host_imex=host_imex)
    return Decision(actions, status if status != observed.domain.status else None)


def _building(observed: ObservedDomain, members: Membership, host_imex: bool) -> tuple[Action, ...]:
    if FINALIZER not in observed.domain.metadata.finalizers:
        return (AddFinalizer(),)
    actions: list[Action] = []
    if not host_imex:
        if observed.daemon_template is Standing.MISSING:
            actions.append(MakeDaemonTemplate())
        if observed.daemon_set is Standing.MISSING:
            actions.append(MakeDaemonSet())
        idle = not observed.channel_uses and not observed.daemons
        if observed.daemon_set is Standing.OURS and observed.outdated and idle:
            actions.append(DeleteDaemonSet())  # and then it is missing
    if observed.template is Standing.MISSING:
        actions.append(MakeTemplate())
    return (*actions, *_labels(members))


def _labels(members: Membership) -> tuple[Action, ...]:
    return (*(UnlabelNode(node) for node in members.leave), *(LabelNode(node) for node in members.join))


def _taking_down(observed: ObservedDomain, members: Membership) -> tuple[Action, ...]:
    if FINALIZER not in observed.domain.metadata.finalizers:
        return ()
    if observed.template is Standing.OURS:
        return (DeleteTemplate(), *_labels(members))
    if observed.channel_uses:
        # A running program keeps its domain, also a pod that was given a node at the last moment.
        return _labels(members)
    if members.leave:
        return tuple(UnlabelNode(node) for node in members.leave)
    if observed.daemons and observed.daemon_set is Standing.OURS:
        return ()
    rest: list[Action] = []
    if observed.daemon_set is Standing.OURS:
        rest.append(DeleteDaemonSet())
    if observed.daemon_template is Standing.OURS:
        rest.append(DeleteDaemonTemplate())
    if rest:
        return tuple(rest)
    clear = (Standing.MISSING, Standing.FOREIGN)
    gone = observed.template in clear and observed.daemon_set in clear and observed.daemon_template in clear
    return (RemoveFinalizer(),) if gone and not observed.daemons else ()
