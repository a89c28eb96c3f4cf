"""The lines of `docs.from_code.rights` as requests on objects that are there: judged here, or sent."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from support.api import Api, Refused
from support.helm import NAMESPACE, Object, Release
from support.observed_api import Access
from support.permissions import Grant, grants
from support.policies import refusing, user_info

from controller.classes import wanted_class
from controller.settings import read_settings
from docs.from_code.rights import IGNORED, NODE_AUTHORIZER, RBAC, VALIDATION, Account, Line
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.objects import daemon_set, daemon_template, workload_template
from dra_driver.kubernetes import GATES

ACCOUNTS = {
    Account.PLUGIN: "gpu-dra-driver-kubelet-plugin",
    Account.UNBOUND: "gpu-dra-driver-kubelet-plugin",
    Account.CONTROLLER: "gpu-dra-driver-controller",
    Account.DAEMON: "gpu-dra-driver-imex-daemon",
    Account.REMOVAL: "gpu-dra-driver-cleanup",
    Account.UI: "gpu-dra-driver-ui",
}
USERS = {
    Account.KUBELET: ("system:node:node-1", "system:nodes"),
    Account.ADMIN: ("admin", "system:masters"),
    Account.EDITOR: ("editor", ""),
    Account.VIEWER: ("viewer", ""),
    Account.NOBODY: ("nobody", ""),
}
"""Names and groups of those whom an administrator impersonates."""

GRANULAR = "granular authorization"
_REQUESTS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
_NOT_EVERYWHERE = ("devicetaintrules.resource.k8s.io",)
"""A server has them only if a gate is on, so RBAC alone is asked."""
_VERSIONS = {"dra.gpu": "v1alpha1", "resource.nvidia.com": "v1beta1"}
_DOMAIN_UID = "11111111-2222-4333-8444-555555555555"


@dataclass(frozen=True)
class Target:
    """Where a request goes. `namespace` and `name` may be empty."""

    group: str
    plural: str
    subresource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, line: Line) -> "Target":
        resource, _, group = line.resource.partition(".")
        plural, _, subresource = resource.partition("/")
        namespace, _, name = line.on.rpartition("/")
        stored = world().get((plural, line.on))
        return cls(group, plural, subresource, namespace, stored["metadata"]["name"] if stored else name)

    @property
    def resource(self) -> str:
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    def path(self, name: str = "") -> str:
        """Of the collection, or of an object of it."""
        group = f"/apis/{self.group}/{_VERSIONS.get(self.group, 'v1')}" if self.group else "/api/v1"
        place = f"{group}/namespaces/{self.namespace}" if self.namespace else group
        return f"{place}/{self.plural}" + (f"/{name}" if name else "")


@dataclass(frozen=True)
class Attempt:
    """One request of a line."""

    line: Line
    verb: str
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.line.account} {self.verb} {self.line.resource} {self.line.on} {json.dumps(dict(self.changes))}"


def attempts(line: Line) -> Iterator[Attempt]:
    for verb in line.verbs.split():
        for changes in line.alternatives if verb in ("create", "update", "patch") else line.alternatives[:1]:
            yield Attempt(line, verb, changes)


def changed(obj: Object, changes: Mapping[str, Any]) -> Object:
    """With these fields: paths as in JSON pointers; an index behind the last appends; None removes."""
    new = deepcopy(obj)
    for path, value in changes.items():
        *parents, last = [part.replace("~1", "/") for part in path.split("/")]
        place: Any = new
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if isinstance(place, list):
            place[int(last) : int(last) + 1] = [] if value is None else [deepcopy(value)]
        elif value is None:
            place.pop(last, None)
        else:
            place[last] = deepcopy(value)
    return new


def _difference(old: Any, new: Any) -> Any:
    """The merge patch that makes the one of the other."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    gone = {key: None for key in old if key not in new}
    return gone | {key: _difference(old.get(key), value) for key, value in new.items() if old.get(key) != value}


# What is there.


