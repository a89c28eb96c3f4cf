"""Examples on a simulated cluster: the nodes they need, and one example from its manifests to its removal.

An examples folder may have a `cluster.yaml` with its nodes. Each example may have GpuPolicies among its manifests, for
what an administrator must allow. Used by `dractl demo` and by end-to-end tests.

```yaml
nodes:
- profile: a30
  labels: {example.com/mig: by-hand}
  acts:                         # before the plugin starts, as `dractl simulate` has them
  - mig-mode 0 on
  - make-mig 0 2g.12gb 0
- profile: t4
  count: 2
  nics: true                    # network devices beside the GPUs, as DRANET publishes them
- profile: hgx-h200
  gates: FabricManagerPartitioning=true
- profile: my-node.tar.gz       # a file of `dractl record`, beside this one
```
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml
from pydantic import Field

from dra_driver.api import meta
from dra_driver.api.documents import Document, read_documents, together
from dra_driver.api.gpu_settings import Strict
from dra_driver.api.gpupolicy import is_policy, policies_among
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.cli.reading.files import read_bytes
from dra_driver.cli.tables.usage import PublishedDevice, published_devices
from dra_driver.errors import AlreadyExists, InvalidInput, NodeNotReady, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kubernetes import CURRENT
from dra_driver.names import model_label, names_record
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode
from dra_driver.simulation.kubelet.claim_manager import pod_claims
from dra_driver.simulation.workloads.controller import WORKLOADS
from dra_driver.simulation.workloads.frameworks import is_up

CLUSTER_FILE = "cluster.yaml"


class _Node(Strict):
    profile: str
    count: int = Field(default=1, ge=1, le=1000)
    labels: dict[str, str] = Field(default_factory=dict)
    acts: list[str] = Field(default_factory=list)
    gates: str = ""
    nics: bool = False


class _Cluster(Strict):
    nodes: list[_Node] = Field(min_length=1)


def nodes_of(folder: Path) -> tuple[SimulatedNode, ...] | None:
    """The nodes that the folder's `cluster.yaml` wants; None when it has none. Raises InvalidInput."""
    path = folder / CLUSTER_FILE
    if not path.is_file():
        return None
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(str(error), about=str(path)) from error
    if not isinstance(document, dict):
        raise InvalidInput("must be a mapping with `nodes`", about=str(path))
    seen: dict[str, int] = {}
    simulated_nodes = []
    for node in _Cluster.of(document, about=str(path)).nodes:
        model = str((folder / node.profile).resolve()) if names_record(node.profile) else node.profile
        for _ in range(node.count):
            index = seen.get(model, 0)
            seen[model] = index + 1
            acts = tuple(tuple(act.split()) for act in node.acts)
            labels = tuple(sorted(node.labels.items()))
            name = f"{model_label(model)}-{index + 1}"
            simulated_nodes.append(SimulatedNode(name, model, index, labels, acts, node.gates, node.nics))
    return tuple(simulated_nodes)


_FIRST = (
    meta.GPU_POLICIES,
    meta.NAMESPACES,
    meta.SERVICE_ACCOUNTS,
    meta.CONFIG_MAPS,
    meta.SECRETS,
    meta.DEVICE_CLASSES,
    meta.COMPUTE_DOMAINS,
    meta.RESOURCE_CLAIM_TEMPLATES,
    meta.RESOURCE_CLAIMS,
)
"""What others need is made first; the rest in the order of the files."""


@cache
def _types() -> Mapping[tuple[str, str], Resource]:
    """What a simulated cluster has, by group and kind."""
    from dra_driver.simulation.apiserver.resource_types import TypeRegistry
    from dra_driver.simulation.workloads.frameworks import FRAMEWORKS, STORED

    known = [served.resource for served in TypeRegistry(CURRENT)]
    known += [meta.GPU_POLICIES, meta.COMPUTE_DOMAINS, *(framework.resource for framework in FRAMEWORKS), *STORED]
    return {(resource.group, resource.kind): resource for resource in known}


@dataclass(frozen=True, slots=True)
class ContainerResult:
    """What one container of a scenario got. `environment` and `device_nodes` are those that CDI added or changed."""

    pod: str
    node: str
    container: str
    devices: tuple[PublishedDevice, ...]
    environment: tuple[str, ...]
    device_nodes: tuple[str, ...]
    mounts: int
    hooks: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """An example: its name, and its manifests in the order in which they are applied."""

    name: str
    documents: tuple[JsonObject, ...]
    foreign: tuple[str, ...] = ()
    """`Kind.group` of manifests whose type the simulated cluster does not have; `documents` has none of them."""

    @property
    def has_domains(self) -> bool:
        """Whether it needs the controller, which ComputeDomains are nothing without."""
        return any(document["kind"] == meta.COMPUTE_DOMAINS.kind for document in self.documents)


