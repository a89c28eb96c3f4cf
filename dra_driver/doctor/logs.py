"""Logs and metrics of the driver's pods, into a bundle; limited, the ends of logs rather than their beginnings."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Protocol

from dra_driver.doctor.archive import Bundle
from dra_driver.doctor.objects import PodObject
from dra_driver.doctor.proxied import http_port
from dra_driver.errors import ClusterError

_AT_A_TIME = 8
_MOST_READ_BYTES = 64 * 2**20
_MOST_METRICS_BYTES = 8 * 2**20


class Texts(Protocol):
    """What is needed of `dra_driver.kube.client.Kube`."""

    def lines(self, path: str, *, most_bytes: int, **query: str) -> AsyncGenerator[bytes, None]: ...


class Logs:
    """Reads them. `lines` are the last of each log, `most_bytes` what each keeps at most, `total_bytes` all of them."""

    def __init__(
        self, kube: Texts, bundle: Bundle, *, lines: int, most_bytes: int = 4 * 2**20, total_bytes: int = 256 * 2**20
    ) -> None:
        self._kube = kube
        self._bundle = bundle
        self._lines = lines
        self._most_bytes = most_bytes
        self._left_bytes = total_bytes
        self._turn = asyncio.Semaphore(_AT_A_TIME)

    async def read(self, pods: tuple[PodObject, ...]) -> None:
        """Of all these pods, those first that are not well: there may be too many for all."""
        ordered = sorted(pods, key=lambda pod: (pod.ready and not pod.restarts, pod.key))
        await asyncio.gather(*(self._pod(pod) for pod in ordered))

    async def _pod(self, pod: PodObject) -> None:
        async with self._turn:
            for container in pod.spec.containers:
                status = next(
                    (
                        container_status
                        for container_status in pod.status.container_statuses
                        if container_status.name == container.name
                    ),
                    None,
                )
                await self._log(pod, container.name, previous=False)
                if status is not None and status.restart_count:
                    await self._log(pod, container.name, previous=True)
            await self._metrics(pod)

    async def _log(self, pod: PodObject, container: str, *, previous: bool) -> None:
        name = f"logs/{pod.key}/{container}{'.previous' if previous else ''}.log"
        if self._left_bytes <= 0:
            self._bundle.error(name, "left out: all logs together are too long")
            return
        query = {"container": container, "tailLines": str(self._lines), "timestamps": "true"}
        query |= {"previous": "true"} if previous else {}
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"
        # Others read meanwhile; what is not needed is given back.
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

    async def _metrics(self, pod: PodObject) -> None:
        port = http_port(pod)
        if port is None:
            return
        name = f"metrics/{pod.key}.txt"
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{port}/proxy/metrics"
        try:
            lines = self._kube.lines(path, most_bytes=_MOST_METRICS_BYTES)
            async with aclosing(lines):
                self._bundle.text(name, [line.decode(errors="replace") async for line in lines])
        except ClusterError as error:
            self._bundle.error(name, error.message)


class _End:
    """The last lines of a text, as many as fit."""

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
            yield "(what was before is left out: the log is too long)"
        for line in self._lines:
            yield line.decode(errors="replace")