@cache
def world() -> dict[tuple[str, str], Object]:
    """By plural and the `on` of lines."""
    objects = {
        ("nodes", "node-1"): _object("v1", "Node", "node-1", spec={}),
        ("nodes", "node-2"): _object("v1", "Node", "node-2", labels={"zone": "a"}, spec={}),
        ("nodeinventories", "node-1"): _inventory("node-1"),
        ("gpupolicies", "ml"): _policy("ml"),
        ("nodeinventories", "node-2"): _inventory("node-2"),
        ("resourceslices", "node-1"): _slice("node-1", "gpu.nvidia.com", "node-1"),
        ("resourceslices", "node-2"): _slice("node-2", "gpu.nvidia.com", "node-2"),
        ("resourceslices", "other"): _slice("other", "gpu.example.com", "node-1"),
        ("resourceclaims", "default/here"): _claim("here", "node-1"),
        ("resourceclaims", "default/there"): _claim("there", "node-2"),
        ("resourceclaims", "default/anywhere"): _claim("anywhere", ""),
        ("resourceclaims", "default/free"): _claim("free", None),
        ("deviceclasses", "gpu.nvidia.com"): _object("resource.k8s.io/v1", "DeviceClass", "gpu.nvidia.com", spec={}),
        ("deviceclasses", "gpu.example.com"): _object("resource.k8s.io/v1", "DeviceClass", "gpu.example.com", spec={}),
        ("deviceclasses", "profile"): wanted_class("1g.10gb", "gpu.nvidia.com", extended_resource=False),
        ("pods", "default/victim"): _object("v1", "Pod", "default/victim", spec={"containers": [_CONTAINER]}),
        ("pods", "gpu-dra/gpu-dra-driver-test"): _object(
            "v1", "Pod", "gpu-dra/gpu-dra-driver-test", spec={"containers": [_CONTAINER]}
        ),
        ("events", "default/plugins"): _event("plugins", "gpu.nvidia.com/kubelet-plugin", "node-1"),
        ("events", "default/others"): _event("others", "gpu.nvidia.com/kubelet-plugin", "node-2"),
        ("events", "default/controllers"): _event("controllers", "gpu.nvidia.com/controller", "a", "ComputeDomain"),
        ("secrets", "default/secret"): _object("v1", "Secret", "default/secret"),
        ("validatingwebhookconfigurations", "theirs"): _object(
            "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "theirs"
        ),
        ("computedomains", "default/train"): _DOMAIN,
        ("resourceclaimtemplates", "default/train"): _without_owners(workload_template(_domain())),
        ("daemonsets", "gpu-dra/plugin"): _daemon_set("gpu-dra/plugin"),
        ("daemonsets", "default/theirs"): _daemon_set("default/theirs"),
    }
    theirs = deepcopy(objects["deviceclasses", "profile"])
    theirs["metadata"] = {"name": "theirs.mig.nvidia.com"}
    template = deepcopy(objects["resourceclaimtemplates", "default/train"])
    template["metadata"] = {"name": "theirs", "namespace": "default"}
    for name in ("gpu-dra/gpu-dra-driver-controller", "gpu-dra/other", "kube-system/scheduler"):
        objects["leases", name] = _object("coordination.k8s.io/v1", "Lease", name, spec={})
    for name in ("webhook", "webhook-certificate", "webhook-authority"):
        objects["secrets", f"gpu-dra/gpu-dra-driver-{name}"] = _object("v1", "Secret", f"gpu-dra/gpu-dra-driver-{name}")
    return objects | {
        ("deviceclasses", "theirs.mig.nvidia.com"): theirs,
        ("resourceclaimtemplates", "default/theirs"): template,
    }


def with_daemons(release: Release) -> None:
    """Adds what the controller of this release makes for a domain."""
    daemons, template = daemons_of(release)
    world()["daemonsets", "gpu-dra/daemons"] = daemons
    world()["resourceclaimtemplates", "gpu-dra/daemons"] = template


def daemons_of(release: Release) -> tuple[Object, Object]:
    """DaemonSet and claim template, as the controller makes them."""
    arguments = release.object("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    settings = read_settings([*arguments, f"--lease-namespace={NAMESPACE}"], {}).daemons
    return daemon_set(_domain(), settings), daemon_template(_domain(), settings)


_CONTAINER = {"name": "a", "image": "a"}


def _object(api_version: str, kind: str, place: str, *, labels: Object | None = None, **fields: Any) -> Object:
    namespace, _, name = place.rpartition("/")
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {}) | ({"labels": labels} if labels else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _policy(name: str) -> Object:
    return _object("dra.gpu/v1alpha1", "GpuPolicy", name, spec={"priority": 1})


def _inventory(node: str) -> Object:
    summary = {"gpus": 0, "healthy": "0/0", "product": "", "driver": "", "clique": ""}
    spec = {"nodeName": node, "bootID": "0", "summary": summary, "gpus": []}
    made = _object("dra.gpu/v1alpha1", "NodeInventory", node, spec=spec)
    made["metadata"]["annotations"] = {"note": "a"}
    return made


def _slice(name: str, driver: str, node: str) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "nodeName": node, "devices": [{"name": "gpu-1"}]}
    return _object("resource.k8s.io/v1", "ResourceSlice", name, spec=spec)


