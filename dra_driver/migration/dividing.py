"""A JSON patch for several objects whose claims differ, divided: a patch for each group of those that are alike. Pure.

All of them stand in the kustomization that has the patch now: the first in its place, with a target that finds its own
objects only, and the others behind all patches that there are, so that none of these has another place than it had.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import JsonPatch, Operated
from dra_driver.migration.kustomize import target_of
from dra_driver.migration.model import Path
from dra_driver.migration.operating import Told
from dra_driver.migration.patching import CannotFollow
from dra_driver.migration.selecting import Key


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Objects for which a patch is told alike."""

    members: tuple[Operated, ...]
    told: tuple[Told, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What becomes a patch of its own: `target` are the fields by which it finds these of its objects."""

    group: Group
    target: JsonObject


type Telling = Callable[[Sequence[Operated]], tuple[Told, ...]]
"""The list for these objects. Raises CannotFollow: there is none for all of them."""


def place_of_one(patch: JsonPatch) -> tuple[str, Path]:
    """The kustomization, and the entry in it, that alone has the patch. Raises CannotFollow where there are others."""
    file, at = next(iter(patch.entries))
    document = patch.users[file][0]
    alone = len(patch.entries) == 1 and at[0] == "patches" and target_of(document, at) is not None
    if not alone or patch.beyond:
        raise CannotFollow("it cannot be divided")
    return file, at[:2]


def divided(
    patch: JsonPatch, moves: Collection[Operated], alike: Callable[[Operated], str], tell: Telling
) -> list[Part]:
    """`moves` are those of its objects that have claims, of which those for which `alike` is the same belong together.

    Others keep the list as it is. Raises CannotFollow.
    """
    objects: dict[Key, list[Operated]] = {}
    for one in patch.objects:
        objects.setdefault(one.parts[0], []).append(one)
    groups: dict[str, list[Operated]] = {}
    as_it_is: list[Operated] = []
    for some in objects.values():
        moving = [one for one in some if one in moves]
        if moving:
            groups.setdefault(alike(moving[0]), []).extend(moving)
        else:
            as_it_is += some
    found = [group for some in groups.values() for group in _told(some, tell)]
    old = tuple(Told(one, index) for index, one in enumerate(patch.operations))
    same = [one for one in found if [told.operation for told in one.told] == list(patch.operations)]
    as_it_is += [member for one in same for member in one.members]
    rest = [Group(tuple(as_it_is), old)] if as_it_is else []
    return list(_parts([*rest, *(one for one in found if one not in same)]))


def _told(members: list[Operated], tell: Telling) -> Iterator[Group]:
    """Together where one list does for all, else each for itself."""
    try:
        yield Group(tuple(members), tell(members))
    except CannotFollow:
        by_object: dict[Key, list[Operated]] = {}
        for one in members:
            by_object.setdefault(one.parts[0], []).append(one)
        if len(by_object) == 1:
            raise
        for some in by_object.values():
            yield Group(tuple(some), tell(some))


def _parts(groups: Sequence[Group]) -> Iterator[Part]:
    named = [{one.parts[0][1:] for one in group.members} for group in groups]
    for group, own in zip(groups, named, strict=True):
        others = set().union(*(one for one in named if one is not own))
        if own & others:
            raise CannotFollow("two of its objects have one kind and one name")
        yield from (Part(group, target) for target in _targets(own, others))


def _targets(own: Set[tuple[str, str]], others: Set[tuple[str, str]]) -> Iterator[JsonObject]:
    kinds, names = {kind for kind, _ in own}, {name for _, name in own}
    if {(kind, name) for kind in kinds for name in names} & others:
        for kind in sorted(kinds):
            yield _target({kind}, {name for other, name in own if other == kind})
    else:
        yield _target(kinds, names)


def _target(kinds: Set[str], names: Set[str]) -> JsonObject:
    return {
        "kind": "|".join(sorted(kinds)),
        "name": "|".join(re.escape(one).replace(r"\-", "-") for one in sorted(names)),
    }
