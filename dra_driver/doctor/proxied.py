"""What kubelets and our pods say of themselves, asked through the API server's proxy: gates and releases.

Few may use the proxy, and nobody should be let for the doctor's sake alone: it is as good as a shell on the nodes. So
what is refused is noted once, by the first that is asked, and checks do without.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from dra_driver.doctor.cluster import ClusterView, KubeletSeen, ReleaseSeen
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.doctor.objects import ContainerObject, PodObject
from dra_driver.errors import ClusterError

_FORBIDDEN = (401, 403)
_AT_ONCE = 16
_MOST_METRICS_BYTES = 16 * 2**20
_RELEASE = re.compile(rb'gpu_dra_build_info\{[^}]*version="(?P<release>[^"]+)"[^}]*\}\s+1')


class Proxied(Protocol):
    """What is needed of `dra_driver.kube.client.Kube`."""

    async def raw(self, method: str, path: str, body: Any = None) -> Any: ...

    def lines(self, path: str, *, most_bytes: int, **query: str) -> AsyncGenerator[bytes, None]: ...


async def kubelets(kube: Proxied, cluster: ClusterView) -> SeenKind[KubeletSeen]:
    """Of nodes with GPUs: the feature gates that each kubelet was given. One that does not answer is left out."""

    async def configured(node: str) -> KubeletSeen:
        answer = await kube.raw("GET", f"/api/v1/nodes/{node}/proxy/configz")
        given = ((answer or {}).get("kubeletconfig") or {}).get("featureGates") or {}
        return KubeletSeen(node, {str(gate): bool(on) for gate, on in given.items()})

    names = [gpu_node.name for gpu_node in cluster.gpu_nodes]
    return await _asked(configured, names, "configurations of kubelets", "get nodes/proxy")


async def releases(kube: Proxied, cluster: ClusterView) -> SeenKind[ReleaseSeen]:
    """Of workloads whose image does not tell it: what the metrics of one of their pods say."""

    async def told(pod: PodObject) -> ReleaseSeen:
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}:{http_port(pod)}/proxy/metrics"
        return ReleaseSeen(pod.program or "", await _release(kube, path))

    return await _asked(told, list(_untold(cluster)), "metrics of pods", "get pods/proxy")


def _untold(cluster: ClusterView) -> Iterable[PodObject]:
    for workload in (*cluster.plugins, *cluster.controllers):
        if workload.ours is None or workload.ours.version is not None or workload.program is None:
            continue
        namespace = workload.metadata.namespace
        pods = (pod for pod in cluster.our_pods(workload.program) if pod.metadata.namespace == namespace)
        yield from [pod for pod in pods if pod.ready and http_port(pod) is not None][:1]


async def _release(kube: Proxied, path: str) -> str:
    """Empty when the metrics do not tell."""
    lines = kube.lines(path, most_bytes=_MOST_METRICS_BYTES)
    async with aclosing(lines):
        async for line in lines:
            found = _RELEASE.match(line)
            if found is not None:
                return found["release"].decode()
    return ""


async def _asked[Q, T](ask: Callable[[Q], Awaitable[T]], whom: Sequence[Q], what: str, permission: str) -> SeenKind[T]:
    """The first is asked alone: who may not ask one may ask none."""
    results: list[T] = []
    failures: list[ClusterError] = []
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(question: Q) -> None:
        async with gate:
            try:
                results.append(await ask(question))
            except ClusterError as error:
                failures.append(error)

    for part in (whom[:1], whom[1:]):
        await asyncio.gather(*(one(question) for question in part))
        if any(error.status in _FORBIDDEN for error in failures):
            return SeenKind(tuple(results), Unread(what, failures[0].message, permission))
    if failures and not results:
        return SeenKind((), Unread(what, failures[0].message))
    return SeenKind(tuple(results))


def http_port(pod: PodObject) -> str | None:
    """Where it serves metrics; None where it does not."""
    container: ContainerObject | None = pod.spec.ours
    address = container.setting("--http-endpoint") if container is not None else None
    return (address or "").rpartition(":")[2] or None
