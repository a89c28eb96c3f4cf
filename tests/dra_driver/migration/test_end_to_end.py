"""The manifests of a device plugin's cluster, migrated and applied to a cluster with our driver: all pods run.

The old cluster has a DGX H100, two of whose GPUs are cut up by the MIG manager, and a node of T4s, each shared by four.
The new one is simulated; controller and node plugins are the real programs.
"""

import asyncio
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.dractl import decided
from typer.testing import CliRunner

from dra_driver.allocation.loading import pods_of_workload
from dra_driver.api.meta import JsonObject
from dra_driver.cli.main import app
from dra_driver.cli.simulated import scenario as scenarios
from dra_driver.cli.simulated.scenario import ContainerResult, Scenario
from dra_driver.publish.policy_file import read_policies
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode

MANIFESTS = Path(__file__).parent / "manifests"
APPLIED = (
    "workloads/pod-vector-add.yaml",
    "workloads/deployment-translator.yaml",
    "workloads/two-containers-one-gpu-each.yaml",
    "workloads/two-containers-trick-sharing.yaml",
    "workloads/mixed-mig-profiles.yaml",
    "workloads/init-container-conversion.yaml",
    "sharing/shared-product-affinity.yaml",
)
EXPORTER = "workloads/daemonset-gpu-exporter.yaml"
"""For nodes where no MIG devices are made on demand, and so migrated alone."""
H100 = {"nvidia.com/device-plugin.config": "plain", "nvidia.com/mig.config": "some"}
T4 = {"nvidia.com/device-plugin.config": "four-each"}
OLD_CLUSTER = f"""
apiVersion: v1
kind: Node
metadata:
  name: dgx-h100-1
  labels:
    nvidia.com/gpu.present: "true"
    nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
    nvidia.com/gpu.memory: "81559"
    nvidia.com/mig.strategy: mixed
    {json.dumps(H100)[1:-1].replace(", ", chr(10) + "    ")}
status:
  allocatable: {{nvidia.com/gpu: "6", nvidia.com/mig-1g.10gb.me: "2", nvidia.com/mig-2g.20gb: "2"}}
---
apiVersion: v1
kind: Node
metadata:
  name: t4-1
  labels:
    nvidia.com/gpu.present: "true"
    nvidia.com/gpu.product: Tesla-T4-SHARED
    nvidia.com/gpu.replicas: "4"
    nvidia.com/gpu.sharing-strategy: time-slicing
    nvidia.com/mig.strategy: none
    {json.dumps(T4)[1:-1]}
status:
  allocatable: {{nvidia.com/gpu: "16"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: device-plugin-config, namespace: gpu-operator}}
data:
  plain: |
    version: v1
    flags: {{migStrategy: mixed}}
  four-each: |
    version: v1
    sharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: 4}}]}}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: layouts, namespace: gpu-operator}}
data:
  config.yaml: |
    version: v1
    mig-configs:
      some:
      - {{devices: [0, 1, 2, 3, 4, 5], mig-enabled: false}}
      - {{devices: [6, 7], mig-enabled: true, mig-devices: {{1g.10gb+me: 1, 2g.20gb: 1}}}}
"""


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dractl migrate -o` wrote."""
    folder = tmp_path_factory.mktemp("migration")
    around = folder / "around.yaml"
    around.write_text(OLD_CLUSTER)
    files = [str(MANIFESTS / name) for name in APPLIED]
    arguments = [
        "--with",
        str(around),
        *decided(folder, "strategy: claims\ndynamicMig: true\nshareVisibleAll: true"),
        "--nodes",
        "dgx-h100,t4",
    ]
    outcome = CliRunner().invoke(app, ["migrate", *files, *arguments, "--to", str(folder / "new")])
    report = json.loads((folder / "new" / "report.json").read_text())
    tried = {
        verdict["object"]["name"]: (verdict["verdict"], verdict["why"])
        for verdict in report["verification"]["workloads"]
    }
    assert {verdict for verdict, _ in tried.values()} == {"same"}, tried
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)
    alone = ("--with", str(around), "--nodes", "t4", "--to", str(folder / "new" / "manifests" / "alone"))
    exporter = CliRunner().invoke(app, ["migrate", str(MANIFESTS / EXPORTER), *alone])
    assert exporter.exit_code == 0, exporter.output
    return folder / "new"


def applied(folder: Path) -> Iterator[JsonObject]:
    """What a person applies; labeled namespaces as the report asks."""
    namespaces = set()
    files = (folder / "manifests").rglob("*.yaml")
    for written in sorted(written for written in files if written.parent.name != "alone"):
        for obj in yaml.safe_load_all(written.read_text()):
            namespaces.add(obj["metadata"].get("namespace", "default"))
            if obj["kind"] in ("ResourceClaimTemplate", "DeviceClass", "Pod") or any(pods_of_workload(obj)):
                yield obj
    labels = {"resource.kubernetes.io/admin-access": "true"}
    yield from (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}} for name in namespaces
    )


def _is_watcher(obj: JsonObject) -> bool:
    return bool(obj["metadata"]["name"] == "gpu-watch")


async def run(folder: Path, place: Path) -> tuple[ContainerResult, ...]:
    nodes = [
        SimulatedNode("dgx-h100-1", "dgx-h100", 0, (*H100.items(), ("nvidia.com/gpu.present", "true"))),
        SimulatedNode("t4-1", "t4", 0, (*T4.items(), ("nvidia.com/gpu.present", "true"))),
    ]
    installed = read_policies(folder / "gpu-policies.yaml")
    order = {kind: place for place, kind in enumerate(("Namespace", "DeviceClass", "ResourceClaimTemplate"))}
    documents = sorted(applied(folder), key=lambda obj: order.get(obj["kind"], len(order)))
    scenario = Scenario("migrated", tuple(documents))
    # Counters apply to its admin access, too, so it must come before the pods whose MIG devices are made on demand.
    watcher = Scenario("exporter", tuple(obj for obj in documents if obj["kind"] in order or _is_watcher(obj)))
    async with SimulatedCluster.running(place, nodes, installed=installed) as cluster:
        await scenarios.apply(cluster.kube, watcher)
        await scenarios.wait_running(cluster, watcher, 60.0)
        await scenarios.apply(cluster.kube, scenario)
        pods = await scenarios.wait_running(cluster, scenario, 60.0)
        return await scenarios.container_results(cluster, pods)


_WORKLOADS = ("translator", "encode-and-rank", "light-inference", "gpu-watch")


def test_all_pods_run_and_each_container_has_what_it_had(migrated: Path) -> None:
    # Paths of sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="dra-") as place:
        results = asyncio.run(run(migrated, Path(place)))
    devices, products = (
        defaultdict[tuple[str, str], list[list[str]]](list),
        defaultdict[tuple[str, str], set[object]](set),
    )
    for container in results:
        # Of a pod that a workload makes, the beginning of its name.
        key = (
            next((name for name in _WORKLOADS if container.pod.startswith(f"{name}-")), container.pod),
            container.container,
        )
        devices[key].append(sorted(device.id.device for device in container.devices))
        products[key] |= {device.attribute("productName") for device in container.devices}
    got = {key: device_lists[0] for key, device_lists in devices.items()}
    assert len(got[("vector-add", "vector-add")]) == 1
    assert [len(device_lists) for device_lists in devices[("translator", "server")]] == [1, 1]
    assert len({*got[("encode-and-rank", "encode")], *got[("encode-and-rank", "rank")]}) == 2
    assert got[("encode-and-rank", "proxy")] == []
    assert got[("camera", "detector")] == got[("camera", "preview")] != []
    assert ["1g10gb-me" in got[("two-sizes", "pipeline")][0], "2g20gb" in got[("two-sizes", "pipeline")][1]] == [
        True,
        True,
    ]
    assert products[("light-inference", "light")] == {"Tesla T4"}
    assert len(got[("gpu-watch", "exporter")]) >= 4
