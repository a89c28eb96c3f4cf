"""What is true of every manifest, whatever is asked: nothing but the intended is changed, and twice is as good as once.

The manifests in `manifests/` have the shapes in which people publish theirs; one of 5 MB is made here.
"""

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import examples, rows

from dra_driver import bundled
from dra_driver.api.documents import Document, read_documents, together
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.check import check
from dra_driver.checking.codes import Severity
from dra_driver.checking.knowledge import Knowledge
from dra_driver.cli.reading.files import read_files
from dra_driver.migration.codes import UNREADABLE
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, MigrationTarget, Options, StrategyOption, ref_of
from dra_driver.migration.report.data import as_data, schema
from dra_driver.migration.report.markdown import markdown
from dra_driver.migration.report.outcome import MigrationReport
from dra_driver.migration.verify.ground import ground_of_models
from dra_driver.migration.verify.trial import TrialVerdict, verify
from dra_driver.quantity import Quantity

FOLDER = Path(__file__).parent / "manifests"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
CLAIMS = Options(strategy=StrategyOption.CLAIMS)
SCHEMA = jsonschema.Draft202012Validator(schema())
EVERYTHING = Options(
    strategy=StrategyOption.CLAIMS,
    gpu_memory=Quantity.parse("80Gi"),
    share_visible_all=True,
    remove_runtime_class=True,
    unknown_kinds=True,
    argo_resource_claims=True,
)
USUAL = {"auto": Options(), "everything": EVERYTHING}


@cache
def source(file: str) -> ManifestText:
    return ManifestText(file, (FOLDER / file).read_bytes().decode("utf-8"))


@cache
def outcome(file: str, options: str) -> Migration:
    return migrate([source(file)], USUAL[options])


def test_there_are_manifests_of_all_kinds() -> None:
    assert len(FILES) >= 60


# -- twice is as good as once


@pytest.mark.slow
@rows("file", FILES)
def test_a_second_run_changes_nothing(file: str) -> None:
    for options in USUAL:
        first = outcome(file, options)
        sources = [*(ManifestText(result.file, result.after) for result in first.files), *first.new_files]
        again = migrate(sources, USUAL[options])
        assert {result.file: result.after for result in again.files} == {given.file: given.text for given in sources}
        assert again.new_files == ()


# -- nothing but the intended


_GPU_KEY = r"\[?(?:(?:[a-z0-9.-]*nvidia\.com|volcano\.sh|aliyun\.com|tencent\.com)/[^\]]+)\]?"
INTENDED = re.compile(
    "|".join(
        (
            rf".*(?:resources|resourcesPerNode|computeResources)\.(?:limits|requests)(?:\.?{_GPU_KEY})?",
            r".*resources\.claims.*",
            r".*\.resources",
            r".*resourceClaims.*",
            r"(?:.*\.)?tolerations.*",
            r"(?:.*\.)?nodeSelector.*",
            r"(?:.*\.)?nodeName",
            r"(?:.*\.)?affinity.*",
            r"(?:.*\.)?schedulerName",
            r"(?:.*\.)?runtimeClassName",
            r"(?:.*\.)?env(?:\[.*)?",
            r"(?:.*\.)?hostIPC",
            r"(?:.*\.)?volumes.*",
            r".*volumeMounts.*",
            r"(?:.*\.)?metadata",
            r"(?:.*\.)?annotations.*",
            # What frameworks counted for themselves, and their own ways to name claims.
            r"spec\.nprocPerNode",
            r".*mlPolicy\.torch\.numProcPerNode",
            r".*rayStartParams.*",
            r".*draResources.*",
            r".*podSpecPatch",
            r".*resource\.manifest",
            # The Cluster Autoscaler's flags.
            r"spec\.template\.spec\.containers\[\d+\]\.(?:args|command)",
            # Quotas, limits and queues.
            r"spec\.hard.*",
            r"spec\.limits.*",
            r"metadata\.labels(?:\[dra\.gpu/limits\])?",
            r"spec\.resourceGroups.*",
            r"spec\.(?:capability|deserved|guarantee).*",
            r"managerConfig\.controllerManagerConfigYaml",
            r"controllerManager\.featureGates.*",
            r"data.*",
        )
    )
)


