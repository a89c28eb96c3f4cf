"""LimitRanges: which lines go, and what an admission policy says instead; a server takes it in tests/contracts."""

from typing import Any

import kubernetes_validate
import pytest
from support.counting import CLAIMS, EXTENDED, LEAVE, MIG, done, workload
from support.migration import GPU, codes, documents_of, meaning_of

from dra_driver.api.meta import JsonObject
from dra_driver.migration.counts.quotas import QuotaResult, rewrite
from dra_driver.migration.model import Options, Target


def limit_range(namespace: str | None = "team", **parts: JsonObject) -> JsonObject:
    limit = {"type": "Container", "default": {"cpu": "1"}, "min": {"cpu": "1m"}}
    for part, amounts in parts.items():
        limit[part] = {**limit.get(part, {}), **amounts}  # type: ignore[dict-item] # `type` is the only text
    metadata = {"name": "l", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limit]}}


def policies(result: QuotaResult) -> dict[str, JsonObject]:
    found = [new.obj for objects in result.beside.values() for new in objects]
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "ValidatingAdmissionPolicy"}


def messages(policy: JsonObject) -> list[str]:
    return [one["message"] for one in policy["spec"]["validations"]]


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ([CLAIMS], {"team.l.gpu-limits"}),
        ([CLAIMS, EXTENDED], {"team.l.gpu-limits", "team.l.gpu-limits-of-pods"}),
        ([CLAIMS, LEAVE], {"team.l.gpu-limits", "team.l.gpu-limits-of-pods"}),
        ([], {"team.l.gpu-limits", "team.l.gpu-limits-of-pods"}),
        ([EXTENDED], set()),
        ([workload(CLAIMS, namespace="other"), workload(EXTENDED)], set()),
    ],
)
def test_lines_about_gpus_become_policies_where_there_are_claims(targets: list[Target], names: set[str]) -> None:
    before = limit_range(default={GPU: 0}, max={GPU: 4})
    after, result = done(before, *targets)
    assert after == (limit_range() if names else before)
    assert set(policies(result)) == names
    for one in (new.obj for objects in result.beside.values() for new in objects):
        kubernetes_validate.validate(one, "1.36", strict=True)
    assert codes(result.findings) == ["M014"]
    assert all(one.fixed for one in result.findings) == bool(names)


def test_the_policy_says_what_the_lines_said() -> None:
    _, result = done(limit_range(max={GPU: "4"}, min={GPU: 2}, maxLimitRequestRatio={GPU: 1}), CLAIMS)
    assert messages(policies(result)["team.l.gpu-limits"]) == [
        "LimitRange team/l: a request asks for at least 2 of class gpu.nvidia.com",
        "LimitRange team/l: a request asks for at most 4 of class gpu.nvidia.com",
    ]
    (objects,) = result.beside.values()
    assert objects[1].obj["spec"] == {
        "policyName": "team.l.gpu-limits",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}},
    }


