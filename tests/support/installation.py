"""A healthy installation of the driver as API objects, for tests of what is found when something in it is not well."""

import json
import re
from collections.abc import AsyncGenerator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import yaml
from support.inventories import gpu, inventory_object, inventory_spec, mig

from dra_driver import bundled
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import Resource
from dra_driver.api.policy import PublishingPolicy
from dra_driver.doctor.api_server import OF_THE_CONTROLLER, OF_THE_PLUGIN, OF_WHO_ASKS, Need
from dra_driver.doctor.cluster import AccessCheck, ClusterFacts, ClusterView, ServerSeen
from dra_driver.doctor.findings import SeenKind
from dra_driver.doctor.kinds import ALL_KINDS, DecodedObjects, ObservedKind
from dra_driver.errors import ClusterError, InvalidInput, NotFound, Rejected
from dra_driver.kube.client import Listing
from dra_driver.publish.decisions import decided
from dra_driver.slices.features import ALL_FEATURES

type Obj = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RELEASE = "0.1.0"
NAMESPACE = "gpu-dra"
NODES = ("gpu-1", "gpu-2")
REGISTERED = "2026-03-01T11:00:00.000000Z"
_BOOT = "b7e6a6a0-0000-4000-8000-000000000000"
_GPU_LABEL = "nvidia.com/gpu.present"


def source(plural: str) -> ObservedKind:
    (source,) = [kind for kind in ALL_KINDS if kind.resource.plural == plural]
    return source


@cache
def _shipped() -> tuple[tuple[Obj, ...], tuple[Obj, ...]]:
    """CustomResourceDefinitions and DeviceClasses."""
    folders = (bundled.CRDS_FOLDER, bundled.DEVICE_CLASSES_FOLDER)
    definitions, classes = (
        tuple(
            document for path in sorted(folder.glob("*.yaml")) for document in bundled.read_documents(path.read_text())
        )
        for folder in folders
    )
    return definitions, classes


