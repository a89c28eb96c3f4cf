"""Unix sockets: their names, within the kernel's limit of 108 bytes, and binding gRPC servers to them.

Two plugins of one driver serve side by side during a rolling update, so the pod's UID is part of both names. Names that
would be too long are shortened by a hash of the UID, the same way every time.
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


async def listen(server: grpc.aio.Server, path: Path) -> None:
    """Serve on a socket that only root can reach; one that an earlier process left there is removed first.

    Raises NodeNotReady when the folder cannot be made or the socket not be bound.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_socket(path)
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o600)
    except (OSError, RuntimeError) as error:
        raise NodeNotReady(f"cannot listen: {error}", about=f"socket {path}") from error
    # grpc cannot be interrupted here, and one that nobody stops is stopped by its destructor, after the event loop.
    start = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(start)
    except asyncio.CancelledError:
        await start
        await server.stop(None)
        remove_socket(path)
        raise


def remove_dead(own: Sockets, driver: str) -> tuple[Path, ...]:
    """Remove what instances of this driver have left that were killed; answers which. Raises OSError.

    Their pods had other UIDs, so nobody makes sockets of those names again, and kubelet would call them for ever. One
    that just starts listens as soon as its socket is there; should it be taken for dead all the same, it notices.
    """
    candidates = (*own.dra.parent.glob("dra*.sock"), *own.registration.parent.glob(f"{driver}*-reg.sock"))
    dead = tuple(sorted(one for one in candidates if one not in (own.dra, own.registration) and _is_dead(one)))
    for one in dead:
        remove_socket(one)
    return dead


def _is_dead(path: Path) -> bool:
    """Whether it is a socket that no process listens at: any other error than that may pass."""
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
    """Whether nobody can find the socket by its name any more."""
    return not path.is_socket()


def remove_socket(path: Path) -> None:
    """Remove a socket that may not be there."""
    with suppress(FileNotFoundError):
        path.unlink()
