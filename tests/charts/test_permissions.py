"""What the chart allows is what the programs do: a scenario in which all of it happens is recorded and compared.

`support.permissions` says how: by verb, type, namespace and, where the chart can know it, the name of the object.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.helm import NAMESPACE, RELEASE, Helm, Object, Release, simulated_server
from support.observed_api import Access, ObservedCluster
from support.permissions import Grant, Permission, faults, grants
from support.rows import rows, slow_but

from controller.policies import FROM_FILE
from dra_driver.api.gpupolicy import INSTALLED, GpuPolicy, GpuPolicySpec, policies_of
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DEVICE_CLASSES,
    GPU_POLICIES,
    LEASES,
    NODE_INVENTORIES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    ObjectMeta,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.leader import LeaderElection, LeaseTimes
from dra_driver.simulation.cluster import DRIVER_NAMESPACE, parse_nodes
from dra_driver.simulation.kubelet.pods import COMPLETE_ANNOTATION
from kubelet_plugin.commands.simulate import act

PLUGIN, CONTROLLER, DAEMON = "gpu-dra-kubelet-plugin", "gpu-dra-controller", "gpu-dra-imex-daemon"

EXAMPLES = Path(__file__).parents[2] / "examples" / "features"
DOMAIN_FILE = "compute-domain-two-trays.yaml"

POLICY = PublishingPolicy.of(
    {
        "publish": [{"nodes": {"labelSelector": {"matchLabels": {"nvidia.com/gpu.present": "true"}}}}],
        "mig": [{"gpus": {"names": ["*"]}, "mode": "Dynamic", "profiles": ["1g.*"]}],
        "sharing": [{"strategy": "MPS", "replicas": 64}],
    }
)
"""One for which labels of nodes are read and classes of profiles made, with a rule that no GPU can follow."""

STATUS: Permission = ("update", "resource.k8s.io", "resourceclaims/status")

SYNTHETIC: Permission = ("associated-node:update", "resource.k8s.io", "resourceclaims/driver")
"""What a server of 1.36 asks for besides STATUS; there is no such resource, so nobody is seen to use it."""

RARE = {
    # An event that is still true is counted on some minutes later: `dra_driver.kube.events`.
    ("patch", "events.k8s.io", "events"),
}
"""What takes longer than a test."""


def granted(release: Release, account: str) -> frozenset[Grant]:
    """By all roles that are bound to the account."""
    return grants((*release.objects, *release.hooks), account)


def done_by(accesses: set[Access], program: str) -> list[Access]:
    return [access for access in accesses if access.user_agent == program]


def kinds(allowed: Iterable[Grant]) -> set[Permission]:
    return {grant.permission for grant in allowed}


def names_in(release: Release) -> set[str]:
    """Which the chart knows: of what it makes, and of what it tells the programs."""
    objects = (*release.objects, *release.hooks)
    pods = [_pod(obj) for obj in objects]
    words = [word for pod in pods for container in pod.get("containers", ()) for word in container.get("args") or ()]
    in_arguments = {name for word in words for name in word.partition("=")[2].split(",")}
    return in_arguments | {obj["metadata"]["name"] for obj in objects}


def _pod(obj: Object) -> Object:
    pod_spec: Object = (obj.get("spec", {}).get("template") or {}).get("spec") or {}
    return pod_spec


def ours(release: Release, kind: str) -> str:
    account: str = release.object(kind)["spec"]["template"]["spec"]["serviceAccountName"]
    return account


def release_of(values: JsonObject) -> Release:
    """Rendered with values, on a server of its own, for the namespace that simulated clusters have for a driver."""
    with simulated_server() as thread:
        return Helm(thread.kubeconfig, namespace=DRIVER_NAMESPACE).install(values)


@asynccontextmanager
async def cluster_of(publisher: str, policy: PublishingPolicy = POLICY) -> AsyncIterator[ObservedCluster]:
    # A folder of pytest would be too long for sockets.
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        running = ObservedCluster.running(
            Path(short), parse_nodes("gb200"), publisher=publisher, installed=policies_of(policy, INSTALLED)
        )
        async with running as cluster:
            yield cluster


async def until(cluster: ObservedCluster, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    await cluster.wait(condition, what, 90)


def pod_with_claim() -> tuple[JsonObject, JsonObject]:
    text = (EXAMPLES / "one-gpu" / "one-gpu.yaml").read_text()
    template, pod = yaml.safe_load_all(text)
    return template, pod


async def a_claim_comes_and_goes(cluster: ObservedCluster) -> None:
    template, pod = pod_with_claim()
    await cluster.kube.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    await cluster.kube.create(PODS, pod, namespace="default")

    async def runs() -> bool:
        created = await cluster.kube.get(PODS, "one-gpu", "default")
        return bool((created.get("status") or {}).get("phase") == "Running")

    async def has_device_status() -> bool:
        return any(
            (held.get("status") or {}).get("devices") for held in (await cluster.kube.list(RESOURCE_CLAIMS)).items
        )

    await until(cluster, "the pod does not run", runs)
    await until(cluster, "the claim does not say how its device is", has_device_status)
    await cluster.kube.delete(PODS, "one-gpu", namespace="default")
    await cluster.kube.delete(RESOURCE_CLAIM_TEMPLATES, "one-gpu", namespace="default")

    async def gone() -> bool:
        return not (await cluster.kube.list(RESOURCE_CLAIMS)).items

    await until(cluster, "the claim does not go", gone)


async def slices_are_wiped(cluster: ObservedCluster) -> None:
    """As kubelet does: the plugin is asked for a sign of life, and they come back.

    Twice, for a registration of a moment ago is a sign of life, once.
    """
    for _ in range(2):
        await cluster.kube.delete_collection(RESOURCE_SLICES)
        await cluster.wait_published()


async def the_journal_is_damaged(cluster: ObservedCluster) -> None:
    """All claims are read to find those of the node. What kubelet hears meanwhile is that nothing can be prepared."""
    (plugin,) = cluster.plugins.values()
    await plugin.stop()
    folder = cluster.node_folder("gb200-1") / "kubelet" / "plugins" / "gpu.nvidia.com"
    (folder / "claims.journal").write_text("nonsense")
    await plugin.start()
    await cluster.wait((folder / "dra.sock").is_socket, "the plugin does not come back", 30)
    await a_claim_comes_and_goes(cluster)


async def the_policy_of_the_installation_changes(cluster: ObservedCluster) -> None:
    """While no controller runs: one of its policies is no longer in the values, another one is different."""
    name = next(policy["metadata"]["name"] for policy in (await cluster.kube.list(GPU_POLICIES)).items)
    await cluster.controller.stop()
    await cluster.kube.merge_patch(GPU_POLICIES, name, {"spec": {"priority": 7}})
    gone = GpuPolicy(metadata=ObjectMeta(name="installed-gone"), spec=GpuPolicySpec(publish=True)).to_object()
    gone["metadata"]["labels"] = {FROM_FILE: "installation"}
    await cluster.kube.create(GPU_POLICIES, gone)
    await cluster.controller.start()

    async def settled() -> bool:
        specs = {policy["metadata"]["name"]: policy["spec"] for policy in (await cluster.kube.list(GPU_POLICIES)).items}
        return "installed-gone" not in specs and specs[name].get("priority") != 7

    await until(cluster, "the policies of the installation are not put right", settled)


async def hardware_changes(cluster: ObservedCluster) -> None:
    """And the inventory was written by somebody else at the same time."""
    cluster.server.fail_next("PUT", "/nodeinventories/", 409, message="somebody was first")
    host = cluster.node_folder("gb200-1") / "host"
    await asyncio.to_thread(act, host, "xid", ["0", "79"], None)

    async def tainted() -> bool:
        slices = (await cluster.kube.list(RESOURCE_SLICES)).items
        return any(device.get("taints") for slice_ in slices for device in slice_["spec"].get("devices", ()))

    await until(cluster, "no taint is published", tainted)


async def somebody_adds_a_slice(cluster: ObservedCluster) -> None:
    """One of our driver in the node's pool, that nobody of us made."""
    spec = {
        "driver": "gpu.nvidia.com",
        "nodeName": "gb200-1",
        "pool": {"name": "gb200-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "stray"}],
    }
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "stray"}, "spec": spec}
    await cluster.kube.create(RESOURCE_SLICES, obj)

    async def gone() -> bool:
        return not [
            slice_
            for slice_ in (await cluster.kube.list(RESOURCE_SLICES)).items
            if slice_["metadata"]["name"] == "stray"
        ]

    await until(cluster, "the slice stays", gone)


