"""A kubelet that says which pods have which claims, on its PodResources socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dra_driver.kube.kubelet_api import POD_RESOURCES_V1
from dra_driver.kube.kubelet_api.generated import pod_resources_v1_pb2 as messages


def pod(name: str, *claims: tuple[str, str], namespace: str = "team-a") -> messages.PodResources:
    resources = [messages.DynamicResource(claim_namespace=where, claim_name=claim) for where, claim in claims]
    containers = [
        messages.ContainerResources(name="side"),
        messages.ContainerResources(name="main", dynamic_resources=resources),
    ]
    return messages.PodResources(name=name, namespace=namespace, containers=containers)


@asynccontextmanager
async def kubelet(socket: Path, *pods: messages.PodResources, error: str = "") -> AsyncIterator[None]:
    async def answer(_: Any, context: Any) -> messages.ListPodResourcesResponse:
        if error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error)
        return messages.ListPodResourcesResponse(pod_resources=pods)

    socket.parent.mkdir(parents=True, exist_ok=True)
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=messages.ListPodResourcesRequest.FromString,
        response_serializer=messages.ListPodResourcesResponse.SerializeToString,
    )
    server.add_registered_method_handlers(POD_RESOURCES_V1, {"List": method})
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(POD_RESOURCES_V1, {"List": method})])
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
