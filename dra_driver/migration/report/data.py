"""What programs read after a migration: plain data, and its JSON schema, `docs/schemas/MigrationReport.json`. Pure.

Names of fields, codes, and the values of enumerations stay as they are; sentences may get better.
`python -m dra_driver.migration.report.data` writes the schema; a test compares.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import Severity
from dra_driver.migration.claims.publishing import final_values, gpu_policies
from dra_driver.migration.codes import CODES
from dra_driver.migration.cutover.commands import Act
from dra_driver.migration.model import MigrationTarget
from dra_driver.migration.report.outcome import MigrationReport, count, next_steps, targets_of
from dra_driver.migration.verify.trial import TrialVerdict

FILE = Path(__file__).parents[3] / "docs" / "schemas" / "MigrationReport.json"


def as_data(report: MigrationReport) -> JsonObject:
    """As the schema says. Contents of files are not in it."""
    migration = report.migration
    targets = targets_of(migration)
    data = _Report.model_validate(
        {
            "summary": {
                **{f"{severity}s": count(migration, severity) for severity in Severity},
                "workloads": {target: targets.count(target) for target in MigrationTarget},
            },
            "next": next_steps(report),
            "files": migration.files,
            "unread": report.unread,
            "new_files": [file.file for file in migration.new_files],
            "objects": migration.objects,
            "workloads": migration.workloads,
            "changes": migration.changes,
            "findings": migration.findings,
            "policy": migration.policy,
            "gpu_policies": gpu_policies(migration),
            "chart_values": final_values(migration),
            "verification": report.verification,
            "cutover": report.plan,
        }
    )
    return data.model_dump(mode="json", by_alias=True)


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"


def schema() -> JsonObject:
    """Draft 2020-12."""
    schema = _Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# -- the shape


class _Data(BaseModel):
    """A part of the data. Its fields are attributes of the value that it is made of, or lie where `_at` says."""

    model_config = ConfigDict(
        from_attributes=True, extra="forbid", alias_generator=AliasGenerator(serialization_alias=to_camel)
    )


def _at(*path: str) -> Any:
    return Field(validation_alias=AliasPath(*path))


_Maybe = Annotated[str | None, BeforeValidator(lambda text: text or None)]
"""Null instead of an empty text."""
_Count = Annotated[int, Field(ge=0)]


class _Ref(_Data):
    kind: str
    namespace: str | None
    name: str


class _Summary(_Data):
    errors: _Count
    warnings: _Count
    infos: _Count
    workloads: dict[MigrationTarget, _Count]


class _NextStep(_Data):
    what: str
    command: str | None


class _File(_Data):
    file: str
    changed: bool


class _Unread(_Data):
    what: str
    why: str


class _Object(_Data):
    object: _Ref = _at("ref")
    file: _Maybe = _at("beside")
    reason: str


class _Workload(_Data):
    object: _Ref = _at("ref")
    file: str = _at("pod", "document", "file")
    line: _Count = _at("pod", "document", "line")
    group: _Maybe = _at("pod", "group")
    target: MigrationTarget = _at("choice", "target")
    reason: str = _at("choice", "reason")
    cannot: tuple[str, ...] = _at("choice", "cannot")
    templates: tuple[_Ref, ...]


class _Change(_Data):
    object: _Ref
    file: str = _at("place", "file")
    line: _Count = _at("place", "line")
    path: str = _at("place", "path")
    was: Any
    is_: Any = Field(validation_alias="now", serialization_alias="is")


class _Finding(_Data):
    code: Annotated[str, Field(json_schema_extra={"enum": [code.name for code in CODES]})] = _at("code", "name")
    title: str = _at("code", "title")
    severity: Severity
    object: _Ref
    file: str = _at("place", "file")
    line: _Count = _at("place", "line")
    path: _Maybe = _at("place", "path")
    message: str
    advice: _Maybe
    fixed: bool
    paste: _Maybe


class _Got(_Data):
    container: str
    devices: tuple[str, ...]


class _Trial(_Data):
    object: _Ref = _at("workload", "ref")
    file: str = _at("workload", "pod", "document", "file")
    line: _Count = _at("workload", "pod", "document", "line")
    group: _Maybe = _at("workload", "pod", "group")
    verdict: TrialVerdict
    why: tuple[str, ...]
    node: _Maybe
    got: tuple[_Got, ...]
    needs_policy: JsonObject | None = _at("needs")


class _Verification(_Data):
    on: str = _at("title")
    certain: bool
    workloads: tuple[_Trial, ...] = _at("checked")


class _Step(_Data):
    act: Act
    what: str
    commands: tuple[str, ...]
    note: _Maybe


class _Stage(_Data):
    title: str
    node: str | None
    steps: tuple[_Step, ...]


class _Cutover(_Data):
    refusal: _Maybe
    conflicts: tuple[str, ...]
    values: JsonObject
    forward: tuple[_Stage, ...]
    back: tuple[_Stage, ...]


class _Report(_Data):
    """What `dractl migrate --report json` prints. Codes and their meanings: docs/migration.md."""

    model_config = ConfigDict(title="MigrationReport")

    api_version: Literal["dra.gpu/v1alpha1"] = "dra.gpu/v1alpha1"
    kind: Literal["MigrationReport"] = "MigrationReport"
    summary: _Summary
    next: tuple[_NextStep, ...]
    files: tuple[_File, ...]
    unread: tuple[_Unread, ...]
    new_files: tuple[str, ...]
    objects: tuple[_Object, ...]
    workloads: tuple[_Workload, ...]
    changes: tuple[_Change, ...]
    findings: tuple[_Finding, ...]
    policy: JsonObject | None
    """Of the chart."""
    gpu_policies: tuple[JsonObject, ...]
    """The same as objects that `kubectl apply` takes."""
    chart_values: JsonObject
    verification: _Verification | None
    cutover: _Cutover | None


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
