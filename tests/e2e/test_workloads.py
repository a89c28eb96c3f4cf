"""kubectl with a simulated cluster: workloads run with a GPU for each pod, are rolled out, scaled and removed."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.places import SHORT

from dra_driver.api.meta import PODS, RESOURCE_CLAIMS
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

type Kubectl = Callable[..., Awaitable[str]]

SERVICE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: engine}
spec:
  replicas: 2
  selector: {matchLabels: {app: engine}}
  template:
    metadata: {labels: {app: engine}}
    spec:
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
      containers:
      - {name: engine, image: vllm, resources: {claims: [{name: gpu}]}}
"""


def kubectl_with(folder: Path) -> Kubectl:
    program = os.environ.get("GPU_DRA_TEST_KUBECTL") or shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")

    async def run(*arguments: str, stdin: str = "", status: int = 0) -> str:
        pipe = asyncio.subprocess.PIPE
        options = (f"--kubeconfig={folder / 'kubeconfig'}", f"--cache-dir={folder / 'cache'}")
        process = await asyncio.create_subprocess_exec(
            program, *options, *arguments, stdin=pipe, stdout=pipe, stderr=pipe
        )
        output, errors = await process.communicate(stdin.encode())
        assert process.returncode == status, f"kubectl {' '.join(arguments)}: {errors.decode()}"
        return (output if status == 0 else errors).decode()

    return run


async def the_life_of_a_deployment(kubectl: Kubectl, cluster: SimulatedCluster) -> None:
    async def gpus() -> int:
        return sum(
            "allocation" in (item.get("status") or {}) for item in (await cluster.kube.list(RESOURCE_CLAIMS)).items
        )

    await kubectl("apply", "-f", "-", stdin=SERVICE)
    rolled_out = ("rollout", "status", "deploy/engine", "--timeout=30s")
    await kubectl(*rolled_out)
    assert await gpus() == 2
    await kubectl("scale", "deploy/engine", "--replicas=3")
    await kubectl("wait", "deploy/engine", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=30s")
    assert await gpus() == 3
    await kubectl("set", "image", "deploy/engine", "engine=vllm:2")
    await kubectl(*rolled_out)
    await kubectl("rollout", "undo", "deploy/engine")
    await kubectl(*rolled_out)
    images = await kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert images.split() == ["vllm"] * 3
    row = (await kubectl("get", "deploy", "engine", "--no-headers")).split()
    assert row[:4] == ["engine", "3/3", "3", "3"]
    await kubectl("delete", "deploy", "engine")

    async def gone() -> bool:
        return not (await cluster.kube.list(PODS, namespace="default")).items and not await gpus()

    await cluster.wait(gone, "pods or claims of the Deployment are left", 30)


async def what_kubectl_creates(kubectl: Kubectl) -> None:
    """Bodies in protobuf."""
    await kubectl("create", "deployment", "web", "--image=nginx", "--replicas=2", "--port=80")
    await kubectl("create", "job", "once", "--image=busybox", "--", "sh", "-c", "date; sleep 99")
    await kubectl("create", "cronjob", "often", "--image=busybox", "--schedule=0 0 1 1 *", "--", "date")
    await kubectl("create", "job", "now", "--from=cronjob/often")
    await kubectl("create", "service", "clusterip", "web", "--tcp=80:http")
    await kubectl("rollout", "status", "deploy/web", "--timeout=30s")
    for name, command in (("once", ["sh", "-c", "date; sleep 99"]), ("now", ["date"])):
        labels = f"batch.kubernetes.io/job-name={name}"
        await kubectl("wait", "pod", "-l", labels, "--for=jsonpath={.spec.nodeName}", "--timeout=30s")
        path = "jsonpath={.items[0].spec.containers[0].command}"
        words = await kubectl("get", "pods", "-l", labels, "-o", path)
        assert json.loads(words) == command
    port = await kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].targetPort} {.spec.selector}")
    assert port == 'http {"app":"web"}'


async def what_containers_see(kubectl: Kubectl) -> None:
    """Logs, and commands in containers."""
    await kubectl("apply", "-f", "-", stdin=SERVICE)
    await kubectl("rollout", "status", "deploy/engine", "--timeout=30s")
    listed = await kubectl("exec", "deploy/engine", "--", "nvidia-smi", "-L")
    assert listed.startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-") and listed.count("\n") == 1
    assert listed in await kubectl("logs", "deploy/engine")
    files = await kubectl(
        "exec", "deploy/engine", "--", "sh", "-c", "ls /dev/nvidia[0-9]; echo $NVIDIA_VISIBLE_DEVICES"
    )
    device, visible = files.split()
    assert device.removeprefix("/dev/nvidia").isdigit() and visible == "void"
    why = await kubectl("exec", "deploy/engine", "--", "python", status=127)
    assert why.startswith("python: does not run in a simulated container, which understands nvidia-smi, ls, ")
    assert await kubectl("logs", "job/done") == "hello\n"
    assert "programs of pod" in await kubectl("port-forward", "deploy/engine", "80", status=1)


async def jobs_end(kubectl: Kubectl) -> None:
    """Of programs that are understood, with their status."""
    await kubectl("create", "job", "done", "--image=busybox", "--", "sh", "-c", "echo hello; sleep 1")
    await kubectl("wait", "job/done", "--for=condition=Complete", "--timeout=30s")
    await kubectl("create", "job", "fails", "--image=busybox", "--", "sh", "-c", "exit 3")
    await kubectl("wait", "job/fails", "--for=condition=Failed", "--timeout=30s")
    labels = "batch.kubernetes.io/job-name=fails"
    path = "jsonpath={.items[0].status.containerStatuses[0].state.terminated.exitCode}"
    assert await kubectl("get", "pods", "-l", labels, "-o", path) == "3"


@pytest.mark.slow
def test_workloads_by_kubectl() -> None:
    async def all_of_it(folder: Path) -> None:
        kubectl = kubectl_with(folder)
        async with SimulatedCluster.running(folder, parse_nodes("dgx-h100")) as cluster:
            await the_life_of_a_deployment(kubectl, cluster)
            await what_kubectl_creates(kubectl)
            await jobs_end(kubectl)
            await what_containers_see(kubectl)

    with tempfile.TemporaryDirectory(dir=SHORT) as place:
        asyncio.run(all_of_it(Path(place)))
