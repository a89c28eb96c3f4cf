"""A simulated cluster of an older Kubernetes: its version, and what becomes of objects where gates are off."""

import tempfile
from pathlib import Path

from dra_driver.api.meta import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from dra_driver.kubernetes import SEEN
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes


async def test_1_34_has_its_version_and_drops_what_has_no_gate() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes("t4"), version=SEEN[34]) as cluster:
            assert (await cluster.kube.server_version())[1] == 34
            node_info = (await cluster.kube.get(NODES, "t4-1"))["status"]["nodeInfo"]
            assert node_info["kubeletVersion"] == SEEN[34]
            assert "extendedResourceName" not in (await cluster.kube.get(DEVICE_CLASSES, "gpu.nvidia.com"))["spec"]
            assert all(slice_["spec"]["devices"] for slice_ in (await cluster.kube.list(RESOURCE_SLICES)).items)