def paths_that_differ(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            written = str(key)
            inner = f"{path}.{written}" if re.fullmatch(r"[\w-]+", written) else f"{path}[{written}]"
            if key not in before or key not in after:
                yield inner.removeprefix(".")
            else:
                yield from paths_that_differ(before[key], after[key], inner.removeprefix("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (left, other) in enumerate(zip(before, after, strict=True)):
            yield from paths_that_differ(left, other, f"{path}[{index}]")
    elif before != after:
        yield path


def old_and_new(migration: Migration, file: str) -> Iterator[tuple[Document, Document]]:
    """Documents that were there, with what became of them; what is new is passed over."""
    made = [(new.obj["kind"], new.obj["metadata"]["name"]) for new in migration.objects]
    for result in migration.files:
        before = read_documents(result.before, file).documents
        after = [
            document
            for document in read_documents(result.after, file).documents
            if (document.kind, document.name) not in made
        ]
        before = tuple(document for document in before if (document.kind, document.name) not in made)
        assert len(before) == len(after), f"{len(before)} documents became {len(after)}"
        yield from zip(before, after, strict=True)


@rows("file", FILES)
def test_nothing_but_the_intended_is_changed(file: str) -> None:
    for options in USUAL:
        for before, after in old_and_new(outcome(file, options), file):
            strange = [path for path in paths_that_differ(before.obj, after.obj) if not INTENDED.fullmatch(path)]
            assert strange == [], before.title


@rows("file", FILES)
def test_every_field_that_is_changed_is_in_the_report(file: str) -> None:
    """The annotation that remembers them is not; texts in objects have fields of their own."""
    for options in USUAL:
        migration = outcome(file, options)
        changed = {(change.object, change.place.path) for change in migration.changes}
        for before, after in old_and_new(migration, file):
            reported = [path for ref, path in changed if ref == ref_of(before)]
            for path in paths_that_differ(before.obj, after.obj):
                apart = path == "metadata.annotations"
                assert apart or any(
                    path.startswith(reported_path) or reported_path.startswith(path) for reported_path in reported
                ), path


@rows("file", FILES)
def test_every_line_that_stays_is_as_it_was_and_every_comment_is_kept(file: str) -> None:
    for options in USUAL:
        for result in outcome(file, options).files:
            assert result.after.count("\r\n") == (result.after.count("\n") if "\r\n" in result.before else 0)
            assert result.after.startswith("\ufeff") == result.before.startswith("\ufeff")
            if result.before == result.after:
                continue
            lines_after = iter(result.after.splitlines())
            lost = [
                line for line in result.before.splitlines() if line.lstrip().startswith("#") and line not in lines_after
            ]
            assert [line for line in lost if not about_what_is_gone(line)] == []


def about_what_is_gone(comment: str) -> bool:
    """Comments right above a line that is taken out go with it."""
    return any(word in comment for word in ("GPU", "gpu", "helped", "help", "#\tone"))


# -- what comes out is right


@rows("file", FILES)
def test_what_comes_out_passes_our_own_check(file: str) -> None:
    for options in USUAL:
        migration = outcome(file, options)
        before = {(finding.code, finding.message) for finding in errors_in((source(file),))}
        after = [ManifestText(result.file, result.after) for result in migration.files]
        errors = errors_in((*after, *migration.new_files))
        assert [
            f"{finding.file}:{finding.line} {finding.message}"
            for finding in errors
            if (finding.code, finding.message) not in before
        ] == []


@cache
def knowledge() -> Knowledge:
    """Without devices: whether claims can be had is tried by the allocator."""
    documents = read_files([str(bundled.DEVICE_CLASSES_FOLDER)]).documents
    return Knowledge(classes={document.name: DeviceClass.of(document.obj) for document in documents})


def errors_in(sources: tuple[ManifestText, ...]) -> list[Any]:
    reading = together(read_documents(given.text, given.file) for given in sources)
    return [finding for finding in check(reading, knowledge()) if finding.severity is Severity.ERROR]


@rows("file", FILES)
def test_what_comes_out_is_right_by_the_schemas_of_kubernetes(file: str) -> None:
    migration = outcome(file, "everything")
    for new in migration.objects:
        assert problem_of(new.obj) is None
    for before, after in old_and_new(migration, file):
        if before.obj != after.obj:
            assert problem_of(after.obj) in (None, problem_of(before.obj)), after.title


def problem_of(obj: JsonObject) -> str | None:
    if "apiVersion" not in obj:
        return None  # values of a chart
    try:
        kubernetes_validate.validate(obj, "1.36", strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return None
    except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
        return str(error.message)
    return None


@rows("file", FILES)
def test_the_allocator_finds_that_devices_are_what_was_meant(file: str) -> None:
    for options in USUAL:
        migration = outcome(file, options)
        verification = verify(migration, ground_of_models((), migration.policy, 36), knowledge().classes)
        assert [
            f"{trial.workload.pod.document.title}: {trial.why}"
            for trial in verification.checked
            if trial.verdict is TrialVerdict.DIFFERS
        ] == []
        SCHEMA.validate(as_data(MigrationReport(migration, verification)))
        assert markdown(MigrationReport(migration, verification)).startswith("# ")


@rows("file", FILES)
def test_what_gets_claims_asks_the_device_plugin_for_nothing_any_more(file: str) -> None:
    """A pod is converted whole, or not at all."""
    for options in USUAL:
        migration = outcome(file, options)
        after = {before.title: after.obj for before, after in old_and_new(migration, file)}
        # Manifests inside of manifests, such as those that a workflow applies.
        inner = [
            document
            for obj in after.values()
            for text in manifests_in(obj)
            for document in read_documents(text, "").documents
        ]
        after = {**{document.title: document.obj for document in inner}, **after}
        for workload in migration.workloads:
            if workload.choice.target is MigrationTarget.CLAIMS:
                spec: Any = after[workload.pod.document.title]
                for part in workload.pod.path:
                    spec = spec[part]
                assert list(plugin_keys(spec)) == [], workload.pod.document.title


def manifests_in(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("apiVersion:"):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from manifests_in(inner)


def plugin_keys(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if path.endswith((".limits", ".requests")) and re.fullmatch(r"nvidia\.com/(gpu|mig-).*", str(key)):
                yield f"{path}.{key}"
            yield from plugin_keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from plugin_keys(inner, path)


# -- all ways to ask

FLAGS = (
    "share_visible_all", "remove_runtime_class", "unknown_kinds",
    "argo_resource_claims", "dynamic_mig",
)  # fmt: skip


@st.composite
def options_of_all_kinds(draw: st.DrawFn) -> Options:
    return Options(
        strategy=draw(st.sampled_from(StrategyOption)),
        kubernetes_minor=draw(st.sampled_from([None, 34, 35, 36, 37])),
        extended_resource_gate=draw(st.sampled_from([None, True, False])),
        mig_strategy=draw(st.sampled_from([None, "none", "single", "mixed"])),
        mig_profile=draw(st.sampled_from([None, "1g.10gb"])),
        replicas=draw(st.sampled_from([None, 1, 4])),
        sharing_strategy=draw(st.sampled_from([None, "time-slicing", "mps"])),
        gpu_memory=draw(st.sampled_from([None, Quantity.parse("40Gi")])),
        several_shares=draw(st.sampled_from(["shares", "devices"])),
        **{flag: draw(st.booleans()) for flag in FLAGS},
    )


@given(st.lists(st.sampled_from(FILES), min_size=1, max_size=4, unique=True), options_of_all_kinds())
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_asked_of_whatever_files_the_laws_hold(files: list[str], options: Options) -> None:
    sources = [source(file) for file in files]
    first = migrate(sources, options)
    after = [*(ManifestText(file.file, file.after) for file in first.files), *first.new_files]
    again = migrate(after, options)
    assert [file.after for file in again.files] == [given.text for given in after]
    assert errors_in(tuple(after)) == [] or errors_in(tuple(sources)) != []
    SCHEMA.validate(as_data(MigrationReport(first)))
    assert [file.file for file in first.files] == files


@given(st.permutations(FILES[:12]))
@settings(max_examples=5, deadline=None)
def test_the_order_of_files_does_not_matter_to_each_of_them(files: list[str]) -> None:
    apart = {file: outcome(file, "everything").files[0].after for file in files}
    both = migrate([source(file) for file in files], EVERYTHING)
    for result in both.files:
        # A template that another file of the namespace has already is not written twice.
        assert len(result.after) <= len(apart[result.file])


# -- awkward ones


def test_a_file_that_is_no_yaml_is_named_with_line_and_column_and_the_others_go_on() -> None:
    names = ["awkward/invalid-indentation.yaml", "awkward/invalid-tab.yaml", "awkward/invalid-duplicate-key.yaml"]
    migration = migrate([*(source(name) for name in names), source("workloads/pod-vector-add.yaml")], CLAIMS)
    places = [(finding.place.file, finding.place.line) for finding in migration.findings if finding.code is UNREADABLE]
    assert places == [(names[0], 8), (names[1], 4), (names[2], 11)]
    messages = [finding.message for finding in migration.findings if finding.code is UNREADABLE]
    assert all(message.startswith("column ") for message in messages)
    assert [file.before != file.after for file in migration.files] == [False, False, False, True]


def test_a_file_of_five_megabytes_is_migrated_whole() -> None:
    template = source("workloads/deployment-translator.yaml").text
    documents = (template.replace("translator", f"translator-{number}") for number in itertools.count())
    text, size = [], 0
    while size < 5_000_000:
        text.append(next(documents) + "# filler " + "x" * 40_000 + "\n")
        size += len(text[-1])
    big = ManifestText("big.yaml", "---\n".join(text))
    migration = migrate([big], CLAIMS)
    assert len(migration.workloads) == len(text)
    assert migration.files[0].after.count("resourceClaimTemplateName:") == len(text)
    assert migration.files[0].after.count("# filler ") == len(text)
