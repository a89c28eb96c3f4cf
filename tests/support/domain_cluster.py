"""What surrounds the keeper of ComputeDomains in a cluster, on the objects of an API server: nodes with inventories,
claims that are given nodes, and daemons that get addresses and become ready."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from support.background import background
from support.inventories import gpu
from support.shipped import create_definitions

from controller.computedomains.keeper import DomainKeeper
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.inventory import FabricFacts, NodeInventorySpec, summary_of
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    JsonObject,
)
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.domains.objects import DaemonSettings
from dra_driver.errors import Conflict, NotFound, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Reflector, Watches
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

DRIVER_NAMESPACE = "gpu-dra-driver"
SETTINGS = DaemonSettings(namespace=DRIVER_NAMESPACE, image="driver")
RACK = "11111111-2222-4333-8444-555555555555"
PATIENCE_S = 40.0


def inventory_of(node: str, clique: int | None = 0, *, state: str = "Completed") -> JsonObject:
    """One tray: a GPU registered with clique `clique` of the rack; None: NVLink stays inside the machine."""
    facts = {"state": state, "clusterUUID": RACK, "cliqueID": clique}
    fabric = None if clique is None else FabricFacts.model_validate(facts)
    gpu_facts = gpu(node=1, fabric=fabric)
    spec = NodeInventorySpec(node_name=node, boot_id="1", gpus=[gpu_facts], summary=summary_of(None, [gpu_facts], []))
    return {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "NodeInventory",
        "metadata": {"name": node},
        "spec": spec.to_wire(),
    }


class DomainCluster:
    """Objects of a cluster with domains, as users, the scheduler and nodes make them."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._claims = 0

    async def install(self) -> None:
        await create_definitions(self.kube)

        async def served() -> bool:
            try:
                await self.kube.list(COMPUTE_DOMAINS)
                await self.kube.list(NODE_INVENTORIES)
            except NotFound:
                return False
            return True

        await until(served)
        for name in ("team", "thief", DRIVER_NAMESPACE):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await self.kube.create(NAMESPACES, namespace)

    async def node(self, name: str, clique: int | None = 0, *, state: str = "Completed") -> None:
        await self.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        await self.kube.create(NODE_INVENTORIES, inventory_of(name, clique, state=state))

    async def domain(
        self, name: str, *, namespace: str = "team", num_nodes: int = 0, template: str | None = None
    ) -> ComputeDomain:
        made = await self.kube.create(
            COMPUTE_DOMAINS,
            {
                "apiVersion": "resource.nvidia.com/v1beta1",
                "kind": "ComputeDomain",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "numNodes": num_nodes,
                    "channel": {"resourceClaimTemplate": {"name": template or f"{name}-channel"}},
                },
            },
        )
        return ComputeDomain.of(made)

    async def read(self, domain: ComputeDomain) -> ComputeDomain:
        obj = await self.kube.get(COMPUTE_DOMAINS, domain.metadata.name, domain.metadata.namespace)
        return ComputeDomain.of(obj)

    async def exists(self, domain: ComputeDomain) -> bool:
        try:
            await self.read(domain)
        except NotFound:
            return False
        return True

    async def delete(self, domain: ComputeDomain) -> None:
        await self.kube.delete(COMPUTE_DOMAINS, domain.metadata.name, namespace=domain.metadata.namespace)

    async def use(self, domain: ComputeDomain, node: str, channel: int = 0) -> str:
        """A pod of the domain is given the node; answers its claim's name. Waits for the template."""
        namespace = domain.metadata.namespace or ""

        async def template() -> JsonObject | None:
            name = domain.spec.channel.resource_claim_template.name
            try:
                return await self.kube.get(RESOURCE_CLAIM_TEMPLATES, name, namespace)
            except NotFound:
                return None

        await until(template)
        made = await template()
        assert made is not None
        self._claims += 1
        name = f"claim-{self._claims}"
        spec = made["spec"]["spec"]
        claim: JsonObject = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace, "labels": made["spec"]["metadata"]["labels"]},
            "spec": spec,
        }
        stored = await self.kube.create(RESOURCE_CLAIMS, claim)
        (request,) = spec["devices"]["requests"]
        result = {"request": request["name"], "driver": COMPUTE_DOMAIN_DRIVER, "pool": node}
        allocation = {
            "devices": {
                "results": [{**result, "device": f"channel-{channel}"}],
                "config": [{"source": "FromClaim", **config} for config in spec["devices"]["config"]],
            }
        }
        stored["status"] = {"allocation": allocation}
        await self.kube.replace(RESOURCE_CLAIMS, stored, subresource="status")
        return name

    async def release(self, domain: ComputeDomain, claim: str) -> None:
        await self.kube.delete(RESOURCE_CLAIMS, claim, namespace=domain.metadata.namespace)

    async def labels(self) -> dict[str, str]:
        """UID of the domain, by node that is in one."""
        nodes = (await self.kube.list(NODES)).items
        labels = {item["metadata"]["name"]: item["metadata"].get("labels", {}).get(DOMAIN_LABEL) for item in nodes}
        return {name: label for name, label in labels.items() if label is not None}

    async def left(self) -> list[str]:
        """Names of all that was made for domains and still stands."""
        names = list(await self.labels())
        for resource in (DAEMON_SETS, RESOURCE_CLAIM_TEMPLATES, COMPUTE_DOMAINS, PODS):
            names += [f"{resource.kind} {item['metadata']['name']}" for item in (await self.kube.list(resource)).items]
        return names


async def until(true: Callable[[], Awaitable[object]], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while not await true():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.02)


