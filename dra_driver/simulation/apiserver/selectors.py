"""Label and field selectors: text in, predicate out.

Source of the label grammar: Kubernetes' "Labels and Selectors" (equality, sets, existence); of the fields: each type's
table in `resource_types.py`.
"""

import re
from collections.abc import Callable, Sequence

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import bad_request

type Predicate = Callable[[JsonObject], bool]

_IN_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!<>\s]+)\s*(?P<op>==|!=|=|>|<)\s*(?P<value>[^=!<>\s]*)$")
_EXISTS = re.compile(r"^(?P<absent>!\s*)?(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)$")


def everything(_obj: JsonObject) -> bool:
    """The predicate of an empty selector."""
    return True


def label_selector(text: str) -> Predicate:
    """Raises ApiError 400 for text that is no selector."""
    terms = [_label_term(term) for term in _split_terms(text)]
    if not terms:
        return everything

    def matches(obj: JsonObject) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(term(labels) for term in terms)

    return matches


def _split_terms(text: str) -> list[str]:
    terms, depth, current = [], 0, ""
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            terms.append(current.strip())
            current = ""
        else:
            current += char
    terms.append(current.strip())
    return [term for term in terms if term]


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    if found := _IN_SET.match(term):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUALITY.match(term):
        return _comparison(found["key"], found["op"], found["value"])
    if found := _EXISTS.match(term):
        key, absent = found["key"], found["absent"] is not None
        return lambda labels: (key in labels) is not absent
    raise bad_request(f"unable to parse requirement: found {term!r}, expected: a label selector")


def _comparison(key: str, op: str, value: str) -> Callable[[dict[str, str]], bool]:
    if op in ("=", "=="):
        return lambda labels: labels.get(key) == value
    if op == "!=":
        return lambda labels: labels.get(key) != value
    if re.fullmatch(r"[-+]?\d+", value) is None:
        raise bad_request(
            f"values[0][{key}]: Invalid value: {value!r}: for 'Gt', 'Lt' operators, the value must be an integer"
        )
    limit = int(value)

    def compare(labels: dict[str, str]) -> bool:
        have = labels.get(key, "")
        if re.fullmatch(r"[-+]?\d+", have) is None:
            return False
        return int(have) > limit if op == ">" else int(have) < limit

    return compare


def _field_reader(path: str) -> Callable[[JsonObject], str]:
    """Reads a selectable field as the server compares it: absent is the empty string."""
    *parents, last = path.split(".")

    def read(obj: JsonObject) -> str:
        value: object = obj
        for name in parents:
            if not isinstance(value := value.get(name) if isinstance(value, dict) else None, dict):
                return ""
        found = value.get(last) if isinstance(value, dict) else None
        if isinstance(found, str):
            return found
        if found is None:
            return ""
        return ("true" if found else "false") if isinstance(found, bool) else str(found)

    return read


def _field_term(path: str, equal: bool, wanted: str) -> Predicate:
    read = _field_reader(path)
    if equal:
        return lambda obj: read(obj) == wanted
    return lambda obj: read(obj) != wanted


def field_selector(text: str, allowed: Sequence[str]) -> Predicate:
    """Raises ApiError 400 for text that is no selector, or for a field outside `allowed`."""
    terms: list[Predicate] = []
    for term in (part.strip() for part in text.split(",")):
        if not term:
            continue
        found = _EQUALITY.match(term)
        if found is None or found["op"] not in ("=", "==", "!="):
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if found["key"] not in allowed:
            raise bad_request(f"field label not supported: {found['key']}")
        terms.append(_field_term(found["key"], found["op"] != "!=", found["value"]))
    if len(terms) < 2:
        return terms[0] if terms else everything
    return lambda obj: all(term(obj) for term in terms)


def both(first: Predicate, second: Predicate) -> Predicate:
    """An object must satisfy both."""
    if first is everything:
        return second
    return first if second is everything else lambda obj: first(obj) and second(obj)