def _claim(name: str, node: str | None) -> Object:
    """Allocated to a node, to none in particular (`""`), or not allocated (None)."""
    request = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1},
    }
    claim = _object("resource.k8s.io/v1", "ResourceClaim", f"default/{name}", spec={"devices": {"requests": [request]}})
    if node is None:
        return claim
    devices = {
        "gpu.nvidia.com": ["gpu-1"],
        "compute-domain.nvidia.com": ["channel-0"],
        "nic.example.com": ["nic-1", "nic-2"],
    }
    results = [
        {"request": "gpu", "driver": driver, "pool": "node-1", "device": device}
        for driver, names in devices.items()
        for device in names
    ]
    allocation: Object = {"devices": {"results": results}}
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    entries = [{**_without(result, "request"), "data": {"a": 1}} for result in (results[0], results[2])]
    consumer = {"resource": "pods", "name": "a", "uid": "1"}
    return {**claim, "status": {"allocation": allocation, "devices": entries, "reservedFor": [consumer]}}


def _without(obj: Object, key: str) -> Object:
    return {name: value for name, value in obj.items() if name != key}


def _event(name: str, controller: str, instance: str, kind: str = "Pod") -> Object:
    return _object(
        "events.k8s.io/v1", "Event", f"default/{name}", reportingController=controller, reportingInstance=instance,
        regarding={"kind": kind, "name": "a", "namespace": "default"}, eventTime="2026-01-01T00:00:00.000000Z",
        action="Watch", reason="GpuUnhealthy", type="Warning", note="a",
    )  # fmt: skip


_DOMAIN = _object(
    "resource.nvidia.com/v1beta1", "ComputeDomain", "default/train",
    spec={"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "train"}}},
)  # fmt: skip


def _domain() -> ComputeDomain:
    return ComputeDomain.of({**_DOMAIN, "metadata": {**_DOMAIN["metadata"], "uid": _DOMAIN_UID}})


def _without_owners(obj: Object) -> Object:
    """The garbage collector takes away what belongs to nothing that is there."""
    return {**obj, "metadata": _without(obj["metadata"], "ownerReferences")}


def _daemon_set(place: str) -> Object:
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [_CONTAINER]}}
    return _object("apps/v1", "DaemonSet", place, spec={"selector": {"matchLabels": labels}, "template": template})


# Without a server.


def access_of(attempt: Attempt) -> Access:
    """What RBAC is asked."""
    line, target = attempt.line, Target.of(attempt.line)
    nameless = (attempt.verb == "create" and not target.subresource) or attempt.verb == "deletecollection"
    lists = attempt.verb in ("list", "watch") and not line.named
    name = None if nameless or lists else target.name or None
    return Access("", attempt.verb, target.group, target.resource, target.namespace or None, name)


def granted(release: Release, account: Account) -> frozenset[Grant]:
    return grants(release.objects, ACCOUNTS[account])


def judged(release: Release, attempt: Attempt) -> set[str]:
    """Who refuses: RBAC alone, or else policies."""
    line, target, access = attempt.line, Target.of(attempt.line), access_of(attempt)
    if line.account in ACCOUNTS and not any(grant.covers(access) for grant in granted(release, line.account)):
        return {RBAC}
    operation = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}.get(attempt.verb)
    stored = world().get((target.plural, line.on))
    if operation is None or stored is None or line.by == IGNORED:
        return set()
    new = changed(stored, attempt.changes)
    account = ACCOUNTS.get(line.account)
    user = f"system:serviceaccount:{NAMESPACE}:{account}" if account else USERS[line.account][0]
    request = {
        "userInfo": user_info(user, _node_of(line.account)), "operation": operation,
        "name": new["metadata"]["name"], "namespace": new["metadata"].get("namespace", ""), "dryRun": not line.stored,
    }  # fmt: skip
    nothing: Object = {}
    old, new = (nothing if operation == "CREATE" else stored), (nothing if operation == "DELETE" else new)
    return set(refusing(release, target.group, target.resource, request, old, new))


def _node_of(account: Account) -> str | None:
    """Of the pod to which tokens of the account are bound."""
    if account not in ACCOUNTS or account is Account.UNBOUND:
        return None
    return "node-1" if account is Account.PLUGIN else "node-2"


