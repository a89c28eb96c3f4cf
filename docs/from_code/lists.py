"""Tables of what the code itself lists: gates, codes, checks, classes, reasons and events."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from controller.classes import wanted_class
from docs.from_code.tables import check_names, table
from dra_driver.bundled import DEVICE_CLASSES_FOLDER
from dra_driver.checking.codes import CODES
from dra_driver.devices.exclusion import LIMITS, PAIRS
from dra_driver.devices.limitations import LimitationCause
from dra_driver.doctor.api_server import LOSSES
from dra_driver.doctor.checks import cluster_checks
from dra_driver.doctor.findings import Check, Trouble
from dra_driver.doctor.proofs import ON_NODE, SHAPES
from dra_driver.domains.names import DomainReason
from dra_driver.features import GATES
from dra_driver.kubernetes import GATES as KUBERNETES_GATES
from dra_driver.kubernetes import KNOWN, SEEN, KubernetesGate
from dra_driver.migration import codes
from dra_driver.migration.decisions import FIELDS
from dra_driver.migration.demands.node_labels import ROWS
from dra_driver.migration.read.kind_table import known_kinds
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import listed
from kubelet_plugin.doctor.checks import CHECKS as NODE_CHECKS
from kubelet_plugin.reporting.events import Reason


def feature_gates() -> str:
    rows = (
        (
            f"`{gate.feature}`",
            gate.stage,
            "on" if gate.default else "off",
            gate.means + (f" Needs {listed(gate.needs)}." if gate.needs else ""),
        )
        for gate in GATES.values()
    )
    return table(("Gate", "Stage", "Default", ""), rows)


def kubernetes_gates() -> str:
    heads = (f"1.{minor}" if minor in SEEN else f"1.{minor} (not seen)" for minor in KNOWN)
    rows = (
        (f"`{name}`", gate.means, *(_default_of(gate, minor) for minor in KNOWN))
        for name, gate in KUBERNETES_GATES.items()
    )
    return table(("Gate", "What it enables", *heads), rows)


def _default_of(gate: KubernetesGate, minor: int) -> str:
    stage = gate.stage(minor)
    return "-" if stage == "absent" else f"{'on' if gate.default(minor) else 'off'} ({stage})"


def losses() -> str:
    return table(("Gate", "Without it"), ((f"`{gate}`", loss) for gate, loss in LOSSES.items()))


def exclusions() -> str:
    rows = [(row.first, row.second, "yes" if row.allowed else "**no**", row.reason) for row in PAIRS]
    return table(("One claim has", "another wants", "both?", "because"), rows)


def limits() -> str:
    rows = [(row.wish, row.where, "**no**" if row.refused else "no effect", row.reason) for row in LIMITS]
    return table(("Wanted", "on", "possible?", "because"), rows)


def limitations() -> str:
    return table(("Reason", "When"), [(f"`{cause.reason}`", cause.meaning) for cause in LimitationCause])


def events() -> str:
    rows = ((reason.kind, reason.type, f"`{reason.word}`", reason.meaning) for reason in Reason)
    return table(("Object", "Type", "Reason", "Meaning"), rows)


# -- dractl


def codes_of_check() -> str:
    rows = [
        (f"`{code.name}`", f"{code.severity}{f'; {code.otherwise}' if code.otherwise else ''}", code.means)
        for code in CODES
    ]
    return table(("Code", "Severity", "Means"), rows)


def cluster_checks_part() -> str:
    return _checks(cluster_checks((), (), lambda *_: ()))


def node_checks_part() -> str:
    return _checks(NODE_CHECKS)


def proofs() -> str:
    in_pods = ((shape.name, shape.means) for shape in SHAPES)
    rows = ([f"`{name}`", _filled(what)] for name, what in (*ON_NODE, *in_pods))
    return table(("Proof", "Passes when"), rows)


def _checks(checks: Iterable[Check[Any]]) -> str:
    """A section for each check; words in capital letters are placeholders."""
    return "\n\n".join(part for check in checks for part in _check(check))


def _check(check: Check[Any]) -> Iterator[str]:
    yield f"### {check.name}"
    yield f"{check.asks[0].upper()}{check.asks[1:]}"
    verdicts = ("problem", "warning", "unknown", "skipped")
    troubles: list[Trouble] = sorted(check.troubles, key=lambda trouble: verdicts.index(trouble.verdict.value))
    rows = (
        [f"`{trouble.code}`", trouble.verdict.value, _filled(trouble.sentence), _filled(trouble.fix)]
        for trouble in troubles
    )
    yield table(("Finds", "Verdict", "Says", "Fix"), rows)


class _Shown(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


def _filled(template: str) -> str:
    return template.format_map(_Shown())


def decisions() -> str:
    return table(("Decision", "Means"), ([f"`{name}`", means] for name, means in FIELDS.items()))


def kinds() -> str:
    rows = ([f"`{kind}`", group or "core", what] for group, kind, what in known_kinds())
    return table(("Kind", "Group", "Becomes"), rows)


def labels() -> str:
    return table(("Label", "Says", "Becomes"), ([f"`{row.key}`", row.means, row.becomes] for row in ROWS))


def codes_of_migration() -> str:
    rows = ([code.name, code.title, code.severity.value, code.means, code.advice] for code in codes.CODES)
    return table(("Code", "Is", "Severity", "Means", "Advice"), rows)


# -- classes


def classes() -> str:
    """A section for each DeviceClass that ships with the driver."""
    return "\n\n".join(
        part for path in sorted(DEVICE_CLASSES_FOLDER.glob("*.yaml")) for part in _class(path.read_text())
    )


def _class(text: str) -> Iterator[str]:
    yield f"## {yaml.safe_load(text)['metadata']['name']}"
    yield "\n".join(re.findall(r"^# (.*)$", text, re.MULTILINE))
    body = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip()
    yield f"```yaml\n{body}\n```"


def profile_class() -> str:
    made = wanted_class("1g.10gb+me", GPU_DRIVER, extended_resource=True)
    return "```yaml\n" + yaml.safe_dump(made, sort_keys=False, width=110).strip() + "\n```"


# -- ComputeDomains

OF_PARTS = frozenset(
    {
        DomainReason.TEMPLATE_MADE,
        DomainReason.NODES_JOINED,
        DomainReason.SEVERAL_CLIQUES,
        DomainReason.FABRIC_COMPLETE,
    }
)
"""Reasons that the condition `Ready` never has."""

_REASONS = {
    "AllNodesReady": ("Pods on all nodes of the domain can access each other's GPU memory.", ""),
    "CliqueFull": (
        "The NVLink clique of a node already has the maximum number of nodes in this domain.",
        "Run fewer pods in one clique, or ask the administrator to raise `computeDomains.maxNodesPerImexDomain`.",
    ),
    "DaemonsNotReady": (
        "Daemons on some nodes are not ready; the message says which and why.",
        "Wait. If this persists, check the daemons' pods in the driver's namespace.",
    ),
    "FabricIncomplete": (
        "The NVLink fabric of a node is incomplete.",
        "Wait for the fabric manager. If this persists, an administrator must check the node.",
    ),
    "NoNodes": (
        "No pod of the domain has a node yet.",
        "Create pods that use the template. If they exist, `dractl explain pod` says why no node fits.",
    ),
    "NodeGone": (
        "A node has left the cluster; delete its pods.",
        "Delete the pods that were on it. They get other nodes.",
    ),
    "NodeInOtherDomain": (
        "A node is in another domain until that domain's pods have ended.",
        "Wait until the other domain's pods on that node end, or delete your pod to get another node.",
    ),
    "NodesJoining": ("Nodes are joining.", "Wait."),
    "NodesMissing": (
        "Pods are on fewer nodes than `numNodes`.",
        "Create more pods, or wait until the existing pods have nodes.",
    ),
    "TemplateMissing": (
        "The controller has not created the domain's claim template yet.",
        "Wait. If this persists, the controller may lack a permission: read its log.",
    ),
    "TemplateNameTaken": (
        "Another claim template has the name of the domain's template.",
        "Delete the other template, or create the domain again with another template name.",
    ),
    "Terminating": (
        "The domain is being deleted; the message names the pods that still use it.",
        "Delete the pods that still use it.",
    ),
}
"""Of the condition `Ready`: what each means, and what a user does then."""


def domain_reasons() -> str:
    rows = ((f"`{reason}`", meaning, move) for reason, (meaning, move) in _REASONS.items())
    return table(("Reason of `Ready`", "Meaning", "What to do"), rows)


def domain_events() -> str:
    """Events have the same reasons, with the prefix `Domain`."""
    check_names((str(reason) for reason in DomainReason if reason not in OF_PARTS), _REASONS, "reason of a domain")
    rows = (("ComputeDomain", f"`Domain{reason}`", f"`{reason}`", meaning) for reason, (meaning, _) in _REASONS.items())
    return table(("Object", "Event", "Reason of `Ready`", "Meaning"), rows)
