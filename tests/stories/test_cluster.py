"""Pods that wait for another reason than their devices: something is missing, broken, forbidden or forgotten."""

import pytest
from support.allocation import exactly, gpu
from support.stories import Cluster, at_least, taint

from dra_driver.allocation.world import UnreadKind
from dra_driver.explain.explain import Answer
from dra_driver.explain.wording import sentences


def _finding(cluster: Cluster, code: str, name: str = "train") -> str:
    by_code = {finding.code: f"{finding.about}: {finding.text}" for finding in cluster.explained(name).findings}
    return by_code[code]


def test_the_class_does_not_exist() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod(exactly(class_name="gpus"))
    assert cluster.why() == 'claim team-a/gpu, request "gpu": there is no DeviceClass gpus'


def test_the_claim_does_not_exist() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.bare_pod("train", claims=["gpus"])
    assert cluster.why() == "pod team-a/train, claim entry gpus: there is no ResourceClaim team-a/gpus"


def test_the_template_is_in_another_namespace() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.add("ResourceClaimTemplate", "one", "team-b", spec={"spec": {"devices": {"requests": [exactly()]}}})
    cluster.bare_pod("train", templates=["one"])
    assert cluster.why() == "pod team-a/train, claim entry one: there is no ResourceClaimTemplate team-a/one"
    assert cluster.explained().findings[0].fix == (
        "Create it in the pod's namespace (there is one in namespace team-b; pods can use only those of their own"
        " namespace)."
    )


def test_a_selector_that_fails_stops_the_pod_on_every_node() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.node("node-2", gpu("gpu-0", profile="1g.10gb"))
    cluster.pod(exactly("gpu", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"))
    explained = cluster.explained()
    assert explained.answer is Answer.WAITS
    assert cluster.why().startswith('claim team-a/gpu, request "gpu": selector 0 on device gpu.nvidia.com/node-1/gpu-0')
    assert "no such key: profile" in cluster.why()
    assert "every node, not only on node-1" in explained.findings[0].fix
    assert cluster.would_fit() == ['It fits with a has() check for profile in request "gpu".']
    assert explained.suggestions[0].change == (
        "ResourceClaim team-a/gpu: spec.devices.requests[0].exactly.selectors[0]: "
        "has(device.attributes['gpu.nvidia.com'].profile) && "
        "(device.attributes['gpu.nvidia.com'].profile == '1g.10gb')"
    )


def test_a_misspelt_attribute_is_corrected() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", productName="NVIDIA H100"))
    cluster.pod(exactly("gpu", "device.attributes['gpu.nvidia.com'].productname == 'NVIDIA H100'"))
    assert "no such key: productname; did you mean `productName`?" in cluster.why()
    assert cluster.would_fit() == ['It fits with productName instead of productname in request "gpu".']


def test_a_class_that_fails_on_a_device_is_for_an_administrator_to_mend() -> None:
    cluster = Cluster()
    cluster.device_class("careless", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod(exactly(class_name="careless"))
    assert cluster.why().startswith("DeviceClass careless: selector 0 on device gpu.nvidia.com/node-1/gpu-0")
    assert cluster.would_fit() == []


def test_a_pool_is_half_published() -> None:
    cluster = Cluster()
    cluster.node("node-1")
    cluster.slice("node-1", gpu("gpu-0"), count=2)
    cluster.pod()
    assert cluster.why() == "1 node: pool gpu.nvidia.com/node-1 is being updated: it has 1 of 2 slices"
    expected = "pool gpu.nvidia.com/node-1: is being updated: it has 1 of 2 slices (node-1)"
    assert _finding(cluster, "incomplete-pool") == expected


def test_a_pool_is_published_wrongly() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-0"))
    cluster.pod()
    assert cluster.why() == "1 node: pool gpu.nvidia.com/node-1 is invalid: it has two devices called gpu-0"
    assert "is invalid" in _finding(cluster, "invalid-pool")


def test_no_driver_publishes_anything() -> None:
    cluster = Cluster()
    cluster.node("node-1")
    cluster.pod()
    assert cluster.why() == "1 node: no devices are published for it"
    assert _finding(cluster, "no-slices") == "the cluster: no devices are published"


def test_the_node_plugin_is_gone_from_a_node() -> None:
    cluster = Cluster()
    for name, drivers in (("node-1", []), ("node-2", ["gpu.nvidia.com"])):
        registrations = [{"driver": driver, "time": "2026-01-01T00:00:00Z"} for driver in drivers]
        cluster.add("NodeInventory", name, spec={"nodeName": name, "registrations": registrations})
    cluster.node("node-1")
    cluster.node("node-2", gpu("gpu-0"))
    cluster.holding("a", "node-2", "gpu-0")
    cluster.pod()
    assert _finding(cluster, "plugin-not-registered") == "node-1: the node plugin is not registered with the kubelet"


def test_the_namespace_is_not_labelled_for_admin_access() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.template("all", exactly(adminAccess=True, allocationMode="All"))
    cluster.bare_pod("train", templates=["all"])
    assert "namespace team-a lacks the label that allows it" in _finding(cluster, "admin-access")


def test_a_quota_is_used_up() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), gpu("gpu-1"))
    resource = "gpu.deviceclass.resource.k8s.io/devices"
    quota = {"hard": {resource: "4"}, "used": {resource: "3"}}
    cluster.add("ResourceQuota", "gpus", "team-a", spec={"hard": quota["hard"]}, status=quota)
    cluster.template("two", exactly(count=2))
    cluster.bare_pod("train", templates=["two"])
    assert _finding(cluster, "quota") == f"quota team-a/gpus: allows 4 of {resource}; 3 used, 2 more requested"


def test_two_claims_have_devices_of_different_nodes() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.node("node-2", gpu("gpu-0"))
    cluster.holding("first", "node-1", "gpu-0")
    cluster.holding("second", "node-2", "gpu-0")
    cluster.bare_pod("train", claims=["first", "second"])
    assert _finding(cluster, "claims-apart") == (
        "the pod's claims: have devices of different nodes: first on node-1; second on node-2"
    )


def test_the_claim_has_devices_of_a_node_that_the_pod_does_not_want() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), labels={"zone": "a"})
    cluster.node("node-2", gpu("gpu-0"), labels={"zone": "b"})
    cluster.holding("data", "node-1", "gpu-0")
    cluster.bare_pod("train", claims=["data"], nodeSelector={"zone": "b"})
    assert cluster.why() == (
        "1 node: claim data has devices of another node (node-1); 1 node: not selected by nodeSelector zone=b"
    )
    assert "It fits when claim team-a/data is deleted and allocated again." in cluster.would_fit()


