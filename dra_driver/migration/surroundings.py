"""What is known of the cluster beside the workloads: configurations, nodes, devices; and what resources mean there.

Pure: documents in, `Meaning` out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Finding, Options


@dataclass(frozen=True, slots=True)
class Meaning:
    """What resources stand for. `Meaning()` is when nothing is known."""

    policy: JsonObject | None = None
    """A PublishingPolicy that publishes what the configurations offered; None without configurations."""
    chart_values: JsonObject | None = None
    findings: tuple[Finding, ...] = ()


def read(documents: Sequence[Document], options: Options) -> Meaning:
    """Of all documents, of which those that are none of these sources are passed over."""
    return Meaning()
