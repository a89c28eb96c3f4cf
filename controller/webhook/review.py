"""A question of the API server, and the answer: whether an object is admitted, why not, and what it warns of.

The sentences are those of `dractl check`, and so is the verdict, with two limits. The API server has applied its own
rules before it asks, so what `check` says of those is left to it: it may be newer than we are. And selectors are
refused only while the server is of a version whose CEL we know. Nothing is stored or changed by a review, so a dry run
is reviewed like anything else.

An update that leaves `spec` as it was is admitted unseen: whoever removes a finalizer or a label of an object that was
bad before must be able to. Pure, and never raises but `NotAReview`.
Source: `AdmissionReview` of admission.k8s.io/v1.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from controller.webhook.kinds import Kind, judged, kind_of
from dra_driver.api.documents import Document, Reading, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.cel.cost import LIMIT
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.checking.check import check
from dra_driver.checking.codes import CONFIG, CONFIG_KIND, DEPRECATED, NEEDS_GATE, SELECTOR, Severity
from dra_driver.checking.findings import Finding
from dra_driver.checking.fit import class_expressions
from dra_driver.checking.formats import sentence
from dra_driver.checking.knowledge import Knowledge, Sites
from dra_driver.errors import Help, InvalidInput, Move
from dra_driver.features import Feature
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_REVIEWED = ("CREATE", "UPDATE")
_DEAREST = 2_000
"""Units of CEL cost of all selectors of an object, beyond which they are not tried on devices. Usual ones cost 5 to 50;
as many as a server lets through, 1,000,000, would keep a processor busy for minutes."""
_MOST_SELECTOR_TEXT = 32 * 1024
"""Characters of all selectors of an object, beyond which they are left to the server, which has compiled them before it
asks. Usual ones have some hundred; as many as an object can have would take half a minute."""
_DEEPEST = 100
"""Levels of an object. The API server stores none that are deeper than a few hundred, ours have a dozen."""
_MOST_VALUES = 250_000
"""Values of a body, about. Objects of a few MiB have fewer; a small value takes fifty times the memory of its text."""
_MOST_WARNINGS = 10
_LONGEST_MESSAGE = 8_000

_OURS = (CONFIG.name, CONFIG_KIND.name)
_SAID_BY_SERVER = (DEPRECATED.name, NEEDS_GATE.name)
"""What the server tells its clients itself, and what cannot be known here: which of its gates are on."""


class NotAReview(InvalidInput):
    """A body that is no AdmissionReview that could be answered."""

    help = Help(
        Move.ADMINISTRATOR,
        "The webhook was asked something that is no AdmissionReview: not by an API server.",
        "Look who else calls the webhook's Service. It answers nothing but reviews.",
    )


@dataclass(frozen=True, slots=True)
class Review:
    """`obj` and `old` are as the server sent them, `old` None at a creation. `kind` None: not one of ours."""

    uid: str
    operation: str
    kind: Kind | None
    api_version: str
    obj: Mapping[str, object]
    old: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """`refusals` are sentences, none where the object is admitted; so are `warnings`, which go with either."""

    uid: str
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        return not self.refusals


def read_review(body: bytes) -> Review:
    """Raises NotAReview for everything that an API server does not send."""
    request = _request(body)
    kind = _object(request, "kind")
    group, version, name = (_text(kind, key, where="request.kind") for key in ("group", "version", "kind"))
    operation = _text(request, "operation", where="request")
    row = kind_of(group, name)
    obj, old = request.get("object"), request.get("oldObject")
    if row is None or operation not in _REVIEWED:
        return Review(_uid(request), operation, None, f"{group}/{version}", {}, None)
    if not isinstance(obj, dict) or obj.get("kind") != name or obj.get("apiVersion") != f"{group}/{version}":
        _refuse(f"request.object is no {name} of {group}/{version}, as request.kind says")
    if not (old is None or isinstance(old, dict)) or (operation == "UPDATE" and old is None):
        _refuse("request.oldObject is not an object")
    return Review(_uid(request), operation, row, f"{group}/{version}", obj, old)


def _request(body: bytes) -> JsonObject:
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > _MOST_VALUES:
        _refuse(f"the body has more than {_MOST_VALUES} values")
    try:
        review = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise NotAReview(f"the body is not JSON: {error}") from error
    if not isinstance(review, dict) or (review.get("apiVersion"), review.get("kind")) != (API_VERSION, _KIND):
        _refuse(f"the body is no {_KIND} of {API_VERSION}")
    if _depth(review) > _DEEPEST:
        _refuse(f"the body is nested deeper than {_DEEPEST} levels")
    return _object(review, "request")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _depth(value: object) -> int:
    """Levels of lists and maps; not by recursion, which is what it is to protect from."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        one, depth = todo.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        if inner is not None:
            deepest = max(deepest, depth)
            todo += [(item, depth + 1) for item in inner]
    return deepest


def _object(parent: JsonObject, key: str) -> JsonObject:
    found = parent.get(key)
    if not isinstance(found, dict):
        _refuse(f"{key} is not an object")
    return found


def _text(parent: JsonObject, key: str, *, where: str) -> str:
    found = parent.get(key)
    if not isinstance(found, str):
        _refuse(f"{where}.{key} is not a string")
    return found


