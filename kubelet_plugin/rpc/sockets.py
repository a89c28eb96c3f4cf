"""Unix sockets: their names, within the kernel's limit of 108 bytes, and binding gRPC servers to them.

Two plugins of one driver serve side by side during a rolling update, so the pod's UID is part of both names. Names that
would be too long are shortened by a hash of the UID, the same way every time.
"""

import asyncio
import base64
import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from dra_driver.errors import InvalidInput, NodeNotReady

_LONGEST_PATH = 107
"""sun_path holds 108 bytes with the terminating zero. Source: unix(7)."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where a plugin instance listens: for kubelet's DRA calls and for its registration calls."""

    dra: Path
    registration: Path


def plugin_sockets(kubelet_root: Path, driver: str, pod_uid: str | None) -> Sockets:
    """The two sockets of an instance. Raises InvalidInput when even the shortest names do not fit.

    Without a pod UID the classic names are used, which leave no room for a second instance.
    """
    data, registry = kubelet_root / "plugins" / driver, kubelet_root / "plugins_registry"
    if pod_uid is None:
        names = [("dra.sock", f"{driver}-reg.sock")]
    else:
        short = _digest(pod_uid, 8)
        shortest = _digest(f"{driver}\0{pod_uid}", 16)
        names = [
            (f"dra-{pod_uid}.sock", f"{driver}-{pod_uid}-reg.sock"),
            (f"dra-{short}.sock", f"{driver}-{short}-reg.sock"),
            (f"dra-{short}.sock", f"dra-{shortest}-reg.sock"),
        ]
    for dra, registration in names:
        sockets = Sockets(data / dra, registry / registration)
        if max(len(str(sockets.dra).encode()), len(str(sockets.registration).encode())) <= _LONGEST_PATH:
            return sockets
    raise InvalidInput(
        f"unix sockets below this folder would have paths over {_LONGEST_PATH} bytes; use a shorter one",
        about=f"kubelet root {kubelet_root}",
    )


def _digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).decode().rstrip("=")


async def listen(server: grpc.aio.Server, socket: Path) -> None:
    """Serve on a socket that only root can reach; one that an earlier process left there is removed first.

    Raises NodeNotReady when the folder cannot be made or the socket not be bound.
    """
    try:
        socket.parent.mkdir(parents=True, exist_ok=True)
        remove_socket(socket)
        server.add_insecure_port(f"unix:{socket}")
        socket.chmod(0o600)
    except (OSError, RuntimeError) as error:
        raise NodeNotReady(f"cannot listen: {error}", about=f"socket {socket}") from error
    # grpc cannot be interrupted here, and one that nobody stops is stopped by its destructor, after the event loop.
    start = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await start
        await server.stop(None)
        remove_socket(socket)
        raise


def is_lost(socket: Path) -> bool:
    """Whether nobody can find the socket by its name any more."""
    return not socket.is_socket()


def remove_socket(socket: Path) -> None:
    """Remove a socket that may not be there."""
    with suppress(FileNotFoundError):
        socket.unlink()
