"""The part of sharing.md that is generated from `dra_driver.devices.exclusion`: what excludes what on one GPU."""

from docs.from_code.tables import table
from dra_driver.devices.exclusion import LIMITS, PAIRS

BEGIN = "<!-- generated from dra_driver/devices/exclusion.py by `make generate`; do not edit below -->"
END = "<!-- end of the generated part -->"


def sharing_part() -> str:
    pairs = [(row.first, row.second, "yes" if row.allowed else "**no**", row.reason) for row in PAIRS]
    limits = [(row.wish, row.where, "**no**" if row.refused else "no effect", row.reason) for row in LIMITS]
    return "\n\n".join(
        (
            "### Two claims on one GPU\n\nThe first line that fits decides; the order of the two does not matter.",
            table(("One claim has", "another wants", "both?", "because"), pairs),
            "### What some GPUs cannot do",
            table(("Wanted", "on", "possible?", "because"), limits),
        )
    )
