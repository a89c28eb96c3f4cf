"""Kubelet's view of the devices' health: what the drivers' streams say, and what a pod's status shows of it.

A stream that ends makes its devices unknown, and so does one that has said nothing for as long as it asked to be
trusted. Sources: kubelet's DRA manager, Kubernetes 1.37; KEP-4680.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import grpc
import grpc.aio

from dra_driver.api.meta import JsonObject
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import health_v1_pb2, health_v1alpha1_pb2
from dra_driver.simulation.kubelet.claims import AnsweredDevice, ClaimRecord, container_devices
from dra_driver.simulation.kubelet.registry import Plugin

_WORDS = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}
_TIMEOUT_S = 30
_LONGEST_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Health:
    """`word` is Healthy, Unhealthy or Unknown."""

    word: str = "Unknown"
    message: str = ""


class NodeDeviceHealth:
    """What is known of all devices of this node. `changed` is called when it may have changed."""

    def __init__(self, changed: Callable[[], None], retry_s: float) -> None:
        self._changed = changed
        self._retry_s = retry_s
        self._known: dict[Plugin, dict[tuple[str, str], tuple[Health, float]]] = {}

    async def follow(self, plugin: Plugin) -> None:
        """Listen to one instance of a driver until cancelled, or at once when it has no health to tell."""
        service, messages = _service(plugin)
        while True:
            try:
                async for message in _stream(plugin.channel, service, messages):
                    self._learn(plugin, message)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            finally:
                if self._known.pop(plugin, None):
                    self._changed()
            await asyncio.sleep(self._retry_s)

    def of(self, driver: str, pool: str, device: str) -> Health:
        now = asyncio.get_running_loop().time()
        for plugin, devices in reversed(self._known.items()):
            health, until = devices.get((pool, device), (Health(), 0.0))
            if plugin.driver == driver and until > now:
                return health
        return Health()

    def _learn(self, plugin: Plugin, message: Any) -> None:
        loop = asyncio.get_running_loop()
        known = {}
        for item in message.devices:
            timeout_s = item.health_check_timeout_seconds or _TIMEOUT_S
            health = Health(_WORDS.get(item.health, "Unknown"), _short(item.message))
            known[item.device.pool_name, item.device.device_name] = (health, loop.time() + timeout_s)
            loop.call_later(timeout_s, self._changed)
        before = {device: health for device, (health, _) in self._known.get(plugin, {}).items()}
        self._known[plugin] = known
        if before != {device: health for device, (health, _) in known.items()}:
            self._changed()


def allocated_resources_status(
    pod: JsonObject, container: JsonObject, records: Sequence[ClaimRecord], health: NodeDeviceHealth
) -> list[JsonObject]:
    """`allocatedResourcesStatus` of one container: each claim, or request of one, that it refers to.

    A real kubelet reports nothing about the claim that was made for extended resources, and an API server refuses it.
    """
    asked = {claim["name"] for claim in (container.get("resources") or {}).get("claims") or ()}
    statuses: dict[str, list[JsonObject]] = {}
    for name, driver, device in container_devices(pod, container, records):
        if name.partition("/")[0] not in asked:
            continue
        known = health.of(driver, device.pool, device.device)
        resource: JsonObject = {"resourceID": _resource_id(driver, device), "health": known.word}
        if known.message:
            resource["message"] = known.message
        statuses.setdefault(name, []).append(resource)
    return [{"name": f"claim:{name}", "resources": resources} for name, resources in statuses.items()]


def _resource_id(driver: str, device: AnsweredDevice) -> str:
    return device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"


def _service(plugin: Plugin) -> tuple[str, ModuleType]:
    """v1 when it is offered; v1alpha1 is tried in any case, as kubelets of 1.34 to 1.36 do."""
    if kubelet_api.HEALTH_V1 in plugin.versions:
        return kubelet_api.HEALTH_V1, health_v1_pb2
    return kubelet_api.HEALTH_V1ALPHA1, health_v1alpha1_pb2


def _stream(channel: grpc.aio.Channel, service: str, messages: ModuleType) -> Any:
    return channel.unary_stream(
        f"/{service}/NodeWatchResources",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=messages.NodeWatchResourcesResponse.FromString,
    )(messages.NodeWatchResourcesRequest())


def _short(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 3] + "..."
