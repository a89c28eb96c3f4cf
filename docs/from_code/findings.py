"""The part of check.md that is generated from the codes of `dractl check`."""

from docs.from_code.tables import table
from dra_driver.checking.findings import CODES

BEGIN, END = "<!-- codes: begin -->", "<!-- codes: end -->"


def codes_part() -> str:
    rows = [
        (f"`{code.name}`", f"{code.severity}{f'; {code.otherwise}' if code.otherwise else ''}", code.means)
        for code in CODES
    ]
    return table(("Code", "Severity", "Means"), rows)
