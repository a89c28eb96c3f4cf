"""What Kubernetes' own tests expect of a driver's registration with kubelet, and of its connection."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from support.plugin import ScriptedClaims, ScriptedHealth, eventually, running_plugin, short_folder

from dra_driver.errors import NodeNotReady, Unreachable
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import registration_pb2
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.kubelet.registry import PluginRegistry, Times
from kubelet_plugin.rpc.grpc_server import GrpcServer
from kubelet_plugin.rpc.servers import DraServer, RegistrationServer, Sockets, plugin_sockets

QUICK = Times(registry_poll_s=0.02, registration_retry_s=0.02)


@pytest.fixture
def kubelet_root() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest_asyncio.fixture
async def registry(kubelet_root: Path) -> AsyncIterator[PluginRegistry]:
    registry = PluginRegistry(kubelet_root / "plugins_registry", QUICK, lambda: None)
    task = asyncio.create_task(registry.run())
    yield registry
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_driver_registers_with_the_newest_version_of_both_services(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    async with running_plugin(kubelet_root) as plugin:
        await eventually(lambda: plugin.registrations == 1 and registry.connected_drivers())
        known = registry.newest(GPU_DRIVER)
        assert known.versions == (
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        assert known.endpoint == str(kubelet_root / "plugins" / GPU_DRIVER / "dra.sock")


async def test_a_driver_registers_again_after_a_plugin_restart(registry: PluginRegistry, kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root):
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
    await eventually(lambda: registry.drivers() == set())
    async with running_plugin(kubelet_root) as plugin:
        await eventually(lambda: plugin.registrations == 1)


async def test_a_driver_registers_again_after_a_kubelet_restart(kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root) as plugin:
        for restart in range(2):
            registry = PluginRegistry(kubelet_root / "plugins_registry", QUICK, lambda: None)
            task = asyncio.create_task(registry.run())
            await eventually(lambda expected=restart + 1: plugin.registrations == expected)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_registration_is_tried_again_after_a_failed_get_info(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    """The socket is there, but nobody answers yet: kubelet comes back."""
    socket = kubelet_root / "plugins_registry" / f"{GPU_DRIVER}-reg.sock"
    socket.parent.mkdir(parents=True, exist_ok=True)
    broken = grpc.aio.server()
    broken.add_insecure_port(f"unix:{socket}")
    await broken.start()
    await eventually(lambda: registry.failures)
    await broken.stop(0)
    socket.unlink(missing_ok=True)
    async with running_plugin(kubelet_root) as plugin:
        await eventually(lambda: plugin.registrations == 1)


async def test_registration_is_tried_again_after_a_failed_notify(registry: PluginRegistry, kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root, failures=[RuntimeError("not now")]) as plugin:
        await eventually(lambda: plugin.registrations == 1)
        assert registry.failures


async def test_the_dra_socket_may_open_after_registration(registry: PluginRegistry, kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root) as plugin:
        await plugin.registration.stop()
        await plugin.dra.stop()
        await eventually(lambda: registry.drivers() == set())
        await plugin.registration.start()
        await eventually(lambda: GPU_DRIVER in registry.drivers())
        assert registry.connected_drivers() == set()
        await plugin.dra.start()
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})


async def test_the_connection_comes_back_after_the_dra_socket_was_reopened(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    async with running_plugin(kubelet_root) as plugin:
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
        await plugin.dra.stop()
        await eventually(lambda: registry.connected_drivers() == set())
        await plugin.dra.start()
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})


async def test_kubelet_connects_before_it_reports_the_registration(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    """In a rolling update the old instance may end once the new one knows that it is registered."""
    sockets = plugin_sockets(kubelet_root, GPU_DRIVER, None)
    states = []

    def registered() -> None:
        """Holds up the event loop, so that nothing asks for the connection now; gRPC's threads work for it."""
        channel, deadline = registry.newest(GPU_DRIVER).channel, time.monotonic() + 5
        while channel.get_state() is grpc.ChannelConnectivity.IDLE and time.monotonic() < deadline:
            time.sleep(0.005)
        states.append(channel.get_state())

    calls = DraServer(sockets.dra, ScriptedClaims(), ScriptedHealth())
    registration = RegistrationServer(sockets, GPU_DRIVER, registered)
    await calls.start()
    await registration.start()
    await eventually(lambda: states)
    await registration.stop()
    await calls.stop()
    assert states[0] is not grpc.ChannelConnectivity.IDLE


