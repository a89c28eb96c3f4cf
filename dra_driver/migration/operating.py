"""JSON patches told anew: of what they made of an object, what they are to make of it with claims. Pure.

`replace …/limits/nvidia.com~1gpu` has nothing to replace in an object that was migrated, and what it says is said by
the template that the pod names. So each operation is kept that makes the same of the object with claims; the places of
the others are taken by operations that lead from there to where the migration of the whole would be.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.migration.changes import same
from dra_driver.migration.commuting import plainly
from dra_driver.migration.model import Path, value_at
from dra_driver.migration.patching import CannotFollow, after_operation, pointed
from dra_driver.migration.unrendered import speaks_of_gpus

_NAME = "resourceClaimTemplateName"
_OURS = re.compile(r"-gpu-[0-9a-f]{6}(?:-[0-9]+)?$")


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One object that a patch is for, with claims: before each operation, and behind all of them."""

    title: str
    wanted: tuple[JsonObject, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """An operation, and which one of the old list it stands for; None: it is one more, at the end."""

    operation: Any
    origin: int | None


def told_anew(operations: Sequence[Any], cases: Sequence[Case]) -> tuple[Told, ...]:
    """One list for all of them; the operations themselves where these do. Raises CannotFollow: there is none."""
    found = [_for_one(operations, case) for case in cases]
    for one in found:
        if all(_leads([told.operation for told in one], case) for case in cases):
            return one
    titles = list(dict.fromkeys(case.title for case in cases))
    if len(titles) == 1:
        raise CannotFollow(f"it is put over {titles[0]} in several places, where it would have to say different things")
    raise CannotFollow(f"it is one for several objects, whose claims differ: {', '.join(titles)}")


def _for_one(operations: Sequence[Any], case: Case) -> tuple[Told, ...]:
    if _leads(operations, case):
        return tuple(Told(one, index) for index, one in enumerate(operations))
    now = case.wanted[0]
    kept: list[Any] = []
    for one, then in zip(operations, case.wanted[1:], strict=True):
        kept.append(_kept(one, now, then))
        now = after_operation(now, kept[-1]) if kept[-1] is not None else now
    found = _completed(kept, case)
    for index, one in enumerate(kept):
        # What is true only in between, such as requests before limits were changed alike, is not worth saying.
        if one is not None and speaks_of_gpus(f"{one}"):
            without = [*kept[:index], None, *kept[index + 1 :]]
            try:
                shorter = _completed(without, case)
            except CannotFollow:
                continue
            if len(shorter) < len(found):
                kept, found = without, shorter
    return found


def _completed(kept: Sequence[Any], case: Case) -> tuple[Told, ...]:
    """With what is missing. Raises CannotFollow where one of them needs another that is not kept."""
    now = case.wanted[0]
    for one in kept:
        now = after_operation(now, one) if one is not None else now
    rest = list(leading(now, case.wanted[-1], ()))
    if not rest and all(one is None for one in kept):
        # What it set is set already; kustomize takes no empty lists.
        rest = [{"op": "test", "path": "/kind", "value": now.get("kind")}]
    in_places = _in_places(kept, rest)
    if _leads([told.operation for told in in_places], case):
        return in_places
    at_the_end = [Told(one, index) for index, one in enumerate(kept) if one is not None]
    return (*at_the_end, *(Told(one, None) for one in rest))


def _leads(operations: Sequence[Any], case: Case) -> bool:
    now = case.wanted[0]
    try:
        for one in operations:
            now = after_operation(now, one)
    except CannotFollow:
        return False
    return bool(operations) and _alike(now, case.wanted[-1])


def _alike(one: Any, other: Any) -> bool:
    return same(plainly(one), plainly(other))


def _in_places(kept: Sequence[Any], rest: Sequence[Any]) -> tuple[Told, ...]:
    """New ones in the places of those that are not kept, and what is left over behind all."""
    left = list(rest)
    found = []
    for index, one in enumerate(kept):
        if one is not None:
            found.append(Told(one, index))
        elif left:
            found.append(Told(left.pop(0), index))
    return (*found, *(Told(one, None) for one in left))


# -- one operation


def _kept(operation: Any, now: JsonObject, then: JsonObject) -> Any:
    """What makes of the object with claims what the operation was to make; None: nothing that is known of it alone."""
    kind = operation["op"]
    try:
        result = after_operation(now, operation)
        path = pointed(operation["path"], now)
    except CannotFollow:
        return _test_of_the_template(operation, now) if kind == "test" else None
    if kind in ("test", "remove"):
        return operation
    put, wanted, around = value_at(result, path), value_at(then, path), value_at(then, path[:-1])
    if _alike(put, wanted) or (isinstance(around, list) and any(_alike(put, one) for one in around)):
        return operation
    if kind in ("add", "replace") and isinstance(wanted, dict | list) and wanted:
        return {**operation, "value": wanted}
    return None


def _test_of_the_template(operation: Any, now: JsonObject) -> Any:
    """A test of an amount asks whether the base is as it was: the name of a template changes with what is in it."""
    path = pointed(operation["path"], now)
    if not speaks_of_gpus(f"{operation}"):
        raise CannotFollow(f"it tests {operation['path']}, which is not so with claims")
    for length in range(len(path), 0, -1):
        named = value_at(now, (*path[:length], "resourceClaims"))
        for index, one in enumerate(named if isinstance(named, list) else ()):
            if isinstance(one, dict) and _OURS.search(f"{one.get(_NAME)}"):
                return {
                    "op": "test",
                    "path": _pointer((*path[:length], "resourceClaims", index, _NAME)),
                    "value": one[_NAME],
                }
    return None


# -- from one object to another


def leading(now: Any, then: Any, path: Path) -> Iterator[JsonObject]:
    """Operations that make the one of the other."""
    if _alike(now, then) or (path[-1:] == ("tolerations",) and _alike({"tolerations": now}, {"tolerations": then})):
        return
    if isinstance(now, dict) and isinstance(then, dict) and now and then:
        yield from _leading_map(now, then, path)
    elif isinstance(now, list) and isinstance(then, list) and now and then:
        yield from _leading_list(now, then, path)
    else:
        yield {"op": "replace", "path": _pointer(path), "value": then}


def _leading_map(now: JsonObject, then: JsonObject, path: Path) -> Iterator[JsonObject]:
    for key in sorted({**now, **then}):
        if key not in then:
            yield {"op": "remove", "path": _pointer((*path, key))}
        elif key not in now:
            yield {"op": "add", "path": _pointer((*path, key)), "value": then[key]}
        else:
            yield from leading(now[key], then[key], (*path, key))


def _leading_list(now: list[Any], then: list[Any], path: Path) -> Iterator[JsonObject]:
    """Items that are alike at both ends stay; of what is between, the first ones become others, and the rest comes or
    goes."""
    short = min(len(now), len(then))
    start = next((i for i in range(short) if not _alike(now[i], then[i])), short)
    end = next((i for i in range(short - start) if not _alike(now[-1 - i], then[-1 - i])), short - start)
    if len(now) == len(then):
        end = 0
    both = min(len(now), len(then)) - end
    for index in range(start, both):
        yield from leading(now[index], then[index], (*path, index))
    for index in reversed(range(both, len(now) - end)):
        yield {"op": "remove", "path": _pointer((*path, index))}
    for index in range(both, len(then) - end):
        yield {"op": "add", "path": _pointer((*path, index)), "value": then[index]}


def _pointer(path: Path) -> str:
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