async def somebody_deletes_the_inventory(cluster: ObservedCluster) -> None:
    before = await cluster.kube.get(NODE_INVENTORIES, "gb200-1")
    await cluster.kube.delete(NODE_INVENTORIES, "gb200-1")

    async def back() -> bool:
        try:
            inventory = await cluster.kube.get(NODE_INVENTORIES, "gb200-1")
        except NotFound:
            return False
        return bool(inventory["metadata"]["uid"] != before["metadata"]["uid"])

    await until(cluster, "the inventory does not come back", back)


async def somebody_changes_a_class(cluster: ObservedCluster) -> None:
    async def classes() -> list[JsonObject]:
        return [
            device_class
            for device_class in (await cluster.kube.list(DEVICE_CLASSES)).items
            if "1g." in device_class["metadata"]["name"]
        ]

    async def made() -> bool:
        return bool(await classes())

    await until(cluster, "no class for a MIG profile", made)
    wanted = (await classes())[0]
    other = [{"cel": {"expression": "true"}}]
    await cluster.kube.merge_patch(DEVICE_CLASSES, wanted["metadata"]["name"], {"spec": {"selectors": other}})

    async def right() -> bool:
        return (await classes())[0]["spec"] == wanted["spec"]

    await until(cluster, "the class stays wrong", right)


