"""Requests about objects: body and query in, response out. One method per verb, then the subresources and reviews; and
`kubectl logs` and `kubectl exec`, which the server passes on to the node's kubelet.

Streams of `exec` are WebSockets, as kubectl 1.31 and newer ask for. Each message is a byte with the number of the
stream, and the stream's bytes. Source: KEP-4006, protocol v5.channel.k8s.io.
"""

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import yaml
from aiohttp import web

from dra_driver.api.meta import JsonObject, Resource, wire_time
from dra_driver.apirules.status import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    invalid_object,
    method_not_allowed,
    required,
)
from dra_driver.simulation.apiserver import crds, discovery, protobuf
from dra_driver.simulation.apiserver.decode import copy_json
from dra_driver.simulation.apiserver.lists import (
    RequestTarget,
    list_document,
    list_page,
    list_query,
    watch_lines,
)
from dra_driver.simulation.apiserver.objects import DeleteOptions, ObjectService, WriteOptions, copied
from dra_driver.simulation.apiserver.patch import json_patch, merge_patch, strategic_merge, through_maps
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.store import StoredVersion, encode
from dra_driver.simulation.apiserver.tables import Representation
from dra_driver.simulation.kubelet.shell import NOT_UNDERSTOOD, UNDERSTOOD, NotUnderstood, Printed

if TYPE_CHECKING:
    # The module needs gRPC, and the API server without kubelets does not.
    from dra_driver.simulation.kubelet.kubelet import SimulatedKubelet

type Kubelets = Mapping[str, SimulatedKubelet]
"""By name of the node. They answer about the containers of pods."""


