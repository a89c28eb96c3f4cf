"""What the admission policies allow to whom: on a real API server, with tokens of pods on two nodes.

The simulated API server knows neither identities nor policies; there the chart's policies are stored and that is all.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import real_api_server
from support.api import Api, Refused
from support.helm import NAMESPACE, Helm, Object, Release
from support.real_api_server import RealApiServer

from controller.classes import wanted_class
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.inventory import confirmation_annotation
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.objects import DaemonSettings, daemon_set, workload_template
from dra_driver.errors import Rejected
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.events import EventRecorder, News, Regarding
from dra_driver.names import ClaimRef
from kubelet_plugin.claim_devices import key_of, put_entries

pytestmark = pytest.mark.usefixtures("real_server")

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
INVENTORIES = "/apis/dra.gpu/v1alpha1/nodeinventories"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
DRIVER, DOMAIN_DRIVER = "gpu.nvidia.com", "compute-domain.nvidia.com"


def inventory(node: str) -> Object:
    summary = {"gpus": 0, "healthy": "0/0", "product": "", "driver": "", "clique": ""}
    spec = {"nodeName": node, "bootID": "0", "summary": summary, "gpus": []}
    return {"apiVersion": "dra.gpu/v1alpha1", "kind": "NodeInventory", "metadata": {"name": node}, "spec": spec}


def resource_slice(node: str, *, driver: str = DRIVER, name: str | None = None, **place: Any) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "devices": [{"name": "gpu-1"}], **(place or {"nodeName": node})}
    metadata = {"name": name or f"{node}-slice"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


class Cluster:
    """A release on a real server, and its identities."""

    def __init__(self, server: RealApiServer, release: Release) -> None:
        self.server = server
        self.release = release

    def account(self, kind: str) -> str:
        name: str = self.release.one(kind)["spec"]["template"]["spec"]["serviceAccountName"]
        return name

    def api(self, token: str) -> Api:
        return Api(self.server.url, token=token, ssl=self.server.ssl_context())

    async def token(self, admin: Api, account: str, node: str | None) -> str:
        """As kubelet gets it for a pod of the account; without a node, one that is bound to nothing."""
        spec: Object = {}
        if node is not None:
            name = f"{account}-{node}"
            pod_spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "a", "image": "a"}]}
            pod = await admin.post(
                f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": pod_spec}
            )
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await admin.post(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", body)
        token: str = answer["status"]["token"]
        return token


@asynccontextmanager
async def installed(server: RealApiServer, folder: Path, **values: Any) -> AsyncIterator[tuple[Cluster, Api]]:
    """The chart on nodes `node-1` and `node-2`; everything is gone at the end."""
    kubeconfig = folder / "kubeconfig"
    real_api_server.write_kubeconfig(server, kubeconfig)
    helm = Helm(kubeconfig)
    release = await asyncio.to_thread(helm.install, {"cleanup": {"install": False}, **values})
    async with Api(server.url, token=server.token, ssl=server.ssl_context()) as admin:
        for node in ("node-1", "node-2"):
            await admin.post("/api/v1/nodes", {"metadata": {"name": node}})
        try:
            for definition in release.all("CustomResourceDefinition"):
                await _until_served(admin, definition["spec"])
            yield Cluster(server, release), admin
        finally:
            try:
                await _emptied(admin)
            finally:
                await asyncio.to_thread(helm.uninstall)


async def _until_served(admin: Api, definition: Object) -> None:
    """A kind is served a moment after its definition is there, and not again at once when it was there before."""
    (version, *_) = definition["versions"]
    for _ in range(150):
        try:
            await admin.get(f"/apis/{definition['group']}/{version['name']}/{definition['names']['plural']}")
        except Refused:
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError(f"{definition['names']['plural']} are not served")


async def _emptied(admin: Api) -> None:
    for path in ("/api/v1/nodes", SLICES, CLAIMS, DOMAINS, DAEMON_SETS.format(NAMESPACE)):
        try:
            await admin.delete(path)
        except Refused as refused:
            # Without a controller there are no domains.
            if (path, refused.status) != (DOMAINS, 404):
                raise
    await admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", gracePeriodSeconds="0")


async def refusal(request: Any) -> str:
    """Why it was refused."""
    with pytest.raises(Refused) as refused:
        await request
    assert refused.value.status in (403, 422), refused.value
    return refused.value.message


async def until_enforced(api: Api, body: Object, path: str, says: str = "") -> None:
    """Policies take effect a moment after they are made, and go a moment after they are removed: those of a release
    before may refuse it, too, in other words than `says`."""
    for _ in range(150):
        try:
            await api.post(path, body, dryRun="All")
        except Refused as refused:
            if says in refused.message:
                return
        await asyncio.sleep(0.2)
    raise AssertionError(f"never refused with {says!r}")


async def test_a_plugin_writes_the_inventory_of_its_own_node(real_server: RealApiServer, tmp_path: Path) -> None:
    async with installed(real_server, tmp_path) as (cluster, admin):
        account = cluster.account("DaemonSet")
        one, nowhere = await cluster.token(admin, account, "node-1"), await cluster.token(admin, account, None)
        async with cluster.api(one) as mine, cluster.api(nowhere) as unbound:
            said = 'the plugin of node "node-1" may not write the inventory of another: node-2'
            await until_enforced(mine, inventory("node-2"), INVENTORIES, said)
            await mine.post(INVENTORIES, inventory("node-1"))
            written = await mine.get(f"{INVENTORIES}/node-1")
            await mine.put(
                f"{INVENTORIES}/node-1", {**written, "metadata": {**written["metadata"], "labels": {"a": "b"}}}
            )
            await admin.post(INVENTORIES, inventory("node-2"))
            theirs = await mine.get(f"{INVENTORIES}/node-2")
            assert "node-2" in await refusal(mine.put(f"{INVENTORIES}/node-2", theirs))
            assert "forbidden" in await refusal(mine.delete(f"{INVENTORIES}/node-1"))
            kept = await mine.get(f"{INVENTORIES}/node-1")
            kept["metadata"]["finalizers"] = ["a.example/b"]
            assert "by no finalizer" in await refusal(mine.put(f"{INVENTORIES}/node-1", kept))
            assert "names no node" in await refusal(unbound.post(INVENTORIES, inventory("node-3")))
            status = {"status": {"conditions": []}}
            assert "cannot patch resource" in await refusal(mine.patch(f"{INVENTORIES}/node-1/status", status))


async def test_with_a_controller_it_alone_writes_slices_of_our_driver(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    async with installed(real_server, tmp_path) as (cluster, admin):
        plugin = await cluster.token(admin, cluster.account("DaemonSet"), "node-1")
        controller = await cluster.token(admin, cluster.account("Deployment"), "node-2")
        async with cluster.api(plugin) as node, cluster.api(controller) as publisher:
            await until_enforced(admin, resource_slice("node-1"), SLICES, "written by its controller alone")
            assert "cannot create resource" in await refusal(node.post(SLICES, resource_slice("node-1")))
            await publisher.post(SLICES, resource_slice("node-1"))
            other = resource_slice("node-1", driver="gpu.example.com", name="other")
            assert "not written by gpu.nvidia.com" in await refusal(publisher.post(SLICES, other))
            # Of other drivers, others write as before; and everybody who may deletes, as kubelet must.
            await admin.post(SLICES, other)
            await admin.delete(f"{SLICES}/node-1-slice")
            assert "not written by" in await refusal(publisher.delete(f"{SLICES}/other"))


async def test_without_a_controller_each_plugin_writes_slices_of_its_node(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    async with installed(real_server, tmp_path, publisher="node") as (cluster, admin):
        token = await cluster.token(admin, cluster.account("DaemonSet"), "node-1")
        async with cluster.api(token) as mine:
            said = 'writes slices with nodeName "node-1" alone'
            await until_enforced(mine, resource_slice("node-2"), SLICES, said)
            for place in ({"allNodes": True}, {"nodeSelector": _selector("node-1")}):
                body = resource_slice("node-1", **place)
                assert "alone" in await refusal(mine.post(SLICES, body))
            pool = resource_slice("node-1")
            pool["spec"]["pool"] = {**pool["spec"]["pool"], "name": "node-2", "generation": 1000}
            assert "slices of the pool of that name alone" in await refusal(mine.post(SLICES, pool))
            await mine.post(SLICES, resource_slice("node-1"))
            await mine.delete(f"{SLICES}/node-1-slice")
            assert "by its plugins alone" in await refusal(admin.post(SLICES, resource_slice("node-2")))
            status = {"status": {"conditions": []}}
            for node in ("node-1", "node-2"):
                await admin.post(INVENTORIES, inventory(node))
            await mine.patch(f"{INVENTORIES}/node-1/status", status)
            said = "may not write the inventory of another: node-2"
            assert said in await refusal(mine.patch(f"{INVENTORIES}/node-2/status", status))


def _selector(node: str) -> Object:
    return {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}


async def allocated_claim(admin: Api, name: str, node: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    metadata = {"name": name, "finalizers": []}
    config = {"opaque": {"driver": DRIVER, "parameters": "?"}}
    spec = {"devices": {"requests": [request], "config": [config]}}
    created = await admin.post(CLAIMS, _text({"metadata": metadata, "spec": spec}))
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-1"}
    foreign = {"request": "gpu", "driver": "nic.example.com", "pool": node, "device": "nic-1"}
    channel = {**result, "driver": DOMAIN_DRIVER, "device": "channel-0"}
    devices = {"results": [result, channel, foreign], "config": [{"source": "FromClaim", **config}]}
    allocation = {"devices": devices, "nodeSelector": _selector(node)}
    status = {"allocation": allocation}
    await admin.put(f"{CLAIMS}/{name}/status", _text({**created, "spec": spec, "status": status}))


def _text(obj: Object) -> str:
    """With white space, and keys in an order of their own."""
    return json.dumps(obj).replace('"?"', '{"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1"}')


def device_status(node: str, driver: str = DRIVER, device: str = "gpu-1") -> Object:
    condition = {
        "type": "Ready", "status": "True", "reason": "Prepared", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return {"driver": driver, "pool": node, "device": device, "conditions": [condition]}


async def test_a_plugin_writes_the_status_of_its_devices_on_its_node(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    """Beside the policy, the permission for the synthetic resourceclaims/driver decides since 1.36."""
    async with installed(real_server, tmp_path) as (cluster, admin):
        await allocated_claim(admin, "here", "node-1")
        await allocated_claim(admin, "there", "node-2")
        token = await cluster.token(admin, cluster.account("DaemonSet"), "node-1")
        endpoint = Endpoint(real_server.url, real_server.ssl_context(), lambda: f"Bearer {token}")
        async with cluster.api(token) as mine, Kube(endpoint) as kube:
            await until_enforced(mine, inventory("node-2"), INVENTORIES)

            async def written(name: str, driver: str, *devices: Object) -> list[str]:
                """By the plugin's own writer: the drivers that have an entry afterwards."""
                uid = (await admin.get(f"{CLAIMS}/{name}"))["metadata"]["uid"]
                said = [key_of(device_status("node-1", driver, "gpu-1"))]
                await put_entries(kube, ClaimRef("default", name, uid), driver, devices, said)
                there = await admin.get(f"{CLAIMS}/{name}")
                return [one["driver"] for one in there["status"].get("devices") or ()]

            assert await written("here", DRIVER, device_status("node-1")) == [DRIVER]
            channel = device_status("node-1", DOMAIN_DRIVER, "channel-0")
            assert await written("here", DOMAIN_DRIVER, channel) == [DRIVER, DOMAIN_DRIVER]
            for driver, device in (
                (DRIVER, device_status("node-2")),
                (DOMAIN_DRIVER, device_status("node-2", DOMAIN_DRIVER, "channel-0")),
            ):
                with pytest.raises(Rejected):
                    await written("there", driver, device)
            with pytest.raises(Rejected):
                await written("here", "nic.example.com", device_status("node-1", "nic.example.com", "nic-1"))
            claim = await admin.get(f"{CLAIMS}/here")
            for change in ({"allocation": None}, {"reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}]}):
                await refusal(mine.put(f"{CLAIMS}/here/status", {**claim, "status": {**claim["status"], **change}}))
            assert await written("here", DRIVER) == [DOMAIN_DRIVER]


async def test_a_plugin_tells_events_in_its_own_name_and_of_nodes_about_its_own(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    """The very Events that the plugin writes; which node a pod is on, a policy cannot know."""
    async with installed(real_server, tmp_path) as (cluster, admin):
        token = await cluster.token(admin, cluster.account("DaemonSet"), "node-1")
        async with cluster.api(token) as mine:
            await until_enforced(mine, inventory("node-2"), INVENTORIES)
            header = f"Bearer {token}"
            async with Kube(Endpoint(real_server.url, real_server.ssl_context(), lambda: header)) as kube:

                async def told(about: Regarding, instance: str = "node-1", driver: str = DRIVER) -> int:
                    """How many of two Events about it were written."""
                    events = EventRecorder(kube, controller=f"{driver}/kubelet-plugin", instance=instance)
                    news = News(about, "Warning", "GpuUnhealthy", "Watch", "GPU gpu-1: Xid 79.")
                    await events.write_once(news, "one")
                    events.tell(news)
                    await events.write()
                    return 2 - events.dropped["refused"]

                pod, claim = Regarding.pod("default", "a", "1"), Regarding.claim(ClaimRef("default", "a", "1"))
                assert [await told(one) for one in (pod, claim, Regarding.node("node-1"))] == [2, 2, 2]
                assert await told(Regarding.node("node-2")) == 0
                assert await told(pod, instance="node-2") == 0
                assert await told(pod, driver="gpu.example.com") == 0
            (one, *_) = [one for one in (await admin.get(EVENTS))["items"] if one["regarding"]["kind"] == "Pod"]
            other = {**one, "metadata": {"name": "other"}, "reportingInstance": "node-2"}
            await admin.post(EVENTS, other)
            series = {"series": {"count": 2, "lastObservedTime": other["eventTime"]}}
            assert "in its own name" in await refusal(mine.patch(f"{EVENTS}/other", series))
            await mine.patch(f"{EVENTS}/{one['metadata']['name']}", series)
            await admin.delete(EVENTS)


async def test_permissions_are_those_of_the_roles(real_server: RealApiServer, tmp_path: Path) -> None:
    """Things that a stolen token of a node is good for: not much."""
    async with installed(real_server, tmp_path) as (cluster, admin):
        token = await cluster.token(admin, cluster.account("DaemonSet"), "node-1")
        async with cluster.api(token) as mine:
            for path in (
                "/api/v1/secrets",
                "/api/v1/pods",
                "/api/v1/nodes",
                f"/api/v1/namespaces/{NAMESPACE}/configmaps",
                "/apis/apps/v1/deployments",
            ):
                assert "forbidden" in await refusal(mine.get(path))
            assert await mine.get("/api/v1/nodes/node-1")
            taints = {"spec": {"unschedulable": True}}
            assert "forbidden" in await refusal(mine.patch("/api/v1/nodes/node-1", taints))


NODE_1 = "/api/v1/nodes/node-1"
DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains"
DAEMON_SETS = "/apis/apps/v1/namespaces/{}/daemonsets"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
DOMAIN_LABEL = "resource.nvidia.com/computeDomain"


def domain_and_daemons(release: Release) -> tuple[Object, Object]:
    """A ComputeDomain, and the DaemonSet that the controller of this release makes for it."""
    arguments = release.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    given = dict(one.removeprefix("--").split("=", 1) for one in arguments if "=" in one)
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}},
    }
    stored = {**domain, "metadata": {**domain["metadata"], "uid": "11111111-2222-4333-8444-555555555555"}}
    settings = DaemonSettings(
        NAMESPACE,
        given["daemon-image"],
        service_account=given["daemon-service-account"],
        resources=json.loads(given["daemon-resources"]),
    )
    return domain, daemon_set(ComputeDomain.of(stored), settings)


