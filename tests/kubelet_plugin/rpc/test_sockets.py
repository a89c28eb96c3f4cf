"""Names of unix sockets: classic ones, ones for rolling updates, and what happens when the kernel's limit is near."""

import asyncio
from pathlib import Path

import pytest
from support.rows import rows

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.rpc.grpc_server import GrpcServer
from kubelet_plugin.rpc.servers import is_lost, plugin_sockets

POD_UID = "5a7b12c3-0000-4000-8000-0123456789ab"
DEFAULT_ROOT = Path("/var/lib/kubelet")


def test_classic_names_without_a_pod_uid() -> None:
    sockets = plugin_sockets(DEFAULT_ROOT, GPU_DRIVER, None)
    assert str(sockets.dra) == "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"
    assert str(sockets.registration) == "/var/lib/kubelet/plugins_registry/gpu.nvidia.com-reg.sock"


def test_a_pod_uid_is_in_both_names() -> None:
    sockets = plugin_sockets(DEFAULT_ROOT, GPU_DRIVER, POD_UID)
    assert sockets.dra.name == f"dra-{POD_UID}.sock"
    assert sockets.registration.name == f"gpu.nvidia.com-{POD_UID}-reg.sock"


def test_long_paths_get_a_hash_for_the_pod_uid_and_keep_the_driver_name_while_it_fits() -> None:
    root = Path("/" + "r" * 40)
    sockets = plugin_sockets(root, GPU_DRIVER, POD_UID)
    assert POD_UID not in sockets.registration.name
    assert sockets.registration.name.startswith("gpu.nvidia.com-")
    assert sockets.registration.name.endswith("-reg.sock")


def test_a_long_driver_name_goes_into_the_hash_too() -> None:
    driver = f"{'d' * 48}.example.com"
    sockets = plugin_sockets(DEFAULT_ROOT, driver, POD_UID)
    assert driver not in sockets.registration.name
    assert sockets.registration.name.startswith("dra-")


@rows("length", range(20, 70))
@rows("pod_uid", [None, POD_UID])
def test_names_always_fit_or_are_refused_with_advice(length: int, pod_uid: str | None) -> None:
    try:
        sockets = plugin_sockets(Path("/" + "r" * length), GPU_DRIVER, pod_uid)
    except InvalidInput as error:
        assert "shorter" in str(error)
        assert length > 50
    else:
        assert max(len(str(path)) for path in (sockets.dra, sockets.registration)) <= 106


def test_two_pods_never_share_a_socket_however_short_the_names_are() -> None:
    root = Path("/" + "r" * 40)
    first, second = (plugin_sockets(root, GPU_DRIVER, uid) for uid in (POD_UID, POD_UID[::-1]))
    assert first.dra != second.dra
    assert first.registration != second.registration


def test_the_same_pod_gets_the_same_names_each_time() -> None:
    root = Path("/" + "r" * 40)
    assert plugin_sockets(root, GPU_DRIVER, POD_UID) == plugin_sockets(root, GPU_DRIVER, POD_UID)


async def test_only_root_may_connect_and_a_leftover_is_replaced(folder: Path) -> None:
    socket = folder / "plugins" / "dra.sock"
    socket.parent.mkdir()
    socket.write_text("left by a killed process")
    server = GrpcServer({})
    await server.listen(socket)
    assert socket.is_socket()
    assert socket.stat().st_mode & 0o777 == 0o600
    assert not is_lost(socket)
    await server.stop(0)
    assert is_lost(socket)


async def test_a_folder_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "plugins").write_text("a file where a folder should be")
    with pytest.raises(NodeNotReady, match=r"dra\.sock"):
        await GrpcServer({}).listen(folder / "plugins" / "dra.sock")


async def test_a_start_that_is_cut_short_leaves_no_socket(folder: Path) -> None:
    socket = folder / "dra.sock"
    server = GrpcServer({})
    start = asyncio.create_task(server.listen(socket))
    await asyncio.sleep(0)
    assert socket.is_socket()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await server.stop(0)
    assert is_lost(socket)
