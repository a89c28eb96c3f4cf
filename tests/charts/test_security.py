"""What containers may do to their node is what stands here, and nothing more."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from support.api import Api, Refused
from support.chart_values import VARIANTS, Values, combinations
from support.foreign_types import EVERYTHING_SERVED
from support.helm import CHART, Helm, Object, Release, simulated_server
from support.real_api_server import RealApiServer

from charts.generate import read_values
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import PODS, RESOURCE_CLAIM_TEMPLATES
from dra_driver.domains.objects import DaemonSettings, daemon_set
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode, parse_nodes
from dra_driver.simulation.processes import Process

type Render = Any

WRITABLE = {
    "/var/lib/kubelet/plugins": "sockets, journal, MPS folders",
    "/var/lib/kubelet/plugins_registry": "the socket with which kubelet registers the plugin",
    "/var/run/cdi": "CDI files",
    "/sys": "passthrough binds and unbinds GPUs",
    "/dev": "NVML opens device nodes, also of GPUs that come later",
}
READABLE = {"/": "the driver, /proc, the host's namespaces"}


def pods(release: Release) -> list[Object]:
    objects = [*release.objects, *release.hooks]
    specs = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in ("DaemonSet", "Deployment", "Job")]
    return specs + [obj["spec"] for obj in objects if obj["kind"] == "Pod"]


def plugin(release: Release) -> Object:
    spec: Object = release.object("DaemonSet")["spec"]["template"]["spec"]
    return spec


def host_paths(pod: Object) -> dict[str, bool]:
    """Path on the host to whether it can be written."""
    mounts = {mount["name"]: not mount.get("readOnly") for mount in pod["containers"][0]["volumeMounts"]}
    return {volume["hostPath"]["path"]: mounts[volume["name"]] for volume in pod["volumes"] if "hostPath" in volume}


def test_of_the_host_the_plugin_has_what_it_needs(render: Render) -> None:
    paths = host_paths(plugin(render()))
    assert {path for path, writable in paths.items() if writable} == WRITABLE.keys()
    assert {path for path, writable in paths.items() if not writable} == READABLE.keys()


def test_the_values_say_what_each_path_of_the_host_is_for() -> None:
    text = "\n".join(
        leaf.text
        for value in read_values((CHART / "values.yaml").read_text())
        for leaf in value.leaves()
        if leaf.path[0] == "kubeletPlugin"
    )
    named = {path.removeprefix("/var/lib/kubelet/") for path in (*WRITABLE, *READABLE) if path != "/var/run/cdi"}
    assert {path for path in named if f"`{path}`" not in text} == set() and "CDI files" in text


def test_simulated_hardware_needs_neither_host_nor_privileges(render: Render) -> None:
    pod = plugin(render(VARIANTS["simulated"]))
    assert not pod["hostPID"]
    assert set(host_paths(pod)) == {path for path in WRITABLE if path.startswith(("/var/lib/kubelet", "/var/run/cdi"))}
    context = pod["containers"][0]["securityContext"]
    assert not context.get("privileged") and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]} and context["seccompProfile"] == {"type": "RuntimeDefault"}


A_DOMAIN = {
    "metadata": {"name": "train", "namespace": "default", "uid": "11111111-2222-4333-8444-555555555555"},
    "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}},
}


class Unprivileged(SimulatedCluster):
    """Its plugins have no capabilities and cannot get any."""

    def _plugin_process(self, node: SimulatedNode) -> Process:
        process = super()._plugin_process(node)
        without = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
        process._command = (*without, *process._command)
        return process


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can give rights away")
async def test_simulated_hardware_works_without_any_capability() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        async with Unprivileged.running(Path(folder), parse_nodes("t4")) as cluster:
            status = Path(f"/proc/{cluster.plugins['t4-1'].pid}/status").read_text()
            assert "CapEff:\t0000000000000000" in status
            template, pod = one_gpu()
            await cluster.kube.create(RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
            await cluster.kube.create(PODS, pod, namespace="default")

            async def runs() -> bool:
                created = await cluster.kube.get(PODS, pod["metadata"]["name"], "default")
                return bool((created.get("status") or {}).get("phase") == "Running")

            await cluster.wait(runs, "the pod does not run", 30)


def one_gpu() -> tuple[Object, Object]:
    template, pod = yaml.safe_load_all(
        (CHART.parents[1] / "examples" / "features" / "one-gpu" / "one-gpu.yaml").read_text()
    )
    return template, pod


def test_without_the_privileged_flag_only_named_capabilities_are_left(render: Render) -> None:
    context = plugin(render(VARIANTS["unprivileged"]))["containers"][0]["securityContext"]
    assert "privileged" not in context and context["capabilities"]["drop"] == ["ALL"]
    assert len(context["capabilities"]["add"]) == 5


def test_every_capability_has_its_reason_above_it() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    start = lines.index("  capabilities:")
    listed = [number for number in range(start + 1, start + 12) if lines[number].startswith("  - ")]
    assert len(listed) == 5 and all(lines[number - 1].startswith("  # ") for number in listed)


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=combinations())
def test_nothing_but_the_plugin_has_any_rights_on_its_node(values: Values) -> None:
    with simulated_server() as thread:
        for served in EVERYTHING_SERVED:
            thread.create(served)
        release = Helm(thread.kubeconfig).install(values)
    node_plugin = plugin(release)
    assert len(pods(release)) > 1
    for pod in pods(release):
        assert not pod.get("hostNetwork") and not pod.get("hostIPC")
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"]
            if pod is not node_plugin:
                assert context["runAsNonRoot"] and not context["allowPrivilegeEscalation"]
                assert context.get("runAsUser", 65532) == 65532
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert context["seccompProfile"] == {"type": "RuntimeDefault"}
                assert not pod.get("hostPID") and not [
                    volume for volume in pod.get("volumes", ()) if "hostPath" in volume
                ]


async def refused_at(level: str, specs: Sequence[Object], server: RealApiServer) -> set[str]:
    """Containers of the pods that a namespace with this Pod Security Standard does not take."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    refused = set()
    async with Api(server.url, token=server.token, ssl=server.ssl_context()) as admin:
        made = await admin.post("/api/v1/namespaces", {"metadata": {"generateName": f"{level}-", "labels": labels}})
        metadata = made["metadata"]
        for spec in specs:
            # Which the server does not have, and would say so.
            known = {key: field for key, field in spec.items() if key != "runtimeClassName"}
            body = {"metadata": {"name": "tried"}, "spec": known}
            try:
                await admin.post(f"/api/v1/namespaces/{metadata['name']}/pods", body, dryRun="All")
            except Refused as error:
                assert error.status == 403 and "violates PodSecurity" in error.message, error.message
                refused.add(spec["containers"][0]["name"])
        await admin.delete(f"/api/v1/namespaces/{metadata['name']}")
    return refused


