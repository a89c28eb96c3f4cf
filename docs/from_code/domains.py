"""What events.md and compute-domains.md say of domains: every reason why one is ready or not, and whose move it is.

The reasons are those of `dra_driver.domains.status`.
"""

import ast
import inspect
from collections.abc import Iterator

from docs.from_code.attributes import check_names
from docs.from_code.tables import table
from dra_driver.domains import members, status

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
    "NoNodes": "Create pods that name the template.",
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
    check_names(_reasons(), MEANINGS, "reason of a ComputeDomain")
    rows = (("ComputeDomain", f"`Domain{reason}`", f"`{reason}`", meaning) for reason, meaning in MEANINGS.items())
    return table(("Object", "Event", "Reason of `Ready`", "Meaning"), rows)


def _reasons() -> Iterator[str]:
    """Of every statement that can become the condition's: all that are False, and those about `Ready` itself."""
    yield from (members.OTHER_DOMAIN, members.FABRIC, members.FULL, members.GONE)
    for node in ast.walk(ast.parse(inspect.getsource(status))):
        if isinstance(node, ast.Tuple) and len(node.elts) == 4:
            kind, value, reason, _ = node.elts
            wanted = isinstance(kind, ast.Name) and kind.id == "READY"
            if wanted or (isinstance(value, ast.Constant) and value.value == "False"):
                yield from _words(reason)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "reason":
            yield from _words(node.value)


def _words(node: ast.expr) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
