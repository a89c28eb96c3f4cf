"""policy.md: every field of a PublishingPolicy, as the model has it. Meanings are the strings below the fields."""

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAliasType, Union, get_args, get_origin

from pydantic import BaseModel

from docs.from_code.attributes import check_names
from docs.from_code.tables import WRITTEN, code, page, table
from dra_driver.api import policy as module
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute
from dra_driver.devices.limitations import Cause

MEANINGS = {
    "PublishingPolicy.apiVersion": "`dra.gpu/v1alpha1`; the chart writes it itself.",
    "PublishingPolicy.kind": "`PublishingPolicy`; the chart writes it itself.",
    "PublishingPolicy.publish": "Which GPUs are published. Left out: every GPU of every node.",
    "PublishingPolicy.withhold": (
        "Which are not; wins over `publish`. A rule about nodes alone takes away their pool."
    ),
    "PublishingPolicy.attributes": (
        "Attributes that are added to devices. Of several rules for one name, the last one wins."
    ),
    "PublishingPolicy.mig": "How GPUs are partitioned. Left out: what an administrator made by hand is offered.",
    "PublishingPolicy.sharing": "Which GPUs or MIG devices several claims may hold at once.",
    "PublishingPolicy.passthrough": "Which GPUs are offered to virtual machines, too.",
    "PublishingPolicy.computeDomains": "What nodes offer to ComputeDomains.",
    "PublishingPolicy.health": "What follows from the conditions of GPUs.",
    "Rule.nodes": "Of which nodes. Left out: of all.",
    "DomainRule.nodes": "Of which nodes. Left out: of all.",
    "Rule.gpus": "Which GPUs. Left out: all.",
    "NodeSelection.names": "Names of nodes; shell patterns. One is enough.",
    "NodeSelection.labelSelector": "Labels of nodes.",
    "GpuSelection.uuids": "UUIDs; shell patterns. One is enough.",
    "GpuSelection.products": "Product names, as in the attribute `productName`; shell patterns.",
    "LabelSelector.matchLabels": "All of these labels, with these values.",
    "LabelSelector.matchExpressions": "All of these conditions.",
    "LabelRequirement.key": "Of the label.",
    "LabelRequirement.operator": "How its value is compared.",
    "LabelRequirement.values": "With `In` and `NotIn`.",
    "AttributeRule.values": ("By name, or by `domain/name`: a string, a number, true or false, or `{version: 1.2.3}`."),
    "MigRule.mode": (
        "`Static` offers what exists, `Dynamic` the whole GPU and every partition, made with their claims."
    ),
    "SharingRule.devices": "Whole GPUs, or MIG devices.",
    "SharingRule.strategy": (
        "How programs take turns, or run at once. `Exclusive`: not shared, whatever rules before this one say."
    ),
    "SharingRule.replicas": "So many equal shares.",
    "SharingRule.capacity": (
        "A claim asks for as much as it needs: `memory` in steps of 1Mi, `cores` in percent, 1 to 100."
    ),
    "SharingRule.unlimited": "As many claims as come, without limits.",
    "HealthPolicy.ignoreXids": "No taint for these, besides those that only concern the program that ran.",
    "HealthPolicy.escalateXids": "These make a GPU unhealthy; wins over `ignoreXids`.",
    "HealthPolicy.evict": "Pods that use an unhealthy GPU are deleted: its taints have the effect `NoExecute`.",
    "HealthPolicy.validate": "A new or returned GPU is tainted until a check on its node has passed.",
}
"""Of fields that say nothing themselves in the code."""


def policy_page() -> str:
    """The whole of policy.md."""
    example = re.search(r"```yaml\n.*?\n```", module.__doc__ or "", re.DOTALL)
    if example is None:
        raise LookupError("dra_driver/api/policy.py: its docstring has lost the example")
    models = list(_models(PublishingPolicy))
    told = {f"{model.__name__}.{name}": text for model in models for name, text in _docstrings(model).items()}
    fields = {f"{_owner(model, name)}.{alias}" for model in models for name, alias in _aliases(model)}
    check_names(fields - told.keys(), MEANINGS, "policy field")
    parts = [
        "# PublishingPolicy",
        WRITTEN,
        "What of the nodes' hardware is published, how GPUs are partitioned and shared, and what"
        " follows from their health."
        " An administrator writes it: with the chart its fields are the value `policy`; without,"
        " `--policy FILE` of controller"
        " and plugin, who must have the same. Unknown fields are refused. [sharing.md](sharing.md)"
        " helps to choose.",
        example[0],
        "In `nodes` and `gpus` everything that is given must hold, and in each list one entry is"
        " enough. Names, products and"
        " UUIDs may be shell patterns.",
    ]
    parts += [
        "## What cannot be followed",
        "A rule may ask for what the hardware or the API server cannot do, or not yet. The node offers what it can;"
        " the `status` of its NodeInventory lists each such rule with a reason, the GPUs, a message and what ends it,"
        " and its condition `PolicyFollowed` is `False`. `kubectl get nodeinventories` shows the first reason,"
        " `dractl get nodes`, `dractl doctor` and `dractl explain` the rest, and an Event of the Node says when it"
        " begins and ends. A node of which there was never anything to say has no condition. A `mig` rule without"
        " `nodes` and `gpus` is for all GPUs that can be partitioned, and says nothing of the others.",
        table(("Reason", "When"), [(f"`{one.reason}`", one.meaning) for one in Cause]),
    ]
    for model in models:
        parts += [f"## {model.__name__}", table(("Field", "Is", ""), _rows(model, told))]
    return page(*parts)


def _models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The root, and what its fields have; each once, in the order of first use."""
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


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The string below a field, by alias."""
    (tree,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(tree, ast.ClassDef)
    aliases = dict(_aliases(model))
    found: dict[str, str] = {}
    for one, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            text = " ".join(str(after.value.value).split())
            # The code's words for a field that people leave out.
            found[aliases[one.target.id]] = text.replace("None is all", "left out, all").replace("None: ", "Left out: ")
    return found


def _rows(model: type[BaseModel], told: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for name, alias in _aliases(model):
        field = model.model_fields[name]
        key = f"{_owner(model, name)}.{alias}"
        text = told.get(key) or MEANINGS[key]
        default = (
            ""
            if field.is_required() or field.default in (None, []) or not isinstance(field.default, bool | str)
            else (f" Default: `{str(field.default).lower() if isinstance(field.default, bool) else field.default}`.")
        )
        if alias in ("apiVersion", "kind"):
            default = ""
        yield (
            f"`{alias}`" + (" (must be given)" if field.is_required() else ""),
            _written(field.annotation),
            text + default,
        )


def _written(annotation: Any) -> str:
    """A type as people know it."""
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