def test_a_claim_in_the_way_is_held_by_a_deleted_pod() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.holding("old", "node-1", "gpu-0", gone=True)
    cluster.pod()
    assert cluster.why() == "1 node: device in use by team-a/old (pod old, which no longer exists)"
    assert _finding(cluster, "held-by-deleted-pod") == (
        "claim team-a/old: has devices that this needs, and is held by pod old, which no longer exists"
    )


def test_the_claim_is_being_deleted() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    claim = cluster.claim("gpu")
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.bare_pod("train", claims=["gpu"])
    assert cluster.why() == "claim team-a/gpu: is being deleted, so no more pods may use it"


def test_nobody_has_made_the_claim_yet() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.template("one")
    cluster.bare_pod("train", templates=["one"])
    assert _finding(cluster, "claim-not-made").endswith("its claim has not been created from template one yet")


def test_the_node_has_too_little_memory_of_its_own() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"})
    container = {"name": "main", "resources": {"requests": {"memory": "64Gi"}}}
    cluster.pod(containers=[container])
    assert cluster.why() == "1 node: too little memory: 64Gi wanted, 32Gi of 32Gi left"


def test_the_pods_of_the_node_leave_too_little_cpu() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), allocatable={"cpu": "8", "memory": "32Gi", "pods": "110"})
    busy = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "6"}}}], "nodeName": "node-1"}
    cluster.add("Pod", "busy", "team-b", spec=busy)
    cluster.pod(containers=[{"name": "main", "resources": {"limits": {"cpu": "2500m"}}}])
    assert cluster.why() == "1 node: too little cpu: 2500m wanted, 2 of 8 left"


def test_the_node_is_tainted_for_pods() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), taints=[taint("nvidia.com/gpu", "present")])
    cluster.pod()
    assert cluster.why() == "1 node: tainted nvidia.com/gpu=present"
    assert cluster.would_fit() == ["It fits with a toleration of the pod for the node's taint nvidia.com/gpu=present."]


def test_the_only_node_is_cordoned() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), unschedulable=True)
    cluster.pod()
    assert cluster.why() == "1 node: cordoned"


