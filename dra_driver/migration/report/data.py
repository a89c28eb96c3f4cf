"""What programs read after a migration: plain data, and its JSON schema, `docs/schemas/MigrationReport.json`. Pure.

Names of fields, codes, and the values of enumerations stay as they are; sentences may get better.
`python -m dra_driver.migration.report.data` writes the schema; a test compares.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.publishing import final_values
from dra_driver.migration.codes import CODES, Severity
from dra_driver.migration.cutover.commands import Act, Plan, Stage
from dra_driver.migration.model import Change, Finding, Migration, NewObject, ObjectRef, Target, Workload, ref_of
from dra_driver.migration.report.outcome import NamespaceSum, Report, by_namespace, next_steps
from dra_driver.migration.report.readiness import Answer, ReadinessCheck
from dra_driver.migration.verify.trial import Checked, Verdict, Verification

FILE = Path(__file__).parents[3] / "docs" / "schemas" / "MigrationReport.json"
VERSION = "dra.gpu/v1alpha1"
KIND = "MigrationReport"


def as_data(report: Report) -> JsonObject:
    """As the schema says. Contents of files are not in it."""
    migration = report.migration
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "summary": _summary(migration),
        "namespaces": [_namespace(one) for one in by_namespace(migration)],
        "next": [{"what": one.what, "command": one.command} for one in next_steps(report)],
        "files": [{"file": one.file, "changed": one.before != one.after} for one in migration.files],
        "unread": [{"what": one.what, "why": one.why} for one in report.unread],
        "newFiles": [one.file for one in migration.new_files],
        "objects": [_object(one) for one in migration.objects],
        "workloads": [_workload(one) for one in migration.workloads],
        "changes": [_change(one) for one in migration.changes],
        "findings": [_finding(one) for one in migration.findings],
        "policy": migration.policy,
        "chartValues": final_values(migration),
        "verification": _verification(report.verification),
        "readiness": [_check(one) for one in report.checks],
        "cutover": _plan(report.plan),
    }


def _summary(migration: Migration) -> JsonObject:
    severities = [one.severity for one in migration.findings]
    targets = [one.choice.target for one in migration.workloads]
    return {
        **{f"{severity}s": severities.count(severity) for severity in Severity},
        "workloads": {target.value: targets.count(target) for target in Target},
    }


def _namespace(one: NamespaceSum) -> JsonObject:
    return {
        "namespace": one.namespace,
        **{f"{severity}s": one.severities[severity] for severity in Severity},
        "workloads": {target.value: one.targets[target] for target in Target},
    }


def _ref(ref: ObjectRef) -> JsonObject:
    return {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}


def _object(one: NewObject) -> JsonObject:
    metadata = one.obj.get("metadata") or {}
    ref = ObjectRef(str(one.obj.get("kind")), metadata.get("namespace"), str(metadata.get("name")))
    return {"object": _ref(ref), "file": one.beside or None, "reason": one.reason}


def _about(workload: Workload) -> JsonObject:
    document = workload.pod.document
    return {
        "object": _ref(ref_of(document)),
        "file": document.file,
        "line": document.line,
        "group": workload.pod.group or None,
    }


def _workload(one: Workload) -> JsonObject:
    return {
        **_about(one),
        "target": one.choice.target.value,
        "reason": one.choice.reason,
        "cannot": list(one.choice.cannot),
        "templates": [_ref(ref) for ref in one.templates],
    }


def _change(one: Change) -> JsonObject:
    return {
        "object": _ref(one.object),
        "file": one.place.file,
        "line": one.place.line,
        "path": one.place.path,
        "was": one.was,
        "is": one.now,
    }


def _finding(one: Finding) -> JsonObject:
    return {
        "code": one.code.name,
        "title": one.code.title,
        "severity": one.severity.value,
        "object": _ref(one.object),
        "file": one.place.file,
        "line": one.place.line,
        "path": one.place.path or None,
        "message": one.message,
        "advice": one.advice or None,
        "fixed": one.fixed,
        "paste": one.paste or None,
    }


def _verification(found: Verification | None) -> JsonObject | None:
    if found is None:
        return None
    return {"on": found.title, "certain": found.certain, "workloads": [_checked(one) for one in found.checked]}


def _checked(one: Checked) -> JsonObject:
    return {
        **_about(one.workload),
        "verdict": one.verdict.value,
        "why": list(one.why),
        "node": one.node or None,
        "got": [{"container": got.container, "devices": list(got.devices)} for got in one.got],
        "needsPolicy": one.needs,
    }


def _check(one: ReadinessCheck) -> JsonObject:
    return {"question": one.question, "answer": one.answer.value, "why": one.why, "advice": one.advice or None}


def _plan(plan: Plan | None) -> JsonObject | None:
    if plan is None:
        return None
    return {
        "refusal": plan.refusal or None,
        "conflicts": list(plan.conflicts),
        "values": plan.values,
        "forward": _stages(plan.forward),
        "back": _stages(plan.back),
    }


def _stages(stages: Sequence[Stage]) -> list[JsonObject]:
    return [
        {
            "title": stage.title,
            "node": stage.node,
            "steps": [
                {"act": step.act.value, "what": step.what, "commands": list(step.commands), "note": step.note or None}
                for step in stage.steps
            ],
        }
        for stage in stages
    ]


# -- the schema

_TEXT: JsonObject = {"type": "string"}
_MAYBE: JsonObject = {"type": ["string", "null"]}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_FREE: JsonObject = {"type": ["object", "null"]}


def _map(**fields: JsonObject) -> JsonObject:
    return {"type": "object", "additionalProperties": False, "required": list(fields), "properties": fields}


def _list(item: JsonObject) -> JsonObject:
    return {"type": "array", "items": item}


def _or_null(item: JsonObject) -> JsonObject:
    return {"anyOf": [{"type": "null"}, item]}


def _one_of(values: type[Severity] | type[Target] | type[Verdict] | type[Answer] | type[Act]) -> JsonObject:
    return {"enum": [one.value for one in values]}


def schema() -> JsonObject:
    """Draft 2020-12."""
    ref = _map(kind=_TEXT, namespace=_MAYBE, name=_TEXT)
    place = {"object": ref, "file": _TEXT, "line": _COUNT}
    about = {**place, "group": _MAYBE}
    targets = {target.value: _COUNT for target in Target}
    step = _map(act=_one_of(Act), what=_TEXT, commands=_list(_TEXT), note=_MAYBE)
    stages = _list(_map(title=_TEXT, node=_MAYBE, steps=_list(step)))
    tried = _map(
        **about,
        verdict=_one_of(Verdict),
        why=_list(_TEXT),
        node=_MAYBE,
        got=_list(_map(container=_TEXT, devices=_list(_TEXT))),
        needsPolicy=_FREE,
    )
    finding = _map(
        code={"enum": [code.name for code in CODES]},
        title=_TEXT,
        severity=_one_of(Severity),
        **place,
        path=_MAYBE,
        message=_TEXT,
        advice=_MAYBE,
        fixed={"type": "boolean"},
        paste=_MAYBE,
    )
    sums = {**{f"{one}s": _COUNT for one in Severity}, "workloads": _map(**targets)}
    whole = _map(
        apiVersion={"const": VERSION},
        kind={"const": KIND},
        summary=_map(**sums),
        namespaces=_list(_map(namespace=_MAYBE, **sums)),
        next=_list(_map(what=_TEXT, command=_MAYBE)),
        files=_list(_map(file=_TEXT, changed={"type": "boolean"})),
        unread=_list(_map(what=_TEXT, why=_TEXT)),
        newFiles=_list(_TEXT),
        objects=_list(_map(object=ref, file=_MAYBE, reason=_TEXT)),
        workloads=_list(_map(**about, target=_one_of(Target), reason=_TEXT, cannot=_list(_TEXT), templates=_list(ref))),
        changes=_list(_map(**place, path=_TEXT, was={}, **{"is": {}})),
        findings=_list(finding),
        policy=_FREE,
        chartValues={"type": "object"},
        verification=_or_null(_map(on=_TEXT, certain={"type": "boolean"}, workloads=_list(tried))),
        readiness=_list(_map(question=_TEXT, answer=_one_of(Answer), why=_TEXT, advice=_MAYBE)),
        cutover=_or_null(
            _map(refusal=_MAYBE, conflicts=_list(_TEXT), values={"type": "object"}, forward=stages, back=stages)
        ),
    )
    about_it = "What `dractl migrate --report json` prints. Codes and their meanings: docs/migration.md."
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": KIND, "description": about_it}
    return {**header, **whole}


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
