"""A job over two trays whose GPUs come from the device plugin and whose channel comes by a claim, migrated and run.

One rack for both ways, since it costs some ten seconds: the job with the extended resource, then with claims.
Controller, plugins and daemons are the real programs.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from support.places import SHORT
from typer.testing import CliRunner

from dra_driver.api.meta import JsonObject
from dra_driver.cli.main import app
from dra_driver.cli.simulated import scenario as scenarios
from dra_driver.cli.simulated.scenario import ContainerResult, Scenario
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

TRAYS = ("gb200-1", "gb200-2")
BEFORE = """\
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: ranks}
spec:
  numNodes: 2
  channel:
    resourceClaimTemplate: {name: ranks-channel}
""" + "".join(
    f"""\
---
apiVersion: v1
kind: Pod
metadata:
  name: rank-{number}
spec:
  resourceClaims:
  - name: channel   # of the domain
    resourceClaimTemplateName: ranks-channel
  containers:
  - name: rank
    image: registry.example.com/ranks:1
    resources:
      limits:
        nvidia.com/gpu: 4
      claims:
      - name: channel
"""
    for number in (0, 1)
)


def migrated(folder: Path, strategy: str) -> tuple[JsonObject, ...]:
    """What a person applies after `dractl migrate --strategy`, in the order in which it can be."""
    file, out = folder / "ranks.yaml", folder / strategy
    file.write_text(BEFORE)
    arguments = ("migrate", str(file), "--strategy", strategy, "--nodes", "gb200", "--to", str(out))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "report.json").read_text())
    assert [workload["target"] for workload in report["workloads"]] == [strategy] * 2
    tried = [(workload["verdict"], workload["why"]) for workload in report["verification"]["workloads"]]
    assert tried == [("same", ["not tried: claims of other devices ('channel')"])] * 2
    objects = [obj for path in (out / "manifests").rglob("*.yaml") for obj in yaml.safe_load_all(path.read_text())]
    order = ("DeviceClass", "ComputeDomain", "ResourceClaimTemplate", "Pod")
    return tuple(sorted(objects, key=lambda obj: order.index(obj["kind"])))


async def run(cluster: SimulatedCluster, documents: Iterable[JsonObject]) -> tuple[ContainerResult, ...]:
    """What the containers of these pods get; nothing is left of them afterwards."""
    scenario, before = Scenario("migrated", tuple(documents)), cluster.hardware()
    await scenarios.apply(cluster.kube, scenario)
    pods = await scenarios.wait_running(cluster, scenario, 90)
    results = await scenarios.container_results(cluster, pods)
    await scenarios.remove(cluster, scenario, 60, before)
    return results


@pytest.mark.slow
async def test_each_pod_runs_with_its_gpus_and_with_its_channel(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=SHORT) as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes("gb200:2")) as cluster:
            for strategy in ("extended", "claims"):
                results = await run(cluster, migrated(tmp_path, strategy))
                assert {container.node for container in results} == set(TRAYS), strategy
                for container in results:
                    drivers = [device.id.driver for device in container.devices]
                    assert sorted(drivers) == ["compute-domain.nvidia.com", *["gpu.nvidia.com"] * 4], strategy
                    assert [path for path in container.device_nodes if "imex-channels" in path], strategy
                    assert {f"/dev/nvidia{number}" for number in range(4)} <= set(container.device_nodes), strategy
