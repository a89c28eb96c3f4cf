"""The part of migration.md that is made of the code: kinds, labels and codes."""

from docs.from_code.tables import page, table
from dra_driver.migration.codes import CODES
from dra_driver.migration.decisions import FIELDS
from dra_driver.migration.demands.node_labels import ROWS
from dra_driver.migration.read.kind_table import known_kinds

BEGIN = "<!-- migration: begin; written by docs/generate.py from the code -->"
END = "<!-- migration: end -->"


def migration_part() -> str:
    return page(
        "## All decisions",
        "Of the file that `--decisions` names. Every one can be left out.",
        table(("Decision", "Means"), ([f"`{name}`", means] for name, means in FIELDS.items())),
        "## What becomes of each kind",
        "In other kinds, parts with the shape of a pod are reported; the decision `unknownKinds` converts them.",
        table(
            ("Kind", "Group", "Becomes"), ([f"`{kind}`", group or "core", what] for group, kind, what in known_kinds())
        ),
        "## What becomes of each label",
        "In `nodeSelector` and node affinity. Names in the last column are [attributes](attributes.md) of the"
        " device; nodes must keep the labels that stay.",
        table(("Label", "Says", "Becomes"), ([f"`{row.key}`", row.means, row.becomes] for row in ROWS)),
        "## Codes",
        "Error: the workload would behave differently. Warning: it may, or something must be done by hand. A "
        "finding can have another severity than its code.",
        table(
            ("Code", "Is", "Severity", "Means", "Advice"),
            ([one.name, one.title, one.severity.value, one.means, one.advice] for one in CODES),
        ),
    ).strip()
