"""What the migration makes of LimitRanges and ResourceQuotas, on a real API server with its real controllers.

The simulated server has neither admission policies nor quotas: these tests need KUBEBUILDER_ASSETS.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import yaml
from support.api import Api, Refused
from support.real_api_server import RealApiServer

from dra_driver.api.meta import JsonObject
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Options, Source, StrategyOption

GPU = "nvidia.com/gpu"
CLASS_QUOTA = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
OLD_QUOTA = f"requests.{GPU}"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/"
_PLURALS = {"ValidatingAdmissionPolicy": "validatingadmissionpolicies",
            "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings"}  # fmt: skip
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


@pytest_asyncio.fixture
async def api(real_server: Callable[..., RealApiServer]) -> AsyncIterator[Api]:
    real = real_server({})
    async with Api(real.url, token=real.token, ssl=real.ssl_context(), has_controllers=real.has_controllers) as api:
        yield api


def migrated(*objects: JsonObject, **options: Any) -> list[JsonObject]:
    text = yaml.safe_dump_all(objects)
    given = Options(strategy=StrategyOption.CLAIMS, kubernetes_minor=36, **options)
    found = migrate([Source("a.yaml", text)], given)
    return [one for one in yaml.safe_load_all(found.files[0].after) if one is not None]


def pod(name: str, amount: int | None = None, **container: Any) -> JsonObject:
    if amount is not None:
        container["resources"] = {"limits": {GPU: amount}}
    spec = {"containers": [{"name": "c", "image": "i", **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def claim(name: str, *requests: JsonObject) -> JsonObject:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}


def exactly(count: int | None, name: str = "r", class_of: str = "gpu.nvidia.com", **more: Any) -> JsonObject:
    number = {"count": count} if count is not None else {}
    return {"name": name, "exactly": {"deviceClassName": class_of, **number, **more}}


def first(*counts: int, name: str = "f", class_of: str = "gpu.nvidia.com") -> JsonObject:
    terms = [{"name": f"n{n}", "deviceClassName": class_of, "count": count} for n, count in enumerate(counts)]
    return {"name": name, "firstAvailable": terms}


# -- LimitRange


def limit_range(namespace: str | None, *limits: JsonObject) -> JsonObject:
    metadata = {"name": "limits", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": list(limits)}}


async def applied(
    api: Api, namespace: str, *limits: JsonObject, old: bool = False, probe: JsonObject | None = None,
    said_in_file: bool = True, **options: Any,
) -> None:  # fmt: skip
    """The LimitRange as it becomes, with its policies, in force."""
    asking = [{**pod("new", 1), "metadata": {"name": "new", **({"namespace": namespace} if said_in_file else {})}}]
    given = limit_range(namespace if said_in_file else None, *limits)
    objects = migrated(given, *([] if old else asking), **options)
    for one in objects:
        if one["kind"] in _PLURALS:
            await api.post(f"{_POLICIES}{_PLURALS[one['kind']]}", one, fieldValidation="Strict")
        elif one["kind"] == "LimitRange":
            await api.post(f"/api/v1/namespaces/{namespace}/limitranges", one, fieldValidation="Strict")

    async def in_force() -> bool:
        return "Forbidden" in await said(api, namespace, claim("probe", probe or exactly(33)))

    await api.eventually(in_force)


async def said(api: Api, namespace: str, obj: JsonObject, *, template: bool = False) -> str:
    """Why it is refused; empty: it is taken. Nothing is kept."""
    path = _CLAIMS.format(namespace)
    if template:
        path = path.replace("resourceclaims", "resourceclaimtemplates")
        obj = {"metadata": obj["metadata"], "spec": {"spec": obj["spec"]}}
    try:
        await api.post(path, obj, dryRun="All")
    except Refused as refusal:
        return f"{refusal.reason}: {refusal.message}"
    return ""


async def test_claims_and_templates_are_held_to_what_a_limit_range_said(api: Api, unique: str) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    await applied(
        api, unique, {"type": "Container", "default": {GPU: 0}, "max": {GPU: 4}, "min": {GPU: 2}},
        {"type": "Pod", "max": {GPU: 6}},
    )  # fmt: skip
    taken = [
        claim("a", exactly(4)),
        claim("b", exactly(2), exactly(4, "s")),
        claim("c", first(2, 4)),
        claim("d", exactly(1, class_of="mig.nvidia.com")),
        claim("e", exactly(9, class_of="mig.nvidia.com"), exactly(3, "s")),
    ]
    refused = {
        "a request asks for at most 4": [
            claim("a", exactly(5)),
            claim("b", exactly(None, allocationMode="All")),
            claim("c", first(2, 5)),
        ],
        "a request asks for at least 2": [claim("d", exactly(1)), claim("e", exactly(None)), claim("f", first(4, 1))],
        "a claim asks for at most 6": [
            claim("g", exactly(4), exactly(4, "s")),
            claim("h", exactly(4), first(2, 3)),
        ],
    }
    for template in (False, True):
        for one in taken:
            assert await said(api, unique, one, template=template) == "", one
        for message, claims in refused.items():
            for one in claims:
                assert message in await said(api, unique, one, template=template), one
    assert await said(api, "default", claim("a", exactly(5))) == "", "the policy is of one namespace"


async def test_where_no_file_says_the_namespace_limits_hold_where_the_limit_range_is(api: Api, unique: str) -> None:
    other = f"{unique}-other"
    for namespace in (unique, other):
        await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    await applied(api, unique, {"type": "Container", "max": {GPU: 4}}, said_in_file=False)
    await applied(api, other, {"type": "Container", "max": {GPU: 8}}, said_in_file=False)
    assert await said(api, unique, claim("a", exactly(4))) == await said(api, other, claim("a", exactly(8))) == ""
    assert "at most 4" in await said(api, unique, claim("a", exactly(5)))
    assert "at most 8" in await said(api, other, claim("a", exactly(9)), template=True)
    assert await said(api, "default", claim("a", exactly(33))) == "", "no LimitRange is there"


async def test_who_watches_takes_nothing_from_a_limit(api: Api, unique: str) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique, "labels": labels}})
    await applied(api, unique, {"type": "Container", "max": {GPU: 2}})
    watching = exactly(None, adminAccess=True, allocationMode="All")
    assert await said(api, unique, claim("a", watching)) == ""
    assert "at most 2" in await said(api, unique, claim("b", watching, exactly(3, "s")))


async def test_the_largest_claims_are_not_too_much_for_the_policy(api: Api, unique: str) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    await applied(api, unique, {"type": "Container", "max": {GPU: 2}}, {"type": "Pod", "max": {GPU: 32}})
    requests = [first(*[1] * 8, name=f"r{number}") for number in range(32)]
    assert await said(api, unique, claim("a", *requests)) == ""
    requests[-1] = first(*[1] * 7, 2, name="last")
    assert "a claim asks for at most 32" in await said(api, unique, claim("b", *requests))


async def test_shares_are_held_to_it_as_such(api: Api, unique: str) -> None:
    def shares(count: int, number: int | None, name: str = "r") -> JsonObject:
        more = {} if number is None else {"capacity": {"requests": {"shares": str(number)}}}
        return exactly(count, name, "shared.gpu.nvidia.com", **more)

    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    limits = [{"type": "Container", "max": {GPU: 3}}, {"type": "Pod", "max": {GPU: 4}}]
    await applied(api, unique, *limits, probe=shares(1, 9), replicas=4, sharing_strategy="time-slicing")
    for one in (claim("a", shares(1, 3)), claim("b", shares(3, None)), claim("c", shares(1, 2), shares(2, 1, "s"))):
        assert await said(api, unique, one) == "", one
    assert "a request asks for at most 3" in await said(api, unique, claim("d", shares(2, 2)))
    assert "a claim asks for at most 4" in await said(api, unique, claim("e", shares(1, 3), shares(1, 2, "s")))


async def test_pods_that_stay_with_the_resource_are_held_to_it_as_before(api: Api, unique: str) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    await applied(api, unique, {"type": "Container", "max": {GPU: 4}}, {"type": "Pod", "min": {GPU: 2}}, old=True)
    path = f"/api/v1/namespaces/{unique}/pods"
    for amount in (None, 0, 2, 4):
        made = await api.post(path, pod("p", amount), dryRun="All")
        given = made["spec"]["containers"][0]["resources"].get("limits", {})
        assert given == ({} if amount is None else {GPU: str(amount)})
    for amount, why in ((5, "at most 4"), (1, "at least 2")):
        refusal = await api.refused("POST", path, pod("p", amount), dryRun="All")
        assert why in refusal.message


async def test_a_limit_that_stayed_would_give_gpus_to_pods_that_have_claims(api: Api, unique: str) -> None:
    """Why all lines go: a maximum is a default, too."""
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    stayed = limit_range(unique, {"type": "Container", "max": {GPU: 4}})
    await api.post(f"/api/v1/namespaces/{unique}/limitranges", stayed)

    async def given() -> bool:
        made = await api.post(f"/api/v1/namespaces/{unique}/pods", pod("p"), dryRun="All")
        return bool(made["spec"]["containers"][0]["resources"].get("limits") == {GPU: "4"})

    await api.eventually(given)


# -- ResourceQuota


def quota(namespace: str, hard: dict[str, int]) -> JsonObject:
    metadata = {"name": "q", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


async def used(api: Api, namespace: str) -> dict[str, str]:
    status = (await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/q")).get("status", {})
    return dict(status.get("used", {}))


async def until_used(api: Api, namespace: str, wanted: dict[str, str]) -> None:
    found: dict[str, str] = {}
    for _ in range(400):
        found = await used(api, namespace)
        if found == wanted:
            return
        await asyncio.sleep(0.05)
    assert found == wanted


@pytest.fixture
def controllers(api: Api) -> None:
    """One of them counts what quotas use."""
    api.needs_controllers()


async def with_class(api: Api) -> None:
    """The class of whole GPUs, which answers to the extended resource."""
    spec = {"extendedResourceName": GPU, "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
    try:
        await api.post("/apis/resource.k8s.io/v1/deviceclasses", {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec})
    except Refused as refusal:
        assert refusal.status == 409


@pytest.mark.usefixtures("controllers")
async def test_a_quota_counts_claims_as_the_report_says(api: Api, unique: str) -> None:
    await with_class(api)
    await api.post("/api/v1/namespaces", {"metadata": {"name": unique}})
    (migrated_quota,) = migrated(quota(unique, {OLD_QUOTA: 8}))
    hard = migrated_quota["spec"]["hard"]
    assert {key: str(value) for key, value in hard.items()} == {OLD_QUOTA: "8", CLASS_QUOTA: "8"}
    await api.post(f"/api/v1/namespaces/{unique}/resourcequotas", migrated_quota, fieldValidation="Strict")
    await until_used(api, unique, {OLD_QUOTA: "0", CLASS_QUOTA: "0"})
    claims = _CLAIMS.format(unique)

    await api.post(claims, claim("two", exactly(2)))
    await until_used(api, unique, {OLD_QUOTA: "2", CLASS_QUOTA: "2"})
    await api.post(claims, claim("first", first(1, 2), first(3, name="g", class_of="mig.nvidia.com")))
    await until_used(api, unique, {OLD_QUOTA: "4", CLASS_QUOTA: "4"})
    refusal = await api.refused("POST", claims, claim("all", exactly(None, allocationMode="All")))
    assert "exceeded quota" in refusal.message

    # A pod with the extended resource, and the claim that the scheduler makes for it: each is counted once.
    made = await api.post(f"/api/v1/namespaces/{unique}/pods", pod("old", 3))
    await until_used(api, unique, {OLD_QUOTA: "7", CLASS_QUOTA: "4"})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "old", "uid": made["metadata"]["uid"], "controller": True}
    special = claim("special", exactly(3))
    special["metadata"] |= {
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [owner],
    }  # fmt: skip
    await api.post(claims, special)
    await until_used(api, unique, {OLD_QUOTA: "7", CLASS_QUOTA: "7"})
    refusal = await api.refused("POST", claims, claim("more", exactly(2)))
    assert "exceeded quota" in refusal.message
