"""The part of migration.md that is made of the code: kinds, labels, the differences of claims, and every code."""

from docs.from_code.tables import page, table
from dra_driver.migration.codes import CODES
from dra_driver.migration.decisions import FIELDS
from dra_driver.migration.demands.label_table import ROWS
from dra_driver.migration.read.kind_table import known_kinds
from dra_driver.migration.report.markdown import DIFFERENCES

BEGIN = "<!-- migration: begin; written by docs/generate.py from the code -->"
END = "<!-- migration: end -->"


def migration_part() -> str:
    return page(
        "## All decisions",
        "Of the file that `--decisions` names. Every one can be left out.",
        table(("Decision", "Means"), ([f"`{name}`", means] for name, means in FIELDS.items())),
        "## What becomes of each kind",
        "Other kinds are looked through for what has the shape of a pod; that is reported, and converted with "
        "the decision `unknownKinds`.",
        table(
            ("Kind", "Group", "Becomes"), ([f"`{kind}`", group or "core", what] for group, kind, what in known_kinds())
        ),
        "## What becomes of each label",
        "In `nodeSelector` and node affinity. Names in the last column are [attributes](attributes.md) of the"
        " device; "
        "whatever stays a label has to be kept on the nodes by somebody.",
        table(("Label", "Says", "Becomes"), ([f"`{row.key}`", row.means, row.becomes] for row in ROWS)),
        "## What is different with claims",
        "\n".join(f"- {one}" for one in DIFFERENCES),
        "## Codes",
        "An error is something that would not mean the same; a warning may not, or asks for a hand; a note is worth "
        "knowing. A finding can be milder or worse than its code where its message says why.",
        table(
            ("Code", "Is", "Severity", "Means", "Advice"),
            ([one.name, one.title, one.severity.value, one.means, one.advice] for one in CODES),
        ),
    ).strip()
