"""Every reason of a condition of a ComputeDomain; docs/events.md and docs/compute-domains.md say what each means.

The Events of a domain have those of its condition `Ready`, with `Domain` before them.
"""

from enum import StrEnum


class DomainReason(StrEnum):
    ALL_NODES_READY = "AllNodesReady"
    CLIQUE_FULL = "CliqueFull"
    DAEMONS_NOT_READY = "DaemonsNotReady"
    FABRIC_INCOMPLETE = "FabricIncomplete"
    NO_NODES = "NoNodes"
    NODE_GONE = "NodeGone"
    NODE_IN_OTHER_DOMAIN = "NodeInOtherDomain"
    NODES_JOINING = "NodesJoining"
    NODES_MISSING = "NodesMissing"
    TEMPLATE_MISSING = "TemplateMissing"
    TEMPLATE_NAME_TAKEN = "TemplateNameTaken"
    TERMINATING = "Terminating"

    TEMPLATE_MADE = "TemplateMade"
    NODES_JOINED = "NodesJoined"
    SEVERAL_CLIQUES = "SeveralCliques"
    FABRIC_COMPLETE = "FabricComplete"


OF_PARTS = frozenset(
    {
        DomainReason.TEMPLATE_MADE,
        DomainReason.NODES_JOINED,
        DomainReason.SEVERAL_CLIQUES,
        DomainReason.FABRIC_COMPLETE,
    }
)
"""Those that are never the reason of `Ready`."""
