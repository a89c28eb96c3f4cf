"""Node conditions of a pod, divided: what devices can answer goes into its claim, the rest stays with the pod. Pure.

Entries of `nodeSelector` and of one required term are all required, so each is decided separately. Alternative terms
and preferences stay.
Source: core/v1 NodeAffinity; reference on migration sources, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_driver.api.untyped import Path, list_in, places_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.demands.node_labels import is_gpu_label, verdict_on
from dra_driver.migration.demands.resources import Notes
from dra_driver.migration.model import MigrationFinding, PodSpecAt, Remove, finding
from dra_driver.migration.understand.labels import Fate, LabelVerdict, RequestedDevices, Requirement

BY_LABELS = "it chooses GPUs by node labels, and a claim can choose them by attributes"
"""Why claims are better for a pod."""

_REQUIRED: Path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED: Path = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A requirement, and where it is."""

    requirement: Requirement
    path: Path


@dataclass(frozen=True, slots=True)
class _Term:
    """Entries that all hold."""

    entries: tuple[_Entry, ...]
    path: Path


def requirements_of(pod: PodSpecAt) -> tuple[Requirement, ...]:
    """What certainly holds of the pod's node: `nodeSelector`, and the one required term if there is one only."""
    terms = _required(pod)
    certain = terms[0].entries if len(terms) == 1 else ()
    return tuple(entry.requirement for entry in (*_node_selector(pod), *certain))


def placed(pod: PodSpecAt, subjects: Sequence[RequestedDevices], notes: Notes) -> tuple[tuple[str, ...], ...]:
    """Selectors for each of `subjects`, which are what the pod's claim asks for; there is at least one."""
    return _Placing(pod, subjects, notes).result()


def unused_labels(pod: PodSpecAt) -> tuple[MigrationFinding, ...]:
    """Of a pod that asks for no GPU."""
    terms = (*_required(pod), *_preferred(pod))
    entries = (*_node_selector(pod), *(entry for term in terms for entry in term.entries))
    return tuple(
        finding(codes.UNUSED_LABEL, pod.document, entry.path, f"{entry.requirement.key}, without a request for a GPU")
        for entry in entries
        if entry.requirement.key.startswith("nvidia.com/")
        and is_gpu_label(entry.requirement.key)
        and entry.path[len(pod.path)] not in pod.inherited
    )


