"""Regular expressions: `matches`, which is CEL's own, and Kubernetes' `find` and `findAll`."""

from typing import Any

from dra_driver.cel.overloads import Failed, Library, function, method
from dra_driver.cel.patterns import Unsupported, compiled
from dra_driver.cel.types import BOOL, INT, STRING, list_of


def compiled_pattern(pattern: str) -> Any:
    """Raises Failed."""
    try:
        return compiled(pattern)
    except Unsupported as error:
        raise Failed(str(error)) from None


def _matches(text: str, pattern: str) -> bool:
    return compiled_pattern(pattern).search(text) is not None


def _find(text: str, pattern: str) -> str:
    found = compiled_pattern(pattern).search(text)
    return found.group() if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    """At most `limit` matches, all when it is negative. An empty match right behind another one does not count."""
    found: list[str] = []
    end = -1
    for match in compiled_pattern(pattern).finditer(text):
        if len(found) == limit:
            break
        if match.group() or match.start() != end:
            found.append(match.group())
        end = match.end()
    return tuple(found)


REGEXES: Library = {
    "matches": [method(BOOL, _matches, STRING, STRING), function(BOOL, _matches, STRING, STRING)],
    "find": [method(STRING, _find, STRING, STRING)],
    "findAll": [
        method(list_of(STRING), _find_all, STRING, STRING),
        method(list_of(STRING), _find_all, STRING, STRING, INT),
    ],
}
