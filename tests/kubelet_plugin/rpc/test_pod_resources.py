"""Whom kubelet names when it is asked who has a claim, and that its silence costs nothing."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from support.claims import a_ref

from dra_driver.kube.kubelet_api import POD_RESOURCES_V1
from dra_driver.kube.kubelet_api.generated import pod_resources_v1_pb2 as messages
from kubelet_plugin.rpc.pod_resources import SOCKET, PodsOfNode

CLAIM = a_ref("gang-claim")


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


def logs_of(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (number, number))
    return folder


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / SOCKET


async def test_the_pods_whose_containers_have_the_claim_are_named_with_their_uids(socket: Path, tmp_path: Path) -> None:
    ours = ("team-a", "gang-claim")
    pods = [
        pod("b", ours, ("team-a", "other")),
        pod("a", ours),
        pod("no-log", ours),
        pod("other-claim", ("team-a", "other")),
        pod("none"),
        pod("c", ("team-b", "gang-claim"), namespace="team-b"),
    ]
    logs = logs_of(tmp_path / "logs", "team-a_a_uid-old", "team-a_a_uid-new", "team-a_b_uid-b", "team-b_a_x", "odd")
    absent = tmp_path / "not-there"
    async with kubelet(socket, *pods):
        found = await PodsOfNode([absent, socket], [absent, logs]).of(CLAIM)
    assert found == (("a", "uid-new"), ("b", "uid-b"), ("no-log", ""))


async def test_without_logs_there_are_names(socket: Path) -> None:
    async with kubelet(socket, pod("a", ("team-a", "gang-claim"))):
        assert await PodsOfNode([socket], []).of(CLAIM) == (("a", ""),)


async def test_a_kubelet_that_cannot_be_asked_names_nobody(socket: Path) -> None:
    """Not there, too many questions, nobody who listens, and no socket."""
    nobody: tuple[tuple[str, str], ...] = ()
    assert await PodsOfNode([socket], []).of(CLAIM) == nobody
    async with kubelet(socket, pod("a", ("team-a", "gang-claim")), error="rejected by rate limit"):
        assert await PodsOfNode([socket], []).of(CLAIM) == nobody
    socket.unlink(missing_ok=True)
    socket.write_text("")
    assert await PodsOfNode([socket], [], timeout_s=0.2).of(CLAIM) == nobody
