"""What events.md and compute-domains.md say of domains: every reason why one is ready or not, and whose move it is.

The reasons are those of `dra_driver.domains.reasons`.
"""

from docs.from_code.attributes import check_names
from docs.from_code.tables import table
from dra_driver.domains.reasons import OF_PARTS, DomainReason

MEANINGS = {
    "AllNodesReady": "Pods of the domain reach each other's memory on all its nodes.",
    "CliqueFull": "A node is one too many for its NVLink clique.",
    "DaemonsNotReady": "Daemons on some nodes are not ready: which, and why.",
    "FabricIncomplete": "The NVLink fabric of a node is not complete.",
    "NoNodes": "No pod of the domain has been given a node yet.",
    "NodeGone": "A node has left the cluster; the pods on it have to be deleted.",
    "NodeInOtherDomain": "A node is in another domain until its pods are gone.",
    "NodesJoining": "Nodes are joining.",
    "NodesMissing": "Pods are on fewer nodes than `numNodes`.",
    "TemplateMissing": "The domain's claim template has not been made yet.",
    "TemplateNameTaken": "The domain's claim template has the name of somebody else's.",
    "Terminating": "The domain is being deleted: who still uses it.",
}


BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"

MOVES = {
    "AllNodesReady": "",
    "CliqueFull": "Yours: fewer pods in one clique; the administrator's: `computeDomains.maxNodesPerImexDomain`.",
    "DaemonsNotReady": "Wait; if it lasts, look at the daemons' pods in the driver's namespace.",
    "FabricIncomplete": "Wait while the fabric manager works; else an administrator has to look at the node.",
    "NoNodes": "Create pods that name the template; where there are some, `dractl explain pod` says why no node fits.",
    "NodeGone": "Delete the pods that were on it; they get other nodes.",
    "NodeInOtherDomain": "Wait for the other domain's pods there to end, or delete the pod, which gets another node.",
    "NodesJoining": "Wait.",
    "NodesMissing": "Create more pods, or wait until those that there are get nodes.",
    "TemplateMissing": "Wait; if it lasts, the controller may not write templates: its log says why.",
    "TemplateNameTaken": "Delete the other template, or make the domain anew with another name for its own.",
    "Terminating": "Delete the pods that still use it.",
}
"""Of whoever reads them."""


def reasons_part() -> str:
    """A table for somebody whose domain is not ready."""
    check_names(MEANINGS, MOVES, "move after a reason of a ComputeDomain")
    rows = ((f"`{reason}`", meaning, MOVES[reason]) for reason, meaning in MEANINGS.items())
    return table(("Reason of `Ready`", "Meaning", "What to do"), rows)


def domain_events() -> str:
    """A table of the reasons of the condition `Ready`; Events have the same, with `Domain` before it."""
    check_names((str(one) for one in DomainReason if one not in OF_PARTS), MEANINGS, "reason of a ComputeDomain")
    rows = (("ComputeDomain", f"`Domain{reason}`", f"`{reason}`", meaning) for reason, meaning in MEANINGS.items())
    return table(("Object", "Event", "Reason of `Ready`", "Meaning"), rows)
