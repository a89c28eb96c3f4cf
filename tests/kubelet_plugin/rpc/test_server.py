"""The DRA socket as kubelet meets it: real gRPC over a real unix socket, scripted claims behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc.aio
import pytest
from support.plugin import ScriptedClaims, ScriptedHealth, eventually, running_plugin

from dra_driver.errors import DeviceInUse
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2, health_v1_pb2, health_v1alpha1_pb2
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.rpc.messages import DeviceHealth

DEVICE = PreparedDevice(("gpu",), "node-1", "gpu-1", ("k8s.gpu.nvidia.com/claim=one",))
HEALTHY = DeviceHealth("node-1", "gpu-1", True, 1_700_000_000)
SICK = DeviceHealth("node-1", "gpu-1", False, 1_700_000_100, "fell off the bus")

both_health_versions = pytest.mark.parametrize(
    ("service", "messages"),
    [(kubelet_api.HEALTH_V1, health_v1_pb2), (kubelet_api.HEALTH_V1ALPHA1, health_v1alpha1_pb2)],
)


@asynccontextmanager
async def channel_to(socket: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{socket}", (("grpc.use_local_subchannel_pool", 1),)) as channel:
        yield channel


async def call(channel: grpc.aio.Channel, method: str, *uids: str) -> Any:
    request = getattr(dra_v1_pb2, f"{method}Request")(
        claims=[dra_v1_pb2.Claim(namespace="default", uid=uid, name=f"claim-{uid}") for uid in uids]
    )
    return await channel.unary_unary(
        f"/{kubelet_api.DRA_V1}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(dra_v1_pb2, f"{method}Response").FromString,
    )(request, timeout=5.0)


def health(channel: grpc.aio.Channel, service: str, messages: ModuleType) -> Any:
    return channel.unary_stream(
        f"/{service}/NodeWatchResources",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=messages.NodeWatchResourcesResponse.FromString,
    )(messages.NodeWatchResourcesRequest())


async def test_claims_are_prepared_and_released(folder: Path) -> None:
    claims = ScriptedClaims([DEVICE])
    async with running_plugin(folder, claims) as plugin, channel_to(plugin.sockets.dra) as channel:
        prepared = await call(channel, "NodePrepareResources", "u1", "u2")
        released = await call(channel, "NodeUnprepareResources", "u1", "u2")
    assert {uid: [device.device_name for device in answer.devices] for uid, answer in prepared.claims.items()} == {
        "u1": ["gpu-1"],
        "u2": ["gpu-1"],
    }
    assert {uid: answer.error for uid, answer in released.claims.items()} == {"u1": "", "u2": ""}
    assert claims.calls == [("prepare", ("u1", "u2")), ("unprepare", ("u1", "u2"))]


async def test_an_error_of_ours_is_answered_as_its_text(folder: Path) -> None:
    claims = ScriptedClaims()
    claims.failures["prepare"] = [DeviceInUse("is held by another claim", about="claim default/a")]
    async with running_plugin(folder, claims) as plugin, channel_to(plugin.sockets.dra) as channel:
        answer = await call(channel, "NodePrepareResources", "u1")
    assert answer.claims["u1"].error == "claim default/a: is held by another claim"


@pytest.mark.parametrize("method", ["NodePrepareResources", "NodeUnprepareResources"])
async def test_an_unexpected_exception_is_answered_and_the_plugin_goes_on(method: str, folder: Path) -> None:
    claims = ScriptedClaims([DEVICE])
    for failures in claims.failures.values():
        failures.append(ZeroDivisionError("a defect"))
    async with running_plugin(folder, claims) as plugin, channel_to(plugin.sockets.dra) as channel:
        first = await call(channel, method, "u1")
        second = await call(channel, method, "u1")
    assert "internal error" in first.claims["u1"].error
    assert "a defect" in first.claims["u1"].error
    assert second.claims["u1"].error == ""


async def test_calls_for_different_claims_run_side_by_side(folder: Path) -> None:
    claims = ScriptedClaims([DEVICE])
    claims.hold.clear()
    async with running_plugin(folder, claims) as plugin, channel_to(plugin.sockets.dra) as channel:
        slow = [asyncio.ensure_future(call(channel, "NodePrepareResources", uid)) for uid in ("u1", "u2")]
        await eventually(lambda: len(claims.calls) == 2)
        claims.hold.set()
        await asyncio.gather(*slow)


async def test_a_call_in_flight_is_finished_before_the_socket_closes(folder: Path) -> None:
    claims = ScriptedClaims([DEVICE])
    claims.hold.clear()
    async with running_plugin(folder, claims) as plugin, channel_to(plugin.sockets.dra) as channel:
        slow = asyncio.ensure_future(call(channel, "NodePrepareResources", "u1"))
        await eventually(lambda: claims.calls)
        stopping = asyncio.ensure_future(plugin.stop())
        await eventually(lambda: not plugin.sockets.registration.exists())
        assert not stopping.done()
        claims.hold.set()
        assert (await slow).claims["u1"].error == ""
        await stopping
    assert not plugin.sockets.dra.exists()


@both_health_versions
async def test_the_health_stream_tells_all_devices_at_once(service: str, messages: ModuleType, folder: Path) -> None:
    source = ScriptedHealth([HEALTHY])
    async with running_plugin(folder, health=source) as plugin, channel_to(plugin.sockets.dra) as channel:
        stream = health(channel, service, messages)
        async with asyncio.timeout(5):
            first = await stream.read()
        stream.cancel()
    assert [(device_health.device.device_name, device_health.health) for device_health in first.devices] == [
        ("gpu-1", messages.HEALTHY)
    ]
    assert first.devices[0].health_check_timeout_seconds == 30


@both_health_versions
async def test_the_health_stream_tells_of_a_change_at_once(service: str, messages: ModuleType, folder: Path) -> None:
    source = ScriptedHealth([HEALTHY])
    async with running_plugin(folder, health=source) as plugin, channel_to(plugin.sockets.dra) as channel:
        stream = health(channel, service, messages)
        async with asyncio.timeout(5):
            await stream.read()
            source.set(SICK)
            second = await stream.read()
        stream.cancel()
    assert [(device_health.health, device_health.message) for device_health in second.devices] == [
        (messages.UNHEALTHY, "fell off the bus")
    ]


async def test_two_health_streams_both_hear_of_a_change(folder: Path) -> None:
    source = ScriptedHealth([HEALTHY])
    async with running_plugin(folder, health=source) as plugin, channel_to(plugin.sockets.dra) as channel:
        streams = [
            health(channel, kubelet_api.HEALTH_V1, health_v1_pb2),
            health(channel, kubelet_api.HEALTH_V1ALPHA1, health_v1alpha1_pb2),
        ]
        async with asyncio.timeout(5):
            for stream in streams:
                await stream.read()
            source.set(SICK)
            for stream in streams:
                assert (await stream.read()).devices[0].message == "fell off the bus"
        for stream in streams:
            stream.cancel()


async def test_an_open_health_stream_does_not_keep_the_plugin_from_ending(folder: Path) -> None:
    source = ScriptedHealth([HEALTHY])
    async with running_plugin(folder, health=source) as plugin, channel_to(plugin.sockets.dra) as channel:
        stream = health(channel, kubelet_api.HEALTH_V1, health_v1_pb2)
        async with asyncio.timeout(5):
            await stream.read()
            await plugin.dra.stop()
            assert await stream.read() is grpc.aio.EOF
