"""The pods of a claim that is reserved for a PodGroup, from the kubelet of this node.

Such a claim names the group rather than its pods, and the kubelet calls the driver only for the first pod of a node.
Reading pods from the API server would need permission for all pods of the cluster, which RBAC cannot limit to a node.
Therefore the plugin gets the names from the kubelet's PodResources socket, and the UIDs from the folder names of pods'
logs (`<namespace>_<name>_<UID>`), with one call per minute for such a claim. If this fails, only Events and a metric of
such pods are missing.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from dra_driver.kube.kubelet_api import POD_RESOURCES_V1
from dra_driver.names import ClaimRef

_log = structlog.get_logger(__name__)

SOCKET = "pod-resources/kubelet.sock"
"""Below the kubelet's folder."""
LOGS = "/var/log/pods"

_TIMEOUT_S = 5.0
_LONGEST_ANSWER_BYTES = 16 << 20
"""The limit of the kubelet's own client."""


class PodsOfNode:
    """`sockets` and `logs` are possible paths, as this process sees the host; the first existing one is used."""

    def __init__(self, sockets: Sequence[Path], logs: Sequence[Path], *, timeout_s: float = _TIMEOUT_S) -> None:
        self._sockets = sockets
        self._logs = logs
        self._timeout_s = timeout_s
        self._complained = False

    async def of(self, claim: ClaimRef) -> tuple[tuple[str, str], ...]:
        """Names and UIDs of the pods of this node whose containers have the claim, sorted; none if the kubelet does not
        answer. The UID of a pod without a log is empty. Never raises."""
        try:
            names = await self._names(claim)
            results = await asyncio.to_thread(self._with_uids, claim.namespace, names)
        except Exception as error:  # noqa: BLE001 - errors of grpc and of the socket
            if not self._complained:
                _log.info("pods of PodGroups hear no Events: kubelet's PodResources cannot be asked", error=str(error))
            self._complained = True
            return ()
        self._complained = False
        return results

    async def _names(self, claim: ClaimRef) -> frozenset[str]:
        socket = next((path for path in self._sockets if path.exists()), None)
        if socket is None:
            raise FileNotFoundError(f"none of {', '.join(map(str, self._sockets))} is there")

        # Imported here, because few nodes ever have a claim of a PodGroup.
        import grpc.aio

        from dra_driver.kube.kubelet_api.generated import pod_resources_v1_pb2 as messages

        options = [("grpc.max_receive_message_length", _LONGEST_ANSWER_BYTES), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            ask = channel.unary_unary(
                f"/{POD_RESOURCES_V1}/List",
                request_serializer=messages.ListPodResourcesRequest.SerializeToString,
                response_deserializer=messages.ListPodResourcesResponse.FromString,
            )
            answer = await ask(messages.ListPodResourcesRequest(), timeout=self._timeout_s)
        return frozenset(
            pod.name
            for pod in answer.pod_resources
            if pod.namespace == claim.namespace
            and any(
                (dynamic_resource.claim_namespace, dynamic_resource.claim_name) == (claim.namespace, claim.name)
                for container in pod.containers
                for dynamic_resource in container.dynamic_resources
            )
        )

    def _with_uids(self, namespace: str, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
        """The last of several successive pods of one name."""
        uids: dict[str, tuple[int, str]] = {}
        logs = next((path for path in self._logs if path.is_dir()), None)
        for folder in logs.glob(f"{namespace}_*") if names and logs is not None else ():
            _, name, uid = (*folder.name.split("_"), "", "")[:3]
            if name in names:
                uids[name] = max(uids.get(name, (0, "")), (folder.stat().st_mtime_ns, uid))
        return tuple((name, uids.get(name, (0, ""))[1]) for name in sorted(names))
