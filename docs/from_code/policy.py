"""For policy.md: every field of a GpuPolicy and of a PublishingPolicy. Meanings are the docstrings of the fields."""

import re
import types
from collections.abc import Iterator
from typing import Any, Literal, TypeAliasType, Union, get_args, get_origin

from pydantic import BaseModel

from docs.from_code.crds import field_docstrings
from docs.from_code.tables import table
from dra_driver.api import gpupolicy
from dra_driver.api import policy as module
from dra_driver.api.gpu_settings import Strict
from dra_driver.api.gpupolicy import GpuPolicySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute
from dra_driver.phrases import listed


def gpupolicy_example() -> str:
    return _example(gpupolicy)


def publishingpolicy_example() -> str:
    return _example(module)


def _example(source: types.ModuleType) -> str:
    """The example in the docstring of a module."""
    example = re.search(r"```yaml\n.*?\n```", source.__doc__ or "", re.DOTALL)
    if example is None:
        raise LookupError(f"the docstring of {source.__name__} has no example")
    return example[0]


def policy_fields() -> str:
    """A section for each model."""
    models = dict.fromkeys([*_models(GpuPolicySpec), *_models(PublishingPolicy)])
    heads = ("Field", "Type", "Meaning")
    return "\n\n".join(f"## {model.__name__}\n\n{table(heads, _rows(model))}" for model in models)


def _models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The root model and the models of its fields; each once, in the order of first use."""
    seen: list[type[BaseModel]] = []
    waiting = [root]
    while waiting:
        model = waiting.pop(0)
        if model not in seen:
            seen.append(model)
            yield model
            for field in model.model_fields.values():
                waiting += [
                    type_
                    for type_ in _types(field.annotation)
                    if issubclass(type_, BaseModel) and type_ is not Attribute
                ]


def _types(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, TypeAliasType):
        yield from _types(annotation.__value__)
    elif isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    else:
        for argument in get_args(annotation):
            if get_origin(annotation) is not Literal:
                yield from _types(argument)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings of all fields, by alias, without the code's wording for a missing field."""
    bases = (base for base in reversed(model.__mro__) if issubclass(base, Strict))
    return {
        alias: text.replace("None is all", "left out, all").replace("None: ", "Left out: ")
        for base in bases
        for alias, text in field_docstrings(base).items()
    }


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Raises KeyError for a field without a docstring."""
    meanings = _meanings(model)
    for name, field in model.model_fields.items():
        alias = field.alias or name
        required = " (must be given)" if field.is_required() else ""
        text = meanings[alias]
        if isinstance(field.default, bool | str) and alias not in ("apiVersion", "kind"):
            text += f" Default: `{str(field.default).lower() if isinstance(field.default, bool) else field.default}`."
        yield f"`{alias}`{required}", _written(field.annotation), text


def _written(annotation: Any) -> str:
    """A type in users' terms."""
    if isinstance(annotation, TypeAliasType):
        return _written(annotation.__value__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return listed(arguments)
    if origin in (Union, types.UnionType):
        (inner_type,) = [argument for argument in arguments if argument is not type(None)]
        return _written(inner_type)
    if origin is list:
        return f"list of {_written(arguments[0])}"
    if origin is dict:
        return "map of values" if arguments[1] is Attribute else f"map of {_written(arguments[1])}"
    if arguments:
        return _written(arguments[0])
    if issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {str: "string", int: "number", bool: "true or false"}[annotation]
