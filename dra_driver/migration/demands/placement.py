"""Node conditions of a pod, divided: what devices can answer goes into its claim, the rest stays with the pod. Pure.

Entries of `nodeSelector` and of one required term are all required, so each is decided separately. Alternative terms go
to the claim all together or not at all. Preferences stay.
Source: core/v1 NodeAffinity; reference on migration sources, section 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.migration.codes import (
    LABEL_STAYS,
    MIXED_TERMS,
    NODE_ONLY_LABEL,
    PREFERENCE_STAYS,
    UNUSED_LABEL,
    FindingSeverity,
)
from dra_driver.migration.demands.label_table import is_gpu_label, verdict_on
from dra_driver.migration.demands.notes import Notes
from dra_driver.migration.model import MigrationFinding, Path, PodSpecAt, Remove, finding, value_at
from dra_driver.migration.understand.labels import Fate, LabelVerdict, Requirement, Subject

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
    """Entries that all hold. `readable` is false where there is something that is not understood."""

    entries: tuple[_Entry, ...]
    path: Path
    readable: bool = True


def requirements_of(pod: PodSpecAt) -> tuple[Requirement, ...]:
    """What certainly holds of the pod's node: `nodeSelector`, and the one required term if there is one only."""
    terms = _required(pod)
    certain = terms[0].entries if len(terms) == 1 else ()
    return tuple(entry.requirement for entry in (*_node_selector(pod), *certain))


def placed(pod: PodSpecAt, subjects: Sequence[Subject], notes: Notes) -> tuple[tuple[str, ...], ...]:
    """Selectors for each of `subjects`, which are what the pod's claim asks for; there is at least one."""
    return _Placing(pod, subjects, notes).result()


def unused_labels(pod: PodSpecAt) -> tuple[MigrationFinding, ...]:
    """Of a pod that asks for no GPU."""
    terms = (*_required(pod), *_preferred(pod))
    entries = (*_node_selector(pod), *(entry for term in terms for entry in term.entries))
    return tuple(
        finding(UNUSED_LABEL, pod.document, entry.path, f"{entry.requirement.key}, without a request for a GPU")
        for entry in entries
        if entry.requirement.key.startswith("nvidia.com/")
        and is_gpu_label(entry.requirement.key)
        and entry.path[len(pod.path)] not in pod.inherited
    )