class Handlers:
    """What the server does with a request whose path names a type."""

    def __init__(self, objects: ObjectService, bookmark_interval_s: float) -> None:
        self._objects = objects
        self._bookmark_interval_s = bookmark_interval_s
        self.kubelets: Kubelets = {}
        objects.followers.append(self._follow_definitions)

    async def resource(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        """What is asked of a type. Raises ApiError for every refusal."""
        if target.subresource in _OF_CONTAINERS:
            pod = self._objects.get(target.kind, target.place, target.name or "").obj
            return await _OF_CONTAINERS[target.subresource](request, pod, self.kubelets)
        if request.method == "GET" and "review" not in target.kind.marks:
            return await self._read(request, target)
        return self._write(request, target, await _read_body(request))

    def _write(self, request: web.Request, target: RequestTarget, body: object) -> web.Response:
        if target.subresource not in ("", "status"):
            return self._subresource(request, target, body)
        if "review" in target.kind.marks:
            return _review(request.method, target.kind.resource.kind, body)
        if request.method == "DELETE":
            return self._delete(request, target, body)
        objects, kind, options, status = self._objects, target.kind, _write_options(request), 200
        creates = target.name is None and (target.namespace is not None or not kind.resource.namespaced)
        if request.method == "POST" and creates:
            entry, status = objects.create(kind, target.place, _as_object(body), options), 201
        elif request.method == "PUT" and target.name is not None:
            entry = objects.update(target, _as_object(body), options)
        elif request.method == "PATCH" and target.name is not None:
            entry, new = self._patch(request.content_type, target, body, options)
            status = 201 if new else 200
        else:
            raise method_not_allowed()
        form = Representation(request, target)
        return _object(form, entry, status=status, warnings=options.warnings)

    async def _read(self, request: web.Request, target: RequestTarget) -> web.StreamResponse:
        query = list_query(target.kind, request.query)
        form = Representation(request, target)
        if query.watch:
            lines = watch_lines(self._objects.store, target, query, form.watch_encoder(), self._bookmark_interval_s)
            return await _streamed(request, lines)
        if target.name is not None:
            entry = self._objects.get(target.kind, target.place, target.name)
            if target.subresource == "scale":
                return _json(encode(scale_of(entry.obj)))
            if (message := form.protobuf(entry)) is not None:
                return web.Response(body=message, content_type=protobuf.CONTENT_TYPE)
            return _json(form.object(entry))
        return _json(form.page(list_page(self._objects.store, target, query)))

    def _subresource(self, request: web.Request, target: RequestTarget, body: object) -> web.Response:
        objects, given = self._objects, _as_object(body)
        name, method = target.subresource, request.method
        if name == "binding" and method == "POST":
            bind(objects, target, given)
            return _json(encode({**_SUCCESS, "code": 201}), 201)
        if name == "eviction" and method == "POST":
            evict(objects, target, given)
            return _json(encode({**_SUCCESS, "code": 201}), 201)
        if name == "scale" and method in ("PUT", "PATCH"):
            return _json(encode(self._scale(request, target, given)))
        raise method_not_allowed()

    def _scale(self, request: web.Request, target: RequestTarget, given: JsonObject) -> JsonObject:
        """A Scale or a patch of it: its replicas become those of the object."""
        objects, kind = self._objects, target.kind
        old = objects.get(kind, target.place, target.name or "")
        scale = given if request.method == "PUT" else merge_patch(scale_of(old.obj), given)
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
            problem = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid_object(Resource("autoscaling", "v1", "scales", "Scale", True), target.name or "", [problem])
        obj = copied(old)
        obj["spec"]["replicas"] = replicas
        version = (scale.get("metadata") or {}).get("resourceVersion")
        obj["metadata"]["resourceVersion"] = version or obj["metadata"]["resourceVersion"]
        return scale_of(objects.change(kind, old, obj, "scale", _write_options(request)).obj)

    def _patch(
        self, form: str, target: RequestTarget, body: object, options: WriteOptions
    ) -> tuple[StoredVersion, bool]:
        """The object after a patch of this media type, and whether it is new."""
        objects, kind = self._objects, target.kind
        if form == "application/apply-patch+yaml":
            return objects.apply(target, _as_object(body), options)
        old = objects.get(kind, target.place, target.name or "")
        current = copy_json(old.served_as(kind.resource.api_version))
        if form == "application/merge-patch+json":
            patched = merge_patch(current, _as_object(body))
        elif form == "application/strategic-merge-patch+json" and not kind.custom:
            patched = through_maps(strategic_merge(current, _as_object(body), kind.schema), kind.schema)
        elif form == "application/json-patch+json":
            patched = json_patch(current, body)
        else:
            raise ApiError(415, f"the body of the request was in an unknown format - {form}", details={})
        return objects.update(target, patched, options, patched=old), False

    def _delete(self, request: web.Request, target: RequestTarget, body: object) -> web.Response:
        options = _delete_options(request, body)
        if target.name is not None:
            entry, gone = self._objects.delete(target.kind, target.place, target.name, options)
            if gone and "returned" not in target.kind.marks:
                return _deleted(target.kind, entry)
            return _object(Representation(request, target), entry)
        if "deletecollection" not in discovery.verbs_of(target.kind):
            raise method_not_allowed()
        page = list_page(self._objects.store, target, list_query(target.kind, request.query))
        for entry in page.entries:
            self._objects.delete(target.kind, *entry.key, options)
        return _json(list_document(target, page))

    def _follow_definitions(self, kind: ResourceType, obj: JsonObject, gone: bool) -> None:
        """Keeps the served types equal to the CRDs, and gives new CRDs their status."""
        if kind.key != crds.KEY:
            return
        registry, store = self._objects.registry, self._objects.store
        group, plural = obj["spec"]["group"], obj["spec"]["names"]["plural"]
        defined = registry.of_key((group, plural))
        registry.drop(group, plural)
        if gone:
            if defined is not None:
                for entry in store.entries((group, plural)):
                    self._objects.remove(defined, entry)
            store.close_subscriptions((group, plural))
            return
        for served in crds.served_types(obj):
            registry.add(served)
        status = crds.accepted_status(obj, wire_time(datetime.now(UTC)))
        known = obj.get("status") or {}
        if not known.get("conditions") or known.get("storedVersions") != status["storedVersions"]:
            store.put(kind.key, {**obj, "metadata": dict(obj["metadata"]), "status": status})


async def _read_body(request: web.Request) -> object:
    """The decoded body, None when it is empty. Raises ApiError 400 or 415."""
    raw = await request.read()
    if not raw:
        return None
    if request.content_type in ("application/yaml", "application/apply-patch+yaml"):
        try:
            return yaml.safe_load(raw)
        except yaml.YAMLError as error:
            raise bad_request(f"error decoding YAML: {error}") from error
    if request.content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(raw)
    try:
        return json.loads(raw)
    except ValueError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def _as_object(body: object) -> JsonObject:
    """Raises ApiError 400 for a body that is no JSON object."""
    if not isinstance(body, dict):
        raise bad_request("the body of the request must be a JSON object")
    return body


def _write_options(request: web.Request) -> WriteOptions:
    query = request.query
    if request.content_type == "application/apply-patch+yaml" and not query.get("fieldManager"):
        options = Resource("meta.k8s.io", "v1", "patchoptions", "PatchOptions", False)
        raise invalid_object(options, "", [required("fieldManager", "is required for apply patch")])
    return WriteOptions(
        dry_run=query.get("dryRun") == "All",
        field_validation=query.get("fieldValidation") or "Warn",
        field_manager=query.get("fieldManager", ""),
    )


def _delete_options(request: web.Request, body: object) -> DeleteOptions:
    given = {**request.query, **(body if isinstance(body, dict) else {})}
    preconditions = given.get("preconditions") or {}
    grace = given.get("gracePeriodSeconds")
    if given.get("propagationPolicy") not in (None, "Background") or given.get("orphanDependents") is True:
        raise bad_request("a simulated API server deletes in the background only; leave out --cascade")
    return DeleteOptions(
        grace_period_s=None if grace is None else int(grace),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=given.get("dryRun") in ("All", ["All"]),
    )


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _object(
    form: Representation, entry: StoredVersion, *, status: int = 200, warnings: Iterable[str] = ()
) -> web.Response:
    response = _json(form.object(entry), status)
    for warning in warnings:
        response.headers.add("Warning", f'299 - "{warning.replace(chr(34), chr(92) + chr(34))}"')
    return response


_SUCCESS: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _deleted(kind: ResourceType, entry: StoredVersion) -> web.Response:
    metadata, group = entry.obj["metadata"], kind.resource.group
    details = {"name": metadata["name"], "kind": kind.resource.plural, "uid": metadata["uid"]}
    return _json(encode({**_SUCCESS, "details": details | ({"group": group} if group else {})}))


async def _streamed(request: web.Request, lines: AsyncGenerator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in lines:
            await response.write(chunk)
    except ConnectionResetError:
        return response
    finally:
        await lines.aclose()
    await response.write_eof()
    return response


def scale_of(obj: JsonObject) -> JsonObject:
    """The Scale of a workload: replicas wanted and there, and the selector of its pods as text."""
    spec, metadata = obj["spec"], obj["metadata"]
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in shown},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": (obj.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        },
    }