class Daemons:
    """The DaemonSet controller, and kubelets that start daemons: a pod where a DaemonSet selects a node, an address for
    it, and Ready once the domain's status names node and address. `broken` nodes' daemons never become ready."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._changed = asyncio.Event()
        self._addresses = 0
        self.broken: set[str] = set()
        self.failure: BaseException | None = None
        """What ended `run`, which nobody awaits while tests work."""
        watch = lambda _: self._changed.set()  # noqa: E731
        self._sets = Reflector(kube, DAEMON_SETS, on_change=watch)
        self._nodes = Reflector(kube, NODES, on_change=watch)
        self._pods = Reflector(kube, PODS, namespace=DRIVER_NAMESPACE, on_change=watch)
        self._domains = Reflector(kube, COMPUTE_DOMAINS, on_change=watch)

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self.failure = error
            raise

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in (self._sets, self._nodes, self._pods, self._domains):
                tasks.create_task(reflector.run())
                await reflector.synced.wait()
            while True:
                self._changed.clear()
                try:
                    await self._step()
                except (Conflict, NotFound, Unreachable):
                    self._changed.set()
                await self._changed.wait()
                await asyncio.sleep(0.005)

    async def _step(self) -> None:
        domains = [
            (daemon_set["spec"]["template"]["spec"]["nodeSelector"][DOMAIN_LABEL], daemon_set)
            for daemon_set in self._sets.objects.values()
        ]
        wanted = {
            f"{uid[:8]}-{node['metadata']['name']}": (daemons, node)
            for uid, daemons in domains
            for node in self._nodes.objects.values()
            if node["metadata"].get("labels", {}).get(DOMAIN_LABEL) == uid
        }
        pods = {key[1]: pod for key, pod in self._pods.objects.items()}
        for name in pods.keys() - wanted.keys():
            await self._kube.delete(PODS, name, namespace=DRIVER_NAMESPACE, grace_period_s=0)
        for name in wanted.keys() - pods.keys():
            await self._start(name, *wanted[name])
        for name in wanted.keys() & pods.keys():
            await self._advance(name, pods[name])

    async def _start(self, name: str, daemons: JsonObject, node: JsonObject) -> None:
        template = daemons["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": DRIVER_NAMESPACE, "labels": template["metadata"]["labels"]},
            "spec": {
                "nodeName": node["metadata"]["name"],
                "containers": [{"name": "imex-daemon", "image": "driver"}],
            },
        }
        await self._kube.create(PODS, pod)
        self._changed.set()

    async def _advance(self, name: str, pod: JsonObject) -> None:
        status = pod.get("status") or {}
        if not status.get("podIP"):
            self._addresses += 1
            address = f"10.1.{self._addresses // 250}.{self._addresses % 250}"
            await self._patch(name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
            return
        node = pod["spec"]["nodeName"]
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in status.get("conditions") or ()
        )
        known = node not in self.broken and self._knows(pod, node, status["podIP"])
        if known != ready:
            await self._patch(name, {"conditions": [{"type": "Ready", "status": str(known)}]})

    def _knows(self, pod: JsonObject, node: str, address: str) -> bool:
        uid = pod["metadata"]["labels"][DOMAIN_LABEL]
        for domain in self._domains.objects.values():
            if domain["metadata"]["uid"] == uid:
                entries = (domain.get("status") or {}).get("nodes") or ()
                return any(entry["name"] == node and entry["ipAddress"] == address for entry in entries)
        return False

    async def _patch(self, name: str, status: JsonObject) -> None:
        await self._kube.merge_patch(PODS, name, {"status": status}, namespace=DRIVER_NAMESPACE, subresource="status")

    def poke(self) -> None:
        """`broken` was changed."""
        self._changed.set()


class Kubelets(Daemons):
    """A scheduler, and kubelets that start daemons, where there is a DaemonSet controller that makes the pods."""

    async def _step(self) -> None:
        for (namespace, name), pod in list(self._pods.objects.items()):
            if "deletionTimestamp" in pod["metadata"]:
                await self._kube.delete(PODS, name, namespace=namespace, grace_period_s=0)
            elif not pod["spec"].get("nodeName"):
                wanted = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                (node,) = wanted["nodeSelectorTerms"][0]["matchFields"][0]["values"]
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
                await self._kube.create_subresource(PODS, name, "binding", body, namespace=namespace)
            else:
                await self._advance(name, pod)


@asynccontextmanager
async def running_keeper(kube: Kube, settings: DaemonSettings = SETTINGS) -> AsyncIterator[DomainKeeper]:
    """A keeper at work; it ends with the block, as if its process had been killed."""
    watches = Watches(kube)
    keeper = DomainKeeper(watches, settings)
    async with background(watches.run(), keeper.run()) as tasks:
        yield keeper
        for task in tasks:
            if task.done():
                await task


@asynccontextmanager
async def tended(kube: Kube, daemons: Daemons | None = None) -> AsyncIterator[Daemons]:
    """Daemons at work."""
    daemons = daemons or Daemons(kube)
    async with background(daemons.run()) as (task,):
        yield daemons
        if task.done():
            await task


async def reason(cluster: DomainCluster, domain: ComputeDomain, type_: str = "Ready") -> str:
    status = (await cluster.read(domain)).status
    return next((condition.reason for condition in status.conditions if condition.type == type_), "")


async def becomes(cluster: DomainCluster, domain: ComputeDomain, wanted: str) -> ComputeDomain:
    """Waits for the reason of the condition Ready."""

    async def there() -> bool:
        return await reason(cluster, domain) == wanted

    try:
        await until(there)
    except TimeoutError:
        raise AssertionError(f"never {wanted}: {(await cluster.read(domain)).status}") from None
    return await cluster.read(domain)


async def gone(cluster: DomainCluster, domain: ComputeDomain) -> None:
    async def true() -> bool:
        return not await cluster.exists(domain)

    await until(true)
