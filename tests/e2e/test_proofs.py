"""`dractl doctor --prove` on a simulated cluster: the plugin is a process, and pods run the check on what CDI gives."""

import asyncio
import json
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.dractl import dractl
from support.pages import DOCS, blocks
from support.places import SHORT

from dra_driver.api.meta import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.resource import ResourceSlice
from dra_driver.cli.prove import PodOptions, ProofPlace, proven_in_pods
from dra_driver.doctor.proofs import LABEL, SHAPES, Proof, ProofRequest, ProofResult, pod_of
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode
from kubelet_plugin.simulation.host import SimulatedHost

NODE = SimulatedNode("a30-1", "a30", 0, acts=(("mig-mode", "3", "on"), ("make-mig", "3", "1g.6gb")))
WHOLE = ProofRequest("gpu.nvidia.com", f"device.attributes['{GPU_DRIVER}'].sharing == 'exclusive'")


@pytest.mark.slow
async def test_a_node_is_proven_through_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        async with SimulatedCluster.running(Path(folder), [NODE]) as cluster:
            before = cluster.hardware()
            await _everything_passes(cluster, Path(folder))
            await _nothing_is_left(cluster)
            await _who_may_not_make_pods_is_told_so(cluster)
            await _a_fault_is_found(cluster)
            await _whoever_cancels_leaves_nothing(cluster)
            await _what_a_killed_run_left_goes(cluster)
            assert cluster.hardware() == before
            assert cluster.daemons() == ()


async def _everything_passes(cluster: SimulatedCluster, folder: Path) -> None:
    node, archive = cluster.node_folder(NODE.name), folder / "proof.tar.gz"
    places = ("--host-root", str(node / "host"), "--kubelet-root", str(node / "kubelet"))
    status, text = await dractl(
        *("doctor", "--node", "--prove", "--on", NODE.name, "--simulate", "a30:0", "--cdi-root", str(node / "cdi")),
        *(*places, "--kubeconfig", str(cluster.kubeconfig), "--image", "simulated", "--archive", str(archive)),
    )
    assert status == 0, text
    assert _steady(text) == _steady(_page())
    with tarfile.open(archive) as packed:
        member = packed.extractfile("gpu-dra-bundle/prove.json")
        assert member is not None
        proofs = json.load(member)["proofs"]
    assert len(proofs) == 18
    assert all(proof["texts"]["report"] for proof in proofs if proof["name"].startswith("pod-"))


def _page() -> str:
    """What docs/doctor.md shows."""
    (shown,) = [block for block in blocks(DOCS / "doctor.md") if "\npass      pod-gpu " in block.text]
    return shown.text


def _steady(text: str) -> list[str]:
    """Without what differs each time: seconds, and the summary with the archive's name."""
    lines = re.sub(r"\d+\.\d+ s", "N s", text).splitlines()
    return [line.rstrip() for line in lines if line.strip() and " proofs: " not in line]


async def _nothing_is_left(cluster: SimulatedCluster) -> None:
    assert [(await cluster.kube.list(resource)).items for resource in (PODS, RESOURCE_CLAIMS)] == [[], []]


async def _prove(cluster: SimulatedCluster, number: int) -> Proof:
    slices = tuple(ResourceSlice.of(item) for item in (await cluster.kube.list(RESOURCE_SLICES)).items)
    return await _place(cluster).tried(SHAPES[number], WHOLE, slices, GPU_DRIVER, 30.0)


def _place(cluster: SimulatedCluster) -> ProofPlace:
    return ProofPlace(cluster.kube, NODE.name, "default", "simulated")


class _Reader:
    """A client whose user may not make anything."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def create(self, *_: object, **__: object) -> None:
        raise Rejected("pods is forbidden", about="pods", status=403)


async def _who_may_not_make_pods_is_told_so(cluster: SimulatedCluster) -> None:
    reader: Any = _Reader(cluster.kube)
    proofs = await proven_in_pods(reader, PodOptions(NODE.name, GPU_DRIVER, (), "simulated", 30.0))
    assert [proof.name for proof in proofs] == [shape.name for shape in SHAPES]
    assert {proof.outcome for proof in proofs} == {ProofResult.NOT_TRIED}
    assert "you may not make pods in namespace default" in proofs[0].reason


async def _a_fault_is_found(cluster: SimulatedCluster) -> None:
    """Device nodes that root alone may open: another user's pod fails, root's does not."""
    host = SimulatedHost(cluster.node_folder(NODE.name) / "host")
    control = host.path("/dev/nvidiactl")
    text = control.read_text()
    control.write_text(text.replace("0666", "0600"))
    proof = await _prove(cluster, 1)
    assert (proof.outcome, proof.reason) == (ProofResult.FAIL, "cuInit: CUDA_ERROR_NO_DEVICE (100)")
    control.write_text(text)
    await _nothing_is_left(cluster)


async def _whoever_cancels_leaves_nothing(cluster: SimulatedCluster) -> None:
    proving = asyncio.create_task(_prove(cluster, 0))

    async def begun() -> bool:
        return bool((await cluster.kube.list(RESOURCE_CLAIMS)).items)

    await cluster.wait(begun, "no claim is made", 10.0)
    proving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await proving
    await _nothing_is_left(cluster)


async def _what_a_killed_run_left_goes(cluster: SimulatedCluster) -> None:
    """A pod that is over; one that may still be somebody's stays."""
    kube = cluster.kube
    pods = [pod_of(name, SHAPES[0], WHOLE, node="none", image="simulated", secrets=()) for name in ("over", "waits")]
    for pod in pods:
        await kube.create(PODS, pod, namespace="default")
    await kube.merge_patch(PODS, "over", {"status": {"phase": "Failed"}}, namespace="default", subresource="status")
    await _place(cluster).remove_old()
    assert [pod["metadata"]["name"] for pod in (await kube.list(PODS, label_selector=LABEL)).items] == ["waits"]
    await kube.delete(PODS, "waits", namespace="default")
