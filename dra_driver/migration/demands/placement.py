"""Node conditions of a pod, divided: what devices can answer goes into its claim, the rest stays with the pod. Pure.

Entries of `nodeSelector` and of one required term are all required, so each is decided separately. Alternative terms
and preferences stay.
Source: core/v1 NodeAffinity; reference on migration sources, section 4.
"""

from collections.abc import Sequence

from dra_driver.api.untyped import Path, list_in, map_in, maps_in, places_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.demands.node_labels import is_gpu_label, verdict_on
from dra_driver.migration.demands.resources import PodNotes
from dra_driver.migration.model import MigrationFinding, PodSpecAt, Remove, finding
from dra_driver.migration.understand.labels import Fate, LabelVerdict, RequestedDevices, Requirement

BY_LABELS = "it chooses GPUs by node labels, and a claim can choose them by attributes"
"""Why claims are better for a pod."""

_REQUIRED: Path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED: Path = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")


type _Entry = tuple[Requirement, Path]
"""A requirement, and where it is."""


def requirements_of(pod: PodSpecAt) -> tuple[Requirement, ...]:
    """What certainly holds of the pod's node."""
    return tuple(requirement for requirement, _ in _certain(pod))


def unused_labels(pod: PodSpecAt) -> tuple[MigrationFinding, ...]:
    """Of a pod that asks for no GPU."""
    terms = [entries for entries, _ in (*_terms(pod, _REQUIRED), *_terms(pod, _PREFERRED, "preference"))]
    return tuple(
        finding(codes.UNUSED_LABEL, pod.document, path, f"{requirement.key}, without a request for a GPU")
        for requirement, path in (*_node_selector(pod), *(entry for entries in terms for entry in entries))
        if requirement.key.startswith("nvidia.com/") and is_gpu_label(requirement.key) and not _is_inherited(pod, path)
    )


def placed(notes: PodNotes, subjects: Sequence[RequestedDevices]) -> list[list[str]]:
    """Selectors for each of `subjects`, which are what the pod's claim asks for; there is at least one."""
    pod = notes.pod
    selectors: list[list[str]] = [[] for _ in subjects]
    for requirement, path in _certain(pod):
        verdicts = _verdicts(requirement, subjects)
        if verdicts and _is_taken_out(notes, requirement.key, path, verdicts):
            for own, verdict in zip(selectors, verdicts, strict=True):
                own += filter(None, (verdict.expression,))
    if any(selectors):
        notes.prefers_claims.insert(0, BY_LABELS)
    required = _terms(pod, _REQUIRED)
    alternatives = [entry for entries, _ in required for entry in entries] if len(required) > 1 else []
    if labels := _answered(alternatives, subjects):
        message = f"{labels}: {len(required)} alternative terms stay conditions on nodes"
        notes.say(codes.MIXED_TERMS, (*pod.path, *_REQUIRED), message)
    for entries, path in _terms(pod, _PREFERRED, "preference"):
        # A claim has no preference that the scheduler weighs against those of nodes.
        if labels := _answered(entries, subjects):
            notes.say(codes.PREFERENCE_STAYS, path, f"{labels}: the preference stays with the pod")
    for path, key in places_in(pod.spec):
        # By these pods are spread or kept together.
        spreads = path[:1] in (("affinity",), ("topologySpreadConstraints",)) and path[-1] == "topologyKey"
        if spreads and is_gpu_label(str(key)):
            message = f"{key} is a topology key, so nodes must keep the label"
            notes.say(codes.NODE_ONLY_LABEL, (*pod.path, *path), message, severity=Severity.INFO)
    return selectors


def _verdicts(requirement: Requirement, subjects: Sequence[RequestedDevices]) -> list[LabelVerdict]:
    """By subject; empty where the label has nothing to do with GPUs."""
    verdicts = (verdict_on(requirement, subject) for subject in subjects)
    return [verdict for verdict in verdicts if verdict is not None]


def _answered(entries: Sequence[_Entry], subjects: Sequence[RequestedDevices]) -> str:
    """The labels that devices could answer for."""
    by_key = ((requirement.key, _verdicts(requirement, subjects)) for requirement, _ in entries)
    return ", ".join(sorted({key for key, verdicts in by_key if verdicts and not any(map(_stays, verdicts))}))


def _stays(verdict: LabelVerdict) -> bool:
    return verdict.fate in (Fate.KEPT, Fate.NEVER)


def _is_taken_out(notes: PodNotes, key: str, path: Path, verdicts: Sequence[LabelVerdict]) -> bool:
    """Whether conditions on devices take the place of a requirement. It stays with the pod, too, if pods are made for
    nodes by it before devices are allocated, or if others have it."""
    stays = next(filter(_stays, verdicts), None)
    if stays is not None:
        if stays.code is not None:
            notes.say(stays.code, path, stays.message)
        return False
    inherited = _is_inherited(notes.pod, path)
    if inherited or notes.pod.document.kind == "DaemonSet":
        message = f"{key}: a DaemonSet creates a pod for each node that it selects, so the label stays"
        if inherited:
            message = f"{key}: the condition comes from elsewhere, so it stays, and the claim repeats it"
        notes.say_with_claims(codes.NODE_ONLY_LABEL, path, message, fixed=False)
        return True
    for verdict in verdicts:
        if verdict.code is not None:
            notes.say_with_claims(verdict.code, path, verdict.message)
    notes.edits.append(Remove(path))
    if key.startswith("nvidia.com/"):
        notes.say_with_extended(codes.LABEL_STAYS, path, f"{key} stays a condition on the node")
    return True


# -- what is there


def _is_inherited(pod: PodSpecAt, path: Path) -> bool:
    return path[len(pod.path)] in pod.inherited


def _certain(pod: PodSpecAt) -> list[_Entry]:
    """What holds in any case: `nodeSelector`, and the one required term if there is one only."""
    terms = _terms(pod, _REQUIRED)
    return [*_node_selector(pod), *(terms[0][0] if len(terms) == 1 else ())]


def _node_selector(pod: PodSpecAt) -> list[_Entry]:
    given = map_in(pod.spec.get("nodeSelector"))
    return [
        (Requirement(str(key), "In", (_text(value),)), (*pod.path, "nodeSelector", str(key)))
        for key, value in given.items()
    ]


def _text(value: object) -> str:
    """As a label's value; people forget quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _terms(pod: PodSpecAt, at: Path, *below: str) -> list[tuple[list[_Entry], Path]]:
    """Lists of requirements that all hold, each with the path of the item of the list at `at`. Its expressions are
    `below` it."""
    terms = []
    for number, term in enumerate(list_in(value_at(pod.spec, at))):
        entries = []
        for index, expression in enumerate(maps_in(value_at(term, (*below, "matchExpressions")))):
            key, operator = expression.get("key"), expression.get("operator")
            if isinstance(key, str) and isinstance(operator, str):
                values = tuple(map(_text, list_in(expression.get("values"))))
                path = (*pod.path, *at, number, *below, "matchExpressions", index)
                entries.append((Requirement(key, operator, values), path))
        terms.append((entries, (*pod.path, *at, number)))
    return terms