# On a server.


class Caller:
    """A server, asked as an account."""

    def __init__(self, admin: Api, tokens: Mapping[Account, str]) -> None:
        self._admin = admin
        self._tokens = tokens

    def _headers(self, account: Account) -> dict[str, str]:
        if account in self._tokens:
            return {"Authorization": f"Bearer {self._tokens[account]}"}
        user, group = USERS[account]
        return {"Impersonate-User": user} | ({"Impersonate-Group": group} if group else {})

    async def outcome(self, attempt: Attempt) -> tuple[str, str]:
        """Who refused it, empty for nobody, and what the server said."""
        if attempt.verb not in _REQUESTS or attempt.line.resource in _NOT_EVERYWHERE:
            return await self._reviewed(attempt)
        try:
            answer = await self._sent(attempt)
        except Refused as refused:
            return _refuser(refused, attempt), refused.message
        if attempt.line.by == IGNORED:
            before = await self._stored(attempt)
            same = all(_at(answer, path) == _at(before, path) for path in attempt.changes)
            return (IGNORED, "") if same else ("", "the field was changed")
        return "", "allowed"

    async def _sent(self, attempt: Attempt) -> Object:
        target, verb = Target.of(attempt.line), attempt.verb
        headers = {"Content-Type": "application/json", **self._headers(attempt.line.account)}
        dry: dict[str, str] = {} if attempt.line.stored or verb in ("get", "list", "watch") else {"dryRun": "All"}
        path = target.path(target.name) + (f"/{target.subresource}" if target.subresource else "")
        request = self._admin.request
        if verb == "watch":
            query = {"fieldSelector": f"metadata.name={target.name}"} if attempt.line.named else {}
            async with self._admin.watch(target.path(), headers=headers, **query):
                return {}
        if verb == "list":
            query = {"fieldSelector": f"metadata.name={target.name}"} if attempt.line.named else {}
            return await request("GET", target.path(), headers=headers, **query)
        if verb in ("get", "delete"):
            return await request({"get": "GET", "delete": "DELETE"}[verb], path, headers=headers, **dry)
        if verb == "deletecollection":
            return await request("DELETE", target.path(), headers=headers, **dry)
        stored = await self._stored(attempt)
        new = changed(stored, attempt.changes)
        if verb == "create":
            return await request("POST", path if target.subresource else target.path(), new, headers=headers, **dry)
        if verb == "update":
            return await request("PUT", path, new, headers=headers, **dry)
        headers["Content-Type"] = "application/merge-patch+json"
        return await request("PATCH", path, _difference(stored, new), headers=headers, **dry)

    async def _stored(self, attempt: Attempt) -> Object:
        """The object as it is, or as the world has it when it is to be created."""
        target = Target.of(attempt.line)
        written = world().get((target.plural, attempt.line.on))
        if written is None or attempt.verb == "create":
            return written or {"metadata": {"name": target.name}}
        return await self._admin.get(target.path(target.name))

    async def _reviewed(self, attempt: Attempt) -> tuple[str, str]:
        account, access = attempt.line.account, access_of(attempt)
        name = ACCOUNTS.get(account)
        user = f"system:serviceaccount:{NAMESPACE}:{name}" if name else USERS[account][0]
        resource, _, subresource = access.resource.partition("/")
        attributes = {
            "verb": access.verb, "group": access.group, "resource": resource, "subresource": subresource,
            "namespace": access.namespace or "", "name": access.name or "",
        }  # fmt: skip
        review = {"spec": {"user": user, "resourceAttributes": attributes}}
        answer = await self._admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return ("" if answer["status"]["allowed"] else RBAC), "a review"


def _at(obj: Object, path: str) -> Any:
    place: Any = obj
    for part in path.split("/"):
        index = part.replace("~1", "/")
        place = place[int(index)] if isinstance(place, list) else (place or {}).get(index)
    return place


def _refuser(refused: Refused, attempt: Attempt) -> str:
    message = refused.message
    if "ValidatingAdmissionPolicy '" in message:
        return message.partition("ValidatingAdmissionPolicy 'gpu-dra-gpu-dra-driver-")[2].partition("'")[0]
    if 'requires resource="resourceclaims/' in message:
        return GRANULAR
    if refused.status == 403 and "cannot" in message:
        return NODE_AUTHORIZER if attempt.line.by == NODE_AUTHORIZER else RBAC
    # What is to be created is there: the server looks for that last, after all that could refuse it.
    if refused.status == 409 and attempt.verb == "create":
        return ""
    return VALIDATION