def worse_daemons(daemons: Object) -> dict[str, Object]:
    """DaemonSets that a stolen token of the controller might make, and a part of what the policy says."""

    def changed(pod: Object, metadata: Object | None = None) -> Object:
        template = daemons["spec"]["template"]
        template = {"metadata": {**template["metadata"], **(metadata or {})}, "spec": {**template["spec"], **pod}}
        return {**daemons, "spec": {**daemons["spec"], "template": template}}

    (container,) = daemons["spec"]["template"]["spec"]["containers"]

    def contained(**parts: Any) -> Object:
        return changed({"containers": [{**container, **parts}]})

    context, resources = container["securityContext"], container["resources"]
    return {
        "as much as is set": contained(resources={**resources, "requests": {"cpu": "64", "memory": "96Mi"}}),
        "that are set": contained(resources={**resources, "limits": {"nvidia.com/gpu": "1"}}),
        "priority that is set": changed({"priorityClassName": "system-cluster-critical"}),
        "no annotations": changed({}, {"annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=all"}}),
        "security settings": changed({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}),
        "no other command": contained(command=["/bin/sh"]),
        "without privileges": contained(securityContext={**context, "seccompProfile": {"type": "Unconfined"}}),
    }


async def test_for_compute_domains_the_controller_labels_nodes_and_makes_harmless_daemons(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    async with installed(real_server, tmp_path) as (cluster, admin):
        domain, daemons = domain_and_daemons(cluster.release)
        token = await cluster.token(admin, cluster.account("Deployment"), "node-2")
        async with cluster.api(token) as controller:
            await until_enforced(controller, {**daemons, "metadata": {"name": "miner"}}, DAEMON_SETS.format(NAMESPACE))

            def changed(**parts: Any) -> Any:
                return refusal(controller.patch(NODE_1, parts))

            await until_refused(controller, NODE_1, {"metadata": {"labels": {"zone": "a"}}})
            labelled = await controller.patch(NODE_1, {"metadata": {"labels": {DOMAIN_LABEL: "1"}}})
            assert labelled["metadata"]["labels"][DOMAIN_LABEL] == "1"
            assert "a label alone" in await changed(spec={"unschedulable": True})
            assert "a label alone" in await changed(metadata={"annotations": {"a": "b"}})
            owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "1"}
            assert "a label alone" in await changed(metadata={"ownerReferences": [owner]})
            assert "computeDomain alone" in await changed(metadata={"labels": {DOMAIN_LABEL: None, "zone": "a"}})
            assert "forbidden" in await refusal(controller.patch(f"{NODE_1}/status", {"status": {"capacity": {}}}))
            assert "forbidden" in await refusal(controller.delete(NODE_1))
            await controller.patch(NODE_1, {"metadata": {"labels": {DOMAIN_LABEL: None}}})

            await controller.post(DAEMON_SETS.format(NAMESPACE), daemons)
            elsewhere = {**daemons, "metadata": {**daemons["metadata"], "namespace": "default"}}
            assert "forbidden" in await refusal(controller.post(DAEMON_SETS.format("default"), elsewhere))
            place = f"{DAEMON_SETS.format(NAMESPACE)}/{daemons['metadata']['name']}"
            await controller.delete(place)
            pod = daemons["spec"]["template"]["spec"]
            host = {"name": "host", "hostPath": {"path": "/"}}
            for worse in ({"hostPID": True}, {"volumes": [*pod["volumes"], host]}):
                spec = {**pod, **worse}
                template = {**daemons["spec"]["template"], "spec": spec}
                body = {**daemons, "spec": {**daemons["spec"], "template": template}}
                assert "nothing of their node" in await refusal(controller.post(DAEMON_SETS.format(NAMESPACE), body))

            await admin.post(DOMAINS, domain)
            await until_refused(controller, f"{DOMAINS}/train", {"metadata": {"finalizers": ["a.example/b"]}})
            assert "own finalizer alone" in await refusal(
                controller.patch(f"{DOMAINS}/train", {"metadata": {"labels": {"a": "b"}}})
            )
            await controller.patch(f"{DOMAINS}/train", {"metadata": {"finalizers": [FINALIZER]}})
            await controller.patch(f"{DOMAINS}/train/status", {"status": {"status": "NotReady"}})
            await controller.patch(f"{DOMAINS}/train", {"metadata": {"finalizers": None}})
            assert "forbidden" in await refusal(controller.delete(f"{DOMAINS}/train"))
            for path in ("/api/v1/secrets", "/api/v1/pods", "/apis/apps/v1/daemonsets"):
                assert "forbidden" in await refusal(controller.get(path))
            for driver in (DRIVER, "compute-domain.nvidia.com"):
                made = resource_slice("node-1", driver=driver, name=f"of-{driver}")
                assert "by its controller alone" in await refusal(admin.post(SLICES, made))
                await controller.post(SLICES, made)


