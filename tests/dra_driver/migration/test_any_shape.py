"""Manifests in which anything stands anywhere: read without an error, and nothing is taken out that is not there."""

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.migration import documents_of, there
from support.rows import examples

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import value_at
from dra_driver.migration.counts.quotas import rewrite
from dra_driver.migration.demands import reading
from dra_driver.migration.model import Choice, MigratedWorkload, MigrationTarget, Options
from dra_driver.migration.read.kinds import pods_of
from dra_driver.migration.understand import surroundings

_FOLDER = Path(__file__).parent / "manifests"
_JUNK: list[Any] = [None, 5, -1.5, True, "", "x", "nvidia.com/gpu", [], {}, [5], [None], [[]], {"a": 5}, {"name": None}]
_OPTIONS = [
    Options(),
    Options(share_visible_all=True, remove_runtime_class=True),
    Options(mig_strategy="single", mig_profile="1g.5gb", several_shares="devices", dynamic_mig=True, replicas=4),
]


@cache
def _objects() -> tuple[JsonObject, ...]:
    """Of the manifests that speak of GPUs."""
    manifests: list[JsonObject] = []
    for folder in ("sharing", "placement", "settings", "platform", "quotas", "workloads"):
        for path in sorted((_FOLDER / folder).glob("*.yaml")):
            manifests += [document.obj for document in read_documents(path.read_bytes(), path.name).documents]
    return tuple(manifests)


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from _places(inner, (*path, key))


@st.composite
def _spoilt(draw: st.DrawFn) -> JsonObject:
    obj = copy.deepcopy(draw(st.sampled_from(_objects())))
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([place for place in _places(obj) if place not in (("apiVersion",), ("kind",))]))
        value_at(obj, place[:-1])[place[-1]] = copy.deepcopy(draw(st.sampled_from(_JUNK)))
    return obj


@settings(max_examples=examples(60))
@given(st.lists(_spoilt(), min_size=1, max_size=3), st.sampled_from(_OPTIONS))
def test_anything_may_stand_anywhere(objects: list[JsonObject], options: Options) -> None:
    documents = documents_of(*objects)
    meaning = surroundings.read(documents, options)
    workloads = []
    for document in documents:
        for pod in pods_of(document, options):
            pod_reading = reading.demands(pod, meaning, options)
            assert there(document.obj, pod_reading)
            workloads.append(MigratedWorkload(pod, pod_reading, Choice(MigrationTarget.CLAIMS, "as the test has it.")))
    result = rewrite(documents, workloads, meaning, options, documents)
    findings = [
        *meaning.findings,
        *result.findings,
        *(finding for work in workloads for finding in work.reading.findings),
    ]
    assert all(finding.message and finding.place.line >= 1 for finding in findings)