def expected(line: Line, minor: int, *, policies: bool) -> str:
    """Who refuses the line on a server of 1.`minor`."""
    if line.granular and GATES["DRAResourceClaimGranularStatusAuthorization"].default(minor):
        return GRANULAR
    return "" if line.by_policy and not policies else line.by


async def prepared(admin: Api, release: Release) -> dict[Account, str]:
    """Makes the world and what of the release all setups have; tokens of the accounts, bound to pods on their nodes."""
    await admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    admin_access = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await admin.patch("/api/v1/namespaces/default", admin_access)
    for definition in release.all("CustomResourceDefinition"):
        await admin.define(definition)
    # Their status is a subresource: of claims, it is written afterwards.
    for (plural, _on), obj in world().items():
        version = obj["apiVersion"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        namespace = obj["metadata"].get("namespace")
        collection = f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"
        made = await admin.post(collection, obj)
        if "status" in obj and plural == "resourceclaims":
            await admin.put(f"{collection}/{made['metadata']['name']}/status", {**made, "status": obj["status"]})
    for name, user in (("edit", "editor"), ("view", "viewer")):
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [{"kind": "User", "name": user}]}
        await admin.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
    return {account: await _token(admin, account) for account in ACCOUNTS}


async def claim_with_parameters(admin: Api, name: str, node: str) -> str:
    """A claim whose parameters have white space, and keys in an order of their own; its UID."""
    claim = _claim(name, node)
    config = {"opaque": {"driver": "gpu.nvidia.com", "parameters": "?"}}
    claim["spec"]["devices"]["config"] = [config]
    claim["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", **config}]
    claim["status"]["devices"] = []

    def text(obj: Object) -> str:
        return json.dumps(obj).replace('"?"', '{"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1"}')

    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    made = await admin.post(path, text(claim))
    await admin.put(f"{path}/{name}/status", text({**claim, "metadata": made["metadata"]}))
    uid: str = made["metadata"]["uid"]
    return uid


async def _token(admin: Api, account: Account) -> str:
    name, node = ACCOUNTS[account], _node_of(account)
    accounts, spec = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {}
    if account is not Account.UNBOUND:
        await admin.post(accounts, {"metadata": {"name": name}})
        pod = f"plugin-{node}" if account is Account.PLUGIN else f"{name}-pod"
        body = {
            "metadata": {"name": pod},
            "spec": {"nodeName": node, "serviceAccountName": name, "containers": [_CONTAINER]},
        }
        made = await admin.post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        spec = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made["metadata"]["uid"]}}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await admin.post(f"{accounts}/{name}/token", body)
    token: str = answer["status"]["token"]
    return token


_RBAC_PATHS = {
    "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
    "Role": f"namespaces/{NAMESPACE}/roles", "RoleBinding": f"namespaces/{NAMESPACE}/rolebindings",
}  # fmt: skip
_POLICY_PATHS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def rbac_objects(objects: tuple[Object, ...]) -> list[tuple[str, Object]]:
    """With the path of each one's collection."""
    prefix = "/apis/rbac.authorization.k8s.io/v1"
    return [(f"{prefix}/{_RBAC_PATHS[obj['kind']]}", obj) for obj in objects if obj["kind"] in _RBAC_PATHS]


def admission_objects(objects: tuple[Object, ...]) -> list[tuple[str, Object]]:
    prefix = "/apis/admissionregistration.k8s.io/v1"
    return [(f"{prefix}/{_POLICY_PATHS[obj['kind']]}", obj) for obj in objects if obj["kind"] in _POLICY_PATHS]


async def settled(caller: Caller, lines: list[Line], minor: int, *, policies: bool) -> tuple[int, list[str]]:
    """How many attempts were made, and those that ended otherwise than the table says: roles and policies take effect a
    moment after they are there."""
    for _ in range(20):
        wrong, count = [], 0
        for line in lines:
            if line.gate and not GATES[line.gate].default(minor):
                continue
            wanted = expected(line, minor, policies=policies)
            for attempt in attempts(line):
                count += 1
                outcome, message = await caller.outcome(attempt)
                if outcome != wanted:
                    wrong.append(f"{attempt}: wanted {wanted or 'allowed'}, got {outcome or 'allowed'}: {message}")
        if not wrong:
            break
        await asyncio.sleep(0.5)
    return count, wrong
