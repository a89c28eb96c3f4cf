"""docs/quotas.md is right about what a real API server counts. Needs KUBEBUILDER_ASSETS, with kube-controller-manager.

The simulated server keeps quotas, and limits nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
import yaml
from support.api import Api
from support.pages import DOCS, blocks

_NUMBERS = count()
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


async def limited(api: Api, namespace: str, quota: dict[str, Any]) -> None:
    """Makes the namespace with the quota, and waits until the API server has taken notice of its limits."""
    if api.simulated is not None or not api.has_controllers:
        pytest.skip("only a real API server with kube-controller-manager counts")
    await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    await api.post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    for _ in range(600):
        obj = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/{quota['metadata']['name']}")
        if (obj.get("status") or {}).get("hard") == quota["spec"]["hard"]:
            break
        await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def namespace(api: Api, unique: str) -> AsyncIterator[str]:
    """One with the quota of the page."""
    (block,) = [candidate for candidate in blocks(DOCS / "quotas.md") if candidate.file == "quota.yaml"]
    await limited(api, unique, yaml.safe_load(block.text))
    yield unique
    await api.delete(f"/api/v1/namespaces/{unique}")


def claim(name: str, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests)}}}


def exactly(name: str, device_class: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


async def asked(api: Api, namespace: str, *requests: dict[str, Any], keep: bool = False) -> str:
    """What the server says of a claim that asks for this: empty when it takes it."""
    try:
        made = await api.post(CLAIMS.format(namespace), claim(f"c-{next(_NUMBERS)}", *requests))
    except Exception as refusal:
        return str(getattr(refusal, "message", refusal))
    if not keep:
        await api.delete(f"{CLAIMS.format(namespace)}/{made['metadata']['name']}")
    return ""


async def test_devices_are_counted_by_class_when_the_claim_is_created(api: Api, namespace: str) -> None:
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    message = await asked(api, namespace, exactly("a", "gpu.nvidia.com", count=5))
    assert f"exceeded quota: gpus, requested: {key}=5, used: {key}=0, limited: {key}=4" in message
    all_of_them = exactly("a", "gpu.nvidia.com", allocationMode="All")
    assert f"requested: {key}=32" in await asked(api, namespace, all_of_them)
    vfio = exactly("a", "vfio.gpu.nvidia.com")
    assert "exceeded quota" in await asked(api, namespace, vfio)
    assert await asked(api, namespace, exactly("a", "isolated.gpu.nvidia.com", count=20)) == "", "not limited"
    assert await asked(api, namespace, exactly("a", "gpu.nvidia.com", count=3), keep=True) == ""
    assert f"requested: {key}=2, used: {key}=3" in await asked(
        api, namespace, exactly("a", "gpu.nvidia.com"), exactly("b", "gpu.nvidia.com")
    )


async def test_of_alternatives_each_class_counts_with_its_largest_choice(api: Api, namespace: str) -> None:
    def choice(name: str, device_class: str, count: int) -> dict[str, Any]:
        return {"name": name, "deviceClassName": device_class, "count": count}

    among = {
        "name": "a",
        "firstAvailable": [
            choice("whole", "gpu.nvidia.com", 5),
            choice("two", "gpu.nvidia.com", 2),
            choice("parts", "mig.nvidia.com", 9),
        ],
    }
    message = await asked(api, namespace, among)
    assert "gpu.nvidia.com.deviceclass.resource.k8s.io/devices=5" in message
    assert "mig.nvidia.com.deviceclass.resource.k8s.io/devices=9" in message


async def test_claims_count_as_the_extended_resource_of_their_class(api: Api, unique: str) -> None:
    key = f"requests.example.com/{unique}"
    await limited(api, unique, {"metadata": {"name": "gpus"}, "spec": {"hard": {key: "4"}}})
    before = await asked(api, unique, exactly("a", unique, count=5))
    assert before == "", "no such class yet"
    extended = {"metadata": {"name": unique}, "spec": {"extendedResourceName": f"example.com/{unique}"}}
    made = await api.post("/apis/resource.k8s.io/v1/deviceclasses", extended)
    try:
        if "extendedResourceName" not in made["spec"]:
            pytest.skip("this API server has DRAExtendedResource off")
        refusal = f"exceeded quota: gpus, requested: {key}=5, used: {key}=0, limited: {key}=4"
        for _ in range(100):  # until the API server has seen the class
            if refusal in (answer := await asked(api, unique, exactly("a", unique, count=5))):
                break
            await asyncio.sleep(0.1)
        assert refusal in answer
        assert await asked(api, unique, exactly("a", unique, count=3), keep=True) == ""
        assert f"used: {key}=3" in await asked(api, unique, exactly("a", unique), exactly("b", unique))
    finally:
        await api.delete(f"/apis/resource.k8s.io/v1/deviceclasses/{unique}")
