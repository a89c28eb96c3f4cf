"""One folder for each thing that the tool must do: `before.yaml` becomes `after.yaml`, or stays if there is none;
`codes.txt` lists the findings.

`options.yaml` has fields of `Options`, `with.yaml` what `--with` would name. Files that come into being besides are in
`new.yaml`. Two folders have the whole report, too. With WRITE_GOLDEN=1 in the environment the results of today are
written first; read them before you commit.
"""

import os
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from support.rows import rows

from dra_driver import bundled
from dra_driver.api.documents import read_documents
from dra_driver.api.resource import DeviceClass
from dra_driver.cli.migration.migrate_files import together
from dra_driver.cli.reading.files import read_files
from dra_driver.migration.codes import CODES
from dra_driver.migration.cutover.commands import Results
from dra_driver.migration.cutover.cutover_plan import cutover
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, Options, StrategyOption
from dra_driver.migration.report.data import FILE, as_data, schema, schema_text
from dra_driver.migration.report.markdown import markdown
from dra_driver.migration.report.outcome import MigrationReport
from dra_driver.migration.understand.offering import offering_of
from dra_driver.migration.verify.ground import ground_of_models
from dra_driver.migration.verify.trial import TrialVerdict, verify
from dra_driver.quantity import Quantity

FOLDER = Path(__file__).parent / "golden"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
SCHEMA = jsonschema.Draft202012Validator(schema())


@cache
def classes() -> Mapping[str, DeviceClass]:
    documents = read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).documents
    return {document.name: DeviceClass.of(document.obj) for document in documents}


def options_of(data: Mapping[str, Any]) -> Options:
    given = dict(data)
    if "strategy" in given:
        given["strategy"] = StrategyOption(given["strategy"])
    if "gpu_memory" in given:
        given["gpu_memory"] = Quantity.parse(given["gpu_memory"])
    return Options(**given)


def text_of(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_bytes().decode("utf-8") if path.exists() else ""


@cache
def outcome(name: str) -> MigrationReport:
    folder = FOLDER / name
    options = options_of(yaml.safe_load(text_of(folder, "options.yaml")) or {})
    beside = text_of(folder, "with.yaml")
    side = [ManifestText("with.yaml", beside)] if beside else []
    before = "before.yaml" if (folder / "before.yaml").exists() else "before.json"
    migration = migrate([ManifestText(before, text_of(folder, before))], options, side)
    objects = [document.obj for source in side for document in read_documents(source.text, source.file).documents]
    offering = offering_of(objects, options.driver) if any(obj.get("kind") == "Node" for obj in objects) else None
    ground = ground_of_models((), migration.policy, options.kubernetes_minor or 36, options.driver)
    plan = cutover(offering, migration, options.driver, Results()) if offering is not None else None
    return MigrationReport(migration, verify(migration, ground, classes()), plan)


def new_files(migration: Migration) -> str:
    return "---\n".join(f"# {file.file}\n{file.text}" for file in migration.new_files)


def codes(migration: Migration) -> str:
    """What is said, each once: code, severity, and how many workloads became what."""
    lines = {f"{finding.code.name} {finding.severity}\n" for finding in migration.findings}
    targets = Counter(workload.choice.target for workload in migration.workloads)
    return "".join(f"{target}: {count}\n" for target, count in sorted(targets.items())) + "".join(sorted(lines))


@rows("name", CASES)
def test_it_becomes_what_is_written_down(name: str) -> None:
    folder, report = FOLDER / name, outcome(name)
    (result,) = report.migration.files
    wanted = {
        f"after{Path(result.file).suffix}": result.after if result.after != result.before else "",
        "new.yaml": new_files(report.migration),
        "codes.txt": codes(report.migration),
    }
    if (folder / "report.md").exists():
        wanted["report.md"] = markdown(report)
    for file, text in wanted.items():
        if os.environ.get("WRITE_GOLDEN") and text:
            (folder / file).write_bytes(text.encode())
        assert text_of(folder, file) == text


@rows("name", CASES)
def test_the_allocator_finds_no_difference(name: str) -> None:
    verification = outcome(name).verification
    assert verification is not None
    verdicts = {trial.verdict: trial.why for trial in verification.checked}
    assert TrialVerdict.DIFFERS not in verdicts, verdicts


@rows("name", CASES)
def test_a_second_run_changes_nothing(name: str) -> None:
    report = outcome(name)
    options = options_of(yaml.safe_load(text_of(FOLDER / name, "options.yaml")) or {})
    beside = text_of(FOLDER / name, "with.yaml")
    after = [ManifestText(file.file, file.after) for file in report.migration.files]
    again = migrate(
        [*after, *report.migration.new_files], options, [ManifestText("with.yaml", beside)] if beside else []
    )
    assert [file.after for file in again.files[: len(after)]] == [source.text for source in after]
    assert together(again).count("\n---") <= together(report.migration).count("\n---")
    assert not again.new_files


@rows("name", CASES)
def test_the_report_for_programs_is_as_its_schema_says(name: str) -> None:
    SCHEMA.validate(as_data(outcome(name)))


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    assert FILE.read_text() == schema_text(), "python -m dra_driver.migration.report.data"


def test_each_code_is_in_a_report() -> None:
    reported = {finding.code.name for name in CASES for finding in outcome(name).migration.findings}
    assert {code.name for code in CODES} - reported == set()


def test_each_row_of_the_table_has_a_folder() -> None:
    """Of before and after, in the reference on migration sources, section 11."""
    assert {name.partition("-")[0] for name in CASES} >= {f"{number:02}" for number in range(1, 31)}