async def test_one_connection_carries_all_calls_and_the_health_stream(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    claims = ScriptedClaims()
    async with running_plugin(kubelet_root, claims) as driver:
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
        plugin = registry.newest(GPU_DRIVER)
        ref = {"namespace": "default", "name": "gpu", "uid": "u1"}
        for method in ("NodePrepareResources", "NodeUnprepareResources"):
            await plugin.call(method, [ref], 5.0)
        stream = plugin.channel.unary_stream(
            f"/{kubelet_api.HEALTH_V1}/NodeWatchResources",
            request_serializer=lambda message: message,
            response_deserializer=lambda content: content,
        )(b"")
        assert await stream.read() is not None
        assert connections_to(driver.sockets.dra) == 1
        stream.cancel()
        assert claims.calls == [("prepare", ("u1",)), ("unprepare", ("u1",))]


def connections_to(socket: Path) -> int:
    """Connections that the server of a unix socket has accepted, listed by the name that it had first; state 3 is
    SS_CONNECTED.
    """
    first = socket.with_name(f".{socket.name}")
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(line[-1] == str(first) and line[5] == "03" for line in lines)


async def test_a_call_ends_with_an_error_when_the_registration_goes(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    claims = ScriptedClaims()
    claims.hold.clear()
    async with running_plugin(kubelet_root, claims):
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
        known = registry.newest(GPU_DRIVER)

        async def call() -> None:
            request = [{"namespace": "default", "name": "one", "uid": "1"}]
            await known.call("NodeUnprepareResources", request, 45.0)

        waiting = asyncio.create_task(call())
        await eventually(lambda: bool(claims.called("unprepare")))
        plugin_sockets(kubelet_root, GPU_DRIVER, None).registration.unlink()
        with pytest.raises(Unreachable, match="no longer registered"):
            await waiting
        with pytest.raises(Unreachable, match="no longer registered"):
            await call()
        claims.hold.set()


async def test_one_socket_for_registration_and_calls_works_as_well(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    """A driver may name no endpoint of its own: then kubelet calls where it registered."""
    socket = kubelet_root / "plugins_registry" / "one.sock"
    claims = ScriptedClaims()
    registration = RegistrationServer(Sockets(socket, socket), GPU_DRIVER, lambda: None)
    calls = DraServer(socket, claims, ScriptedHealth())
    server = GrpcServer({**registration.methods(), **calls.methods()})
    await server.listen(socket)
    await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
    ref = {"namespace": "default", "name": "gpu", "uid": "u1"}
    await registry.newest(GPU_DRIVER).call("NodePrepareResources", [ref], 5.0)
    assert claims.called("prepare") == [("u1",)]
    await server.stop(0)


async def test_a_second_instance_takes_over_and_the_first_serves_again_when_it_ends(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    """Rolling update: the newest connected instance is called, an older one when the newer has failed."""
    async with running_plugin(kubelet_root, pod_uid="old") as old:
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
        async with running_plugin(kubelet_root, pod_uid="new") as new:
            await eventually(lambda: registry.newest(GPU_DRIVER).endpoint == str(new.sockets.dra))
        await eventually(lambda: registry.newest(GPU_DRIVER).endpoint == str(old.sockets.dra))


async def test_what_killed_instances_left_goes_with_the_next_start_and_nothing_else_does(
    registry: PluginRegistry, kubelet_root: Path
) -> None:
    """Pods of other UIDs: nobody makes sockets of their names again, and kubelet would call them for ever."""
    of_pods, registrations = kubelet_root / "plugins" / GPU_DRIVER, kubelet_root / "plugins_registry"
    async with running_plugin(kubelet_root, pod_uid="old") as old:
        await eventually(lambda: registry.connected_drivers() == {GPU_DRIVER})
        dead = [of_pods / "dra-killed.sock", of_pods / "dra.sock", registrations / f"{GPU_DRIVER}-killed-reg.sock"]
        others = [of_pods / "other.sock", registrations / "other.example.com-reg.sock"]
        for path in (*dead, *others):
            with socket.socket(socket.AF_UNIX) as killed:
                killed.bind(str(path))
        (of_pods / "dra-notes.sock").write_text("no socket")
        async with running_plugin(kubelet_root, pod_uid="new") as new:
            await eventually(lambda: registry.newest(GPU_DRIVER).endpoint == str(new.sockets.dra))
            assert not [path for path in dead if path.exists()]
            assert all(path.exists() for path in (*others, old.sockets.dra, old.sockets.registration))
        await eventually(lambda: registry.newest(GPU_DRIVER).endpoint == str(old.sockets.dra))
    assert sorted(path.name for path in of_pods.iterdir()) == ["dra-notes.sock", "other.sock"]


async def test_a_refused_driver_says_so_and_ends(registry: PluginRegistry, kubelet_root: Path) -> None:
    """The same endpoint twice is what kubelet refuses; whoever runs the server hears of it and can end the process."""
    async with running_plugin(kubelet_root) as plugin:
        await eventually(lambda: plugin.registrations == 1)
        again = Sockets(plugin.sockets.dra, plugin.sockets.registration.with_name("again-reg.sock"))
        second = RegistrationServer(again, GPU_DRIVER, lambda: None)
        await second.start()
        with pytest.raises(NodeNotReady, match="registered already"):
            await second.watch()
        assert "registered already" in (second.problem() or "")
        await second.stop()


async def test_an_orderly_stop_is_no_lost_socket(kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root) as plugin:
        watch = asyncio.create_task(plugin.registration.watch(look_every_s=0.01))
        await plugin.registration.stop()
        await asyncio.sleep(0.05)
        assert not watch.done()
        watch.cancel()


async def test_a_driver_whose_socket_was_removed_ends(kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root) as plugin:
        plugin.sockets.dra.unlink()
        with pytest.raises(NodeNotReady, match="removed"):
            await plugin.registration.watch(look_every_s=0.01)


async def test_sockets_are_gone_after_an_orderly_stop(registry: PluginRegistry, kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root, pod_uid="a-pod") as plugin:
        assert plugin.sockets.dra.is_socket()
        assert plugin.sockets.registration.is_socket()
    assert not plugin.sockets.dra.exists()
    assert not plugin.sockets.registration.exists()


async def test_a_stale_socket_of_a_killed_plugin_is_replaced(registry: PluginRegistry, kubelet_root: Path) -> None:
    async with running_plugin(kubelet_root) as killed:
        killed.sockets.dra.touch()
        async with running_plugin(kubelet_root) as plugin:
            await eventually(lambda: plugin.registrations == 1)


async def test_get_info_says_what_the_driver_is(kubelet_root: Path) -> None:
    async with (
        running_plugin(kubelet_root, pod_uid="p") as plugin,
        grpc.aio.insecure_channel(f"unix:{plugin.sockets.registration}") as channel,
    ):
        info = await channel.unary_unary(
            f"/{kubelet_api.REGISTRATION}/GetInfo",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=registration_pb2.PluginInfo.FromString,
        )(registration_pb2.InfoRequest())
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", GPU_DRIVER, str(plugin.sockets.dra))
