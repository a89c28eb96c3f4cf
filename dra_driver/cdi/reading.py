"""Reads CDI specs from the text of spec files, JSON or YAML, and reports all problems. For readers of other programs'
files: the simulated container runtime, and tests.
"""

import json
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from dra_driver.cdi.model import CdiSpec, problems_of
from dra_driver.errors import InvalidInput


def decode(text: str | bytes, *, about: str = "CDI spec") -> CdiSpec:
    """The valid spec in a file's text, JSON or YAML; `about` names the file in errors.

    Raises InvalidInput with all problems: unknown fields, wrong types, or what `problems_of` finds.
    """
    try:
        spec = _ADAPTER.validate_json(json.dumps(_without_null(_parsed(text)), default=str))
    except (ValueError, yaml.YAMLError) as error:
        problems = _decoding_problems(error)
        raise InvalidInput(f"is invalid: {'; '.join(problems)}", about=about, problems=problems) from error
    problems = problems_of(spec)
    if problems:
        raise InvalidInput(f"is invalid: {'; '.join(problems)}", about=about, problems=problems)
    return spec


_ADAPTER = TypeAdapter(CdiSpec)


def _parsed(text: str | bytes) -> object:
    if isinstance(text, bytes):
        text = text.decode()
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError:
        return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """YAML as the reference library reads it: it rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _without_duplicates([(self.construct_object(key, deep=True), None) for key, _ in node.value])
        return super().construct_mapping(node, deep=True)


def _without_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        raise ValueError(f"{', '.join(twice)}: there twice")
    return mapping


def _without_null(value: object) -> object:
    """A null field counts as absent, as in the reference library."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _decoding_problems(error: Exception) -> tuple[str, ...]:
    if not isinstance(error, ValidationError):
        return (" ".join(str(error).split()),)
    return tuple(f"{_path(item['loc']) or 'document'}: {_sentence(item)}" for item in error.errors())


def _sentence(error: Any) -> str:
    known = {"missing": "is required", "unexpected_keyword_argument": "unknown field"}
    sentence = known.get(error["type"])
    if sentence is not None:
        return sentence
    if error["type"] == "dataclass_type":
        return f"must be an object, is {error['input']!r:.80}"
    wanted = {"string_type": "a string", "int_type": "an integer", "bool_type": "true or false", "tuple_type": "a list"}
    return f"must be {wanted.get(error['type'], error['msg'])}, is {error['input']!r:.80}"


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
