"""The chart's ValidatingAdmissionPolicies, evaluated without a server: by Google's evaluator of expressions."""

from contextlib import suppress
from functools import cache
from typing import Any

from support.helm import Object, Release

_NODE = "authentication.kubernetes.io/node-name"


@cache
def _compiled(expression: str) -> Any:
    # Where it is not installed the tests that call this are skipped, and are collected all the same.
    from cel_expr_python import cel

    kind = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    return cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request", "variables"), kind)).compile(
        expression
    )


def _evaluated(expression: str, data: Object) -> Any:
    """Raises ValueError."""
    from cel_expr_python import cel

    value = _compiled(expression).eval(data=data)
    if value.type() == cel.Type.ERROR:
        raise ValueError(f"{expression}: {value}")
    return value.plain_value()


def user_info(user: str, node: str | None = None) -> Object:
    """Of a service account's token, which names a node when it is bound to a pod there."""
    return {"username": user} | ({} if node is None else {"extra": {_NODE: [node]}})


def refusing(release: Release, group: str, resource: str, request: Object, old: Object, new: Object) -> dict[str, str]:
    """Which policies refuse a request, by the last part of their names, and what each says.

    `request` has userInfo, operation, name and dryRun, as policies see it; `resource` may have a subresource.
    """
    answers: dict[str, str] = {}
    for policy in release.all("ValidatingAdmissionPolicy"):
        rules = policy["spec"]["matchConstraints"]["resourceRules"]
        if any(
            group in rule["apiGroups"] and resource in rule["resources"] and request["operation"] in rule["operations"]
            for rule in rules
        ):
            data = {"object": new, "oldObject": old, "request": request, "variables": {}}
            if messages := _refusals(policy["spec"], data):
                answers[_last_part(policy["metadata"]["name"])] = messages[0]
    return answers


def _last_part(name: str) -> str:
    return next((ending for ending in ("claim-status",) if name.endswith(ending)), name.rpartition("-")[2])


def _refusals(spec: Object, data: Object) -> list[str]:
    if not all(_evaluated(condition["expression"], data) for condition in spec["matchConditions"]):
        return []
    for variable in spec.get("variables") or ():
        # An API server evaluates those that are asked for; one that has no value is missed by whoever asks.
        with suppress(ValueError):
            data["variables"][variable["name"]] = _evaluated(variable["expression"], data)
    return [
        validation.get("message") or _evaluated(validation["messageExpression"], data)
        for validation in spec["validations"]
        # Google's evaluator does not know quantities; a real API server tries those conditions.
        if "quantity(" not in validation["expression"] and not _evaluated(validation["expression"], data)
    ]