async def test_what_a_stolen_token_of_the_controller_is_good_for(real_server: RealApiServer, tmp_path: Path) -> None:
    """For what the controller writes, and no more of the kinds that it may write by its roles."""
    async with installed(real_server, tmp_path) as (cluster, admin):
        domain, daemons = domain_and_daemons(cluster.release)
        token = await cluster.token(admin, cluster.account("Deployment"), "node-2")
        async with cluster.api(token) as controller:
            mine = wanted_class("1g.10gb", DRIVER, extended_resource=False)
            stolen = {**mine, "metadata": {"name": "stolen"}}
            await until_enforced(controller, stolen, CLASSES, "of MIG profiles alone")
            expression = f"device.driver == '{DRIVER}' && false || device.driver == 'other'"
            loose = {**mine, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
            assert "configure nothing" in await refusal(controller.post(CLASSES, loose))
            await controller.post(CLASSES, mine)
            listed = await controller.get(CLASSES)
            (whole,) = [one for one in listed["items"] if one["metadata"]["name"] == "gpu.nvidia.com"]
            whole = {"apiVersion": mine["apiVersion"], "kind": mine["kind"], **whole, "spec": mine["spec"]}
            assert "of MIG profiles alone" in await refusal(controller.put(f"{CLASSES}/gpu.nvidia.com", whole))
            await admin.delete(f"{CLASSES}/{mine['metadata']['name']}")

            plugin = cluster.release.one("DaemonSet")["metadata"]["name"]
            place = DAEMON_SETS.format(NAMESPACE)
            await until_enforced(controller, {**daemons, "metadata": {"name": "miner"}}, place)
            assert "of ComputeDomains alone" in await refusal(controller.delete(f"{place}/{plugin}"))
            container = daemons["spec"]["template"]["spec"]["containers"][0]
            secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
            container = {**container, "env": [*container["env"], secret]}
            template = {"metadata": daemons["spec"]["template"]["metadata"]}
            template["spec"] = {**daemons["spec"]["template"]["spec"], "containers": [container]}
            worse = {**daemons, "spec": {**daemons["spec"], "template": template}}
            assert "are told no Secrets" in await refusal(controller.post(place, worse))
            for message, other in worse_daemons(daemons).items():
                assert message in await refusal(controller.post(place, other)), message
            await controller.post(place, daemons)
            await admin.delete(f"{place}/{daemons['metadata']['name']}")

            made = workload_template(ComputeDomain.of({**domain, "metadata": daemons["metadata"] | {"uid": "1"}}))
            made["metadata"] = {"name": "train", "labels": made["metadata"]["labels"]}
            theirs = {**made, "metadata": {"name": "theirs"}}
            await until_enforced(controller, theirs, TEMPLATES, "those of ComputeDomains alone")
            await controller.post(TEMPLATES, made)
            await controller.delete(f"{TEMPLATES}/train")
            await admin.post(TEMPLATES, theirs)
            assert "of ComputeDomains alone" in await refusal(controller.delete(f"{TEMPLATES}/theirs"))
            await admin.delete(f"{TEMPLATES}/theirs")

            await admin.post(INVENTORIES, inventory("node-1"))
            lie = {"spec": {"bootID": "1"}}
            await until_refused(controller, f"{INVENTORIES}/node-1", lie)
            assert "a sign of life" in await refusal(controller.patch(f"{INVENTORIES}/node-1", lie))
            asked = {"metadata": {"annotations": {confirmation_annotation(DRIVER): "2026-01-01T00:00:00Z"}}}
            await controller.patch(f"{INVENTORIES}/node-1", asked)
            # Through the status, neither the spec nor anything else changes.
            await controller.patch(f"{INVENTORIES}/node-1/status", {**lie, "status": {"conditions": []}})
            assert (await admin.get(f"{INVENTORIES}/node-1"))["spec"]["bootID"] == "0"

            header = f"Bearer {token}"
            async with Kube(Endpoint(real_server.url, real_server.ssl_context(), lambda: header)) as kube:
                events = EventRecorder(kube, controller=f"{DRIVER}/controller", instance="a")
                version, kind = domain["apiVersion"], domain["kind"]
                domain_of = Regarding(version, kind, "train", "1", "default")
                for about in (domain_of, Regarding.node("node-1"), Regarding.pod("default", "a", "1")):
                    await events.write_once(News(about, "Warning", "DomainNotReady", "Watch", "It waits."), "one")
                assert events.dropped["refused"] == 1
            await admin.delete(EVENTS)


async def until_refused(api: Api, path: str, body: Object) -> None:
    for _ in range(150):
        try:
            await api.patch(path, body, dryRun="All")
        except Refused:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("never refused")


async def test_daemons_of_compute_domains_and_plugins_read_domains_and_write_nothing_of_them(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    async with installed(real_server, tmp_path) as (cluster, admin):
        domain, daemons = domain_and_daemons(cluster.release)
        await admin.post(DOMAINS, domain)
        accounts = [daemons["spec"]["template"]["spec"]["serviceAccountName"], cluster.account("DaemonSet")]
        for account in accounts:
            token = await cluster.token(admin, account, "node-1")
            async with cluster.api(token) as mine:
                listed = await mine.get(DOMAINS, fieldSelector="metadata.name=train")
                assert [one["metadata"]["name"] for one in listed["items"]] == ["train"]
                version = listed["metadata"]["resourceVersion"]
                async with mine.watch(DOMAINS, resourceVersion=version, fieldSelector="metadata.name=train") as watch:
                    await admin.patch(f"{DOMAINS}/train", {"metadata": {"labels": {"for": account}}})
                    assert (await watch.next())[1]["metadata"]["labels"] == {"for": account}
                status = {"status": {"status": "Ready"}}
                assert "forbidden" in await refusal(mine.patch(f"{DOMAINS}/train/status", status))
                assert "forbidden" in await refusal(mine.patch(f"{DOMAINS}/train", {"metadata": {"labels": None}}))
                assert "forbidden" in await refusal(mine.patch(NODE_1, {"metadata": {"labels": {DOMAIN_LABEL: "1"}}}))
                assert "forbidden" in await refusal(mine.get(DAEMON_SETS.format(NAMESPACE)))
                assert "forbidden" in await refusal(mine.get(TEMPLATES))
        token = await cluster.token(admin, accounts[0], None)
        async with cluster.api(token) as mine:
            for path in ("/api/v1/secrets", "/api/v1/pods", "/api/v1/nodes", CLAIMS, SLICES, INVENTORIES):
                assert "forbidden" in await refusal(mine.get(path))