@dataclass
class _Placing:
    pod: PodSpecAt
    subjects: Sequence[RequestedDevices]
    notes: Notes
    selectors: list[list[str]] = field(default_factory=list)

    def result(self) -> tuple[tuple[str, ...], ...]:
        self.selectors = [[] for _ in self.subjects]
        for entry in _node_selector(self.pod):
            self._required_entry(entry)
        self._required_terms(_required(self.pod))
        self._preferences(_preferred(self.pod))
        self._topology()
        if any(self.selectors):
            self.notes.prefers_claims.insert(0, BY_LABELS)
        return tuple(tuple(dict.fromkeys(selector)) for selector in self.selectors)

    def _verdicts(self, entry: _Entry) -> tuple[LabelVerdict, ...] | None:
        """By subject; None where the label has nothing to do with GPUs."""
        verdicts = [verdict_on(entry.requirement, subject) for subject in self.subjects]
        return tuple(verdict for verdict in verdicts if verdict is not None) or None

    # -- what must hold

    def _required_entry(self, entry: _Entry) -> None:
        verdicts = self._verdicts(entry)
        if verdicts is None:
            return
        stays = next((item for item in verdicts if item.fate in (Fate.KEPT, Fate.NEVER)), None)
        if stays is not None:
            if stays.code is not None:
                self.notes.say(stays.code, entry.path, stays.message)
            return
        for own, verdict in zip(self.selectors, verdicts, strict=True):
            if verdict.expression:
                own.append(verdict.expression)
            if verdict.code is not None and not self._stay(entry.path):
                self.notes.say_with_claims(verdict.code, entry.path, verdict.message)
        key = entry.requirement.key
        if self._stay(entry.path):
            message = f"{key}: a DaemonSet creates a pod for each node that it selects, so the label stays"
            if self._is_inherited(entry.path):
                message = f"{key}: the condition comes from elsewhere, so it stays, and the claim repeats it"
            self.notes.say_with_claims(codes.NODE_ONLY_LABEL, entry.path, message, fixed=False)
            return
        self.notes.edits.append(Remove(entry.path))
        if key.startswith("nvidia.com/"):
            self.notes.say_with_extended(codes.LABEL_STAYS, entry.path, f"{key} stays a condition on the node")

    def _stay(self, path: Path) -> bool:
        """Whether pods are made for nodes by these labels, before devices are allocated; or others have the labels."""
        return self.pod.document.kind == "DaemonSet" or self._is_inherited(path)

    def _is_inherited(self, path: Path) -> bool:
        return path[len(self.pod.path)] in self.pod.inherited

    def _required_terms(self, terms: Sequence[_Term]) -> None:
        if len(terms) == 1:
            for entry in terms[0].entries:
                self._required_entry(entry)
            return
        labels = sorted({entry.requirement.key for term in terms for entry in term.entries if self._of_gpus(entry)})
        if labels:
            message = f"{', '.join(labels)}: {len(terms)} alternative terms stay conditions on nodes"
            self.notes.say(codes.MIXED_TERMS, (*self.pod.path, *_REQUIRED), message)

    def _of_gpus(self, entry: _Entry) -> bool:
        """Whether a device could answer it."""
        verdicts = self._verdicts(entry)
        return verdicts is not None and all(verdict.fate in (Fate.ON_DEVICE, Fate.IMPLIED) for verdict in verdicts)

    def _preferences(self, preferred: Sequence[_Term]) -> None:
        """A claim has no preference that the scheduler weighs against those of nodes, so they stay with the pod."""
        for term in preferred:
            if keys := sorted({entry.requirement.key for entry in term.entries if self._of_gpus(entry)}):
                self.notes.say(
                    codes.PREFERENCE_STAYS, term.path, f"{', '.join(keys)}: the preference stays with the pod"
                )

    # -- what stays

    def _topology(self) -> None:
        """Labels by which pods are spread or kept together."""
        for path, key in places_in(self.pod.spec):
            spreads = path[:1] in (("affinity",), ("topologySpreadConstraints",)) and path[-1] == "topologyKey"
            if spreads and is_gpu_label(str(key)):
                message = f"{key} is a topology key, so nodes must keep the label"
                self.notes.say(codes.NODE_ONLY_LABEL, (*self.pod.path, *path), message, severity=Severity.INFO)


def _node_selector(pod: PodSpecAt) -> tuple[_Entry, ...]:
    given = pod.spec.get("nodeSelector")
    return tuple(
        _Entry(Requirement(str(key), "In", (_text(value),)), (*pod.path, "nodeSelector", str(key)))
        for key, value in (given.items() if isinstance(given, dict) else ())
    )


def _text(value: object) -> str:
    """As a label's value; people forget quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _required(pod: PodSpecAt) -> tuple[_Term, ...]:
    terms = list_in(value_at(pod.spec, _REQUIRED))
    return tuple(_term(item, (*pod.path, *_REQUIRED, index)) for index, item in enumerate(terms))


def _preferred(pod: PodSpecAt) -> tuple[_Term, ...]:
    return tuple(
        _term(value_at(item, ("preference",)), (*pod.path, *_PREFERRED, index), "preference")
        for index, item in enumerate(list_in(value_at(pod.spec, _PREFERRED)))
    )


def _term(term: object, path: Path, *below: str) -> _Term:
    """`path` is what is removed with it, `below` where its expressions are in there."""
    entries = []
    for index, expression in enumerate(list_in(value_at(term, ("matchExpressions",)))):
        where = (*path, *below, "matchExpressions", index)
        if (
            not isinstance(expression, dict)
            or not isinstance(expression.get("key"), str)
            or not isinstance(expression.get("operator"), str)
        ):
            continue
        values = tuple(map(_text, list_in(expression.get("values"))))
        entries.append(_Entry(Requirement(expression["key"], expression["operator"], values), where))
    return _Term(tuple(entries), path)
