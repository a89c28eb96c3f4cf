"""How many pods an object makes of a pod that it describes. Pure.

Every kind says it in one of a few fields, in a map around the pod: so they are looked for on the way to it, and
multiplied where there are several, as in a JobSet. What autoscalers make of it later is not known here.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from dra_driver.migration.model import Path, PodSpecAt, value_at

_FACTORS = ("replicas", "instances", "numNodes", "minReplicas")
_ONLY_TEMPLATES = frozenset(
    (
        "ClusterServingRuntime",
        "ClusterTrainingRuntime",
        "ClusterWorkflowTemplate",
        "PodTemplate",
        "ServingRuntime",
        "Template",
        "TrainingRuntime",
        "WorkflowTemplate",
    )
)
"""Kinds of which nothing runs until something else names them."""


def copies_of(pod: PodSpecAt) -> int:
    """At most how many run at a time. Of a DaemonSet, which has one on each of its nodes, 1; of a patch 0: the object
    that it is for counts."""
    if pod.patch or pod.document.kind in _ONLY_TEMPLATES:
        return 0
    number = 1
    count = _in_role_group if pod.document.kind.startswith("RoleBasedGroup") else _factor
    for length in range(len(pod.path) + 1):
        around = value_at(pod.document.obj, pod.path[:length])
        if isinstance(around, dict):
            number *= count(around, pod.path[length:])
    return number


def _factor(around: Mapping[str, Any], rest: tuple[str | int, ...]) -> int:
    """What one map on the way says; `rest` is the way that goes on from it."""
    # `parallelism` of an Argo workflow is a limit, and stands in no map with a `template`.
    if rest[:1] == ("template",) and "replicas" not in around and "parallelism" in around:
        completions = _number(around.get("completions"), None)
        parallel = _number(around["parallelism"], 1)
        return min(parallel, completions) if completions is not None else parallel
    if rest[:1] == ("leaderWorkerTemplate",):
        return _number(around.get("replicas"), 1) * _in_a_group(around["leaderWorkerTemplate"], rest[1:])
    return next((_number(around[name], 1) for name in _FACTORS if name in around), 1)


def _in_a_group(group: Mapping[str, Any], rest: tuple[str | int, ...]) -> int:
    """Of a LeaderWorkerSet: the leader is made of the workers' template where it has none of its own."""
    if rest[:1] != ("workerTemplate",):
        return 1
    return max(_number(group.get("size"), 1) - ("leaderTemplate" in group), 0)


def _in_role_group(around: Mapping[str, Any], rest: Path) -> int:
    """Of a RoleBasedGroup or a set of such: what one map on the way says, or all roles that name a template."""
    if rest[:1] == ("roleTemplates",):
        roles = around.get("roles")
        name = value_at(around, (*rest[:2], "name"))
        return sum(_by_reference(one, name) for one in roles) if isinstance(roles, list) else 0
    beside = around.get("leaderWorkerSet") if rest[:1] in (("template",), ("templateRef",)) else None
    size = _number(beside.get("size"), 1) if isinstance(beside, dict) else 1
    return _number(around.get("replicas"), 1) * _number(around.get("size"), 1) * size


def _by_reference(role: object, template: object) -> int:
    for path in (("templateRef",), ("standalonePattern", "templateRef"), ("leaderWorkerPattern", "templateRef")):
        if template is not None and value_at(role, (*path, "name")) == template:
            return prod(_in_role_group(value_at(role, path[:length]), path[length:]) for length in range(len(path)))
    return 0


def _number[D: (int, None)](value: object, default: D) -> int | D:
    """Booleans and text that a template engine fills in are no numbers."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
