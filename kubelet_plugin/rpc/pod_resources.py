"""The pods of a claim that is reserved for a PodGroup: kubelet of this node knows them.

Such a claim names the group and not its pods, and kubelet calls the driver for the first pod of a node alone. To read
pods from the API server would take the permission to read all pods of the cluster, which RBAC cannot limit to a node.
So kubelet is asked, on its PodResources socket, for the names, and the names of the folders of pods' logs have the UIDs
(`<namespace>_<name>_<UID>`). One call for each look at such a claim, which is one a minute.

Whoever cannot be asked costs Events and a metric of such pods, and nothing else.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from dra_driver.kube.kubelet_api import POD_RESOURCES_V1
from dra_driver.names import ClaimRef

_log = structlog.get_logger(__name__)

SOCKET = "pod-resources/kubelet.sock"
"""Below kubelet's folder."""
LOGS = "/var/log/pods"

_TIMEOUT_S = 5.0
_LONGEST_ANSWER_BYTES = 16 << 20
"""What kubelet's own client allows."""


class PodsOfNode:
    """`sockets` and `logs` are where they may be as this process sees the host; the first that is there is used."""

    def __init__(self, sockets: Sequence[Path], logs: Sequence[Path], *, timeout_s: float = _TIMEOUT_S) -> None:
        self._sockets = sockets
        self._logs = logs
        self._timeout_s = timeout_s
        self._complained = False

    async def of(self, claim: ClaimRef) -> tuple[tuple[str, str], ...]:
        """Names and UIDs of the pods of this node whose containers have the claim, sorted; none where nobody tells.
        The UID of a pod that has written no log is empty. Never raises."""
        try:
            names = await self._names(claim)
            found = await asyncio.to_thread(self._with_uids, claim.namespace, names)
        except Exception as error:  # noqa: BLE001 - grpc's errors, and whatever a socket can be
            if not self._complained:
                _log.info("pods of PodGroups hear no Events: kubelet's PodResources cannot be asked", error=str(error))
            self._complained = True
            return ()
        self._complained = False
        return found

    async def _names(self, claim: ClaimRef) -> frozenset[str]:
        socket = next((path for path in self._sockets if path.exists()), None)
        if socket is None:
            raise FileNotFoundError(f"none of {', '.join(map(str, self._sockets))} is there")

        # Only here: few nodes ever have a claim of a PodGroup.
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
                (one.claim_namespace, one.claim_name) == (claim.namespace, claim.name)
                for container in pod.containers
                for one in container.dynamic_resources
            )
        )

    def _with_uids(self, namespace: str, names: frozenset[str]) -> tuple[tuple[str, str], ...]:
        """Of several pods of one name, which came one after the other, the last."""
        uids: dict[str, tuple[int, str]] = {}
        logs = next((path for path in self._logs if path.is_dir()), None)
        for folder in logs.glob(f"{namespace}_*") if names and logs is not None else ():
            _, name, uid = (*folder.name.split("_"), "", "")[:3]
            if name in names:
                uids[name] = max(uids.get(name, (0, "")), (folder.stat().st_mtime_ns, uid))
        return tuple((name, uids.get(name, (0, ""))[1]) for name in sorted(names))