def read_scenario(folder: Path) -> Scenario:
    """All YAML files of a folder. Raises InvalidInput for what is not YAML or no object of Kubernetes, UnreadableFile
    for a file that cannot be read."""
    paths = sorted(path for path in (*folder.glob("*.yaml"), *folder.glob("*.yml")) if path.name != CLUSTER_FILE)
    read = together(read_documents(read_bytes(str(path)), str(path)) for path in paths).raise_problems()
    policies = [document.obj for document in read if is_policy(document.obj)]
    documents = [_manifest(document) for document in read if not is_policy(document.obj)]
    if not documents:
        raise InvalidInput("no YAML documents in this folder", about=str(folder))
    foreign = {_type_of(document) for document in documents} - _types().keys()
    documents = [document for document in documents if _type_of(document) not in foreign]
    order = [(resource.group, resource.kind) for resource in _FIRST]
    ordered = sorted(documents, key=lambda item: order.index(_type_of(item)) if _type_of(item) in order else len(order))
    made = [policy.to_object() for policy in policies_among(policies, folder.name, about=str(folder))]
    # As kubectl names a type: kinds of two groups can have one name, such as the Service of Knative.
    types = sorted(f"{kind}.{group}" if group else kind for group, kind in foreign)
    return Scenario(folder.name, (*made, *ordered), tuple(types))


def _manifest(document: Document) -> JsonObject:
    """With what is needed to send it to the API server, which judges the rest. Raises InvalidInput."""
    obj, about = document.obj, f"{document.file}:{document.line}"
    if not all(isinstance(obj.get(name), str) for name in ("apiVersion", "kind")):
        raise InvalidInput("a document has no apiVersion and kind, so it is not a manifest", about=about)
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise InvalidInput(f"a {document.kind} has no metadata", about=about)
    if isinstance(prefix := metadata.get("generateName"), str):
        # `kubectl create` would get a name of chance.
        metadata = {"name": f"{prefix}demo", **metadata}
    if not isinstance(metadata.get("name"), str):
        raise InvalidInput(f"a {document.kind} has no metadata.name", about=about)
    return {**obj, "metadata": metadata}


def _type_of(document: JsonObject) -> tuple[str, str]:
    return document["apiVersion"].rpartition("/")[0], document["kind"]


def _resource(document: JsonObject) -> Resource:
    """In the version of the document, which the server may refuse."""
    return replace(_types()[_type_of(document)], version=document["apiVersion"].rpartition("/")[2])


def _namespace(document: JsonObject) -> str | None:
    namespaced = _resource(document).namespaced
    return (document["metadata"].get("namespace") or "default") if namespaced else None


def _namespaces(scenario: Scenario) -> set[str]:
    return {namespace for document in scenario.documents if (namespace := _namespace(document))}


_UNSERVED = ("404 page not found", "could not find the requested resource")
"""Answers to a path of a version that is not served: of a group, and of a type."""


async def apply(kube: Kube, scenario: Scenario) -> None:
    """Create the objects. Objects that are there already, such as a namespace, are left as they are.

    Raises what the API server answers, and InvalidInput for a version that it does not serve.
    """
    for document in scenario.documents:
        try:
            with suppress(AlreadyExists):
                await kube.create(_resource(document), document, namespace=_namespace(document))
        except NotFound as error:
            # An API server has no better words for a path that it does not know.
            if not any(words in str(error) for words in _UNSERVED):
                raise
            served = _types()[_type_of(document)].api_version
            name = f"{document['kind']} {document['metadata']['name']}"
            message = f"the cluster does not serve {document['apiVersion']}: write `apiVersion: {served}`"
            raise InvalidInput(message, about=name) from error


_QUIET_S = 5.0
"""Longer than controller, plugins and scheduler take to act on a change."""


