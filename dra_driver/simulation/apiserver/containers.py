"""`kubectl logs` and `kubectl exec`: requests about containers, which the server passes on to the node's kubelet.

Streams of `exec` are WebSockets, as kubectl 1.31 and newer ask for. Each message is a byte with the number of the
stream, and the stream's bytes. Source: KEP-4006, protocol v5.channel.k8s.io.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import web

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import bad_request
from dra_driver.simulation.apiserver.store import encode
from dra_driver.simulation.kubelet.shell import NOT_UNDERSTOOD, UNDERSTOOD, NotUnderstood, Printed

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OUT, _ERR, _STATUS = b"\x01", b"\x02", b"\x03"


class NodeContainers(Protocol):
    """What a kubelet answers about the containers of pods that it has started."""

    async def log(self, pod: JsonObject, container: str) -> str: ...

    async def execute(self, pod: JsonObject, container: str, command: Sequence[str]) -> Printed:
        """Raises NotUnderstood."""


async def log(request: web.Request, pod: JsonObject, nodes: Mapping[str, NodeContainers]) -> web.StreamResponse:
    """GET pods/log. `--follow` ends at the end of what there is."""
    container = _container(request, pod)
    if request.query.get("previous") == "true":
        name = pod["metadata"]["name"]
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    text = await _node(pod, container, nodes).log(pod, container)
    lines = text.splitlines(keepends=True)
    tail = request.query.get("tailLines", "")
    return web.Response(text="".join(lines[max(len(lines) - int(tail), 0) :] if tail.isdigit() else lines))


async def execute(request: web.Request, pod: JsonObject, nodes: Mapping[str, NodeContainers]) -> web.StreamResponse:
    """pods/exec: the command of the query, of the few that are understood."""
    container, command = _container(request, pod), request.query.getall("command", [])
    node = _node(pod, container, nodes)
    socket = web.WebSocketResponse(protocols=_PROTOCOLS)
    if not socket.can_prepare(request).ok:
        raise bad_request("a simulated cluster executes commands through WebSockets only; use kubectl 1.31 or newer")
    await socket.prepare(request)
    try:
        printed, stream = await node.execute(pod, container, command), _OUT
    except NotUnderstood as error:
        why = f"{error}: does not run in a simulated container, which understands {', '.join(UNDERSTOOD)}"
        printed, stream = Printed(f"{why}\n", NOT_UNDERSTOOD), _ERR
    await socket.send_bytes(stream + printed.text.encode())
    await socket.send_bytes(_STATUS + encode(_status(printed.status)))
    await socket.close()
    return socket


async def refuse(request: web.Request, pod: JsonObject, _nodes: Mapping[str, NodeContainers]) -> web.StreamResponse:
    """What needs a program that runs. Always raises ApiError 400."""
    what = request.path.rpartition("/")[2]
    name = pod["metadata"]["name"]
    raise bad_request(
        f"pods/{what}: the programs of pod {name} do not run, because the cluster is simulated; use kubectl logs"
    )


def _status(code: int) -> JsonObject:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    failure = {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}
    return {"metadata": {}, **failure}


def _container(request: web.Request, pod: JsonObject) -> str:
    """The container that is asked for, or the one that there is."""
    names = [item["name"] for field in ("containers", "initContainers") for item in pod["spec"].get(field) or ()]
    wanted, name = request.query.get("container", ""), pod["metadata"]["name"]
    if wanted and wanted not in names:
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    if not wanted and len(pod["spec"]["containers"]) > 1:
        listed = " ".join(names[: len(pod["spec"]["containers"])])
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: [{listed}]")
    return wanted or names[0]


def _node(pod: JsonObject, container: str, nodes: Mapping[str, NodeContainers]) -> NodeContainers:
    """The kubelet of a pod that has started. Raises ApiError 400."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    node = nodes.get(pod["spec"].get("nodeName", ""))
    if node is None:
        raise bad_request(f"pod {name} does not have a host assigned")
    if status.get("phase") == "Pending":
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
    return node
