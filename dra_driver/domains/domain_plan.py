"""What to do next for one domain: from the observation to actions; the process can be killed after each.

The only state is the cluster's objects, so the next leader observes them and continues. A domain is created in the
order finalizer, daemons, template, so that pods can only use what the controller will remove; and removed in the order
template, users, labels, daemons, finalizer, so that running programs keep what they use. If the cluster has changed, an
action fails by its precondition, and the next observation decides again.
"""

from dataclasses import dataclass
from enum import Enum, auto

from dra_driver.api.computedomain import ComputeDomainStatus
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.observed import ObjectState, ObservedDomain
from dra_driver.domains.status import Membership, domain_status, membership


class DomainStep(Enum):
    """A change of an object of the domain."""

    ADD_FINALIZER = auto()
    """The first action: from then on the domain exists until its parts are deleted."""
    MAKE_DAEMON_TEMPLATE = auto()
    MAKE_DAEMON_SET = auto()
    MAKE_TEMPLATE = auto()
    """The template of the workload; pods can start after this."""
    DELETE_TEMPLATE = auto()
    DELETE_DAEMON_SET = auto()
    DELETE_DAEMON_TEMPLATE = auto()
    REMOVE_FINALIZER = auto()
    """The last step: nothing of the domain is left."""


@dataclass(frozen=True, slots=True)
class LabelNode:
    """The node joins or leaves. It joins only if it has no label: that is what keeps two domains apart; and leaves only
    if its label is still this domain's."""

    node: str
    joins: bool = True


type Action = DomainStep | LabelNode


@dataclass(frozen=True, slots=True)
class DomainPlan:
    """`actions` in order; the first failure ends them. `status` is what to write; None: it is up to date."""

    actions: tuple[Action, ...]
    status: ComputeDomainStatus | None


def decide(observed: ObservedDomain, now: str, *, max_nodes: int, host_imex: bool = False) -> DomainPlan:
    """Called after each change of the domain or its parts. With `host_imex` no daemons are created."""
    members = membership(observed, max_nodes)
    actions = _taking_down(observed, members) if observed.deleting else _building(observed, members, host_imex)
    if FINALIZER not in observed.domain.metadata.finalizers or actions == (DomainStep.REMOVE_FINALIZER,):
        return DomainPlan(actions, None)
    status = domain_status(observed, members, now, host_imex=host_imex)
    return DomainPlan(actions, status if status != observed.domain.status else None)


def _building(observed: ObservedDomain, members: Membership, host_imex: bool) -> tuple[Action, ...]:
    if FINALIZER not in observed.domain.metadata.finalizers:
        return (DomainStep.ADD_FINALIZER,)
    actions: list[Action] = []
    if not host_imex:
        if observed.daemon_template is ObjectState.MISSING:
            actions.append(DomainStep.MAKE_DAEMON_TEMPLATE)
        if observed.daemon_set is ObjectState.MISSING:
            actions.append(DomainStep.MAKE_DAEMON_SET)
        idle = not observed.channel_uses and not observed.daemons
        if observed.daemon_set is ObjectState.OURS and observed.outdated and idle:
            actions.append(DomainStep.DELETE_DAEMON_SET)  # and then it is missing
    if observed.template is ObjectState.MISSING:
        actions.append(DomainStep.MAKE_TEMPLATE)
    return (*actions, *_labels(members))


def _labels(members: Membership) -> tuple[Action, ...]:
    return (*(LabelNode(node, joins=False) for node in members.leave), *(LabelNode(node) for node in members.join))


def _taking_down(observed: ObservedDomain, members: Membership) -> tuple[Action, ...]:
    if FINALIZER not in observed.domain.metadata.finalizers:
        return ()
    if observed.template is ObjectState.OURS:
        return (DomainStep.DELETE_TEMPLATE, *_labels(members))
    if observed.channel_uses:
        # Running programs keep their domain, including a pod that was assigned to a node at the last moment.
        return _labels(members)
    if members.leave:
        return tuple(LabelNode(node, joins=False) for node in members.leave)
    if observed.daemons and observed.daemon_set is ObjectState.OURS:
        return ()
    rest: list[Action] = []
    if observed.daemon_set is ObjectState.OURS:
        rest.append(DomainStep.DELETE_DAEMON_SET)
    if observed.daemon_template is ObjectState.OURS:
        rest.append(DomainStep.DELETE_DAEMON_TEMPLATE)
    if rest:
        return tuple(rest)
    clear = (ObjectState.MISSING, ObjectState.FOREIGN)
    gone = observed.template in clear and observed.daemon_set in clear and observed.daemon_template in clear
    return (DomainStep.REMOVE_FINALIZER,) if gone and not observed.daemons else ()
