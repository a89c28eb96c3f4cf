"""For policy.md: every field of a GpuPolicy and of a PublishingPolicy. Meanings are the docstrings of the fields."""

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAliasType, Union, get_args, get_origin

from pydantic import BaseModel

from docs.from_code.crds import field_docstrings
from docs.from_code.tables import check_names, code, table
from dra_driver.api import gpupolicy
from dra_driver.api import policy as module
from dra_driver.api.gpupolicy import GpuPolicySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute

MEANINGS = {
    "PublishingPolicy.apiVersion": "`dra.gpu/v1alpha1`; the chart sets it.",
    "PublishingPolicy.kind": "`PublishingPolicy`; the chart sets it.",
    "PublishingPolicy.publish": "Which GPUs to publish. Default: all GPUs of all nodes.",
    "PublishingPolicy.withhold": (
        "Which GPUs not to publish; overrides `publish`. A rule without `gpus` removes the pools of its nodes."
    ),
    "PublishingPolicy.attributes": "Attributes to add to devices. If several rules set one name, the last one applies.",
    "PublishingPolicy.mig": "How GPUs are partitioned. Default: existing MIG devices are offered.",
    "PublishingPolicy.sharing": "Which GPUs or MIG devices several claims can share.",
    "PublishingPolicy.passthrough": "Which GPUs are also offered to virtual machines.",
    "PublishingPolicy.computeDomains": "What nodes offer to ComputeDomains.",
    "PublishingPolicy.health": "How the driver reacts to conditions of GPUs.",
    "Rule.nodes": "The nodes that the rule applies to. Default: all.",
    "DomainRule.nodes": "The nodes that the rule applies to. Default: all.",
    "Rule.gpus": "The GPUs that the rule applies to. Default: all.",
    "NodeSelection.names": "Names of nodes, as shell patterns. One must match.",
    "NodeSelection.labelSelector": "Labels of nodes.",
    "GpuSelection.uuids": "UUIDs, as shell patterns. One must match.",
    "GpuSelection.products": "Product names, as in the attribute `productName`, as shell patterns.",
    "LabelSelector.matchLabels": "Labels and values that must all match.",
    "LabelSelector.matchExpressions": "Requirements that must all match.",
    "LabelRequirement.key": "Key of the label.",
    "LabelRequirement.operator": "How the label's value is compared.",
    "LabelRequirement.values": "Values for `In` and `NotIn`.",
    "AttributeRule.values": (
        "Values by `name` or `domain/name`: a string, a number, true or false, or `{version: 1.2.3}`."
    ),
    "MigSettings.mode": (
        "`Static` offers existing MIG devices; `Dynamic` the whole GPU and every partition, created with their claims."
    ),
    "SharingSettings.devices": "Whether the rule is for whole GPUs or for MIG devices.",
    "SharingSettings.strategy": (
        "Whether programs take turns or run at the same time. `Exclusive`: not shared, despite earlier rules."
    ),
    "SharingSettings.replicas": "The number of equal shares.",
    "SharingSettings.capacity": ("Claims request an amount: `memory` in steps of 1Mi, `cores` in percent, 1 to 100."),
    "SharingSettings.unlimited": "Any number of claims, without limits.",
    "AttributeValue.int": "A number of 64 bits.",
    "AttributeValue.bool": "True or false.",
    "AttributeValue.string": "A text of at most 64 bytes.",
    "AttributeValue.version": "A semantic version: `1.2.3`.",
    "HealthPolicy.ignoreXids": "Xids that do not taint a GPU, in addition to application faults.",
    "HealthPolicy.escalateXids": "Xids that make a GPU unhealthy; overrides `ignoreXids`.",
    "HealthPolicy.evict": "Whether pods on an unhealthy GPU are deleted: its taints have the effect `NoExecute`.",
    "HealthPolicy.validate": "Whether a new or returned GPU is tainted until a check on its node has passed.",
}
"""Meanings of fields without a docstring."""


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
    models = list(dict.fromkeys([*_models(GpuPolicySpec), *_models(PublishingPolicy)]))
    meanings = {f"{model.__name__}.{name}": text for model in models for name, text in _meanings(model).items()}
    fields = {f"{_owner(model, name)}.{alias}" for model in models for name, alias in _aliases(model)}
    check_names(fields - meanings.keys(), MEANINGS, "policy field")
    sections = (
        f"## {model.__name__}\n\n{table(('Field', 'Type', 'Meaning'), _rows(model, meanings | MEANINGS))}"
        for model in models
    )
    return "\n\n".join(sections)


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
                    one for one in _types(field.annotation) if issubclass(one, BaseModel) and one is not Attribute
                ]


def _types(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, TypeAliasType):
        yield from _types(annotation.__value__)
    elif isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    else:
        for one in get_args(annotation):
            if get_origin(annotation) is not Literal:
                yield from _types(one)


def _aliases(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        yield name, field.alias or name


def _owner(model: type[BaseModel], name: str) -> str:
    """The class that declares the field: rules inherit `nodes` and `gpus`."""
    return next(one.__name__ for one in reversed(model.__mro__) if name in getattr(one, "__annotations__", {}))


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings of the fields, by alias, without the code's wording for a missing field."""
    return {
        alias: text.replace("None is all", "left out, all").replace("None: ", "Left out: ")
        for alias, text in field_docstrings(model).items()
    }


def _rows(model: type[BaseModel], meanings: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for name, alias in _aliases(model):
        field = model.model_fields[name]
        required = " (must be given)" if field.is_required() else ""
        text = meanings[f"{_owner(model, name)}.{alias}"]
        if isinstance(field.default, bool | str) and alias not in ("apiVersion", "kind"):
            text += f" Default: `{str(field.default).lower() if isinstance(field.default, bool) else field.default}`."
        yield f"`{alias}`{required}", _written(field.annotation), text


def _written(annotation: Any) -> str:
    """A type in users' terms."""
    if isinstance(annotation, TypeAliasType):
        return _written(annotation.__value__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return code(arguments)
    if origin in (Union, types.UnionType):
        (one,) = [argument for argument in arguments if argument is not type(None)]
        return _written(one)
    if origin is list:
        return f"list of {_written(arguments[0])}"
    if origin is dict:
        return "map of values" if arguments[1] is Attribute else f"map of {_written(arguments[1])}"
    if arguments:
        return _written(arguments[0])
    if issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {str: "string", int: "number", bool: "true or false"}[annotation]
