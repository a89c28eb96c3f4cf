"""Logs and metrics of the driver's pods, for a bundle. Limited; of a long log, its end is kept."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing

from dra_driver.api.core import Pod
from dra_driver.doctor.archive import Bundle
from dra_driver.doctor.reading import ClusterReader, metrics_path
from dra_driver.errors import ClusterError

_AT_ONCE = 8
_MOST_READ_BYTES = 64 * 2**20
_MOST_METRICS_BYTES = 8 * 2**20


class Logs:
    """`lines` are the last of each log, `most_bytes` the limit of each log, `total_bytes` that of all."""

    def __init__(
        self,
        kube: ClusterReader,
        bundle: Bundle,
        *,
        lines: int,
        most_bytes: int = 4 * 2**20,
        total_bytes: int = 256 * 2**20,
    ) -> None:
        self._kube = kube
        self._bundle = bundle
        self._lines = lines
        self._most_bytes = most_bytes
        self._left_bytes = total_bytes
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def read(self, pods: tuple[Pod, ...]) -> None:
        """Unhealthy pods first, because all logs may be too long."""
        ordered = sorted(pods, key=lambda pod: (pod.ready and not pod.restarts, pod.key))
        await asyncio.gather(*(self._pod(pod) for pod in ordered))

    async def _pod(self, pod: Pod) -> None:
        restarted = {status.name for status in pod.status.container_statuses if status.restart_count}
        async with self._turn:
            for container in pod.spec.containers:
                await self._log(pod, container.name, previous=False)
                if container.name in restarted:
                    await self._log(pod, container.name, previous=True)
            await self._metrics(pod)

    async def _log(self, pod: Pod, container: str, *, previous: bool) -> None:
        name = f"logs/{pod}/{container}{'.previous' if previous else ''}.log"
        if self._left_bytes <= 0:
            self._bundle.error(name, "left out: all logs together are too long")
            return
        query = {"container": container, "tailLines": str(self._lines), "timestamps": "true"}
        query |= {"previous": "true"} if previous else {}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/log"
        # Other logs are read at the same time; what this one does not need is given back.
        reserved = min(self._most_bytes, self._left_bytes)
        self._left_bytes -= reserved
        end = _End(reserved)
        try:
            lines = self._kube.lines(path, most_bytes=_MOST_READ_BYTES, **query)
            async with aclosing(lines):
                async for line in lines:
                    end.add(line)
        except ClusterError as error:
            self._bundle.error(name, error.message)
        self._left_bytes += 0 if end.cut else max(0, reserved - end.size)
        if end.size:
            self._bundle.text(name, end.lines())

    async def _metrics(self, pod: Pod) -> None:
        path = metrics_path(pod)
        if path is None:
            return
        name = f"metrics/{pod}.txt"
        try:
            lines = self._kube.lines(path, most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                self._bundle.text(name, [line.decode(errors="replace") async for line in lines])
        except ClusterError as error:
            self._bundle.error(name, error.message)


class _End:
    """As many of the last lines of a text as fit."""

    def __init__(self, most_bytes: int) -> None:
        self.size = 0
        self.cut = False
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self.size += len(line) + 1
        while self.size > self._most_bytes and len(self._lines) > 1:
            self.size -= len(self._lines.popleft()) + 1
            self.cut = True

    def lines(self) -> Iterator[str]:
        if self.cut:
            yield "(earlier lines are left out: the log is too long)"
        for line in self._lines:
            yield line.decode(errors="replace")