class Installation:
    """Two nodes with a GPU each and one without, plugin and controller, a claim that a pod uses. Change `objects` (by
    the plural of their kind, then name), `facts`, then look at `cluster`."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Obj]] = {}
        self.facts = ClusterFacts(
            time=NOW,
            release=RELEASE,
            server=ServerSeen("v1.36.2", {"resource.k8s.io": ("v1",), "apps": ("v1",)}),
            features=SeenKind((ALL_FEATURES,)),
            gates=SeenKind((("DRAExtendedResource", True), ("DRAPartitionableDevices", True))),
            own_access=SeenKind(tuple(_access(need, None) for need in OF_WHO_ASKS)),
            account_access=SeenKind(
                (
                    *(_access(need, account("plugin")) for need in OF_THE_PLUGIN),
                    *(_access(need, account("controller")) for need in OF_THE_CONTROLLER),
                )
            ),
        )
        definitions, classes = deepcopy(_shipped())
        for definition in definitions:
            definition["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
            self.add("customresourcedefinitions", definition)
        for class_ in classes:
            self.add("deviceclasses", class_)
        for number, name in enumerate((*NODES, "plain")):
            self._add_node(name, number)
        for number, name in enumerate(NODES):
            self._add_gpu(name, number)
        self._add_workloads()
        self._add_configuration()
        self._add_claim()

    # -- for tests

    def add(self, plural: str, obj: Obj) -> Obj:
        self.objects.setdefault(plural, {})[obj["metadata"]["name"]] = obj
        return obj

    def grow(self, nodes: int) -> None:
        """More nodes like the first, each with a claim and its pod."""
        for number in range(nodes):
            for plural, name in (
                *(("nodes", "gpu-1"), ("nodeinventories", "gpu-1"), ("resourceslices", "slice-gpu-1")),
                *(("pods", "plugin-gpu-1"), ("pods", "train"), ("resourceclaims", "train")),
            ):
                text = json.dumps(self.objects[plural][name])
                self.add(plural, json.loads(re.sub(r"(?<=[-\"])(gpu-1|train)(?=\")", rf"\1-more-{number}", text)))

    def drop(self, plural: str, name: str) -> None:
        del self.objects[plural][name]

    def node(self, name: str = "gpu-1") -> Obj:
        return self.objects["nodes"][name]

    def inventory(self, name: str = "gpu-1") -> Obj:
        return self.objects["nodeinventories"][name]

    def slice(self, name: str = "gpu-1") -> Obj:
        return self.objects["resourceslices"][f"slice-{name}"]

    def pod(self, name: str = "plugin-gpu-1") -> Obj:
        return self.objects["pods"][name]

    @property
    def claim(self) -> Obj:
        return self.objects["resourceclaims"]["train"]

    def container(self, plural: str) -> Obj:
        (workload,) = (obj for name, obj in self.objects[plural].items() if name in ("plugin", "controller"))
        container: Obj = workload["spec"]["template"]["spec"]["containers"][0]
        return container

    def domain(self, *, ready: str = "True", reason: str = "AllNodesReady", since: str = "2026-03-01T11:30:00Z") -> Obj:
        """A ComputeDomain that the controller has looked at."""
        spec = {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "train"}}}
        condition = {"type": "Ready", "status": ready, "reason": reason, "message": "so", "lastTransitionTime": since}
        domain = _object("train", "team-a", uid="uid-domain", spec=spec, status={"conditions": [condition]})
        domain["metadata"]["creationTimestamp"] = "2026-03-01T11:00:00Z"
        return self.add("computedomains", domain)

    def know(self, **facts: Any) -> None:
        self.facts = replace(self.facts, **facts)

    def daemon_set(self, name: str, image: str, **container: list[str]) -> Obj:
        """Of somebody else, on all nodes with GPUs."""
        spec = {"nodeSelector": {_GPU_LABEL: "true"}, "containers": [{"name": "main", "image": image, **container}]}
        return self.add("daemonsets", _object(name, "other", spec={"template": {"spec": spec}}))

    def kept_objects(self) -> list[tuple[ObservedKind, Obj]]:
        """What a reader keeps of it, as it is in a bundle."""
        objects = []
        for kind in ALL_KINDS:
            for obj in self.objects.get(kind.resource.plural, {}).values():
                trimmed = kind.keep({**obj, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind})
                if trimmed is not None:
                    named = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, **trimmed}
                    objects.append((kind, named))
        return objects

    @property
    def cluster(self) -> ClusterView:
        objects = DecodedObjects()
        for kind, obj in self.kept_objects():
            objects.add(kind, obj)
        assert not objects.notes, objects.notes
        return objects.cluster(self.facts)

    # -- what it is made of

    def _add_node(self, name: str, number: int) -> None:
        info = {"bootID": _BOOT, "kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.4"}
        labels = {"kubernetes.io/hostname": name} | ({_GPU_LABEL: "true"} if name in NODES else {})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T10:00:00Z"}
        status = {"allocatable": {"cpu": "64", "memory": "512Gi"}, "nodeInfo": info, "conditions": [ready]}
        self.add("nodes", _object(name, None, labels=labels, uid=f"uid-{name}", spec={}, status=status))

    def _add_gpu(self, name: str, number: int) -> None:
        spec = inventory_spec(name, [gpu(number, mig=mig())], registered=REGISTERED)
        status = {"status": {"policy": decided(PublishingPolicy.EVERYTHING, (), spec, {}).to_wire()}}
        self.add("nodeinventories", inventory_object(spec, f"uid-{name}") | status)
        device = {"name": spec.gpus[0].name, "attributes": {"type": {"string": "gpu"}}}
        pool = {"name": name, "generation": 3, "resourceSliceCount": 1}
        self.add(
            "resourceslices",
            _object(
                f"slice-{name}",
                None,
                labels={"app.kubernetes.io/managed-by": "gpu-dra-driver"},
                spec={"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": [device]},
            ),
        )

    def _add_workloads(self) -> None:
        plugin = _pod_spec("plugin", ["--driver-name=gpu.nvidia.com", "--publisher=controller"])
        plugin |= {"nodeSelector": {_GPU_LABEL: "true"}, "tolerations": [{"operator": "Exists"}]}
        controller = _pod_spec("controller", ["--lease-name=controller", "--http-endpoint=:8080"])
        self.add("daemonsets", _object("plugin", NAMESPACE, spec={"template": {"spec": plugin}}))
        status = {"readyReplicas": 2}
        self.add(
            "deployments",
            _object("controller", NAMESPACE, spec={"replicas": 2, "template": {"spec": controller}}, status=status),
        )
        for node in NODES:
            self.add("pods", _pod(f"plugin-{node}", {**deepcopy(plugin), "nodeName": node}))
        for number in range(2):
            self.add("pods", _pod(f"controller-{number}", {**deepcopy(controller), "nodeName": "plain"}))
        lease = {
            "holderIdentity": "controller-0_x",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-03-01T11:59:58.000000Z",
        }
        self.add("leases", _object("controller", NAMESPACE, spec=lease))
        self.add("namespaces", _object(NAMESPACE, None))

    def _add_configuration(self) -> None:
        self.add("configmaps", {**_object("policy", NAMESPACE), "data": {"policy.yaml": _policy({})}})
        for number, (who, group, resource) in enumerate(
            (
                ("plugin", "dra.gpu", "nodeinventories"),
                ("plugin", "resource.k8s.io", "resourceclaims/status"),
                ("plugin", "resource.k8s.io", "resourceslices"),
                ("controller", "dra.gpu", "nodeinventories"),
                ("controller", "", "nodes"),
            )
        ):
            name = f"gpu-dra-keep-{number}"
            rules = [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["CREATE"]}]
            condition = {"name": "is-ours", "expression": f"request.userInfo.username == '{account(who)}'"}
            spec = {"matchConstraints": {"resourceRules": rules}, "matchConditions": [condition]}
            self.add("validatingadmissionpolicies", _object(name, None, spec=spec))
            binding = {"policyName": name, "validationActions": ["Deny"]}
            self.add("validatingadmissionpolicybindings", _object(name, None, spec=binding))

    def _add_claim(self) -> None:
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "gpu-1", "device": gpu(0).name}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "train", "uid": "uid-train"}],
        }
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        claim = _object("train", "team-a", spec={"devices": {"requests": [request]}}, status=status)
        self.add("resourceclaims", claim)
        spec = {
            "nodeName": "gpu-1",
            "containers": [{"name": "main", "image": "cuda"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}],
        }
        self.add("pods", _pod("train", spec, namespace="team-a"))

    def policy(self, **fields: Any) -> None:
        """Of the installation, and as the controller decided by it, if it makes sense."""
        self.objects["configmaps"]["policy"]["data"]["policy.yaml"] = _policy(fields)
        try:
            rules = PublishingPolicy.of(fields)
        except InvalidInput:
            return
        for inventory in self.objects["nodeinventories"].values():
            spec = NodeInventorySpec.of(inventory["spec"])
            inventory.setdefault("status", {})["policy"] = decided(rules, (), spec, {}).to_wire()


def account(name: str) -> str:
    return f"system:serviceaccount:{NAMESPACE}:{name}"


def _access(need: Need, who: str | None) -> AccessCheck:
    return AccessCheck(need.verb, need.group, need.resource, True, who)


def _policy(fields: Obj) -> str:
    text: str = yaml.safe_dump({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **fields})
    return text


def _object(name: str, namespace: str | None, **fields: Any) -> Obj:
    metadata: Obj = {"name": name, "uid": fields.pop("uid", f"uid-{name}")}
    for part in ("labels", "annotations"):
        if part in fields:
            metadata[part] = fields.pop(part)
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"metadata": metadata, **fields}


def _pod_spec(component: str, arguments: list[str]) -> Obj:
    program = {"plugin": "gpu-dra-kubelet-plugin", "controller": "gpu-dra-controller"}[component]
    return {
        "serviceAccountName": component,
        "containers": [
            {
                "name": component,
                "image": f"registry.example/gpu-dra-driver:{RELEASE}",
                "command": [program],
                "args": [*arguments, "--policy=/etc/gpu-dra-driver/policy.yaml"],
            }
        ],
        "volumes": [{"name": "policy", "configMap": {"name": "policy"}}],
    }


def _pod(name: str, spec: Obj, *, namespace: str = NAMESPACE) -> Obj:
    container = {"name": spec["containers"][0]["name"], "ready": True, "restartCount": 0, "state": {"running": {}}}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container],
    }
    return _object(name, namespace, spec=spec, status=status)


class FakeKube:
    """An API server with these objects, for readers: what is asked for is answered from them. `refuse` are plurals (and
    paths of texts) that may not be read; `logs` texts by path, with `?previous` where it is the one before."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.refuse: set[str] = set()
        self.fail: dict[str, ClusterError] = {}
        self.texts: dict[str, str] = {}
        self.asked: list[str] = []
        self.unserved: set[str] = set()
        """API groups that there are not."""
        self.accepts = True
        """Whether a claim with a config that makes no sense is accepted."""
        self.answers: dict[str, Any] = {}
        """By path."""

    async def pages(
        self, resource: Resource, *, namespace: str | None = None, field_selector: str | None = None
    ) -> AsyncGenerator[Listing, None]:
        self._ask(resource.plural, f"list {resource.plural}")
        objects = [
            {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
            for obj in self.installation.objects.get(resource.plural, {}).values()
            if namespace in (None, obj["metadata"].get("namespace"))
        ]
        for start in range(0, len(objects), 2):
            yield Listing(objects[start : start + 2], "1")

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        self._ask(resource.plural, f"get {resource.plural}")
        obj = self.installation.objects.get(resource.plural, {}).get(name)
        if obj is None or namespace not in (None, obj["metadata"].get("namespace")):
            raise NotFound("not found", status=404)
        return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        assert dry_run, "nothing may be changed"
        self._ask(f"create {resource.plural}", f"create {resource.plural}")
        if resource.plural == "resourceclaims" and not self.accepts:
            raise Rejected('admission webhook "refuse.dra.gpu" denied the request: unknown field', status=400)
        return obj

    async def raw(self, method: str, path: str, body: Obj | None = None) -> Any:
        self._ask(path, f"{method} {path}")
        if path == "/version":
            return {"gitVersion": "v1.36.2"}
        if path == "/apis":
            groups: dict[str, list[Obj]] = {}
            for kind in ALL_KINDS:
                if kind.resource.group and kind.resource.group not in self.unserved:
                    groups.setdefault(kind.resource.group, []).append({"version": kind.resource.version})
            return {"groups": [{"name": name, "versions": versions} for name, versions in groups.items()]}
        return self.answers.get(path, {"status": {"allowed": True}})

    async def lines(self, path: str, *, most_bytes: int, **query: str) -> AsyncGenerator[bytes, None]:
        key = path + ("?previous" if query.get("previous") else "")
        self._ask(key, f"GET {key}")
        if key not in self.texts:
            raise NotFound("404 page not found", status=404)
        for line in self.texts[key].splitlines():
            yield line.encode()

    def _ask(self, what: str, question: str) -> None:
        self.asked.append(question)
        if what in self.fail:
            raise self.fail[what]
        if what in self.refuse:
            raise Rejected(f'"{what}" is forbidden', status=403)