@dataclass
class _Placing:
    pod: PodSpecAt
    subjects: Sequence[Subject]
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

    def _say_with_claims(self, verdict: LabelVerdict, path: Path) -> None:
        if verdict.code is not None:
            self.notes.say_with_claims(verdict.code, path, verdict.message)

    # -- what must hold

    def _required_entry(self, entry: _Entry) -> None:
        verdicts = self._verdicts(entry)
        if verdicts is None:
            return
        stays = next((item for item in verdicts if item.fate in (Fate.KEPT, Fate.NEVER)), None)
        if stays is not None:
            self._kept(stays, entry.path)
            return
        for own, verdict in zip(self.selectors, verdicts, strict=True):
            if verdict.expression:
                own.append(verdict.expression)
            if not self._stay(entry.path):
                self._say_with_claims(verdict, entry.path)
        if self._stay(entry.path):
            self._say_of_those_that_stay([entry], entry.path)
            return
        self.notes.edits.append(Remove(entry.path))
        self._stay_with_extended([entry], entry.path)

    def _stay(self, path: Path) -> bool:
        """Whether pods are made for nodes by these labels, before anybody looks for devices; or others have them."""
        return self.pod.document.kind == "DaemonSet" or self._is_inherited(path)

    def _is_inherited(self, path: Path) -> bool:
        return path[len(self.pod.path)] in self.pod.inherited

    def _say_of_those_that_stay(self, entries: Sequence[_Entry], path: Path) -> None:
        keys = ", ".join(sorted({entry.requirement.key for entry in entries}))
        message = f"{keys}: a DaemonSet creates a pod for each node that it selects, so the label stays"
        if self._is_inherited(path):
            message = f"{keys}: the condition comes from elsewhere, so it stays, and the claim repeats it"
        self.notes.say_with_claims(NODE_ONLY_LABEL, path, message, fixed=False)

    def _stay_with_extended(self, entries: Sequence[_Entry], path: Path) -> None:
        """For labels that GPU Feature Discovery keeps."""
        keys = sorted({entry.requirement.key for entry in entries if entry.requirement.key.startswith("nvidia.com/")})
        if keys:
            message = f"{', '.join(keys)} stay{'s' * (len(keys) == 1)} a condition on the node"
            self.notes.say_with_extended(LABEL_STAYS, path, message)

    def _kept(self, verdict: LabelVerdict, path: Path) -> None:
        if verdict.code is not None:
            self.notes.say(verdict.code, path, verdict.message)

    def _required_terms(self, terms: Sequence[_Term]) -> None:
        if len(terms) == 1:
            for entry in terms[0].entries:
                self._required_entry(entry)
        elif any(self._of_gpus(entry) for term in terms for entry in term.entries):
            self._one_of(terms)

    def _of_gpus(self, entry: _Entry) -> bool:
        """Whether a device could answer it."""
        verdicts = self._verdicts(entry)
        return verdicts is not None and all(verdict.fate in (Fate.ON_DEVICE, Fate.IMPLIED) for verdict in verdicts)

    def _one_of(self, terms: Sequence[_Term]) -> None:
        where = (*self.pod.path, *_REQUIRED)
        if not all(term.readable and all(map(self._of_gpus, term.entries)) for term in terms):
            labels = sorted({entry.requirement.key for term in terms for entry in term.entries if self._of_gpus(entry)})
            self.notes.say(
                MIXED_TERMS, where, f"{', '.join(labels)} and other conditions are mixed in {len(terms)} alternatives"
            )
            return
        for own, expressions in zip(self.selectors, self._of_terms(terms), strict=True):
            if expressions is not None:
                own.append(
                    " || ".join(
                        f"({expression})" if "&&" in expression or "||" in expression else expression
                        for expression in expressions
                    )
                )
        if self._stay(where):
            self._say_of_those_that_stay([entry for term in terms for entry in term.entries], where)
            return
        self.notes.edits.append(Remove(where))
        self._stay_with_extended([entry for term in terms for entry in term.entries], where)

    def _of_terms(self, terms: Sequence[_Term]) -> Iterator[list[str] | None]:
        """By subject, an expression for each term; None where one of them always holds."""
        by_term = [self._conditions(term) for term in terms]
        for index in range(len(self.subjects)):
            expressions = [conditions[index] for conditions in by_term]
            yield None if "" in expressions else list(dict.fromkeys(expressions))

    def _conditions(self, term: _Term) -> list[str]:
        """By subject, all entries of the term in one expression; empty where they always hold."""
        parts: list[list[str]] = [[] for _ in self.subjects]
        for entry in term.entries:
            for own, verdict in zip(parts, self._verdicts(entry) or (), strict=True):
                if not self._stay(entry.path):
                    self._say_with_claims(verdict, entry.path)
                if verdict.expression:
                    own.append(f"({verdict.expression})" if "||" in verdict.expression else verdict.expression)
        return [" && ".join(own) for own in parts]

    def _preferences(self, preferred: Sequence[_Term]) -> None:
        """A claim has no preference that the scheduler weighs against those of nodes, so they stay with the pod."""
        for term in preferred:
            if keys := sorted({entry.requirement.key for entry in term.entries if self._of_gpus(entry)}):
                self.notes.say(PREFERENCE_STAYS, term.path, f"{', '.join(keys)}: the preference stays one for nodes")

    # -- what stays

    def _topology(self) -> None:
        """Labels by which pods are spread or kept together."""
        for path in _topology_keys(self.pod.spec, ()):
            key = value_at(self.pod.spec, path)
            if is_gpu_label(str(key)):
                message = f"{key} is a topology key, so nodes must keep the label"
                self.notes.say(NODE_ONLY_LABEL, (*self.pod.path, *path), message, severity=FindingSeverity.INFO)


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
    terms = value_at(pod.spec, _REQUIRED)
    listed = terms if isinstance(terms, list) else []
    return tuple(_term(item, (*pod.path, *_REQUIRED, index)) for index, item in enumerate(listed))


def _preferred(pod: PodSpecAt) -> tuple[_Term, ...]:
    preferences = value_at(pod.spec, _PREFERRED)
    listed = preferences if isinstance(preferences, list) else []
    return tuple(
        _term(value_at(item, ("preference",)), (*pod.path, *_PREFERRED, index), "preference")
        for index, item in enumerate(listed)
    )


def _term(term: object, path: Path, *below: str) -> _Term:
    """`path` is what is removed with it, `below` where its expressions are in there."""
    given: Mapping[str, Any] = term if isinstance(term, dict) else {}
    expressions = given.get("matchExpressions")
    entries = []
    readable = given.keys() <= {"matchExpressions"}
    for index, expression in enumerate(expressions if isinstance(expressions, list) else []):
        where = (*path, *below, "matchExpressions", index)
        if (
            not isinstance(expression, dict)
            or not isinstance(expression.get("key"), str)
            or not isinstance(expression.get("operator"), str)
        ):
            readable = False
            continue
        values = expression.get("values")
        listed = tuple(map(_text, values)) if isinstance(values, list) else ()
        entries.append(_Entry(Requirement(expression["key"], expression["operator"], listed), where))
    return _Term(tuple(entries), path, readable)


def _topology_keys(value: object, path: Path) -> Iterator[Path]:
    if path and path[0] not in ("affinity", "topologySpreadConstraints"):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "topologyKey":
                yield (*path, key)
            else:
                yield from _topology_keys(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _topology_keys(inner, (*path, index))
