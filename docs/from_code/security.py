"""The part of security.md about rights: `docs.from_code.rights.table`, for readers."""

import re
from collections.abc import Iterator

from docs.from_code.rights.line import RBAC, Line, Setup
from docs.from_code.rights.others import ESCALATIONS
from docs.from_code.rights.table import lines
from docs.from_code.tables import code, page, table

BEGIN = "<!-- rights: begin; written by docs/generate.py from the code -->"
END = "<!-- rights: end -->"

_LEVEL = {Setup.NODE: "`publisher: node`", Setup.WEBHOOK: "`webhook.install`", Setup.UI: "`ui.enabled`"}


def rights_part() -> str:
    every = lines()
    tried = sum(len(line.verbs.split()) for line in every if line.by == RBAC)
    return page(
        "### What is allowed",
        "The plugin runs on each node, the IMEX daemon on the nodes of a ComputeDomain. The account for the removal"
        " exists only while a Job of `helm uninstall` runs. A line without a value in the second column applies"
        " with every value; lines of the controller and the IMEX daemon apply with `publisher: controller`.",
        table(("Account", "With", "Resource", "Verbs", "Of", "Why"), map(_allowed, _merged(every, allowed=True))),
        "### What admission policies refuse",
        "RBAC alone would allow these. The last two columns show who refuses them with"
        " `admissionPolicies.install: false`: Kubernetes 1.36 has separate permissions for each part of a"
        " claim's status; 1.34 and 1.35 have none, so only the policy protects"
        " claims of other nodes from a plugin.",
        table(
            ("Account", "With", "Resource", "Verbs", "Of", "Fields tried", "Policy", "Without it: 1.34, 1.35", "1.36"),
            map(_refused, _merged(every, allowed=False)),
        ),
        "### What RBAC refuses",
        f"Everything else: the tests try {tried} verbs on other resources and objects. No account of the driver has any"
        " of these rights, each of which would lead to more rights. (With the"
        " [webhook](webhook.md#permissions) the controller reads one"
        " Secret, its own certificate, and may change the one configuration of its webhook.)",
        table(
            ("Resource", "Verbs"), ((f"`{resource}`", verbs.replace(" ", ", ")) for verbs, resource, _on in ESCALATIONS)
        ),
    ).strip()


def _merged(every: tuple[Line, ...], *, allowed: bool) -> Iterator[list[Line]]:
    """Groups of lines that differ only in verbs and changes, in the order of their accounts."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in sorted(every, key=lambda line: list(type(line.account)).index(line.account)):
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
    verbs = dict.fromkeys(verb for one in group for verb in one.verbs.split())
    level = "" if len(line.where()) > 1 else _LEVEL.get(line.where()[0], "")
    if line.where() == (Setup.CONTROLLER,) and line.account == "plugin":
        level = "`publisher: controller`"
    return line.account, level, f"`{line.resource}`", ", ".join(verbs), line.what


def _field(path: str) -> str:
    """`spec.volumes.emptyDir` of `spec/template/spec/volumes/0/emptyDir`: of pods, their own fields."""
    path = re.sub(r"/\d+\b", "", path.removeprefix("spec/template/spec/"))
    return path.replace("/", ".").replace("~1", "/")