class _Quiet:
    """Whether a cluster has changed for the last time, judged by the revision of its objects: nothing has changed for
    five seconds, and for as long as all changes took, because a busy machine is slow."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._revision = 0

    def lasts(self, revision: int) -> bool:
        now = time.monotonic()
        if revision != self._revision:
            self._revision, self._last = revision, now
        return now - self._last > max(_QUIET_S, self._last - self._began)


async def wait_running(cluster: SimulatedCluster, scenario: Scenario, timeout_s: float) -> tuple[JsonObject, ...]:
    """The scenario's pods when all of them run; a Job may have more a moment later. Raises NodeNotReady with what the
    others wait for, after `timeout_s`, or when the cluster is quiet and no node was chosen for any that waits."""
    quiet = _Quiet()
    pods: list[JsonObject] = []

    async def running() -> bool:
        pods[:] = await _pods(cluster.kube, scenario)
        waiting = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Running", "Succeeded")]
        is_quiet = quiet.lasts(cluster.server.store.revision)
        if waiting and is_quiet and not any(map(cluster.scheduler.has_placed, waiting)):
            raise NodeNotReady("no node is chosen")
        workloads = [document for document in scenario.documents if _types()[_type_of(document)] in WORKLOADS]
        for workload in workloads:
            name, namespace = workload["metadata"]["name"], _namespace(workload)
            if not is_up(await cluster.kube.get(_types()[_type_of(workload)], name, namespace)):
                return False
        return not waiting

    try:
        await cluster.wait(running, "not all pods run", timeout_s)
    except NodeNotReady as error:
        reasons = [await _why_waiting(cluster, pod) for pod in pods]
        raise NodeNotReady("; ".join(filter(None, reasons)) or str(error)) from error
    return tuple(pods)


async def _pods(kube: Kube, scenario: Scenario) -> list[JsonObject]:
    """All of its namespaces: its own, and those that its workloads have made."""
    return [pod for name in sorted(_namespaces(scenario)) for pod in (await kube.list(meta.PODS, namespace=name)).items]


async def _why_waiting(cluster: SimulatedCluster, pod: JsonObject) -> str | None:
    status = pod.get("status") or {}
    if status.get("phase") == "Running":
        return None
    if exactly := cluster.scheduler.reasons.get(pod["metadata"]["uid"]):
        return f"pod {pod['metadata']['name']}: {exactly}"
    conditions = [item.get("message") for item in status.get("conditions") or () if item.get("status") == "False"]
    events = (await cluster.kube.list(meta.EVENTS, namespace=pod["metadata"]["namespace"])).items
    own = [event for event in events if event["involvedObject"].get("uid") == pod["metadata"]["uid"]]
    messages = [event["message"] for event in sorted(own, key=lambda event: event["type"] == "Warning")]
    reason = (messages or [message for message in conditions if message] or ["no reason was given"])[-1]
    return f"pod {pod['metadata']['name']}: {reason}"


async def container_results(cluster: SimulatedCluster, pods: Iterable[JsonObject]) -> tuple[ContainerResult, ...]:
    """What each container of these pods got, from the kubelets' records, and the slices and claims as they are now."""
    slices = [ResourceSlice.of(item) for item in (await cluster.kube.list(meta.RESOURCE_SLICES)).items]
    claims = [ResourceClaim.of(item) for item in (await cluster.kube.list(meta.RESOURCE_CLAIMS)).items]
    devices = {str(device.id): device for device in published_devices(slices, claims)}
    results = []
    for pod in pods:
        node, metadata = pod["spec"]["nodeName"], pod["metadata"]
        kubelet = cluster.kubelets[node]
        names = {pod_claim.claim for pod_claim in pod_claims(pod)}
        records = [
            record
            for record in kubelet.claims.records()
            if record.namespace == metadata["namespace"] and record.name in names
        ]
        for container in kubelet.containers(metadata["uid"]):
            # Pods that share a claim have a record each.
            got = dict.fromkeys(
                f"{driver}/{device.pool}/{device.device}"
                for record in records
                for driver, answered in record.devices.items()
                for device in answered
                if set(device.cdi_ids) & set(container["cdiDevices"])
            )
            results.append(
                ContainerResult(
                    metadata["name"],
                    node,
                    container["name"],
                    tuple(devices[name] for name in got),
                    tuple(item for item in container["env"] if item.startswith("NVIDIA")),
                    tuple(item["path"] for item in container["deviceNodes"]),
                    len(container["mounts"]),
                    len(container["hooks"]),
                )
            )
    return tuple(results)


async def delete(kube: Kube, scenario: Scenario) -> None:
    """Delete what `apply` made. Pods and claims end later."""
    for document in reversed(scenario.documents):
        with suppress(NotFound):
            await kube.delete(_resource(document), document["metadata"]["name"], namespace=_namespace(document))


async def remove(cluster: SimulatedCluster, scenario: Scenario, timeout_s: float, hardware: Mapping[str, str]) -> None:
    """Delete what `apply` made, and wait until the claims are gone and the nodes have nothing left of them.

    `hardware` is how the GPUs stood before. Raises NodeNotReady that says what is left.
    """
    kube = cluster.kube
    await delete(kube, scenario)
    namespaces = _namespaces(scenario)

    async def gone() -> bool:
        claims = [item for name in namespaces for item in (await kube.list(meta.RESOURCE_CLAIMS, namespace=name)).items]
        pods = [item for name in namespaces for item in (await kube.list(meta.PODS, namespace=name)).items]
        domains = (await kube.list(meta.COMPUTE_DOMAINS)).items if scenario.has_domains else []
        return not claims and not pods and not domains and not leftovers(cluster, hardware)

    try:
        await cluster.wait(gone, "", timeout_s)
    except NodeNotReady as error:
        left = leftovers(cluster, hardware) or ("pods, claims or domains that are not deleted",)
        raise NodeNotReady(f"after deletion there is still: {', '.join(left)}") from error


def leftovers(cluster: SimulatedCluster, hardware: Mapping[str, str]) -> tuple[str, ...]:
    """CDI files on the nodes, claims in kubelets' records, MPS daemons, and GPUs that stand otherwise than before."""
    files = [str(path) for node in cluster.nodes for path in sorted(cluster.cdi_folder(node.name).glob("*"))]
    files += [str(path) for path in cluster.daemons()]
    files += [f"{gpu} in another state" for gpu, how in cluster.hardware().items() if hardware.get(gpu) != how]
    records = [
        f"claim {record.namespace}/{record.name} in the record of node {name}"
        for name, kubelet in cluster.kubelets.items()
        for record in kubelet.claims.records()
    ]
    return (*files, *records)