def test_the_pods_node_selector_names_no_node() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"), labels={"zone": "a"})
    cluster.pod(nodeSelector={"zone": "z"})
    assert cluster.why() == "1 node: not selected by nodeSelector zone=z"
    assert cluster.would_fit() == ["It fits without the pod's nodeSelector (zone=z)."]


def test_an_extended_resource_that_nothing_stands_for() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.add("Pod", "train", "team-a", spec={"containers": [container]})
    assert _finding(cluster, "unknown-resource") == (
        "pod team-a/train: no node has nvidia.com/gpu from a device plugin, and no DeviceClass provides it"
    )


def test_an_extended_resource_whose_devices_are_in_use() -> None:
    cluster = Cluster()
    cluster.device_class("plain", "true", extendedResourceName="nvidia.com/gpu")
    cluster.node("node-1", gpu("gpu-0"))
    cluster.holding("a", "node-1", "gpu-0")
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    cluster.add("Pod", "train", "team-a", spec={"containers": [container]})
    assert cluster.why() == "1 node: device in use by team-a/a (pod a)"
    assert cluster.would_fit() == ["It fits when team-a/a (pod a) ends."]


def test_more_extended_resources_than_a_claim_can_have_are_of_the_pod() -> None:
    cluster = Cluster()
    cluster.device_class("plain", "true", extendedResourceName="nvidia.com/gpu")
    cluster.node("node-1", gpu("gpu-0"))
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "99"}}}
    cluster.add("Pod", "train", "team-a", spec={"containers": [container]})
    assert cluster.why() == "the pod's extended resources: asks for 99 devices; a claim can have 32"
    assert cluster.explained().findings[0].fix == "Change the pod; trying again will not help."


def test_the_pod_has_a_scheduling_gate() -> None:
    cluster = Cluster()
    cluster.device_class("plain", "true")
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod(schedulingGates=[{"name": "example.com/wait"}])
    assert _finding(cluster, "scheduling-gates").startswith("pod team-a/train: has scheduling gates (example.com/wait)")
    assert cluster.would_fit() == [], "other devices do not help"


def test_there_are_no_nodes() -> None:
    cluster = Cluster()
    cluster.pod()
    assert cluster.why() == "the cluster: there is no node"


def test_a_pod_that_fits_is_told_where() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod()
    explained = cluster.explained()
    assert (explained.answer, explained.fitting) == (Answer.FITS, ("node-1",))
    assert sentences(explained)[0] == "Pod team-a/train fits on node-1 of 1 node now."


def test_a_pod_that_fits_and_waits_is_told_what_the_scheduler_says() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.claim("gpu")
    pod = cluster.bare_pod("train", claims=["gpu"])
    message = "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints."
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    assert _finding(cluster, "scheduler-says") == f"pod team-a/train: the scheduler says: {message}"


def test_that_no_single_change_helps_is_said_too() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0", memory="16Gi", taints=[taint()]))
    cluster.pod(exactly("gpu", at_least("40Gi")))
    lines = sentences(cluster.explained())
    assert lines[lines.index("What would fit") + 1] == "  No single change of the request was found that helps."


def test_a_pod_that_runs_has_nothing_to_explain_but_where() -> None:
    cluster = Cluster()
    cluster.node("node-1", gpu("gpu-0"))
    cluster.holding("a", "node-1", "gpu-0")
    assert cluster.why("a") == "Pod team-a/a is on node node-1; it has no claims."


def test_what_may_not_be_read_is_said() -> None:
    cluster = Cluster()
    cluster.unread = (UnreadKind("ResourceQuota", "you may not list them; the answer leaves them out"),)
    cluster.node("node-1", gpu("gpu-0"))
    cluster.pod()
    lines = sentences(cluster.explained())
    assert lines[lines.index("Not known") + 1] == "  ResourceQuota: you may not list them; the answer leaves them out"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_keeps_to_the_width_of_the_terminal(width: int) -> None:
    cluster = Cluster()
    cluster.node("node-1", *(gpu(f"gpu-{number}") for number in range(8)))
    for number in range(8):
        cluster.holding(f"a-claim-with-a-long-name-{number}", "node-1", f"gpu-{number}")
    cluster.pod(exactly(count=4))
    assert all(len(line) <= width for line in sentences(cluster.explained(devices_of=None), width))
