"""Unix sockets: their names, within the kernel's limit of 108 bytes, and binding gRPC servers to them.

Two plugins of one driver serve at the same time during a rolling update, so both names contain the pod's UID. Names
that would be too long contain a hash of the UID instead.
"""

import asyncio
import base64
import hashlib
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from dra_driver.errors import InvalidInput, NodeNotReady

_LONGEST_PATH = 107
"""sun_path holds 108 bytes with the terminating zero. Source: unix(7)."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """The sockets of a plugin process: for the kubelet's DRA calls and for registration."""

    dra: Path
    registration: Path


def plugin_sockets(kubelet_root: Path, driver: str, pod_uid: str | None) -> Sockets:
    """The two sockets of a plugin process. Raises InvalidInput if even the shortest names are too long. Without a pod
    UID they have the classic names, so that only one process can serve.
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


async def listen(server: grpc.aio.Server, path: Path) -> None:
    """Serves on a socket that only root can open; removes the socket of an earlier process first. Raises NodeNotReady
    if the folder or the socket cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_socket(path)
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o600)
    except (OSError, RuntimeError) as error:
        raise NodeNotReady(f"cannot listen: {error}", about=f"socket {path}") from error
    # grpc cannot be interrupted here, and without a stop its destructor would stop it, after the event loop has ended.
    start = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await start
        await server.stop(None)
        remove_socket(path)
        raise


def remove_dead(own: Sockets, driver: str) -> tuple[Path, ...]:
    """Removes and returns sockets of killed plugin processes. Raises OSError. Their pods had other UIDs, so no process
    creates these names again, and the kubelet would call them forever. A starting process listens as soon as its socket
    exists; if its socket is removed nevertheless, it notices.
    """
    candidates = (*own.dra.parent.glob("dra*.sock"), *own.registration.parent.glob(f"{driver}*-reg.sock"))
    dead = tuple(
        sorted(
            candidate
            for candidate in candidates
            if candidate not in (own.dra, own.registration) and _is_dead(candidate)
        )
    )
    for path in dead:
        remove_socket(path)
    return dead


def _is_dead(path: Path) -> bool:
    """Whether no process listens on the socket; other errors may be temporary and do not count."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def is_lost(path: Path) -> bool:
    """Whether the socket's name no longer leads to it."""
    return not path.is_socket()


def remove_socket(path: Path) -> None:
    """Removes a socket if it exists."""
    with suppress(FileNotFoundError):
        path.unlink()
