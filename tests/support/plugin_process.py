"""Real plugin processes against a simulated API server, and kubelet's calls to them over the unix socket."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from dra_driver.kube.kubelet_api.generated import dra_v1_pb2 as dra
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.simulation.host import SimulatedHost, open_host

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
_START_TIMEOUT_S = 30.0
_DEADLINE_S = 45.0

type Device = tuple[tuple[str, ...], str, str, tuple[str, ...]]
"""Request names, pool, device and CDI ids."""


class Died(Exception):
    """The plugin ended before it answered."""


class PluginForks:
    """Starts plugin processes in milliseconds; an async context manager."""

    async def __aenter__(self) -> Self:
        root = Path(__file__).parents[2]
        self._server = await asyncio.create_subprocess_exec(
            sys.executable,
            str(root / "tests/support/plugin_forks.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"},
        )
        self._turn = asyncio.Lock()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        await self._server.wait()

    async def start(self, **order: Any) -> int:
        """Fork a plugin; answers its process id."""
        pid = await self._order(do="start", **order)
        assert pid is not None
        return pid

    async def ended(self, pid: int) -> int:
        """Wait for its end; answers the exit status, that of a signal negative."""
        while (status := await self._order(do="ended", pid=pid)) is None:
            await asyncio.sleep(0.02)
        return status

    async def _order(self, **order: Any) -> int | None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        async with self._turn:
            self._server.stdin.write(json.dumps(order).encode() + b"\n")
            await self._server.stdin.drain()
            answer: int | None = json.loads(await self._server.stdout.readline())
            return answer


@dataclass
class NodeUnderTest:
    """The folders of one node, and how a plugin on it is started."""

    folder: Path
    kubeconfig: Path
    name: str = "node-1"
    profile: str = "t4"
    options: tuple[str, ...] = ()
    host: SimulatedHost = field(init=False)

    def __post_init__(self) -> None:
        for place in (self.state, self.cdi, self.kubelet / "plugins", self.kubelet / "plugins_registry"):
            place.mkdir(parents=True, exist_ok=True)
        self.host = open_host(self.folder / "host", self.profile)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    @property
    def log(self) -> Path:
        return self.folder / "plugin.log"

    def arguments(self, *more: str) -> list[str]:
        paths = {
            "kubeconfig": self.kubeconfig,
            "kubelet-root": self.kubelet,
            "cdi-root": self.cdi,
            "state-dir": self.state,
            "host-root": self.host.root,
        }
        flags = [f"--{flag}={path}" for flag, path in paths.items()]
        return [*flags, f"--node-name={self.name}", f"--simulate={self.profile}", *self.options, *more]

    def files(self) -> dict[str, bytes]:
        """Content of everything in the journal's and the CDI folder, by path; empty lock files are not content."""
        found = [path for folder in (self.state, self.cdi) for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.stat().st_size}

    def cdi_files(self) -> set[str]:
        return {path.name for path in self.cdi.iterdir()}


class Plugin:
    """A plugin process that was started."""

    def __init__(self, forks: PluginForks, node: NodeUnderTest, pid: int, socket: Path) -> None:
        self.pid = pid
        self.node = node
        self._socket = socket
        self._ended = asyncio.create_task(forks.ended(pid))

    async def ready(self) -> bool:
        """Wait until it serves kubelet's calls; False when it ended before."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not self._ended.done():
                with suppress(OSError):
                    _, writer = await asyncio.open_unix_connection(str(self._socket))
                    writer.close()
                    return True
                await asyncio.sleep(0.01)
        return False

    async def prepare(self, *claims: ClaimRef, timeout_s: float = _DEADLINE_S) -> dict[str, tuple[Device, ...] | str]:
        """By claim UID, the devices or the error. Raises Died."""
        request = dra.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodePrepareResources", request, dra.NodePrepareResourcesResponse, timeout_s)
        return {uid: one.error or tuple(map(_device, one.devices)) for uid, one in answer.claims.items()}

    async def unprepare(self, *claims: ClaimRef, timeout_s: float = _DEADLINE_S) -> dict[str, str]:
        """By claim UID, the error, empty when it was released. Raises Died."""
        request = dra.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse, timeout_s)
        return {uid: one.error for uid, one in answer.claims.items()}

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        await self._signal(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM, and wait; answers the exit status."""
        return await self._signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for its end; answers the exit status, that of a signal negative."""
        return await self._ended

    async def _signal(self, number: signal.Signals) -> int:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return await self._ended

    async def _call(self, method: str, request: Any, response: Any, timeout_s: float) -> Any:
        # A channel of its own for every call: one that has seen its server die waits before it tries again.
        async with grpc.aio.insecure_channel(
            f"unix:{self._socket}", [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call = channel.unary_unary(
                _SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            try:
                return await call(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise Died(error.details()) from error
                raise


def _claims(claims: Iterable[ClaimRef]) -> list[Any]:
    return [dra.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _device(device: Any) -> Device:
    return tuple(device.request_names), device.pool_name, device.device_name, tuple(device.cdi_device_ids)


@asynccontextmanager
async def plugin_on(
    forks: PluginForks,
    node: NodeUnderTest,
    *,
    kill_after: int | None = None,
    kill_log: Path | None = None,
    pod_uid: str | None = None,
    kill_folders: Sequence[Path] | None = None,
) -> AsyncIterator[Plugin]:
    """A plugin process; killed at the end if it still runs. May die before it is ready (`ready`)."""
    socket = node.kubelet / "plugins" / GPU_DRIVER / (f"dra-{pod_uid}.sock" if pod_uid else "dra.sock")
    socket.unlink(missing_ok=True)
    pid = await forks.start(
        arguments=node.arguments(*([f"--pod-uid={pod_uid}"] if pod_uid else [])),
        output=str(node.log),
        folders=[str(folder) for folder in (kill_folders or (node.state, node.cdi))],
        kill_log=str(kill_log) if kill_log is not None else None,
        kill_after=kill_after,
    )
    plugin = Plugin(forks, node, pid, socket)
    try:
        yield plugin
    finally:
        await plugin.kill()


def devices_of(answer: Mapping[str, tuple[Device, ...] | str]) -> dict[str, tuple[str, ...]]:
    """Device names by claim UID; fails the test when a claim was refused."""
    refused = {uid: one for uid, one in answer.items() if isinstance(one, str)}
    assert not refused, refused
    return {uid: tuple(device[2] for device in one) for uid, one in answer.items() if not isinstance(one, str)}
