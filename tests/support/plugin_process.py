"""Real plugin processes against a simulated API server, and kubelet's calls to them over the unix socket."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import grpc

from dra_driver.kube.kubelet_api.generated import dra_v1_pb2 as dra
from dra_driver.names import GPU_DRIVER, ClaimRef, gpu_device_names
from kubelet_plugin.prepare.journal import decode, encode
from kubelet_plugin.prepare.store import HOLD_LOG, JOURNAL, HoldLog
from kubelet_plugin.simulation.host import SimulatedHost

_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
_START_TIMEOUT_S = 30.0
_DEADLINE_S = 45.0

type Device = tuple[tuple[str, ...], str, str, tuple[str, ...]]
"""Request names, pool, device and CDI ids."""

_MEMORIES = ("health.json", "reported.json")


class Died(Exception):
    """The plugin ended before it answered."""


class PluginForks:
    """Starts plugin processes in milliseconds, with `environment` beside this process's; outlives event loops.
    `modules` are imported first."""

    def __init__(self, environment: Mapping[str, str] = MappingProxyType({}), modules: Iterable[str] = ()) -> None:
        self._environment = environment
        self._modules = modules

    def __enter__(self) -> Self:
        root = Path(__file__).parents[2]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "support.plugin_forks", *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._environment, "PYTHONPATH": f"{root}:{root / 'tests'}"},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.communicate()

    def start(self, **order: Any) -> int:
        """Fork a plugin; answers its process id."""
        pid = self._order(do="start", **order)
        assert pid is not None
        return pid

    async def ended(self, pid: int) -> int:
        """Wait for its end; answers the exit status, that of a signal negative."""
        while True:
            status = self._order(do="ended", pid=pid)
            if status is not None:
                return status
            await asyncio.sleep(0.02)

    def _order(self, **order: Any) -> int | None:
        """The answer comes at once, so waiting for it does not hold up the event loop."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        answer: int | None = json.loads(self._server.stdout.readline())
        return answer


@dataclass
class NodeUnderTest:
    """The folders of one node, and how a plugin on it is started."""

    folder: Path
    kubeconfig: Path
    host: SimulatedHost
    name: str = "node-1"
    options: tuple[str, ...] = ()
    watched: tuple[Path, ...] = ()
    """Folders besides the journal's and the CDI folder in which operations count for a plugin that is to be killed."""

    def __post_init__(self) -> None:
        for place in (self.state, self.cdi, self.kubelet / "plugins", self.kubelet / "plugins_registry"):
            place.mkdir(parents=True, exist_ok=True)

    @property
    def devices(self) -> list[str]:
        """The published names of its GPUs, by index."""
        uuids = [gpu.uuid for gpu in self.host.state.gpus]
        names = gpu_device_names(uuids)
        return [names[uuid] for uuid in uuids]

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
        return [*flags, f"--node-name={self.name}", f"--simulate={self.host.state.profile}", *self.options, *more]

    def switch(self, folder: Path) -> Path:
        """The file that makes the plugin's operations in `folder` fail while it exists; see `support.refusals`."""
        return self.folder / f"refuse-{folder.name}"

    @contextmanager
    def refusing(self, folder: Path, error: str) -> Iterator[None]:
        """Meanwhile, the plugin meets this error (an errno name) at whatever it changes in `folder`."""
        self.switch(folder).write_text(error)
        try:
            yield
        finally:
            self.switch(folder).unlink()

    def files(self) -> dict[str, bytes]:
        """Content of everything in the journal's and the CDI folder, by path; empty lock files are not content.

        What the plugin remembers of the GPUs' health, and of what claims were told, is left out: it is written in the
        background, when it is seen and before it is told. Of the log of holds counts which of them are there, and of a
        journal without damage what it says, not by which changes it came to that.
        """
        paths = [path for folder in (self.state, self.cdi) for path in folder.rglob("*") if path.is_file()]
        paths = [path for path in paths if not any(memory in path.name for memory in _MEMORIES)]
        files = {str(path.relative_to(self.folder)): path.read_bytes() for path in paths if path.stat().st_size}
        for path in paths:
            if path.name == HOLD_LOG and path.stat().st_size:
                holds = sorted(map(repr, HoldLog(path.parent).read()[0]))
                files[str(path.relative_to(self.folder))] = repr(holds).encode()
            if path.name == JOURNAL:
                journal = decode(path.read_bytes())
                if not (journal.damage or journal.unfinished):
                    files[str(path.relative_to(self.folder))] = encode(journal)
        return files

    def cdi_files(self) -> set[str]:
        return {path.name for path in self.cdi.iterdir()}


