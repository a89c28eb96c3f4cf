"""`-o jsonpath=`: what kubectl's templates mean on a list of rows."""

import pytest
from support.rows import rows

from dra_driver.errors import InvalidInput
from dra_driver.jsonpath import filled, read_template

DATA = [
    {"node": "a", "gpus": 8, "used": ["x", "y"], "m": {"free": True, "x.example/y": 1}},
    {"node": "b", "gpus": 4, "used": []},
]


@rows(
    "template, text",
    [
        ("{[*].node}", "a b"),
        ("[*].node", "a b"),
        ("{$[0].gpus}", "8"),
        ("{[-1].node}", "b"),
        ("{[9].node}", ""),
        ("{[0].used[*]}", "x y"),
        ("{[0].used}", '["x", "y"]'),
        ("{[0]['m'].free}", "true"),
        ("{[0].m.*}", "true 1"),
        (r"{[0].m.x\.example/y}", "1"),
        ("{[?(@.gpus==4)].node}", "b"),
        ("{[?(@.node!='b')].node}", "a"),
        ("{[*].nothing}", ""),
        ("nodes: {[*].node}!", "nodes: a b!"),
        ("{range [*]}{.node}={.gpus}{'\\n'}{end}", "a=8\nb=4\n"),
        ("{range [*]}{range .used[*]}<{@}>{end};{end}", "<x><y>;;"),
    ],
)
def test_a_template_is_filled_as_by_kubectl(template: str, text: str) -> None:
    assert filled(read_template(template), DATA) == text


@rows("template", ["", "{range [*]}{.node}", "{end}", "{[*].node", "{[a]}", "{.a..b}", "{'\\x'}"])
def test_what_is_not_understood_is_refused(template: str) -> None:
    with pytest.raises(InvalidInput, match="jsonpath"):
        filled(read_template(template), DATA)