def test_where_the_namespace_is_not_said_policies_hold_where_the_limit_range_is() -> None:
    """Its label tells: another LimitRange of the name, in another namespace, says something else."""
    asking = [workload(target, namespace="default") for target in (CLAIMS, EXTENDED)]
    after, result = done(limit_range(None, max={GPU: 4}), *asking)
    mark = after["metadata"]["labels"]["dra.gpu/limits"]
    of_claims, of_pods = policies(result).items()
    assert (of_claims[0], of_pods[0]) == (f"l.gpu-limits-{mark}", f"l.gpu-limits-{mark}-of-pods")
    objects = [new.obj for one in result.beside.values() for new in one]
    for policy, binding in (objects[:2], objects[2:]):
        kubernetes_validate.validate(policy, "1.36", strict=True)
        kubernetes_validate.validate(binding, "1.36", strict=True)
        assert policy["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "LimitRange"}
        assert binding["spec"]["paramRef"] == {
            "selector": {"matchLabels": {"dra.gpu/limits": mark}},
            "parameterNotFoundAction": "Allow",
        }
        assert "matchResources" not in binding["spec"]
    assert [one.fixed for one in result.findings] == [True]
    other, _ = done(limit_range(None, max={GPU: 5}), *asking)
    assert other["metadata"]["labels"]["dra.gpu/limits"] != mark


def test_a_minimum_of_nothing_needs_no_policy() -> None:
    after, result = done(limit_range(min={GPU: 0}), CLAIMS)
    assert (after, result.beside) == (limit_range(), {})


def test_shares_are_limited_as_such() -> None:
    shared = meaning_of("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n")
    _, result = done(limit_range(max={GPU: 2}), workload(CLAIMS, meaning=shared), meaning=shared)
    (policy,) = policies(result).values()
    assert "'shares'" in policy["spec"]["variables"][-1]["expression"]
    assert "shared.gpu.nvidia.com" in messages(policy)[0]


def test_of_several_profiles_the_widest_limit_holds() -> None:
    other = "nvidia.com/mig-2g.10gb"
    asking = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {other: 1})]
    _, result = done(limit_range(max={MIG: 7, other: 3}), *asking)
    (policy,) = policies(result).values()
    assert messages(policy) == ["LimitRange team/l: a request asks for at most 7 of class mig.nvidia.com"]
    assert any("widest" in one.advice for one in result.findings)


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        ({GPU: "many"}, "whole number"),
        ({"nvidia.com/gpumem": 5}, "nothing"),
    ],
)
def test_what_no_policy_says_is_told(amounts: JsonObject, said: str) -> None:
    after, result = done(limit_range(max=amounts), CLAIMS)
    assert (after, result.beside) == (limit_range(), {})
    told = [one for one in result.findings if not one.fixed]
    assert [said in one.message for one in told] == [True]


def test_a_default_that_gave_gpus_is_missed_by_who_relied_on_it() -> None:
    _, result = done(limit_range(default={GPU: 1}), CLAIMS)
    (said,) = result.findings
    assert (said.severity, said.fixed, "no defaults" in said.advice) == ("warning", False, True)


def test_what_was_only_given_for_what_it_says_is_not_called_done() -> None:
    (document,) = documents_of(limit_range(max={GPU: 4}))
    asking: list[Any] = [workload(CLAIMS)]
    result = rewrite([document], asking, meaning_of(), Options(), frozenset())
    assert (result.edits, result.beside) == ((), {})
    assert [(one.fixed, "given for what it says" in one.advice) for one in result.findings] == [(False, True)]


# -- what the expressions say, by Google's evaluator; tests/contracts asks a real API server


def refused(policy: JsonObject, *requests: JsonObject, template: bool = False) -> list[str]:
    """What the policy says against a claim or a template of one."""
    cel = pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")
    kind = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
    env = cel.NewEnv(variables=dict.fromkeys(("object", "request", "variables"), kind))
    spec: JsonObject = {"devices": {"requests": list(requests)} if requests else {}}
    resource = "resourceclaimtemplates" if template else "resourceclaims"
    data: dict[str, Any] = {
        "object": {"spec": {"spec": spec} if template else spec},
        "request": {"resource": {"resource": resource}},
        "variables": {},
    }
    for one in policy["spec"]["variables"]:
        data["variables"][one["name"]] = env.compile(one["expression"]).eval(data=data).plain_value()
    return [
        one["message"]
        for one in policy["spec"]["validations"]
        if not env.compile(one["expression"]).eval(data=data).plain_value()
    ]


def exactly(**terms: Any) -> JsonObject:
    return {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", **terms}}


@pytest.mark.parametrize("template", [False, True])
def test_each_request_is_held_to_the_limit_of_a_container(template: bool) -> None:
    _, result = done(limit_range(max={GPU: 4}, min={GPU: 2}), CLAIMS)
    policy = policies(result)["team.l.gpu-limits"]
    terms = [{"deviceClassName": "gpu.nvidia.com", "count": count} for count in (2, 5)]
    watching = exactly(adminAccess=True, allocationMode="All")
    for count in range(1, 9):
        assert bool(refused(policy, watching, exactly(count=count), template=template)) == (not 2 <= count <= 4)
    assert refused(policy, template=template) == []
    assert refused(policy, watching, template=template) == []
    assert refused(policy, exactly(deviceClassName="mig.nvidia.com", count=9), template=template) == []
    assert len(refused(policy, exactly(allocationMode="All"), template=template)) == 1
    assert len(refused(policy, {"name": "f", "firstAvailable": terms}, template=template)) == 1
    assert refused(policy, {"name": "f", "firstAvailable": terms[:1]}, template=template) == []