class Plugin:
    """A plugin process that was started."""

    def __init__(self, forks: PluginForks, node: NodeUnderTest, pid: int, socket: Path) -> None:
        self.pid = pid
        self.node = node
        self.socket = socket
        self._ended = asyncio.create_task(forks.ended(pid))

    def serving(self, driver: str) -> "Plugin":
        """The same process, as kubelet reaches another driver of it."""
        other = copy(self)
        other.socket = self.node.kubelet / "plugins" / driver / self.socket.name
        return other

    async def ready(self) -> bool:
        """Wait until it serves kubelet's calls; False when it ended before."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not self._ended.done():
                with suppress(OSError):
                    _, writer = await asyncio.open_unix_connection(str(self.socket))
                    writer.close()
                    return True
                await asyncio.sleep(0.01)
        return False

    async def prepare(self, *claims: ClaimRef, timeout_s: float = _DEADLINE_S) -> dict[str, tuple[Device, ...] | str]:
        """By claim UID, the devices or the error. Raises Died."""
        request = dra.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodePrepareResources", request, dra.NodePrepareResourcesResponse, timeout_s)
        return {uid: claim.error or tuple(map(_device, claim.devices)) for uid, claim in answer.claims.items()}

    async def unprepare(self, *claims: ClaimRef, timeout_s: float = _DEADLINE_S) -> dict[str, str]:
        """By claim UID, the error, empty when it was released. Raises Died."""
        request = dra.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = await self._call("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse, timeout_s)
        return {uid: claim.error for uid, claim in answer.claims.items()}

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        await self._signal(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM, and wait; answers the exit status."""
        return await self._signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for its end; answers the exit status, that of a signal negative."""
        return await self._ended

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def _signal(self, number: signal.Signals) -> int:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return await self._ended

    async def _call(self, method: str, request: Any, response: Any, timeout_s: float) -> Any:
        # A channel of its own for every call: one that has seen its server die waits before it tries again.
        async with grpc.aio.insecure_channel(f"unix:{self.socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
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
    ready: bool = True,
) -> AsyncIterator[Plugin]:
    """A plugin process that is ready, if it should become so; killed at the end if it still runs.

    With a `kill_log` its operations on files of the node are counted and noted there, and it is killed after number
    `kill_after`: it may die before it is ready (`ready`).
    """
    socket = node.kubelet / "plugins" / GPU_DRIVER / (f"dra-{pod_uid}.sock" if pod_uid else "dra.sock")
    socket.unlink(missing_ok=True)
    pid = forks.start(
        arguments=node.arguments(*([f"--pod-uid={pod_uid}"] if pod_uid else [])),
        output=str(node.log),
        folders=[str(folder) for folder in (node.state, node.cdi, *node.watched)],
        kill_log=str(kill_log) if kill_log is not None else None,
        kill_after=kill_after,
        refusals={str(folder): str(node.switch(folder)) for folder in (node.state, node.cdi)},
    )
    plugin = Plugin(forks, node, pid, socket)
    try:
        assert not ready or kill_log is not None or await plugin.ready(), node.log.read_text()
        yield plugin
    finally:
        await plugin.kill()


def devices_of(answer: Mapping[str, tuple[Device, ...] | str]) -> dict[str, tuple[str, ...]]:
    """Device names by claim UID; fails the test when a claim was refused."""
    refused = {uid: devices for uid, devices in answer.items() if isinstance(devices, str)}
    assert not refused, refused
    return {
        uid: tuple(device[2] for device in devices) for uid, devices in answer.items() if not isinstance(devices, str)
    }
