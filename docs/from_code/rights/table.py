"""What each account may do, for each field: one table for docs/security.md and for the tests of each line.

`tests/charts/test_rights.py` evaluates the chart's roles and admission policies for each line, and sends each line to a
real API server if one is available. A right of the chart without a line fails a test.
"""

from docs.from_code.rights.controller import controller, domains, webhook
from docs.from_code.rights.daemons import daemon_sets
from docs.from_code.rights.line import Line
from docs.from_code.rights.others import escalations, others, removal, web_page
from docs.from_code.rights.plugin import node_publisher, plugin, unbound


def lines() -> tuple[Line, ...]:
    """The whole table."""
    parts = (plugin, unbound, node_publisher, controller, domains, daemon_sets, webhook, others, web_page, removal)
    return tuple(line for part in (*parts, escalations) for line in part())
