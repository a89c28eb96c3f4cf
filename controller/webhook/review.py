"""From a review request of the API server to the answer: whether the object is admitted, why not, and warnings.
Sentences and verdict are those of `dractl check`, with two exceptions. The API server applies its own rules before it
calls the webhook, and may be newer than this driver, so findings about those rules are dropped. Selectors are refused
only if the server has a version whose CEL is known here. A review stores and changes nothing, so dry runs are reviewed,
too. An update that does not change `spec` is admitted without a review, so that finalizers and labels of an invalid
object can be removed. Pure, and never raises but `NotAReview`. Source: `AdmissionReview` of admission.k8s.io/v1.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from controller.webhook.kinds import ReviewedKind, judged, kind_of
from dra_driver.api.documents import Document, ReadDocuments, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.cel.cost import LIMIT
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelCostError, CelError
from dra_driver.checking import codes
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.findings import Finding, sentence
from dra_driver.checking.knowledge import Knowledge, Sites
from dra_driver.errors import Help, InvalidInput, Move
from dra_driver.features import Feature
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_REVIEWED = ("CREATE", "UPDATE")
_DEAREST = 2_000
"""Limit for the CEL cost of all selectors of an object; above it they are not evaluated on devices. Typical selectors
cost 5 to 50; the server's limit, 1,000,000, would occupy a processor for minutes."""
_MOST_SELECTOR_TEXT = 32 * 1024
"""Limit for the characters of all selectors of an object; above it they are not compiled here, because the server has
already compiled them. Typical selectors have some hundred; the maximum of an object would take half a minute."""
_MOST_PATTERNS = 64
"""Limit for the regular expressions in all selectors of an object; above it selectors are not compiled here. One may
take some milliseconds; typical objects have a few."""
_PATTERN = re.compile(r"matches|find")
_MOST_ITEMS = 64
"""Limit for each list of a spec, as far as this driver reads them. The API server stores at most 32 requests, configs
and constraints, and checks compare each with each."""
_DEEPEST = 100
"""Maximum nesting of an object. The API server stores at most a few hundred levels; reviewed kinds have a dozen."""
_MOST_VALUES = 250_000
"""Approximate maximum of values in a body. Objects of a few MiB have fewer; a small value takes fifty times the memory
of its text."""
_MOST_WARNINGS = 10
_LONGEST_MESSAGE = 8_000

_OURS = (codes.CONFIG.name, codes.CONFIG_KIND.name)
_PERHAPS_OF_OTHERS = (codes.MISNAMED.name, codes.UNKNOWN_ATTRIBUTE.name, codes.UNKNOWN_DRIVER.name)
"""Names like known ones. Another driver of the cluster may have them, so they are warnings here."""
_SAID_BY_SERVER = (codes.DEPRECATED.name, codes.NEEDS_GATE.name)
"""Findings that the server reports itself, and findings that depend on the server's gates, which are unknown here."""


class NotAReview(InvalidInput):
    """A body that is not a valid AdmissionReview."""

    help = Help(
        Move.ADMINISTRATOR,
        "The webhook received something that is not an AdmissionReview, and therefore not from an API server.",
        "Check who else calls the webhook's Service. It answers only reviews.",
    )


@dataclass(frozen=True, slots=True)
class Review:
    """`obj` and `old` are as the server sent them; `old` is None at a creation. `kind` None: not a reviewed kind."""

    uid: str
    operation: str
    kind: ReviewedKind | None
    api_version: str
    obj: Mapping[str, object]
    old: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """`refusals` are sentences; if there are none, the object is admitted. `warnings` are possible in both cases."""

    uid: str
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        return not self.refusals


def read_review(body: bytes) -> Review:
    """Raises NotAReview for bodies that an API server does not send."""
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
    if _longest_list(obj.get("spec")) > _MOST_ITEMS:
        _refuse(f"a list in request.object.spec has more than {_MOST_ITEMS} items")
    return Review(_uid(request), operation, row, f"{group}/{version}", obj, old)


def _request(body: bytes) -> JsonObject:
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > _MOST_VALUES:
        _refuse(f"the body has more than {_MOST_VALUES} values")
    try:
        review = json.loads(body, parse_constant=_no_number)
        if b"\\ud" in body.lower():
            json.dumps(review, ensure_ascii=False).encode()  # half of a surrogate pair is not a character
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
    """Depth of lists and maps; not recursive, because it protects from deep recursion."""
    deepest, todo = 0, [(value, 1)]
    while todo:
        node, depth = todo.pop()
        inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else None
        if inner is not None:
            deepest = max(deepest, depth)
            todo += [(item, depth + 1) for item in inner]
    return deepest


def _longest_list(value: object) -> int:
    """Of all lists in a spec, but for those in parameters: the API server limits their bytes, and other drivers read
    them."""
    longest, todo = 0, [value]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            longest = max(longest, len(node))
            todo += node
        elif isinstance(node, dict):
            todo += [item for key, item in node.items() if key != "parameters"]
    return longest


def _object(parent: JsonObject, key: str) -> JsonObject:
    object_ = parent.get(key)
    if not isinstance(object_, dict):
        _refuse(f"{key} is not an object")
    return object_


def _text(parent: JsonObject, key: str, *, where: str) -> str:
    text = parent.get(key)
    if not isinstance(text, str):
        _refuse(f"{where}.{key} is not a string")
    return text


