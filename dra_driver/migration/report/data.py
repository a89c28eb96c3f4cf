"""What programs read after a migration: plain data, and its JSON schema, `docs/schemas/MigrationReport.json`. Pure.

Names of fields, codes, and the values of enumerations stay as they are; sentences may get better.
`python -m dra_driver.migration.report.data` writes the schema; a test compares.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.publishing import final_values
from dra_driver.migration.codes import CODES, FindingSeverity
from dra_driver.migration.cutover.commands import Act, CutoverPlan, Stage
from dra_driver.migration.model import (
    FieldChange,
    Migration,
    MigrationFinding,
    MigrationTarget,
    NewObject,
    ObjectRef,
    Workload,
    ref_of,
)
from dra_driver.migration.report.outcome import (
    MigrationReport,
    next_steps,
)
from dra_driver.migration.verify.trial import TrialResult, TrialVerdict, Verification

FILE = Path(__file__).parents[3] / "docs" / "schemas" / "MigrationReport.json"
VERSION = "dra.gpu/v1alpha1"
KIND = "MigrationReport"


def as_data(report: MigrationReport) -> JsonObject:
    """As the schema says. Contents of files are not in it."""
    migration = report.migration
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "summary": _summary(migration),
        "next": [{"what": next_step.what, "command": next_step.command} for next_step in next_steps(report)],
        "files": [{"file": file.file, "changed": file.before != file.after} for file in migration.files],
        "unread": [{"what": unread.what, "why": unread.why} for unread in report.unread],
        "newFiles": [file.file for file in migration.new_files],
        "objects": [_object(obj) for obj in migration.objects],
        "workloads": [_workload(workload) for workload in migration.workloads],
        "changes": [_change(change) for change in migration.changes],
        "findings": [_finding(finding) for finding in migration.findings],
        "policy": migration.policy,
        "chartValues": final_values(migration),
        "verification": _verification(report.verification),
        "cutover": _plan(report.plan),
    }


def _summary(migration: Migration) -> JsonObject:
    severities = [finding.severity for finding in migration.findings]
    targets = [workload.choice.target for workload in migration.workloads]
    return {
        **{f"{severity}s": severities.count(severity) for severity in FindingSeverity},
        "workloads": {target.value: targets.count(target) for target in MigrationTarget},
    }


def _ref(ref: ObjectRef) -> JsonObject:
    return {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name}


def _object(object_: NewObject) -> JsonObject:
    metadata = object_.obj.get("metadata") or {}
    ref = ObjectRef(str(object_.obj.get("kind")), metadata.get("namespace"), str(metadata.get("name")))
    return {"object": _ref(ref), "file": object_.beside or None, "reason": object_.reason}


def _about(workload: Workload) -> JsonObject:
    document = workload.pod.document
    return {
        "object": _ref(ref_of(document)),
        "file": document.file,
        "line": document.line,
        "group": workload.pod.group or None,
    }


def _workload(workload: Workload) -> JsonObject:
    return {
        **_about(workload),
        "target": workload.choice.target.value,
        "reason": workload.choice.reason,
        "cannot": list(workload.choice.cannot),
        "templates": [_ref(ref) for ref in workload.templates],
    }


def _change(change: FieldChange) -> JsonObject:
    return {
        "object": _ref(change.object),
        "file": change.place.file,
        "line": change.place.line,
        "path": change.place.path,
        "was": change.was,
        "is": change.now,
    }


def _finding(finding: MigrationFinding) -> JsonObject:
    return {
        "code": finding.code.name,
        "title": finding.code.title,
        "severity": finding.severity.value,
        "object": _ref(finding.object),
        "file": finding.place.file,
        "line": finding.place.line,
        "path": finding.place.path or None,
        "message": finding.message,
        "advice": finding.advice or None,
        "fixed": finding.fixed,
        "paste": finding.paste or None,
    }


def _verification(verification: Verification | None) -> JsonObject | None:
    if verification is None:
        return None
    return {
        "on": verification.title,
        "certain": verification.certain,
        "workloads": [_checked(checked) for checked in verification.checked],
    }


def _checked(checked: TrialResult) -> JsonObject:
    return {
        **_about(checked.workload),
        "verdict": checked.verdict.value,
        "why": list(checked.why),
        "node": checked.node or None,
        "got": [{"container": got.container, "devices": list(got.devices)} for got in checked.got],
        "needsPolicy": checked.needs,
    }


def _plan(plan: CutoverPlan | None) -> JsonObject | None:
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


def _one_of(
    values: type[FindingSeverity] | type[MigrationTarget] | type[TrialVerdict] | type[Act],
) -> JsonObject:
    return {"enum": [value.value for value in values]}


def schema() -> JsonObject:
    """Draft 2020-12."""
    ref = _map(kind=_TEXT, namespace=_MAYBE, name=_TEXT)
    place = {"object": ref, "file": _TEXT, "line": _COUNT}
    about = {**place, "group": _MAYBE}
    targets = {target.value: _COUNT for target in MigrationTarget}
    step = _map(act=_one_of(Act), what=_TEXT, commands=_list(_TEXT), note=_MAYBE)
    stages = _list(_map(title=_TEXT, node=_MAYBE, steps=_list(step)))
    tried = _map(
        **about,
        verdict=_one_of(TrialVerdict),
        why=_list(_TEXT),
        node=_MAYBE,
        got=_list(_map(container=_TEXT, devices=_list(_TEXT))),
        needsPolicy=_FREE,
    )
    finding = _map(
        code={"enum": [code.name for code in CODES]},
        title=_TEXT,
        severity=_one_of(FindingSeverity),
        **place,
        path=_MAYBE,
        message=_TEXT,
        advice=_MAYBE,
        fixed={"type": "boolean"},
        paste=_MAYBE,
    )
    severities = {f"{severity}s": _COUNT for severity in FindingSeverity}
    whole = _map(
        apiVersion={"const": VERSION},
        kind={"const": KIND},
        summary=_map(**severities, workloads=_map(**targets)),
        next=_list(_map(what=_TEXT, command=_MAYBE)),
        files=_list(_map(file=_TEXT, changed={"type": "boolean"})),
        unread=_list(_map(what=_TEXT, why=_TEXT)),
        newFiles=_list(_TEXT),
        objects=_list(_map(object=ref, file=_MAYBE, reason=_TEXT)),
        workloads=_list(
            _map(**about, target=_one_of(MigrationTarget), reason=_TEXT, cannot=_list(_TEXT), templates=_list(ref))
        ),
        changes=_list(_map(**place, path=_TEXT, was={}, **{"is": {}})),
        findings=_list(finding),
        policy=_FREE,
        chartValues={"type": "object"},
        verification=_or_null(_map(on=_TEXT, certain={"type": "boolean"}, workloads=_list(tried))),
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
