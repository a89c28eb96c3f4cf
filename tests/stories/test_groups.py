"""Groups of pods on several nodes: one device each on all of a rack, shared claims, network devices."""

from support.allocation import exactly, gpu
from support.stories import Cluster

from dra_driver.allocation.offline import allocate_all


def _rack(cluster: Cluster, nodes: int) -> None:
    for number in range(nodes):
        cluster.node(f"tray-{number}", *(gpu(f"gpu-{index}", clique="rack.1") for index in range(4)))


def test_the_fifth_worker_of_a_group_waits_for_a_fifth_tray() -> None:
    cluster = Cluster(live=False)
    _rack(cluster, 4)
    cluster.template("tray", exactly(count=4), constraints=[{"matchAttribute": "gpu.nvidia.com/clique"}])
    for number in range(5):
        cluster.bare_pod(f"worker-{number}", templates=["tray"])
    placed = allocate_all(cluster.world)
    assert [placement.node for placement in placed] == ["tray-0", "tray-1", "tray-2", "tray-3", None]


def test_one_worker_of_a_group_waits_and_its_siblings_are_named() -> None:
    cluster = Cluster()
    _rack(cluster, 2)
    for number in range(2):
        cluster.holding(f"worker-{number}", f"tray-{number}", *(f"gpu-{index}" for index in range(4)))
    cluster.pod(exactly(count=4), name="worker-2")
    groups = [group.text for group in cluster.explained("worker-2").groups]
    assert groups == [
        'request "gpu" needs 4 of 4 that match, none free; '
        "4 devices in use by team-a/worker-0 (pod worker-0) and team-a/worker-1 (pod worker-1)"
    ]


def test_a_group_that_shares_one_claim_of_one_node_can_only_run_there() -> None:
    cluster = Cluster()
    _rack(cluster, 3)
    cluster.holding("shared", "tray-1", "gpu-0", pod="worker-0")
    cluster.bare_pod("worker-1", claims=["shared"], nodeSelector={"kubernetes.io/hostname": "tray-2"})
    assert "claim shared has devices of another node (tray-1)" in cluster.why("worker-1") or (
        "not selected by nodeSelector" in cluster.why("worker-1")
    )


def test_devices_of_a_rack_are_for_its_trays_only() -> None:
    cluster = Cluster()
    cluster.node("tray-0", labels={"rack": "1"})
    cluster.node("other")
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}]
    pool = {"name": "rack-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "pool": pool, "nodeSelector": {"nodeSelectorTerms": terms}}
    cluster.add("ResourceSlice", "rack-1", spec=spec | {"devices": [gpu("channel-0")]})
    cluster.pod(nodeSelector={"rack": "2"})
    cluster.claim("second")
    assert cluster.explained_claim("second").fitting == ("tray-0",)
    assert [group.text for group in cluster.explained_claim("second").groups] == ["no devices are published for it"]


def test_a_gpu_and_a_network_device_of_one_root_complex_are_not_free_together() -> None:
    cluster = Cluster()
    root = "resource.kubernetes.io/pcieRoot"
    near, far = {"attributes": {root: {"string": "pci0000:15"}}}, {"attributes": {root: {"string": "pci0000:3d"}}}
    cluster.device_class("nic", "device.driver == 'nic.example.com'")
    devices = [gpu("gpu-0"), gpu("gpu-1")]
    devices[0]["attributes"] |= near["attributes"]
    devices[1]["attributes"] |= far["attributes"]
    cluster.node("node-1", *devices)
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nic.example.com", "nodeName": "node-1", "pool": pool}
    cluster.add("ResourceSlice", "nics", spec=spec | {"devices": [{"name": "nic-0", **near}]})
    cluster.holding("a", "node-1", "gpu-0")
    cluster.pod(exactly("gpu"), exactly("nic", class_name="nic"), constraints=[{"matchAttribute": root}])
    assert "resource.kubernetes.io/pcieRoot" in cluster.why()
    assert cluster.would_fit()[:2] == [
        "It fits when team-a/a (pod a) ends.",
        "It fits without the constraint matchAttribute resource.kubernetes.io/pcieRoot.",
    ]