def _uid(request: JsonObject) -> str:
    uid = _text(request, "uid", where="request")
    if not uid:
        _refuse("request.uid is empty")
    return uid


def _refuse(why: str) -> NoReturn:
    raise NotAReview(why)


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Answers reviews. `knows_server`: the server is of a version whose CEL is known, which `knowledge` has as `minor`.

    The sites of `knowledge` are not complete, because a review must be fast: see `sites_of_kinds`.
    """

    knowledge: Knowledge
    knows_server: bool = True

    def answer(self, review: Review) -> ReviewAnswer:
        """Called for every request under review; takes some milliseconds."""
        kind = review.kind
        if kind is None or (review.old is not None and review.old.get("spec") == review.obj.get("spec")):
            return ReviewAnswer(review.uid)
        version = review.api_version.partition("/")[2]
        if version not in kind.versions:
            known = ", ".join(kind.versions)
            return ReviewAnswer(review.uid, (f"{review.api_version} {kind.kind} cannot be judged; known are {known}",))
        if kind.own and Feature.COMPUTE_DOMAINS not in self.knowledge.gates:
            return ReviewAnswer(review.uid, () if self._others_keep_domains() else (_NO_DOMAINS,))
        obj, knowledge = judged(review.obj), self.knowledge
        expressions = expressions_in(obj.get("spec"))
        if _is_too_much(expressions) or any(map(self._is_too_complex, expressions)):
            obj = _without_selectors(obj)
        if not is_quick(expressions_in(obj.get("spec")), knowledge):
            # Evaluating the selectors on devices would take too long.
            knowledge = replace(knowledge, sites=Sites((), 0, complete=False))
        findings = check(ReadDocuments((_document(obj),), ()), knowledge)
        warnings = [
            finding
            for finding in findings
            if (finding.severity is Severity.WARNING and finding.code not in _SAID_BY_SERVER)
            or finding.code in _PERHAPS_OF_OTHERS
        ]
        return ReviewAnswer(
            review.uid,
            _sentences(finding for finding in findings if self._refuses(kind, finding)),
            _sentences(warnings)[:_MOST_WARNINGS],
        )

    def _others_keep_domains(self) -> bool:
        """Whether another driver manages ComputeDomains while this one does not. Its DeviceClasses show that, because
        the chart then installs none. If an administrator has installed this repository's classes by hand, they count as
        another driver's, and nothing is refused."""
        return any(
            COMPUTE_DOMAIN_DRIVER in expression
            for class_ in self.knowledge.classes.values()
            for expression in class_.spec.expressions
        )

    def _is_too_complex(self, expression: str) -> bool:
        """By the estimate here, which is rough. The server has its own and did not refuse the selector."""
        try:
            compile_selector(expression, self.knowledge.server)
        except CelCostError:
            return True
        except CelError:
            return False
        return False

    def _refuses(self, kind: ReviewedKind, finding: Finding) -> bool:
        """Only errors about this driver's configs and kinds; the server finds the others itself."""
        if finding.severity is not Severity.ERROR or finding.code in _PERHAPS_OF_OTHERS:
            return False
        ours = kind.own or finding.code in _OURS or ".opaque" in finding.field
        return ours or (finding.code == codes.SELECTOR.name and self.knows_server)


def _is_too_much(expressions: Sequence[str]) -> bool:
    """Whether compiling them could take seconds."""
    patterns = sum(len(_PATTERN.findall(expression)) for expression in expressions)
    return sum(map(len, expressions)) > _MOST_SELECTOR_TEXT or patterns > _MOST_PATTERNS


def is_quick(expressions: Iterable[str], knowledge: Knowledge) -> bool:
    """Whether selectors can be evaluated on devices during a review."""
    return sum(_cost(expression, knowledge) for expression in expressions) <= _DEAREST


def _cost(expression: str, knowledge: Knowledge) -> int:
    """The maximum cost on one device. A selector that does not compile gets the highest cost, so that it is not
    compiled again."""
    try:
        return compile_selector(expression, knowledge.server).cost
    except CelError:
        return LIMIT


def expressions_in(spec: object) -> tuple[str, ...]:
    """All selectors anywhere in an object."""
    results, todo = [], [spec]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            cel = item.get("cel")
            if isinstance(cel, dict) and isinstance(cel.get("expression"), str):
                results.append(cel["expression"])
            todo += item.values()
    return tuple(results)


def _without_selectors(value: Any) -> Any:
    """Configs stay unchanged."""
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
"""A document of one line, because reviewed objects are not in a file."""


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
    """By field, because there are no lines."""
    return tuple(dict.fromkeys(sentence(finding) for finding in sorted(findings, key=lambda finding: finding.field)))


def answered(answer: ReviewAnswer) -> JsonObject:
    """In the form that the API server expects."""
    response: JsonObject = {"uid": answer.uid, "allowed": answer.allowed}
    if not answer.allowed:
        refusals = answer.refusals
        text = refusals[0] if len(refusals) == 1 else "\n".join(["", *(f"- {refusal}" for refusal in refusals)])
        if len(text) > _LONGEST_MESSAGE:
            text = f"{text[:_LONGEST_MESSAGE]}… ({len(refusals)} mistakes)"
        response["status"] = {"status": "Failure", "code": 422, "reason": "Invalid", "message": text}
    if answer.warnings:
        response["warnings"] = list(answer.warnings)
    return {"apiVersion": API_VERSION, "kind": _KIND, "response": response}