async def a_domain_comes_and_goes(cluster: ObservedCluster) -> None:
    """With a pod on the node; the names of what is made for it are taken at first."""
    kube = cluster.kube
    (channel,) = [
        obj
        for obj in yaml.safe_load_all((EXAMPLES / "compute-domain-two-trays" / DOMAIN_FILE).read_text())
        if obj["kind"] == "ComputeDomain"
    ]
    name = channel["spec"]["channel"]["resourceClaimTemplate"]["name"]
    template, pod = pod_with_claim()
    template["metadata"]["name"] = name
    await kube.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
    domain = await kube.create(COMPUTE_DOMAINS, channel, namespace="default")

    async def is_refused() -> bool:
        status = (await kube.get(COMPUTE_DOMAINS, domain["metadata"]["name"], "default")).get("status") or {}
        return any(condition["reason"] == "TemplateNameTaken" for condition in status.get("conditions") or ())

    await until(cluster, "nobody says that the template's name is taken", is_refused)
    await kube.delete(RESOURCE_CLAIM_TEMPLATES, name, namespace="default")
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = name
    await kube.create(PODS, pod, namespace="default")

    async def runs() -> bool:
        created = await kube.get(PODS, "one-gpu", "default")
        return bool((created.get("status") or {}).get("phase") == "Running")

    await until(cluster, "the pod of the domain does not run", runs)
    await kube.delete(PODS, "one-gpu", namespace="default")
    await kube.delete(COMPUTE_DOMAINS, domain["metadata"]["name"], namespace="default")

    async def gone() -> bool:
        return not (await kube.list(COMPUTE_DOMAINS)).items

    await until(cluster, "the domain does not go", gone)


async def leaders_change(cluster: ObservedCluster, lease_name: str) -> None:
    """Two candidates, one after the other; the simulated cluster's controller is alone and needs no lease."""
    for identity in ("one", "two"):
        async with Kube(endpoint_from(cluster.kubeconfig), user_agent=CONTROLLER) as kube:
            times = LeaseTimes(3.0, 2.0, 0.1)
            election = LeaderElection(kube, namespace=DRIVER_NAMESPACE, name=lease_name, identity=identity, times=times)
            leading = asyncio.create_task(election.lead(lambda: asyncio.sleep(3600)))

            async def renewed(election: LeaderElection = election) -> bool:
                if not election.leading:
                    return False
                lease = await cluster.kube.get(LEASES, lease_name, DRIVER_NAMESPACE)
                return bool(lease["spec"]["acquireTime"] != lease["spec"]["renewTime"])

            await until(cluster, "nobody leads", renewed)
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)


@pytest.mark.parametrize("publisher", slow_but(["controller", "node"], "controller"))
async def test_what_is_allowed_is_what_is_done(publisher: str) -> None:
    release = await asyncio.to_thread(release_of, {"publisher": publisher})
    async with cluster_of(publisher) as cluster:
        await a_claim_comes_and_goes(cluster)
        await the_journal_is_damaged(cluster)
        await slices_are_wiped(cluster)
        await somebody_adds_a_slice(cluster)
        await somebody_deletes_the_inventory(cluster)
        await hardware_changes(cluster)
        if publisher == "controller":
            await somebody_changes_a_class(cluster)
            await a_domain_comes_and_goes(cluster)
            await the_policy_of_the_installation_changes(cluster)
            await leaders_change(cluster, argument(release, "Deployment", "lease-name"))
        accesses = set(cluster.server.accesses)

    def compared(account: str, program: str) -> list[str]:
        allowed = [grant for grant in granted(release, account) if grant.permission not in RARE | {SYNTHETIC}]
        done = [
            access for access in done_by(accesses, program) if (access.verb, access.group, access.resource) not in RARE
        ]
        return faults(allowed, done, names=names_in(release), namespace=DRIVER_NAMESPACE)

    plugin = ours(release, "DaemonSet")
    assert compared(plugin, PLUGIN) == [] and RARE | {SYNTHETIC} <= kinds(granted(release, plugin))
    if publisher == "controller":
        assert compared(ours(release, "Deployment"), CONTROLLER) == []
        assert compared(f"{RELEASE}-imex-daemon", DAEMON) == []
    else:
        assert not done_by(accesses, CONTROLLER) and not done_by(accesses, DAEMON)


