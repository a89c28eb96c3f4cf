"""What each account may do, for each field: one table for docs/security.md and for the tests of each line.

`tests/charts/test_rights.py` evaluates the chart's roles and admission policies for each line, and sends each line to a
real API server if one is available. A right of the chart without a line fails a test.
"""

from collections.abc import Iterator, Sequence

from docs.from_code.rights.controller import controller, domains, webhook
from docs.from_code.rights.daemons import daemon_sets
from docs.from_code.rights.line import (
    CLAIM_STATUS,
    CLAIMS,
    CLASSES,
    DAEMON_SETS,
    DOMAIN_STATUS,
    DOMAINS,
    EVENTS,
    INVENTORIES,
    INVENTORY_STATUS,
    LEASES,
    OURS,
    POLICIES,
    POLICY_STATUS,
    RBAC,
    SLICES,
    TEMPLATES,
    Line,
)
from docs.from_code.rights.others import escalations, others, removal, web_page
from docs.from_code.rights.plugin import node_publisher, plugin, unbound

_OBJECTS = {
    CLAIMS: "default/here", CLAIM_STATUS: "default/here", CLASSES: "profile", DAEMON_SETS: "gpu-dra/plugin",
    DOMAINS: "default/train", DOMAIN_STATUS: "default/train", EVENTS: "default/plugins", INVENTORIES: "node-1",
    INVENTORY_STATUS: "node-1", LEASES: "gpu-dra/gpu-dra-driver-controller", POLICIES: "ml", POLICY_STATUS: "ml",
    SLICES: "node-1", TEMPLATES: "default/theirs", "nodes": "node-1", "nodes/status": "node-1",
    "pods": "default/victim", "pods/status": "default/victim",
}  # fmt: skip
"""One of each resource that an account has something to do with."""


def lines() -> tuple[Line, ...]:
    """The whole table."""
    parts = (plugin, unbound, node_publisher, controller, domains, daemon_sets, webhook, others, web_page, removal)
    known = [line for part in parts for line in part()]
    return (*known, *_all_else(known), *escalations())


def _all_else(known: Sequence[Line]) -> Iterator[Line]:
    """For each account of the driver, the verbs of which no line says that RBAC allows them."""
    for account in OURS:
        for setup in Line(account, "", "", "").where():
            own = [line for line in known if line.account is account and setup in line.where() and line.by != RBAC]
            for resource, on in _OBJECTS.items():
                allowed = {verb for line in own if line.resource == resource for verb in line.verbs.split()}
                refused = [verb for verb in _verbs_of(resource) if verb not in allowed]
                yield Line(account, " ".join(refused), resource, "any", by=RBAC, on=on, setups=(setup,))


def _verbs_of(resource: str) -> tuple[str, ...]:
    if "/" in resource:
        return "get", "update", "patch"
    return "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"