def _uid(request: JsonObject) -> str:
    uid = _text(request, "uid", where="request")
    if not uid:
        _refuse("request.uid is empty")
    return uid


def _refuse(why: str) -> NoReturn:
    raise NotAReview(why)


@dataclass(frozen=True, slots=True)
class Judge:
    """Answers reviews. `knows_server`: the server is of a version whose CEL is known, which `knowledge` has as `minor`.

    The sites of `knowledge` are not complete, for a review must be quick: see `sites_of_kinds`.
    """

    knowledge: Knowledge
    knows_server: bool = True

    def answer(self, review: Review) -> Answer:
        """Called for every request that the API server asks about; some milliseconds."""
        kind = review.kind
        if kind is None or (review.old is not None and review.old.get("spec") == review.obj.get("spec")):
            return Answer(review.uid)
        version = review.api_version.partition("/")[2]
        if version not in kind.versions:
            known = ", ".join(kind.versions)
            return Answer(review.uid, (f"{review.api_version} {kind.kind} cannot be judged; known are {known}",))
        if kind.ours and Feature.COMPUTE_DOMAINS not in self.knowledge.gates:
            return Answer(review.uid, () if self._others_keep_domains() else (_NO_DOMAINS,))
        obj = judged(review.obj)
        if sum(map(len, expressions_in(obj.get("spec")))) > _MOST_SELECTOR_TEXT:
            obj = _without_selectors(obj)
        found = check(Reading((_document(obj),), ()), self._knowledge_for(obj))
        said = [one for one in found if one.severity is Severity.WARNING and one.code not in _SAID_BY_SERVER]
        return Answer(
            review.uid,
            _sentences(one for one in found if self._refuses(kind, one)),
            _sentences(said)[:_MOST_WARNINGS],
        )

    def _others_keep_domains(self) -> bool:
        """Asked while ours does not. Their DeviceClasses tell, for the chart has none then; who installs those of the
        repository by hand is taken for another driver, and refused nothing."""
        return any(
            COMPUTE_DOMAIN_DRIVER in expression
            for one in self.knowledge.classes.values()
            for expression in class_expressions(one)
        )

    def _refuses(self, kind: Kind, finding: Finding) -> bool:
        """Of errors, those about what is ours; the others the server has found, or knows better."""
        if finding.severity is not Severity.ERROR:
            return False
        ours = kind.ours or finding.code in _OURS or ".opaque" in finding.field
        return ours or (finding.code == SELECTOR.name and self.knows_server)

    def _knowledge_for(self, obj: Mapping[str, object]) -> Knowledge:
        """Without devices where it would take too long to ask them."""
        if is_quick(expressions_in(obj.get("spec")), self.knowledge):
            return self.knowledge
        return replace(self.knowledge, sites=Sites((), 0, complete=False))


def is_quick(expressions: Iterable[str], knowledge: Knowledge) -> bool:
    """Whether selectors can be tried on devices during a review."""
    return sum(_cost(one, knowledge) for one in expressions) <= _DEAREST


def _cost(expression: str, knowledge: Knowledge) -> int:
    """The most that it can cost on one device. One that does not compile counts as the most expensive: it would be
    compiled, or judged otherwise, for nothing."""
    try:
        return compile_selector(expression, knowledge.server).cost
    except CelError:
        return LIMIT


def expressions_in(spec: object) -> tuple[str, ...]:
    """The selectors anywhere in an object, whatever else is in it."""
    found, todo = [], [spec]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            cel = one.get("cel")
            if isinstance(cel, dict) and isinstance(cel.get("expression"), str):
                found.append(cel["expression"])
            todo += one.values()
    return tuple(found)


def _without_selectors(value: Any) -> Any:
    """Configs stay as they are."""
    if isinstance(value, list):
        return [_without_selectors(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key == "parameters" else _without_selectors(item)
        for key, item in value.items()
        if key != "selectors"
    }


_NO_DOMAINS = (
    f"ComputeDomains are switched off in this cluster by feature gate {Feature.COMPUTE_DOMAINS}; ask an administrator"
    " for it"
)
_BLANK = read_documents("{}", "").documents[0]
"""A document of one line: the objects of reviews stand in no file."""


def _document(obj: JsonObject) -> Document:
    return replace(
        _BLANK,
        api_version=str(obj["apiVersion"]),
        kind=str(obj["kind"]),
        namespace=obj["metadata"].get("namespace"),
        name=obj["metadata"].get("name", ""),
        obj=obj,
    )


def _sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """By field: there are no lines to go by."""
    return tuple(dict.fromkeys(sentence(one) for one in sorted(findings, key=lambda one: one.field)))


def answered(answer: Answer) -> JsonObject:
    """As the API server wants it."""
    response: JsonObject = {"uid": answer.uid, "allowed": answer.allowed}
    if not answer.allowed:
        message = _joined(answer.refusals)
        response["status"] = {"status": "Failure", "code": 422, "reason": "Invalid", "message": message}
    if answer.warnings:
        response["warnings"] = list(answer.warnings)
    return {"apiVersion": API_VERSION, "kind": _KIND, "response": response}


def _joined(refusals: Sequence[str]) -> str:
    """One as it is, several as a list; not more than somebody reads."""
    text = refusals[0] if len(refusals) == 1 else "\n".join(["", *(f"- {one}" for one in refusals)])
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}… ({len(refusals)} mistakes)"