@pytest.mark.parametrize("title", ["defaults", "simulated", "unprivileged", "webhook"])
def test_only_pods_of_the_plugin_need_a_namespace_without_a_pod_security_standard(
    title: str, render: Render, real_server: RealApiServer
) -> None:
    """Controller, removal and test fit the strictest, daemons of ComputeDomains `baseline`."""
    release = render(VARIANTS[title])
    daemons = daemon_set(ComputeDomain.of(A_DOMAIN), DaemonSettings("gpu-dra", "image:1"))["spec"]["template"]["spec"]
    specs = [*pods(release), daemons]
    assert len(specs) == 5

    def refused(level: str) -> set[str]:
        return asyncio.run(refused_at(level, specs, real_server))

    assert refused("restricted") == {"plugin", "imex-daemon"}
    assert refused("baseline") == {"plugin"}
    assert refused("privileged") == set()
    text = (CHART.parents[1] / "docs" / "security.md").read_text()
    assert "controller, cleanup and test fit `restricted`. Daemons of ComputeDomains fit `baseline`" in text.replace(
        "\n", " "
    )


@pytest.mark.parametrize("wanted", ["auto", "never"])
def test_on_openshift_only_pods_with_a_constraint_of_their_own_name_a_user(wanted: str, render: Render) -> None:
    """Others have restricted-v2: it gives them one of the namespace's users, and refuses pods that name another."""
    release = render({"openshift": {"securityContextConstraints": wanted}}, before=EVERYTHING_SERVED)
    others = [pod for pod in pods(release) if pod is not plugin(release)]
    named = [pod["containers"][0]["securityContext"].get("runAsUser") for pod in others]
    assert named == [None if wanted == "auto" else 65532] * 3  # controller, removal, test
    assert all(pod["containers"][0]["securityContext"]["runAsNonRoot"] for pod in others)


