"""What becomes of the JSON patches of kustomizations once their objects have claims. Pure.

Each object that a patch is for is migrated for itself as it is before each operation: `dra_driver.migration.operating`
finds the operations that lead from one to the next. Whether all folders are then what they should be is asked of them
like of all others, by `dra_driver.migration.commuting`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.api.documents import Document, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import JsonPatch, Operated, Tree, key_of
from dra_driver.migration.changes import EditRefused, changed
from dra_driver.migration.claims import Claims
from dra_driver.migration.dividing import divided, place_of_one
from dra_driver.migration.drafting import drafted
from dra_driver.migration.kustomize import target_of
from dra_driver.migration.model import (
    Form,
    Options,
    Path,
    Put,
    StrategyOption,
    Target,
    Workload,
    path_text,
)
from dra_driver.migration.operating import Case, Told, told_anew
from dra_driver.migration.patching import CannotFollow
from dra_driver.migration.plans import Plan, planned
from dra_driver.migration.relisting import Narrowed, Relisted
from dra_driver.migration.selecting import Key
from dra_driver.migration.strategy import choose
from dra_driver.migration.surroundings import Meaning
from dra_driver.migration.unrendered import gpu_keys, speaks_of_gpus


class Whole:
    """What becomes of objects that stand for themselves; each is looked at once."""

    def __init__(self, meaning: Meaning, options: Options) -> None:
        self._meaning = meaning
        self._options = options
        self._plans: dict[tuple[str, bool], Plan] = {}

    def plan(self, obj: JsonObject, *, claims: bool = True) -> Plan:
        """`claims`: wherever there can be; else as the options want it."""
        text = json.dumps(obj)
        if (text, claims) not in self._plans:
            options = replace(self._options, strategy=StrategyOption.CLAIMS) if claims else self._options
            (document,) = read_documents(text, "").documents
            self._plans[text, claims] = planned(drafted(document, self._meaning, options, patch=False), options)
        return self._plans[text, claims]

    def without_claims(self, workload: Workload, reason: str) -> Workload:
        pod = replace(workload.pod, form=Form.NONE, why_no_claims=reason)
        return Workload(pod, workload.reading, choose(pod, workload.reading, self._options))

    def alone(self, obj: JsonObject) -> tuple[JsonObject, Sequence[JsonObject]]:
        """With claims, and the templates that it names then."""
        plan = self.plan(obj)
        return changed(obj, plan.all_edits), [one.template for one in plan.all_claims]


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """A patch that stays as it is, and what its objects ask for."""

    patch: JsonPatch
    workloads: tuple[Workload, ...]


@dataclass(slots=True, eq=False)
class Patched:
    """What is known of all JSON patches."""

    relisted: list[Relisted] = field(default_factory=list)
    kept: dict[Key, str] = field(default_factory=dict)
    """Patches that cannot be told anew, and why, as a sentence."""
    wanted: dict[Key, str] = field(default_factory=dict)
    """Documents that are to have claims, since what a patch makes of them needs some, and why."""
    left: list[Left] = field(default_factory=list)
    divided: dict[tuple[str, Path], Narrowed] = field(default_factory=dict)
    """Targets of patches that are divided, by their kustomizations and places in these: what they are to find."""

    @property
    def converted(self) -> set[Key]:
        return {one.patch.key for one in self.relisted}


def patched(tree: Tree, plans: Sequence[Plan], apart: Mapping[Key, str], whole: Whole) -> Patched:
    """`apart` are documents and patches that stay as they are, and why."""
    found = Patched()
    objects = _Objects({key_of(one.document): one for plan in plans for one in plan.with_inner}, apart, whole, found)
    for patch in tree.json_patches.values():
        objects.look_at(patch)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Objects:
    plans: Mapping[Key, Plan]
    apart: Mapping[Key, str]
    whole: Whole
    found: Patched

    def look_at(self, patch: JsonPatch) -> None:
        objects = [one for one in patch.objects if any(speaks_of_gpus(f"{state}") for state in one.states)]
        moves = [one for one in objects if self._has_claims(one)]
        stays = [one for one in patch.objects if one not in moves]
        asking = [one for one in objects if asks_otherwise(self.whole, one)]
        if not moves:
            workloads = tuple(self._workloads(patch, asking, self._reason(patch, asking)))
            self.found.left.append(Left(patch, workloads))
            return
        try:
            _all_convertible(self.whole, moves)
            try:
                told, names = self._told(patch, moves)
                if stays and [one.operation for one in told] != list(patch.operations):
                    raise CannotFollow(f"it is for {title_of_object(stays[0])}, too, which has no claims")
            except CannotFollow as error:
                self._divide(patch, moves, error)
                return
            if [one.operation for one in told] != list(patch.operations):
                self.found.relisted.append(self._relisted(patch, told, moves, names))
        except (CannotFollow, EditRefused) as error:
            where = f"{patch.file} {patch.key[2]}".strip()
            self.found.kept[patch.key] = f"the JSON patch in {where} cannot be told anew: {error}"

    def _has_claims(self, one: Operated) -> bool:
        """Whether it has them before the patch, or gets them by it."""
        if any(part in self.apart for part in one.parts):
            return False
        asking = [part for part in one.parts if part in self.plans and self.plans[part].workloads]
        if any(self.plans[part].claims for part in asking):
            return True
        plan = self.whole.plan(one.states[-1], claims=False)
        choices = [workload.choice for workload in plan.workloads]
        needs = next((choice.reason for choice in choices if choice.target is Target.CLAIMS), None)
        if asking and needs is not None:
            self.found.wanted |= dict.fromkeys(asking, needs)
            return False
        before = self.whole.plan(one.states[0], claims=False)
        return bool(plan.claims or (before.claims and not asking))

    # -- those that are told anew

    def _told(self, patch: JsonPatch, objects: Sequence[Operated]) -> tuple[tuple[Told, ...], Mapping[str, str]]:
        """One list for all of them, and the names of templates that they have in common."""
        alone = self.whole.alone
        cases = [Case(title_of_object(one), tuple(alone(state)[0] for state in one.states)) for one in objects]
        names = _common_names([self.whole.plan(one.states[-1]) for one in objects], cases)
        return told_anew(patch.operations, [_renamed(one, names) for one in cases]), names

    def _divide(self, patch: JsonPatch, moves: Sequence[Operated], why: CannotFollow) -> None:
        """`why` there is no one list for all: it is said where the patch cannot be divided either."""
        try:
            file, at = place_of_one(patch)
            parts = divided(patch, moves, self._asked, lambda some: self._told(patch, some)[0])
        except CannotFollow:
            raise why from None
        first, *others = parts
        if not others:
            raise why
        found = []
        for part in parts:
            _, names = self._told(patch, part.group.members) if part.group.told else ((), {})
            found.append(self._relisted(patch, part.group.told, part.group.members, names))
        target = target_of(patch.users[file][0], at) or {}
        self.found.divided[file, (*at, "target")] = Narrowed((*at, "target"), dict(target), first.target)
        if [one.operation for one in first.group.told] != list(patch.operations):
            self.found.relisted.append(found[0])
        for part, one in zip(others, found[1:], strict=True):
            self.found.relisted.append(replace(one, beside={**target, **part.target}))

    def _asked(self, one: Operated) -> str:
        """The same for objects whose templates say the same."""
        plans = [self.whole.plan(state) for state in (one.states[0], one.states[-1])]
        return json.dumps([[claim.template["spec"] for claim in plan.all_claims] for plan in plans], sort_keys=True)

    def _relisted(
        self, patch: JsonPatch, told: tuple[Told, ...], moves: Sequence[Operated], names: Mapping[str, str]
    ) -> Relisted:
        text = json.dumps([one.operation for one in told])
        claims: dict[str, Claims] = {}
        for one in moves:
            for claim in self.whole.plan(one.states[-1]).all_claims:
                claim = _named(claim, names)
                if f'"{claim.ref.name}"' in text:
                    claims.setdefault(claim.ref.name, claim)
        workloads = tuple(
            self._workloads(patch, [one for one in moves if asks_otherwise(self.whole, one)], None, names)
        )
        titles = tuple(title_of_object(one) for one in moves)
        relisted = Relisted(patch, told, tuple(claims.values()), titles, workloads)
        _ = relisted.splices
        return relisted

    def _workloads(
        self, patch: JsonPatch, objects: Sequence[Operated], reason: str | None, names: Mapping[str, str] | None = None
    ) -> Iterator[Workload]:
        """As they are with the patch. `reason`: why they stay; None: they have claims, or the options decide."""
        seen = set()
        for one in objects:
            plan = self.whole.plan(one.states[-1], claims=names is not None)
            for workload in plan.workloads if one.parts[0] not in seen else ():
                document = _at_the_patch(workload.pod.document, patch)
                templates = tuple(
                    replace(ref, name=(names or {}).get(ref.name, ref.name)) for ref in workload.templates
                )
                moved = replace(workload, pod=replace(workload.pod, document=document), templates=templates)
                yield moved if reason is None else self.whole.without_claims(moved, reason)
            seen.add(one.parts[0])

    def _reason(self, patch: JsonPatch, objects: Sequence[Operated]) -> str | None:
        parts = [patch.key, *(part for one in objects for part in one.parts)]
        return next((self.apart[part] for part in parts if part in self.apart), None)


def _all_convertible(whole: Whole, objects: Sequence[Operated]) -> None:
    """Raises CannotFollow where a patch makes something that cannot be migrated of what can."""
    for one in objects:
        after, _ = whole.alone(one.states[-1])
        if any(path[-2:-1] in (("limits",), ("requests",)) for path in gpu_keys(after)):
            plan = whole.plan(one.states[-1])
            known = [said.message for said in whole.plan(one.states[0]).findings]
            reasons = [workload.choice.reason for workload in plan.workloads if not workload.templates]
            reasons += [said.message for said in plan.findings if said.message not in known]
            why = reasons[0] if reasons else "it asks for GPUs in a way that is not known"
            raise CannotFollow(f"what it makes of {title_of_object(one)} cannot have claims: {why}")


def asks_otherwise(whole: Whole, one: Operated) -> bool:
    """Whether the patch changes what the object asks for, and leaves something of it."""
    last = whole.plan(one.states[-1])
    return bool(last.workloads) and last.all_edits != whole.plan(one.states[0]).all_edits


def title_of_object(one: Operated) -> str:
    return f"{one.states[0].get('kind')} {one.parts[0][2]}"


def _at_the_patch(document: Document, patch: JsonPatch) -> Document:
    """The object, at the lines of the patch."""
    user, at = next(iter(patch.users.values()))
    line = user.place(path_text(at))[0] if patch.inline else 1
    text = "\n" * (line - 1) + json.dumps(document.obj)
    return read_documents(text, patch.file).documents[0]


def with_patches(plans: Sequence[Plan], found: Patched, tree: Tree, wide: Set[tuple[str, Path]]) -> list[Plan]:
    """Kustomizations with what becomes of their patches; what objects ask for is said once.

    `wide` are targets that are to say their kinds.
    """
    result: list[Plan] = []
    said: set[Key] = set()
    for plan in plans:
        mine = [one for one in found.relisted if plan.document.file in one.patch.users]
        kept = [one for one in found.left if plan.document.file in one.patch.users and one.patch.key not in said]
        told = [replace(one, workloads=()) if one.patch.key in said else one for one in mine]
        said |= {one.patch.key for one in mine} | {one.patch.key for one in kept}
        more = [workload for one in kept for workload in one.workloads]
        result.append(replace(plan, relisted=tuple(_placed(told, plan)), workloads=(*plan.workloads, *more)))
    return [replace(plan, narrowed=tuple(_narrowed(plan.document, tree, wide, found.divided))) for plan in result]


def _placed(told: Sequence[Relisted], plan: Plan) -> Iterator[Relisted]:
    """Patches that were not there before stand behind all others."""
    there = plan.document.obj.get("patches")
    index = len(there) if isinstance(there, list) else 0
    for one in told:
        yield one if one.beside is None else replace(one, index=index)
        index += one.beside is not None


def _narrowed(
    document: Document, tree: Tree, wide: Set[tuple[str, Path]], divided: Mapping[tuple[str, Path], Narrowed]
) -> Iterator[Narrowed]:
    for (file, at), entry in tree.entries.items():
        if file == document.file and (file, at) in divided:
            yield divided[file, at]
        elif file == document.file and (file, at) in wide:
            yield Narrowed(at, dict(entry.target), {"kind": "|".join(sorted(entry.kinds))})


def too_wide(before: Tree, after: Tree) -> set[tuple[str, Path]]:
    """Targets without a kind that find templates, too, once there are any."""
    return {
        where
        for where, entry in after.entries.items()
        if where in before.entries
        and not entry.target.get("kind")
        and before.entries[where].kinds
        and entry.kinds - before.entries[where].kinds
    }


# -- templates of several objects


def _common_names(plans: Sequence[Plan], cases: Sequence[Case]) -> dict[str, str]:
    """Objects that ask for the same name one template, which is named after their kind. By the names of today."""
    together: dict[tuple[int, str], set[str]] = {}
    for plan in plans:
        for index, one in enumerate(plan.all_claims):
            content = json.dumps([one.template["kind"], one.template["spec"]], sort_keys=True)
            together.setdefault((index, content), set()).add(one.ref.name)
    kinds = {case.title.partition(" ")[0].lower() for case in cases}
    owner = f"{kinds.pop()}s" if len(kinds) == 1 else "pods"
    found: dict[str, str] = {}
    for names in together.values():
        if len(names) > 1:
            match = re.search(r"-gpu-[0-9a-f]{6}", min(names))
            found |= {name: f"{owner}{match[0]}" for name in names if match is not None}
    return found


def _renamed(case: Case, names: Mapping[str, str]) -> Case:
    """What it is to be at last, with the names of templates that are for all."""
    if not names:
        return case
    *before, last = case.wanted
    return replace(case, wanted=(*before, _with_names(last, names)))


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_names(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_names(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def _named(claims: Claims, names: Mapping[str, str]) -> Claims:
    metadata = claims.template["metadata"]
    name = names.get(metadata["name"], metadata["name"])
    edits = tuple(Put(one.path, _with_names(one.value, names)) if isinstance(one, Put) else one for one in claims.edits)
    return replace(claims, template={**claims.template, "metadata": {**metadata, "name": name}}, edits=edits)
