"""policy.md: every field of a PublishingPolicy, from the model. Meanings are the docstrings of the fields."""

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAliasType, Union, get_args, get_origin

from pydantic import BaseModel

from docs.from_code.attributes import check_names
from docs.from_code.tables import WRITTEN, code, page, table
from dra_driver.api import gpupolicy
from dra_driver.api import policy as module
from dra_driver.api.gpupolicy import GpuPolicySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute
from dra_driver.devices.limitations import LimitationCause

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


EXAMPLE = (
    "## An example",
    "The cluster is that of `dractl cluster --nodes dgx-h100,t4`, with the label `pool=ml` on the first node. A pod has"
    " one of the T4s.",
    """```yaml file=policies.yaml
apiVersion: dra.gpu/v1alpha1
kind: GpuPolicy
metadata:
  name: ml
spec:
  priority: 10
  nodes: {labelSelector: {matchLabels: {pool: ml}}}
  gpus: {products: ["NVIDIA H100*"]}
  mig: {mode: Dynamic, profiles: ["1g.*", "3g.40gb"]}
---
apiVersion: dra.gpu/v1alpha1
kind: GpuPolicy
metadata:
  name: small
spec:
  gpus: {products: ["Tesla T4"]}
  sharing:
  - {strategy: TimeSlicing, replicas: 4}
```""",
    "`dractl policy preview` shows what would change, before anything does. It also reads policies for simulated nodes"
    " (`--nodes dgx-h100:2,t4 --label pool=ml`), shows what the deletion of a policy would change"
    " (`--delete NAME`), and prints every device with `-o json`.",
    """```console
$ dractl policy preview -f policies.yaml
NODES       APPEAR   VANISH  CHANGE       WAIT
dgx-h100-1  160 mig  -       8 gpu        -
t4-1        -        -       4 gpu-share  gpu-6bb3cd12
t4-1: GPU gpu-6bb3cd12 changes because of GpuPolicy small when claims default/train-gpu-bv4kb are
gone
$ kubectl apply -f policies.yaml
gpupolicy.dra.gpu/ml created
gpupolicy.dra.gpu/small created
$ kubectl get gpupolicies
NAME    PRIORITY   NODES   GPUS   OFFERED              WAITING   FOLLOWED   AGE
ml      10         1       8      8 gpu, 160 mig       0         Followed   3s
small              1       4      1 gpu, 3 gpu-share   1         Waiting    3s
```""",
    "Three T4s are shared at once. The fourth follows when the pod is gone:",
    """```console
$ kubectl get gpupolicies
NAME    PRIORITY   NODES   GPUS   OFFERED          WAITING   FOLLOWED   AGE
ml      10         1       8      8 gpu, 160 mig   0         Followed   7s
small              1       4      4 gpu-share      0         Followed   7s
```""",
    "`dractl get policies` shows the same with the claims that each GPU waits for, and the rules that nodes cannot"
    " follow, with the fix.",
)
"""What these commands printed on that cluster."""


def policy_page() -> str:
    """The whole of policy.md."""
    examples = [re.search(r"```yaml\n.*?\n```", source.__doc__ or "", re.DOTALL) for source in (gpupolicy, module)]
    if None in examples:
        raise LookupError("the docstring of gpupolicy.py or policy.py below dra_driver/api has no example")
    live, file = (example[0] for example in examples if example is not None)
    models = list(dict.fromkeys([*_models(GpuPolicySpec), *_models(PublishingPolicy)]))
    told = {f"{model.__name__}.{name}": text for model in models for name, text in _docstrings(model).items()}
    fields = {f"{_owner(model, name)}.{alias}" for model in models for name, alias in _aliases(model)}
    check_names(fields - told.keys(), MEANINGS, "policy field")
    parts = [
        "# GpuPolicy",
        WRITTEN,
        "With GpuPolicies an administrator decides which GPUs are published, how they are partitioned and shared, and"
        " how the driver reacts to their health. [sharing.md](sharing.md) helps you choose. Without any, all GPUs of"
        " all nodes are published as whole GPUs.",
        live,
        "`kubectl apply -f FILE` is all that a change needs; nothing restarts. A policy decides what it sets, and"
        " leaves the rest to policies of lower priority; of equal priorities, the first name in the alphabet overrides"
        " the others. `attributes` of several policies are put together.",
        "## While claims use a GPU",
        "A change never takes a device away from a claim. A GPU whose devices would change stays as it is while claims"
        " use it, and has the taint `gpu.nvidia.com/policy`, so that no new claim gets it. It changes when the last"
        " of those claims is gone. Other GPUs change at once, and so do attributes and health.",
        "## What became of it",
        "`kubectl get gpupolicies` shows how many nodes and GPUs each policy selects, the devices that they offer, how"
        " many GPUs wait, and whether all nodes follow. The `status` lists the waiting GPUs with the claims that use"
        " them, and each rule that nodes cannot follow, with the reason and the command that ends it.",
        *EXAMPLE,
        "## PublishingPolicy: several rules in one file",
        "The chart's value `policy` has the fields of a PublishingPolicy, and files for `dractl` can have them."
        " `dractl policy convert FILE` prints GpuPolicies that say the same, for `kubectl apply`. The"
        " controller makes a GpuPolicy of each rule when it starts; the names begin with `installed-`, and the"
        " priorities are below -900, so that other policies override them.",
        file,
        "In `nodes` and `gpus` all given fields must match; in each list one entry must match. Names, products and"
        " UUIDs can be shell patterns.",
    ]
    parts += [
        "## What cannot be followed",
        "If the hardware or the API server cannot do what a rule requires, the node offers what it can. The `status`"
        " of its NodeInventory lists each such rule with a reason, the GPUs, a message and the fix, and its condition"
        " `PolicyFollowed` is `False`. `kubectl get nodeinventories` shows the first reason; `dractl get nodes`,"
        " `dractl doctor` and `dractl explain` show all. Events of the Node report when this begins and ends. A node"
        " that has always followed the policy has no condition. A `mig` rule without `nodes` and `gpus` applies only"
        " to GPUs that support MIG.",
        table(("Reason", "When"), [(f"`{one.reason}`", one.meaning) for one in LimitationCause]),
    ]
    for model in models:
        parts += [f"## {model.__name__}", table(("Field", "Type", "Meaning"), _rows(model, told))]
    return page(*parts)


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


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings of the fields, by alias."""
    (tree,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(tree, ast.ClassDef)
    aliases = dict(_aliases(model))
    found: dict[str, str] = {}
    for one, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            assert isinstance(after.value, ast.Constant)
            if one.target.id not in aliases:
                continue  # private
            text = " ".join(str(after.value.value).split())
            # The code's wording for a missing field.
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
