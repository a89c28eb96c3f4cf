"""What a person is to write where patches and replacements of kustomizations stay as they are. Pure.

Each object is migrated for itself, before and behind what stays: what leads from the one to the other is what to write.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import Context, Copied, JsonPatch, Tree, key_of
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.json_patches import Patched, Whole, asks_otherwise, title_of_object
from dra_driver.migration.model import Finding, Path, finding, path_text
from dra_driver.migration.operating import Case, leading, told_anew
from dra_driver.migration.patching import CannotFollow
from dra_driver.migration.plans import Plan
from dra_driver.migration.selecting import Key
from dra_driver.migration.unrendered import speaks_of_gpus


def findings_by_hand(
    tree: Tree, plans: Sequence[Plan], found: Patched, apart: Mapping[Key, str], whole: Whole
) -> Iterator[Finding]:
    """Of all that speaks of GPUs and stays as it is, where that is not what was asked for."""
    yield from _patch_findings(tree, found, apart, whole)
    yield from _strategic_findings(tree, plans, apart, whole)
    yield from _copied_findings(tree, apart, whole)
    yield from _unfollowed_findings(tree, apart)


# -- strategic patches


def _strategic_findings(tree: Tree, plans: Sequence[Plan], apart: Mapping[Key, str], whole: Whole) -> Iterator[Finding]:
    inner = [one for plan in plans for one in plan.with_inner]
    for plan in inner:
        key = key_of(plan.document)
        context = tree.contexts.get(key)
        if context is None or plan.claims or not speaks_of_gpus(f"{plan.document.obj}"):
            continue
        if not any(whole.plan(one, claims=False).claims for one in (context.before, context.after)):
            continue
        why = apart.get(key) or next(_reasons(inner, context), None)
        if why is not None:
            message = f"the patch was left as it is: {why}"
            yield finding(NOT_EDITABLE, plan.document, (), message, advice=_instead(context, tree.users[key], whole))


def _reasons(plans: Sequence[Plan], context: Context) -> Iterator[str]:
    metadata = context.before.get("metadata") or {}
    about = context.before.get("kind"), metadata.get("name")
    for plan in plans:
        if (plan.document.kind, plan.document.name) == about:
            yield from (one.choice.reason for one in plan.workloads if not one.templates)


def _instead(context: Context, user: str, whole: Whole) -> str:
    """Of a patch of one object."""
    steps = _steps_between(context, user, whole)
    if steps is None:
        return f"Correct what is said here, and migrate again, or say in {user} what the pod is to be without GPUs."
    return f"By hand, where the object has claims: take the patch out of {user}, and {steps}."


def _steps_between(context: Context, user: str, whole: Whole) -> str | None:
    """None: what is there at last cannot have claims."""
    kind, name = context.before.get("kind"), (context.before.get("metadata") or {}).get("name")
    before, after = whole.alone(context.before)[0], whole.alone(context.after)[0]
    templates = [claim.template for claim in whole.plan(context.after).all_claims]
    if whole.plan(context.after).workloads and not templates:
        return None
    written = ", ".join(map(_in_words, leading(before, after, ())))
    brought = " and ".join(map(_template_in_words, templates))
    bring = f", and bring {brought} in a file among `resources` of {user}" if brought else ""
    return f"write there a JSON patch with `target: {{kind: {kind}, name: {name}}}` that says {written}{bring}"


# -- replacements, generators and transformers


def _copied_findings(tree: Tree, apart: Mapping[Key, str], whole: Whole) -> Iterator[Finding]:
    for (_, at), some in tree.copied.items():
        for one in some:
            why = next((apart[part] for part in one.parts if part in apart), None)
            if why is not None and (advice := _of_a_replacement(one, at, whole)) is not None:
                message = f"{path_text(at)}: the replacement was left as it is: {why}"
                yield finding(NOT_EDITABLE, one.document, at, message, advice=advice)


def _of_a_replacement(one: Copied, at: Path, whole: Whole) -> str | None:
    """None: it has nothing to do with GPUs."""
    user, context = one.document.file, Context(one.before, one.after)
    if whole.plan(one.before).all_edits != whole.plan(one.after).all_edits:
        steps = _steps_between(context, user, whole)
        if steps is None:
            return f"Correct in {user} what is said here, and migrate again."
        taken = f"take {', '.join(one.paths)} out of {path_text(at)} in {user}"
        return f"By hand, where the objects have claims: {taken}, and {steps}."
    if not speaks_of_gpus(f"{one.source} {one.value}"):
        return None
    return (
        f"By hand: {one.source}, which it copies, is not there with claims; write {json.dumps(one.value)} into "
        f"{', '.join(one.paths)} itself, or let it copy from what stays, such as an annotation."
    )


def _unfollowed_findings(tree: Tree, apart: Mapping[Key, str]) -> Iterator[Finding]:
    for (_, at), one in tree.unfollowed.items():
        if any(one.why in apart[part] for part in one.parts if part in apart):
            advice = f"By hand: {_INSTEAD[str(at[0])]}, and migrate again."
            message = f"{path_text(at)}: what it makes is not known: {one.why}; it was left as it is"
            yield finding(NOT_EDITABLE, one.document, at, message, advice=advice)


_APART = (
    "let a folder of its own build it, migrate what kustomize renders of that "
    "(kubectl kustomize --enable-helm FOLDER | dractl migrate -), take it out here"
)
_INSTEAD = {
    "generators": _APART,
    "helmCharts": _APART,
    "helmChartInflationGenerator": _APART,
    "transformers": "say it by `patches`, `replacements`, `namePrefix` or `nameSuffix` here, which are followed",
    "vars": "say it by `replacements`, which are followed",
    "replacements": "write the value that it copies where it is to be, or give the files that have it",
}


# -- JSON patches


def _patch_findings(tree: Tree, found: Patched, apart: Mapping[Key, str], whole: Whole) -> Iterator[Finding]:
    """Of patches that speak of GPUs and stay as they are, where that is not what was asked for."""
    for patch in tree.json_patches.values():
        document, at = next(iter(patch.users.values()))
        if patch.key in found.converted or not speaks_of_gpus(patch.text):
            continue
        where = patch.file if not patch.inline else path_text(at)
        if not patch.objects:
            message = f"{where}: the JSON patch changes GPUs of nothing that is among the files; it was left as it is"
            yield finding(NOT_EDITABLE, document, at, message, advice=_by_hand_of_others(patch))
        elif patch.key in found.kept and patch.key in apart:
            message = f"{found.kept[patch.key]}; it was left as it is"
            yield finding(NOT_EDITABLE, document, at, message, advice=_by_hand(patch, whole))
        elif patch.key in apart:
            message = f"{where}: the JSON patch was left as it is: {apart[patch.key]}"
            yield finding(NOT_EDITABLE, document, at, message, advice=_by_hand(patch, whole))


def _by_hand_of_others(patch: JsonPatch) -> str:
    speaking = [one for one in patch.operations if isinstance(one, dict) and speaks_of_gpus(f"{one}")]
    said = ", ".join(_in_words(one) for one in speaking)
    return (
        "Give all files that it builds on. By hand, where the pods have claims: let a file among `resources` of "
        f"{next(iter(patch.users))} bring a ResourceClaimTemplate whose request has as `count` what the patch says "
        f"({said}), and the patch replace `resourceClaims/0/resourceClaimTemplateName` of the pod's spec with its name."
    )


def _by_hand(patch: JsonPatch, whole: Whole) -> str:
    """What to write for each of its objects, once they have claims."""
    steps = dict(_steps(patch, whole))
    if not steps:
        where = next(iter(patch.users))
        return f"Correct in {where} what is said here, and migrate again."
    divided = "divide it into a patch for each object; " if len(steps) > 1 else ""
    each = "; ".join(f"for {title}, {step}" for title, step in steps.items())
    return f"By hand, where the objects have claims: {divided}{each}."


def _steps(patch: JsonPatch, whole: Whole) -> Iterator[tuple[str, str]]:
    for one in patch.objects:
        plan = whole.plan(one.states[-1])
        if not asks_otherwise(whole, one) or not plan.claims:
            continue
        case = Case(title_of_object(one), tuple(whole.alone(state)[0] for state in one.states))
        try:
            told = told_anew(patch.operations, [case])
        except CannotFollow:
            continue
        old = [operation for operation in patch.operations if operation not in [each.operation for each in told]]
        new = [each.operation for each in told if each.operation not in patch.operations]
        brought = " and ".join(_template_in_words(claim.template) for claim in plan.all_claims)
        user = next(iter(patch.users))
        yield (
            case.title,
            f"instead of {', '.join(map(_in_words, old))} write {', '.join(map(_in_words, new))}, and bring {brought} "
            f"in a file among `resources` of {user}",
        )


def _in_words(operation: JsonObject) -> str:
    value = f" {json.dumps(operation['value'])}" if "value" in operation else ""
    source = f" from {operation['from']}" if "from" in operation else ""
    return f"`{operation.get('op')} {operation.get('path')}{source}{value}`"


def _template_in_words(template: JsonObject) -> str:
    return f"{template['kind']} {template['metadata']['name']} with `spec: {json.dumps(template['spec'])}`"
