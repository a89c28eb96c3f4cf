"""What ships with the project is clean, and nothing that is done to it makes `check` fall over or slow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rows import examples, rows
from support.shipped import classes

from dra_driver import bundled
from dra_driver.api.documents import read_documents, together
from dra_driver.checking import codes
from dra_driver.checking.check import check, policies_for
from dra_driver.checking.knowledge import Knowledge, model_names, sites_of_models
from dra_driver.cli.overview import commands

EXAMPLES = sorted(
    path for part in (bundled.FEATURES_FOLDER, bundled.APPS_FOLDER) for path in part.iterdir() if path.is_dir()
)
CLASS_FILES = sorted(bundled.DEVICE_CLASSES_FOLDER.glob("*.yaml"))
TEXTS = [path.read_text() for folder in EXAMPLES for path in sorted(folder.glob("*.yaml"))]
DOCUMENTS = [document.obj for text in TEXTS for document in read_documents(text, "f").documents]
CLASSES = classes()
FEW = Knowledge(36, sites_of_models(["a30", "t4"]), CLASSES)


@rows("folder", EXAMPLES)
def test_every_example_is_clean_by_itself(folder: Any) -> None:
    reading = together(read_documents(path.read_bytes(), path.name) for path in sorted(folder.rglob("*.yaml")))
    sites = sites_of_models((), policies_for(reading.documents))
    assert check(reading, Knowledge(36, sites, CLASSES)) == ()


def test_the_device_classes_are_clean() -> None:
    reading = together(read_documents(path.read_bytes(), path.name) for path in CLASS_FILES)
    assert check(reading, Knowledge(36, sites_of_models(()), {})) == ()


def test_the_models_are_those_of_the_simulated_profiles() -> None:
    """Otherwise run tests/dra_driver/checking/extract_models.py."""
    from dra_driver.checking import knowledge
    from tests.dra_driver.checking import extract_models

    assert extract_models.FILE.read_text() == extract_models.models()
    assert knowledge.model_names() == model_names()


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(["gpu", "gpu.nvidia.com", "All", "true", "8Gi", "device.driver == 'x'", "a/b/c", "é\n"]),
    st.just([]),
    st.just({}),
    st.just([None, 1, "x", {}, []]),
    st.just({"name": 1, "": None}),
)


def _places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path, *(place for name, item in inner for place in _places(item, (*path, name)))]


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    name, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[name] = _changed(value[name], tuple(rest), change)
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """An object of an example with some of its values replaced, renamed, doubled or taken away."""
    obj = draw(st.sampled_from(DOCUMENTS))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_places(obj)))
        kind = draw(st.sampled_from(["replace", "drop", "rename", "double", "cut"]))
        junk = draw(JUNK)
        key = draw(st.sampled_from(["name", "spec", "requests", "exactly", "cel", "zzz"]))

        def change(value: Any, kind: str = kind, junk: Any = junk, key: str = key) -> Any:
            if kind == "drop" and isinstance(value, dict | list) and value:
                return dict(list(value.items())[1:]) if isinstance(value, dict) else value[1:]
            if kind == "rename" and isinstance(value, dict) and value:
                first, *others = value.items()
                return {key: first[1], **dict(others)}
            if kind == "double" and isinstance(value, list):
                return value + value
            if kind == "cut" and isinstance(value, str):
                return value[: len(value) // 2]
            return junk

        obj = _changed(obj, path, change)
    return obj


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(mutated(), min_size=1, max_size=3), st.sampled_from([34, 35, 36, 37]), st.booleans())
def test_check_never_raises_and_every_finding_has_a_place(objects: list[Any], minor: int, as_yaml: bool) -> None:
    """Whatever is done to a manifest."""
    if as_yaml:
        text = yaml.safe_dump_all(objects, allow_unicode=True)
    else:
        text = json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}, indent=1)
    lines = text.count("\n") + 1
    for finding in check(read_documents(text, "f"), Knowledge(minor, FEW.sites, CLASSES)):
        assert 1 <= finding.line <= lines
        assert finding.column >= 1
        assert finding.message
        assert finding.code in {code.name for code in codes.CODES}


def test_the_pre_commit_hook_runs_the_command_that_there_is() -> None:
    file = Path(__file__).parents[3] / ".pre-commit-hooks.yaml"
    (hook,) = yaml.safe_load(file.read_text())
    assert hook["id"] == "dractl-check"
    assert hook["entry"].split() == ["dractl", "check"]
    assert "check" in {command.name for command in commands()}
