"""The part of doctor.md that is generated from the checks: what each checks, what it can find, and the fix."""

from collections.abc import Iterable, Iterator
from typing import Any

from docs.from_code.tables import page, table
from dra_driver.doctor.checks import cluster_checks
from dra_driver.doctor.findings import Check, Trouble
from dra_driver.doctor.proofs import IN_PODS, ON_NODE
from kubelet_plugin.doctor.checks import CHECKS as NODE_CHECKS

BEGIN = "<!-- checks: begin; written by docs/generate.py from the code -->"
END = "<!-- checks: end -->"


def checks_part() -> str:
    """A section for each check; words in capital letters are placeholders."""
    return page(
        "## Checks of a cluster",
        *_sections(cluster_checks((), (), lambda *_: ())),
        "## Checks of a node",
        *_sections(NODE_CHECKS),
        "## Proofs",
        "`dractl doctor --prove` runs these: first on the node itself, then in pods on it.",
        table(("Proof", "Passes when"), ([f"`{name}`", _text(what)] for name, what in (*ON_NODE, *IN_PODS))),
    ).strip()


def _sections(checks: Iterable[Check[Any]]) -> Iterator[str]:
    for check in checks:
        yield f"### {check.name}"
        yield f"{check.asks[0].upper()}{check.asks[1:]}"
        yield table(
            ("Finds", "Verdict", "Says", "Fix"),
            ([f"`{one.code}`", one.verdict.value, _text(one.sentence), _text(one.fix)] for one in _sorted(check)),
        )


def _sorted(check: Check[Any]) -> list[Trouble]:
    return sorted(check.troubles, key=lambda one: ("problem", "warning", "unknown", "skipped").index(one.verdict.value))


class _Shown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


def _text(template: str) -> str:
    return template.format_map(_Shown())
