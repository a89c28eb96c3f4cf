"""What each Kubernetes has by default: its gates are those of the one table, and fields whose gate is off vanish."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from support import real_api_server
from support.api import MERGE, Api
from support.dra_objects import CLASSES, SLICES, allocation, claim, claim_spec, claims, device, request, resource_slice
from support.real_api_server import RealApiServer
from support.versions import real_minor

from dra_driver.kubernetes import GATES, SEEN, minor_of
from dra_driver.simulation.apiserver.server import SimulatedApiServer

REAL = real_api_server.ASSETS in os.environ


@pytest_asyncio.fixture(params=[*SEEN.values(), *(["real"] if REAL else [])])
async def plain(request: pytest.FixtureRequest, real_server: Callable[..., RealApiServer]) -> AsyncIterator[Api]:
    """A server whose gates nobody changed."""
    if request.param == "real":
        real = real_server({}, own_defaults=True)
        async with Api(real.url, token=real.token, ssl=real.ssl_context()) as api:
            api.minor = real_minor(real_api_server.assets_folder())
            yield api
        return
    server = SimulatedApiServer(version=request.param)
    await server.start()
    async with Api(server.url, simulated=server) as api:
        api.minor = minor_of(request.param)
        yield api
    await server.stop()


async def of_device(api: Api, name: str, **fields: Any) -> bool:
    created = await api.post(SLICES, resource_slice(name, device(**fields)))
    return created["spec"]["devices"] == [device(**fields)]


async def of_request(api: Api, name: str, asked: dict[str, Any], field: str) -> bool:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    created = await api.post(claims(name), claim("a", claim_spec(asked)))
    (stored,) = created["spec"]["devices"]["requests"]
    return field in stored or field in stored.get("exactly", {})


async def of_class(api: Api, name: str) -> bool:
    body = {"metadata": {"name": name}, "spec": {"extendedResourceName": f"{name}.example/gpu"}}
    return "extendedResourceName" in (await api.post(CLASSES, body))["spec"]


async def of_claim_status(api: Api, name: str) -> bool:
    await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    await api.post(claims(name), claim("a"))
    allocated = allocation()
    (result,) = allocated["devices"]["results"]
    devices = [{key: result[key] for key in ("driver", "pool", "device")}]
    status = {"allocation": allocated, "devices": devices}
    return "devices" in (await api.patch(f"{claims(name)}/a/status", {"status": status}, MERGE))["status"]


async def of_pod_status(api: Api, name: str) -> bool:
    await api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{name}/pods"
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    await api.post(path, {"metadata": {"name": "a"}, "spec": spec})
    health = {"name": "claim:c", "resources": [{"resourceID": "x", "health": "Healthy"}]}
    shown = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    status = {"containerStatuses": [{**shown, "allocatedResourcesStatus": [health]}]}
    changed = await api.patch(f"{path}/a/status", {"status": status}, MERGE)
    return "allocatedResourcesStatus" in changed["status"]["containerStatuses"][0]


KEPT: dict[str, Callable[[Api, str], Awaitable[bool]]] = {
    "DRADeviceTaints": lambda api, name: of_device(
        api, name, taints=[{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]
    ),
    "DRAPartitionableDevices": lambda api, name: of_device(
        api, name, consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
    ),
    "DRAConsumableCapacity": lambda api, name: of_device(api, name, allowMultipleAllocations=True),
    "DRADeviceBindingConditions": lambda api, name: of_device(
        api, name, bindsToNode=True, bindingConditions=["a"], bindingFailureConditions=["b"]
    ),
    "DRAPrioritizedList": lambda api, name: of_request(
        api, name, {"name": "a", "firstAvailable": [{"name": "s", "deviceClassName": "x"}]}, "firstAvailable"
    ),
    "DRAAdminAccess": lambda api, name: of_request(api, name, request(adminAccess=True), "adminAccess"),
    "DRAExtendedResource": of_class,
    "DRAResourceClaimDeviceStatus": of_claim_status,
    "ResourceHealthStatus": of_pod_status,
}


@pytest.mark.parametrize("gate", KEPT)
async def test_fields_of_a_feature_are_kept_where_its_gate_is_on_by_default(plain: Api, unique: str, gate: str) -> None:
    assert await KEPT[gate](plain, unique) is GATES[gate].default(plain.minor)


async def test_the_version_is_that_of_the_release(plain: Api) -> None:
    version = await plain.get("/version")
    assert version["gitVersion"].startswith(f"v1.{plain.minor}.") and version["minor"] == str(plain.minor)
    groups = {group["name"]: group for group in (await plain.get("/apis"))["groups"]}
    assert [version_["version"] for version_ in groups["resource.k8s.io"]["versions"]] == ["v1"]


_METRIC = re.compile(r'kubernetes_feature_enabled\{name="(\w+)",stage="(\w*)"\} ([01])')
_STAGES = {"": "stable", "ALPHA": "alpha", "BETA": "beta"}


@pytest.mark.skipif(not REAL, reason=f"{real_api_server.ASSETS} is not set: no real kube-apiserver to ask")
async def test_the_table_of_gates_is_that_of_the_real_server(real_server: Callable[..., RealApiServer]) -> None:
    real = real_server({}, own_defaults=True)
    async with Api(real.url, token=real.token, ssl=real.ssl_context()) as api:
        metrics = (await api.get("/metrics"))["message"]
    minor = real_minor(real_api_server.assets_folder())
    reported = {name: (_STAGES.get(stage, stage), on == "1") for name, stage, on in _METRIC.findall(metrics)}
    table = {name: (gate.stage(minor), gate.default(minor)) for name, gate in GATES.items()}
    assert {name: reported.get(name, ("absent", False)) for name in GATES} == table
