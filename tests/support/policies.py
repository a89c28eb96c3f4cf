"""The chart's ValidatingAdmissionPolicies, evaluated without a server: by Google's evaluator of expressions."""

from contextlib import suppress
from typing import Any

from support.helm import Object, Release

_NODE = "authentication.kubernetes.io/node-name"


def _evaluated(expression: str, data: Object) -> Any:
    """Raises ValueError."""
    # Where it is not installed the tests that call this are skipped, and are collected all the same.
    from cel_expr_python import cel

    kind = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    environment = cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request", "variables"), kind))
    value = environment.compile(expression).eval(data=data)
    if value.type() == cel.Type.ERROR:
        raise ValueError(f"{expression}: {value}")
    return value.plain_value()


def refusals(
    release: Release,
    policy: str,
    user: str,
    node: str | None,
    *,
    operation: str = "CREATE",
    dry_run: bool = False,
    **objects: Object,
) -> list[str]:
    """What the policy says against a request for the object `new`, `old`, or both; empty lets it through."""
    (found,) = [one for one in release.all("ValidatingAdmissionPolicy") if one["metadata"]["name"].endswith(policy)]
    spec = found["spec"]
    info: Object = {"username": user} | ({} if node is None else {"extra": {_NODE: [node]}})
    named = next(iter(objects.values()))["metadata"]["name"]
    data: Object = {
        "object": objects.get("new", {}),
        "oldObject": objects.get("old", {}),
        "request": {"userInfo": info, "operation": operation, "name": named, "dryRun": dry_run},
        "variables": {},
    }
    operations = {one for rule in spec["matchConstraints"]["resourceRules"] for one in rule["operations"]}
    assert operation in operations, f"{policy} is not asked about {operation}"
    if not all(_evaluated(one["expression"], data) for one in spec["matchConditions"]):
        return []
    for one in spec.get("variables") or ():
        # An API server evaluates those that are asked for; one that has no value is missed by whoever asks.
        with suppress(ValueError):
            data["variables"][one["name"]] = _evaluated(one["expression"], data)
    return [
        one.get("message") or _evaluated(one["messageExpression"], data)
        for one in spec["validations"]
        # Google's evaluator does not know quantities; the tests on a real API server try those conditions.
        if "quantity(" not in one["expression"] and not _evaluated(one["expression"], data)
    ]
