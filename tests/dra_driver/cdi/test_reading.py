import json

import pytest
import yaml
from hypothesis import given, settings
from support.cdi import specs
from support.rows import examples, rows

from dra_driver.cdi.inject import decode
from dra_driver.cdi.model import CdiDevice, CdiSpec, ContainerEdits, encode, spec_of
from dra_driver.errors import InvalidInput

SOME = settings(max_examples=examples(30))
"""Each spec is large: more would take long, and find little more."""


@SOME
@given(specs())
def test_a_spec_that_somebody_wrote_in_yaml_is_read_too(spec: CdiSpec) -> None:
    text = yaml.safe_dump(json.loads(encode(spec)), explicit_start=True)
    assert decode(text) == spec


@rows(
    "text, problems",
    [
        ("", ["document: must be an object, is None"]),
        ("[]", ["document: must be an object, is []"]),
        ("a: [", ["while parsing a flow node"]),
        ("\tx", ["while scanning for the next token"]),
        ("kind: a/b\nkind: a/c", ["kind: there twice"]),
        ('{"kind": "a/b", "kind": "a/c"}', ["kind: there twice"]),
        ('{"cdiVersion": "0.5.0", "kind": "a/b"}', ["devices: is required"]),
        (
            '{"cdiVersion": 0.5, "kind": "a/b", "colour": "red", "devices": [{"containerEdits": {"mounts": [{}]}}]}',
            [
                "cdiVersion: must be a string, is 0.5",
                "devices[0].name: is required",
                "devices[0].containerEdits.mounts[0].hostPath: is required",
                "devices[0].containerEdits.mounts[0].containerPath: is required",
                "colour: unknown field",
            ],
        ),
        (
            "{cdiVersion: 0.3.0, kind: a/b, devices: [{name: c, containerEdits: "
            "{deviceNodes: [{path: x, major: '7'}]}}]}",
            ["devices[0].containerEdits.deviceNodes[0].major: must be an integer, is '7'"],
        ),
        (
            "{cdiVersion: 0.5.0, kind: a/b, devices: [{name: c, containerEdits: {env: {A: b}}}]}",
            ["devices[0].containerEdits.env: must be a list, is {'A': 'b'}"],
        ),
        ("{cdiVersion: 0.5.0, kind: a/b, devices: []}", ["devices: at least one is needed"]),
    ],
)
def test_what_is_wrong_with_a_file_is_said_all_at_once_and_with_its_path(text: str, problems: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(text, about="file x.yaml")
    assert caught.value.about == "file x.yaml"
    assert len(caught.value.problems) == len(problems)
    for expected in problems:
        assert any(message.startswith(expected) for message in caught.value.problems), caught.value.problems


def test_a_field_that_is_null_counts_as_absent() -> None:
    text = "{cdiVersion: 0.3.0, kind: a/b, containerEdits: null, devices: [{name: c, containerEdits: {env: [A=1]}}]}"
    assert decode(text) == spec_of("a/b", (CdiDevice("c", ContainerEdits(env=("A=1",))),), ContainerEdits())


def test_a_version_may_have_a_leading_v() -> None:
    text = "{cdiVersion: v0.5.0, kind: a/b, devices: [{name: c, containerEdits: {env: [A=1]}}]}"
    assert decode(text).cdi_version == "v0.5.0"