def argument(release: Release, kind: str, flag: str) -> str:
    (container,) = _pod(release.object(kind))["containers"]
    (value,) = [word.partition("=")[2] for word in container["args"] if word.startswith(f"--{flag}=")]
    return str(value)


@pytest.mark.parametrize(
    ("values", "drivers"),
    [
        ({}, ["gpu.nvidia.com", "compute-domain.nvidia.com"]),
        ({"featureGates": {"ComputeDomains": False}}, ["gpu.nvidia.com"]),
        *slow_but(
            [
                ({"publisher": "node"}, ["gpu.nvidia.com"]),
                ({"driverName": "gpu.example.com"}, ["gpu.example.com", "compute-domain.nvidia.com"]),
            ]
        ),
    ],
)
def test_the_synthetic_permission_names_the_drivers_that_are_served(values: JsonObject, drivers: list[str]) -> None:
    release = release_of(values)
    grants = [grant for grant in granted(release, ours(release, "DaemonSet")) if grant.permission == SYNTHETIC]
    assert {grant.name for grant in grants} == set(drivers)


def test_without_status_of_devices_there_is_no_permission_for_it() -> None:
    release = release_of({"featureGates": {"DeviceStatus": False}})
    assert not kinds(granted(release, ours(release, "DaemonSet"))) & {STATUS, SYNTHETIC}


GET_LEASE = Access(CONTROLLER, "get", "coordination.k8s.io", "leases", NAMESPACE, "lease")
LEASE = Grant("get", "coordination.k8s.io", "leases", NAMESPACE, "lease")


@rows(
    "allowed, messages",
    [
        ([LEASE], []),
        ([], ["missing: get leases lease in gpu-dra"]),
        ([replace(LEASE, name="")], ["could name lease: get leases in gpu-dra"]),
        ([replace(LEASE, namespace="")], ["is used in gpu-dra alone: get leases lease"]),
        (
            [replace(LEASE, name="other")],
            ["missing: get leases lease in gpu-dra", "not used: get leases other in gpu-dra"],
        ),
        ([LEASE, replace(LEASE, name="other")], ["not used: get leases other in gpu-dra"]),
        ([LEASE, replace(LEASE, verb="list")], ["not used: list leases lease in gpu-dra"]),
    ],
)
def test_too_much_and_too_little_is_told(allowed: list[Grant], messages: list[str]) -> None:
    assert faults(allowed, [GET_LEASE], names={"lease"}, namespace=NAMESPACE) == messages


def test_objects_whose_names_the_chart_cannot_know_need_no_names() -> None:
    nodes = [Access(PLUGIN, "get", "", "nodes", None, "node-1")]
    assert faults([Grant("get", "", "nodes")], nodes, names={"lease"}, namespace=NAMESPACE) == []


@pytest.mark.slow
async def test_helm_test_runs_a_claim_through() -> None:
    """The pod of the test gets a device, and its own program says so."""
    nothing = PublishingPolicy()
    async with cluster_of("controller", nothing) as cluster:
        helm = Helm(cluster.kubeconfig)
        there = {"crds": {"install": False}, "deviceClasses": {"install": False}, "cleanup": {"install": False}}
        await asyncio.to_thread(helm.install, there)
        (kubelet,) = cluster.kubelets.values()
        logs: list[str] = []

        async def run_to_the_end() -> None:
            """What the container would do, and then its end."""
            while True:
                for pod in (await cluster.kube.list(PODS, namespace=NAMESPACE)).items:
                    if not pod["metadata"]["name"].endswith("-test") or logs:
                        continue  # the DaemonSet's, which nothing runs here
                    if (pod.get("status") or {}).get("phase") == "Running":
                        (container,) = kubelet.containers(pod["metadata"]["uid"])
                        environment = dict(entry.split("=", 1) for entry in container["env"])
                        words = [sys.executable, "-c", pod["spec"]["containers"][0]["args"][0]]
                        logs.append(await asyncio.to_thread(subprocess.check_output, words, env=environment, text=True))
                        patch = {"metadata": {"annotations": {COMPLETE_ANNOTATION: "true"}}}
                        await cluster.kube.merge_patch(PODS, pod["metadata"]["name"], patch, namespace=NAMESPACE)
                await asyncio.sleep(0.05)

        running = asyncio.create_task(run_to_the_end())
        await asyncio.to_thread(helm.test)
        running.cancel()
        assert "GPU-" in logs[0]


def test_the_program_of_the_test_fails_without_a_device() -> None:
    (pod,) = [hook for hook in release_of({}).hooks if hook["kind"] == "Pod"]
    words = [sys.executable, "-c", pod["spec"]["containers"][0]["args"][0]]
    done = subprocess.run(words, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "does the runtime read CDI?" in done.stderr