@pytest.mark.parametrize("kind", ["DaemonSet", "Deployment"])
def test_what_a_read_only_root_leaves_to_write_to_is_mounted(kind: str, render: Render) -> None:
    """The plugin's /tmp; the controller writes nothing."""
    pod = render().object(kind)["spec"]["template"]["spec"]
    empty = [volume["name"] for volume in pod["volumes"] if "emptyDir" in volume]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert [mounts[name] for name in empty] == (["/tmp"] if kind == "DaemonSet" else [])


@pytest.mark.parametrize(
    "values", [{}, {"kubeletPlugin": {"privileged": False}}, {"kubeletPlugin": {"simulate": "t4"}}], ids=str
)
def test_the_constraint_of_openshift_gives_the_plugin_what_its_pod_has_and_no_more(
    values: Values, render: Render
) -> None:
    release = render(values, before=EVERYTHING_SERVED)
    (scc,) = [
        constraint
        for constraint in release.all("SecurityContextConstraints")
        if "kubelet-plugin" in constraint["metadata"]["name"]
    ]
    pod = release.object("DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = container["securityContext"]
    for field, of_pod in (
        ("allowHostPID", "hostPID"),
        ("allowHostIPC", "hostIPC"),
        ("allowHostNetwork", "hostNetwork"),
    ):
        assert scc[field] is pod.get(of_pod, False), field
    assert scc["allowHostPorts"] is any("hostPort" in port for port in container["ports"])
    assert scc["allowPrivilegedContainer"] is context.get("privileged", False)
    if "privileged" not in context:
        assert scc["allowPrivilegeEscalation"] is context["allowPrivilegeEscalation"]
        assert scc["allowedCapabilities"] == context["capabilities"].get("add", [])
    assert scc["readOnlyRootFilesystem"] is context["readOnlyRootFilesystem"] is True
    # The API server mounts the token, a projected volume, itself.
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"} | {"projected"}
    assert set(scc["volumes"]) == kinds and scc["groups"] == []


def test_network_policies_limit_both_directions(render: Render) -> None:
    """Rules of a direction that is not among the types limit nothing."""
    release = render({"networkPolicy": {"install": True}})
    policies = [*release.all("NetworkPolicy"), *(hook for hook in release.hooks if hook["kind"] == "NetworkPolicy")]
    assert len(policies) == 4
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"], policy["metadata"]["name"]
        assert policy["spec"]["egress"], "nothing at all could be reached"


def test_network_policies_name_ports_and_who_may_use_them(render: Render) -> None:
    monitoring = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    server = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
    limits = {"metricsFrom": monitoring, "webhookFrom": server, "apiServerCIDRs": ["10.0.0.1/32"]}
    release = render({"networkPolicy": {"install": True, **limits}, "webhook": {"install": True, "port": 9876}})
    policies = {
        policy["metadata"]["name"].removeprefix("gpu-dra-driver-"): policy["spec"]
        for policy in release.all("NetworkPolicy")
    }
    controller = policies["controller"]
    metrics, webhook = controller["ingress"]
    assert (metrics["from"], len(metrics["ports"])) == (monitoring, 1)
    assert webhook == {"ports": [{"port": 9876, "protocol": "TCP"}], "from": server}
    assert [rule["to"] for rule in controller["egress"]] == [[{"ipBlock": {"cidr": "10.0.0.1/32"}}]]
    for spec in policies.values():
        assert all(rule.get("from") for rule in spec["ingress"]), spec
        assert all(rule.get("to") for rule in spec["egress"]), spec
