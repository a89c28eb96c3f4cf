"""For security.md: `docs.from_code.rights.table`, for readers."""

import re
from collections.abc import Iterator

from docs.from_code.rights.line import Line, Setup
from docs.from_code.rights.others import ESCALATIONS
from docs.from_code.rights.table import lines
from docs.from_code.tables import code, table

_LEVEL = {Setup.NODE: "`publisher: node`", Setup.WEBHOOK: "`webhook.install`", Setup.UI: "`ui.enabled`"}


def rights() -> str:
    """What is allowed."""
    return table(("Account", "With", "Resource", "Verbs", "Of", "Why"), map(_allowed, _merged(allowed=True)))


def refusals() -> str:
    """What admission policies refuse."""
    return table(
        ("Account", "With", "Resource", "Verbs", "Of", "Fields tried", "Policy", "Without it: 1.34, 1.35", "1.36"),
        map(_refused, _merged(allowed=False)),
    )


def escalations() -> str:
    rows = ((f"`{resource}`", verbs.replace(" ", ", ")) for verbs, resource, _ in ESCALATIONS)
    return table(("Resource", "Verbs"), rows)


def _merged(*, allowed: bool) -> Iterator[list[Line]]:
    """Groups of lines that differ only in verbs and changes, in the order of their accounts."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in sorted(lines(), key=lambda line: list(type(line.account)).index(line.account)):
        if line.by == "" if allowed else line.by_policy:
            key = (line.account, line.resource, line.what, line.reason, line.by, line.where())
            groups.setdefault(key, []).append(line)
    yield from groups.values()


def _allowed(group: list[Line]) -> tuple[str, ...]:
    return (*_start(group), group[0].reason)


def _refused(group: list[Line]) -> tuple[str, ...]:
    line = group[0]
    paths = [path for line in group for changes in line.alternatives for path in changes]
    fields = code(dict.fromkeys(map(_field, paths)))
    return (*_start(group), fields, line.by, "allowed", "refused" if line.granular else "allowed")


def _start(group: list[Line]) -> tuple[str, ...]:
    line = group[0]
    verbs = dict.fromkeys(verb for entry in group for verb in entry.verbs.split())
    level = "" if len(line.where()) > 1 else _LEVEL.get(line.where()[0], "")
    if line.where() == (Setup.CONTROLLER,) and line.account == "plugin":
        level = "`publisher: controller`"
    return line.account, level, f"`{line.resource}`", ", ".join(verbs), line.what


def _field(path: str) -> str:
    """`spec.volumes.emptyDir` of `spec/template/spec/volumes/0/emptyDir`: of pods, their own fields."""
    path = re.sub(r"/\d+\b", "", path.removeprefix("spec/template/spec/"))
    return path.replace("/", ".").replace("~1", "/")
