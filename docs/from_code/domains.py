"""The parts of events.md and compute-domains.md about domains: every reason why a domain is ready or not, and who must
act.

The reasons are those of `dra_driver.domains.names`.
"""

from docs.from_code.attributes import check_names
from docs.from_code.tables import table
from dra_driver.domains.names import OF_PARTS, DomainReason

MEANINGS = {
    "AllNodesReady": "Pods on all nodes of the domain can access each other's GPU memory.",
    "CliqueFull": "The NVLink clique of a node already has the maximum number of nodes in this domain.",
    "DaemonsNotReady": "Daemons on some nodes are not ready; the message says which and why.",
    "FabricIncomplete": "The NVLink fabric of a node is incomplete.",
    "NoNodes": "No pod of the domain has a node yet.",
    "NodeGone": "A node has left the cluster; delete its pods.",
    "NodeInOtherDomain": "A node is in another domain until that domain's pods have ended.",
    "NodesJoining": "Nodes are joining.",
    "NodesMissing": "Pods are on fewer nodes than `numNodes`.",
    "TemplateMissing": "The controller has not created the domain's claim template yet.",
    "TemplateNameTaken": "Another claim template has the name of the domain's template.",
    "Terminating": "The domain is being deleted; the message names the pods that still use it.",
}


BEGIN, END = "<!-- reasons: begin -->", "<!-- reasons: end -->"

MOVES = {
    "AllNodesReady": "",
    "CliqueFull": "Run fewer pods in one clique, or ask the administrator to raise"
    " `computeDomains.maxNodesPerImexDomain`.",
    "DaemonsNotReady": "Wait. If this persists, check the daemons' pods in the driver's namespace.",
    "FabricIncomplete": "Wait for the fabric manager. If this persists, an administrator must check the node.",
    "NoNodes": "Create pods that use the template. If they exist, `dractl explain pod` says why no node fits.",
    "NodeGone": "Delete the pods that were on it. They get other nodes.",
    "NodeInOtherDomain": "Wait until the other domain's pods on that node end, or delete your pod to get another node.",
    "NodesJoining": "Wait.",
    "NodesMissing": "Create more pods, or wait until the existing pods have nodes.",
    "TemplateMissing": "Wait. If this persists, the controller may lack a permission: read its log.",
    "TemplateNameTaken": "Delete the other template, or create the domain again with another template name.",
    "Terminating": "Delete the pods that still use it.",
}
"""For readers of these pages."""


def reasons_part() -> str:
    """A table for users whose domain is not ready."""
    check_names(MEANINGS, MOVES, "move after a reason of a ComputeDomain")
    rows = ((f"`{reason}`", meaning, MOVES[reason]) for reason, meaning in MEANINGS.items())
    return table(("Reason of `Ready`", "Meaning", "What to do"), rows)


def domain_events() -> str:
    """A table of the reasons of the condition `Ready`; Events have the same reasons, with the prefix `Domain`."""
    check_names((str(one) for one in DomainReason if one not in OF_PARTS), MEANINGS, "reason of a ComputeDomain")
    rows = (("ComputeDomain", f"`Domain{reason}`", f"`{reason}`", meaning) for reason, meaning in MEANINGS.items())
    return table(("Object", "Event", "Reason of `Ready`", "Meaning"), rows)
