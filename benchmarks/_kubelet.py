"""The kubelet's side of a plugin's sockets, and allocated claims, for measurements."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.kube import kubelet_api
from dra_driver.kube.client import Kube
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, health_v1_pb2, registration_pb2
from dra_driver.names import CONFIG_API_VERSION, GPU_DRIVER

_POLL_S = 0.005
_REGISTERS_S = 60.0
_DEADLINE_S = 45.0
"""Of each call, as a kubelet sets it. Source: pkg/kubelet/cm/dra/plugin, defaultClientCallTimeout."""


class Kubelet:
    """Registers the GPU driver whose sockets are below `folder`, and calls it. A context manager.

    Calls block: the time that an event loop of this process would add is not the plugin's.
    """

    def __init__(self, folder: Path) -> None:
        self._registry = folder / "plugins_registry"
        self._stack = ExitStack()
        self._channel: grpc.Channel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def sees_driver(self) -> bool:
        """Whether the driver has opened its registration socket."""
        return bool(self._sockets())

    def _sockets(self) -> list[Path]:
        return sorted(self._registry.glob(f"{GPU_DRIVER}*-reg.sock"))

    def register(self) -> None:
        """Waits for the driver; then opens the health stream, too, if the driver has one. Raises TimeoutError."""
        deadline = time.monotonic() + _REGISTERS_S
        while not self.sees_driver:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no driver opened a registration socket below {self._registry}")
            time.sleep(_POLL_S)
        self._register(self._sockets()[0])

    def _register(self, socket: Path) -> None:
        with self._opened(socket) as channel:
            info = self._method(channel, kubelet_api.REGISTRATION, "GetInfo", registration_pb2.PluginInfo)(
                registration_pb2.InfoRequest(), wait_for_ready=True
            )
            answer = registration_pb2.RegistrationStatusResponse
            self._method(channel, kubelet_api.REGISTRATION, "NotifyRegistrationStatus", answer)(
                registration_pb2.RegistrationStatus(plugin_registered=True)
            )
        self._channel = self._stack.enter_context(self._opened(Path(info.endpoint)))
        if kubelet_api.HEALTH_V1 in info.supported_versions:
            self._watch_health()

    @staticmethod
    def _opened(socket: Path) -> grpc.Channel:
        # A subchannel of its own: one that has seen its server end waits before it tries again.
        return grpc.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)])

    @staticmethod
    def _method(channel: grpc.Channel, service: str, method: str, answer: Any) -> Any:
        return channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def _watch_health(self) -> None:
        stream = self._channel.unary_stream(
            f"/{kubelet_api.HEALTH_V1}/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
        )(health_v1_pb2.NodeWatchResourcesRequest())
        next(stream)
        self._stack.callback(stream.cancel)

    def call(self, method: str, claims: Sequence[JsonObject]) -> float:
        """One call, in seconds. Raises RuntimeError unless every claim comes back without an error."""
        request = getattr(dra_v1_pb2, f"{method}Request")(
            claims=[
                dra_v1_pb2.Claim(
                    namespace=claim["metadata"]["namespace"],
                    name=claim["metadata"]["name"],
                    uid=claim["metadata"]["uid"],
                )
                for claim in claims
            ]
        )
        remote = self._method(self._channel, kubelet_api.DRA_V1, method, getattr(dra_v1_pb2, f"{method}Response"))
        start = time.perf_counter()
        response = remote(request, timeout=_DEADLINE_S)
        seconds = time.perf_counter() - start
        errors = [entry.error for entry in response.claims.values() if entry.error]
        if errors or len(response.claims) != len(claims):
            raise RuntimeError(f"{method}: {errors or 'claims are missing in the answer'}")
        return seconds


async def allocated_claim(
    kube: Kube, name: str, node: str, device: str, *, share: str | None = None, config: JsonObject | None = None
) -> JsonObject:
    """A claim in the namespace `default` that has the device, and a pod. `config` is the `sharing` of a GpuConfig."""
    claim = await kube.create(
        RESOURCE_CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        },
    )
    result = {"request": "gpu", "driver": GPU_DRIVER, "pool": node, "device": device}
    if share is not None:
        result["shareID"] = share
    devices: JsonObject = {"results": [result]}
    if config is not None:
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": config}
        opaque = {"driver": GPU_DRIVER, "parameters": parameters}
        devices["config"] = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
    user = {"resource": "pods", "name": f"pod-of-{name}", "uid": claim["metadata"]["uid"]}
    status = {"allocation": {"devices": devices}, "reservedFor": [user]}
    await kube.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace="default", subresource="status")
    return claim
