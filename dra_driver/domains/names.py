"""Names of what belongs to a ComputeDomain, NVIDIA's where its own driver has them; reasons of conditions."""

from enum import StrEnum

from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP, is_uid

_DAEMON_OBJECT = "computedomain-daemon-"

DOMAIN_LABEL = f"{CONFIG_GROUP}/computeDomain"
"""On nodes, pods and objects of the driver; its value is the UID of the domain. A node with it belongs to that
domain."""

MADE_AS = f"{INVENTORY_GROUP}/made-as"
"""On a DaemonSet: a digest of its intended content. Changes by others, such as a mutating webhook, do not affect it."""

FINALIZER = f"{CONFIG_GROUP}/computeDomain"

CHANNEL_CONFIG = "ComputeDomainChannelConfig"
DAEMON_CONFIG = "ComputeDomainDaemonConfig"

DEFAULT_CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
"""Channel 0 of a node: one pod of the domain per node."""
CHANNEL_CLASS = "compute-domain-channel.nvidia.com"
"""Any channel, if the policy gives a node more than one."""
DAEMON_CLASS = "compute-domain-daemon.nvidia.com"

CHANNEL_REQUEST = "channel"
DAEMON_REQUEST = "daemon"


def daemon_object_name(uid: str) -> str:
    """Of the DaemonSet of the domain, and of its claim template, in the driver's namespace."""
    return f"{_DAEMON_OBJECT}{uid}"


def domain_of_daemon_object(name: str) -> str | None:
    """UID of the domain of such an object; None for other names."""
    uid = name.removeprefix(_DAEMON_OBJECT)
    return uid if uid != name and is_uid(uid) else None


def daemon_host(index: int) -> str:
    """The name of the daemon with `index` for its peers in the clique; it stays when its address changes."""
    return f"compute-domain-daemon-{index:04d}"


class DomainReason(StrEnum):
    """Reasons of conditions; docs/events.md and docs/compute-domains.md explain each. The Events of a domain have the
    reasons of its condition `Ready`, with `Domain` before them."""

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
