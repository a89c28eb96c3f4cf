"""`dractl doctor --prove` where a cluster gets in its way; how it proves a node is tested end to end."""

from pathlib import Path
from typing import Any

from support.held import HeldWorld

from dra_driver.api.meta import NODE_INVENTORIES, RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.cli.prove import PodOptions, proven_in_pods
from dra_driver.doctor.proofs import SHAPES, ProofResult
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer


class _Drained:
    """A cluster in which someone deletes the claims of the proofs, as by draining the node."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        if resource == NODE_INVENTORIES:
            return {}  # the node has reported
        if resource == RESOURCE_CLAIMS:
            await self._kube.delete(resource, name, namespace=namespace)
        return await self._kube.get(resource, name, namespace)


async def test_a_pod_that_is_deleted_meanwhile_ends_its_proof_only(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path
) -> None:
    world = HeldWorld(kube, api_server.kubeconfig(tmp_path / "kubeconfig"))
    await world.publish("node-1", tmp_path / "host", "t4")
    drained: Any = _Drained(kube)
    proofs = await proven_in_pods(drained, PodOptions("node-1", GPU_DRIVER, (), "simulated", 30.0))
    assert [proof.name for proof in proofs] == [shape.name for shape in SHAPES]
    assert {proof.outcome for proof in proofs} == {ProofResult.NOT_TRIED}
    assert any("its pod or claim was deleted meanwhile: ResourceClaim" in proof.reason for proof in proofs)
