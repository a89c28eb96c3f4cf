"""Checks of ComputeDomains: whether somebody keeps them, whether they are ready, and whose the nodes are. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.conditions import Condition
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok
from dra_driver.doctor.objects import moment
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.status import READY
from dra_driver.features import Feature

_NOBODY = Trouble(
    "nobody",
    Verdict.PROBLEM,
    f"no controller has feature gate {Feature.COMPUTE_DOMAINS}, so none manages this domain; its pods stay pending,"
    " and it cannot be deleted",
    f"helm upgrade with `publisher=controller` and `featureGates.{Feature.COMPUTE_DOMAINS}=true`",
)
_UNSEEN = Trouble(
    "not-looked-at",
    Verdict.PROBLEM,
    "has no status {age} after its creation: the controller does not manage it",
    "see the checks leader, account-permissions and crds; search the log of the leading controller for the domain",
)
_WAITS = Trouble(
    "not-ready",
    Verdict.WARNING,
    "has not been ready for {age}: {why}",
    "run dractl get domains -n {namespace} {name} to see the state of its nodes; then read the logs of the IMEX"
    " daemons that are not ready",
)
_SOON = timedelta(minutes=2)
_LONG = timedelta(minutes=10)
_NO_PODS = "NoNodes"
"""Nobody waits for a domain that no pod has come for."""


def _domains(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for domain in cluster.domains.items:
        finding = _judged(cluster, domain)
        if finding is not None:
            fine = False
            yield finding
    if fine:
        number = len(cluster.domains.items)
        yield ok(f"{number} ComputeDomain(s), none stuck" if number else "no ComputeDomain")


def _judged(cluster: ClusterView, domain: ComputeDomain) -> Diagnosis | None:
    metadata = domain.metadata
    about = f"ComputeDomain {metadata.namespace}/{metadata.name}"
    if not _kept(cluster):
        return _NOBODY.at(about)
    ready = next((condition for condition in domain.status.conditions if condition.type == READY), None)
    if ready is None:
        age = _age(cluster, metadata.creation_timestamp)
        return _UNSEEN.at(about, age=_said(age)) if age > _SOON else None
    age = _age(cluster, ready.last_transition_time)
    if ready.status == "True" or ready.reason == _NO_PODS or age <= _LONG:
        return None
    return _WAITS.at(about, age=_said(age), why=_why(ready), namespace=metadata.namespace, name=metadata.name)


def _why(ready: Condition) -> str:
    return f"{ready.reason}, {ready.message}" if ready.message else ready.reason


def _kept(cluster: ClusterView) -> bool:
    """True also where controllers run by other means than a Deployment: nothing is known of those."""
    if not cluster.controllers and not cluster.plugins:
        return True
    return any(Feature.COMPUTE_DOMAINS in controller.feature_gates for controller in cluster.controllers)


def _age(cluster: ClusterView, since: str | None) -> timedelta:
    begun = moment(since)
    return cluster.time - begun if begun is not None else timedelta()


def _said(age: timedelta) -> str:
    return f"{age.total_seconds() / 60:.0f} min"


_ORPHAN = Trouble(
    "domain-gone",
    Verdict.WARNING,
    "is labeled for a ComputeDomain that no longer exists ({uid}): no other domain can use the node",
    f"kubectl label node {{node}} {DOMAIN_LABEL}-; the leading controller also does this every ten minutes",
)


def _nodes(cluster: ClusterView) -> Iterator[Diagnosis]:
    living = {domain.metadata.uid for domain in cluster.domains.items}
    labelled = [(node.name, uid) for node in cluster.nodes.items if (uid := node.metadata.labels.get(DOMAIN_LABEL))]
    gone = [(name, uid) for name, uid in labelled if uid not in living]
    for name, uid in gone:
        yield _ORPHAN.at(f"Node {name}", uid=uid, node=name)
    if not gone:
        yield ok(
            f"{len(labelled)} node(s) belong to existing ComputeDomains"
            if labelled
            else "no node belongs to a ComputeDomain"
        )


DOMAINS = Check(
    "compute-domains",
    "whether a controller manages the ComputeDomains, and whether a domain has waited too long.",
    _domains,
    (_NOBODY, _UNSEEN, _WAITS),
    ("domains", "deployments", "daemon_sets"),
)
NODES = Check(
    "compute-domain-nodes",
    "whether the ComputeDomains of labeled nodes exist.",
    _nodes,
    (_ORPHAN,),
    ("domains", "nodes"),
)