def bind(objects: ObjectService, target: RequestTarget, binding: JsonObject) -> None:
    """pods/binding: puts a pod on a node, once. Raises ApiError 409 when it is on one already."""
    name = target.name or ""
    node = (binding.get("target") or {}).get("name")
    if binding.get("kind") != "Binding" or not node:
        raise bad_request("a Binding with a target name is required")
    old = objects.get(target.kind, target.place, name)
    taken, metadata = old.obj["spec"].get("nodeName"), old.obj["metadata"]
    if taken:
        raise conflict(target.kind.resource, name, f"pod {name} is already assigned to node {taken!r}")
    if metadata.get("deletionTimestamp"):
        raise conflict(target.kind.resource, name, f"pod {name} is being deleted, cannot be assigned to a host")
    pod = copied(old)
    pod["spec"]["nodeName"] = node
    conditions = [item for item in pod["status"].get("conditions") or () if item["type"] != "PodScheduled"]
    now = wire_time(datetime.now(UTC))
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    pod["status"]["conditions"] = [*conditions, scheduled]
    objects.store_unchecked(target.kind, pod)


def evict(objects: ObjectService, target: RequestTarget, eviction: JsonObject) -> None:
    """pods/eviction: a delete; disruption budgets are not consulted."""
    options = eviction.get("deleteOptions") or {}
    uid = (options.get("preconditions") or {}).get("uid")
    wanted = DeleteOptions(grace_period_s=options.get("gracePeriodSeconds"), uid=uid)
    objects.delete(target.kind, target.place, target.name or "", wanted)


def _review(method: str, kind: str, body: object) -> web.Response:
    """Reviews of access: everything is allowed, by everybody. Raises ApiError 405."""
    if method != "POST":
        raise method_not_allowed()
    status: JsonObject = {"allowed": True, "reason": "this server has no authorization"}
    if kind == "SelfSubjectRulesReview":
        every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        urls = {"verbs": ["*"], "nonResourceURLs": ["*"]}
        status = {"resourceRules": [every], "nonResourceRules": [urls], "incomplete": False}
    if kind == "SelfSubjectReview":
        status = {"userInfo": {"username": "anybody", "groups": ["system:masters", "system:authenticated"]}}
    review = _as_object(body)
    return _json(encode({**review, "kind": kind, "metadata": review.get("metadata") or {}, "status": status}), 201)


# -- containers

_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OUT, _ERR, _STATUS = b"\x01", b"\x02", b"\x03"


async def _log(request: web.Request, pod: JsonObject, kubelets: Kubelets) -> web.StreamResponse:
    """GET pods/log. `--follow` ends at the end of what there is."""
    container = _container(request, pod)
    if request.query.get("previous") == "true":
        name = pod["metadata"]["name"]
        raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    text = await _node(pod, container, kubelets).log(pod, container)
    lines = text.splitlines(keepends=True)
    tail = request.query.get("tailLines", "")
    return web.Response(text="".join(lines[max(len(lines) - int(tail), 0) :] if tail.isdigit() else lines))


async def _execute(request: web.Request, pod: JsonObject, kubelets: Kubelets) -> web.StreamResponse:
    """pods/exec: the command of the query, of the few that are understood."""
    container, command = _container(request, pod), request.query.getall("command", [])
    node = _node(pod, container, kubelets)
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
    await socket.send_bytes(_STATUS + encode(_exit(printed.status)))
    await socket.close()
    return socket


async def _refuse(request: web.Request, pod: JsonObject, _kubelets: Kubelets) -> web.StreamResponse:
    """What needs a program that runs. Always raises ApiError 400."""
    what = request.path.rpartition("/")[2]
    name = pod["metadata"]["name"]
    raise bad_request(
        f"pods/{what}: the programs of pod {name} do not run, because the cluster is simulated; use kubectl logs"
    )


def _exit(code: int) -> JsonObject:
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


def _node(pod: JsonObject, container: str, kubelets: Kubelets) -> "SimulatedKubelet":
    """The kubelet of a pod that has started. Raises ApiError 400."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    node = kubelets.get(pod["spec"].get("nodeName", ""))
    if node is None:
        raise bad_request(f"pod {name} does not have a host assigned")
    if status.get("phase") == "Pending":
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating')
    return node


_OF_CONTAINERS = {
    "exec": _execute,
    "log": _log,
    **dict.fromkeys(("attach", "ephemeralcontainers", "portforward"), _refuse),
}
