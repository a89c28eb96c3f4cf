"""Worlds from objects: what is valid is in them, what is not is said, and nothing else can go wrong later."""

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.allocation import exactly, gpu
from support.rows import examples, rows

from dra_driver.allocation.loading import ANY_NODE, pods_of_workload, world_of
from dra_driver.allocation.offline import allocate_all
from dra_driver.allocation.world import claims_of
from dra_driver.checking.knowledge import inventory_of_model
from dra_driver.explain.explain import Scope, explain_claim, explain_pod
from dra_driver.explain.wording import sentences

type Obj = dict[str, Any]


def _objects() -> list[Obj]:
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    devices = [gpu("gpu-0", memory="80Gi", driverVersion="v580.0.0")]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, "devices": devices}
    request, other = (exactly(capacity={"requests": {"memory": "10Gi"}}) for _ in range(2))
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}}
    pod = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    return [
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
        {"kind": "ResourceSlice", "metadata": {"name": "node-1"}, "spec": spec},
        {"kind": "Node", "metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "8"}}},
        {"kind": "ResourceClaim", "metadata": {"name": "gpu"}, "spec": {"devices": {"requests": [request]}}},
        {
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one"},
            "spec": {"spec": {"devices": {"requests": [other]}}},
        },
        {"kind": "Pod", "metadata": {"name": "train"}, "spec": pod},
    ]


def test_objects_without_a_namespace_are_in_the_default_one() -> None:
    world = world_of(_objects()).world
    assert (list(world.claims), list(world.pods)) == ([("default", "gpu")], [("default", "train")])


def test_null_is_a_missing_field() -> None:
    metadata = {"name": "train", "labels": None, "namespace": None}
    spec = {
        "containers": [{"name": "main", "resources": None}],
        "initContainers": None,
        "affinity": {"nodeAffinity": None},
    }
    loaded = world_of([{"kind": "Pod", "metadata": metadata, "spec": spec, "status": None}])
    assert loaded.problems == ()
    assert list(loaded.world.pods) == [("default", "train")]


def test_a_claim_from_a_template_is_what_would_be_made() -> None:
    world = world_of(_objects()).world
    (pod_claim,) = claims_of(world, world.pods["default", "train"])
    assert pod_claim.claim is not None
    assert (pod_claim.generated, pod_claim.claim.metadata.name, pod_claim.claim.spec) == (
        True,
        "train-gpu",
        world.templates["default", "one"].spec.spec,
    )


def test_nodes_that_nobody_described_are_those_that_slices_name() -> None:
    objects = [obj for obj in _objects() if obj["kind"] != "Node"]
    assert list(world_of(objects).world.nodes) == ["node-1"]
    assert list(world_of(objects, live=True).world.nodes) == []
    objects[1]["spec"] |= {"allNodes": True}
    del objects[1]["spec"]["nodeName"]
    assert list(world_of(objects).world.nodes) == [ANY_NODE]


def test_one_object_that_is_not_valid_does_not_hide_the_others() -> None:
    bad = {"kind": "ResourceClaim", "metadata": {"name": "bad"}, "spec": {"devices": {"requests": "gpu"}}}
    loaded = world_of([bad, *_objects()], about={id(bad): "claims.yaml:7"})
    assert list(loaded.world.claims) == [("default", "gpu")]
    assert [str(problem).split(":")[:2] for problem in loaded.problems] == [["claims.yaml", "7"]]


@rows(
    "index, path, value",
    [
        (1, ("spec", "devices", 0, "capacity", "memory", "value"), "lots"),
        (1, ("spec", "devices", 0, "attributes", "driverVersion", "version"), "580"),
        (2, ("status", "allocatable", "cpu"), "many"),
        (3, ("spec", "devices", "requests", 0, "exactly", "capacity", "requests", "memory"), "some"),
        (5, ("spec", "containers", 0, "resources", "requests", "cpu"), "half"),
        (5, ("spec", "containers"), 7),
    ],
)
def test_what_no_server_would_store_is_a_problem_of_that_object(index: int, path: tuple[Any, ...], value: Any) -> None:
    objects = deepcopy(_objects())
    place: Any = objects[index]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    loaded = world_of(objects)
    assert [str(problem).split(": ")[0].split(" ")[0] for problem in loaded.problems] == [objects[index]["kind"]]


def test_a_workload_is_its_pods() -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}
    deployment = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": template}}
    assert [each["metadata"]["name"] for each in pods_of_workload(deployment, replicas=2)] == ["web-0", "web-1"]
    job = {"kind": "CronJob", "metadata": {"name": "n"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert [each["metadata"]["name"] for each in pods_of_workload(job)] == ["n-0"]
    workers = {"name": "workers", "replicas": 2, "template": {"spec": {"template": template, "parallelism": 3}}}
    leader = {"name": "leader", "template": {"spec": deployment["spec"]}}
    gang = {"kind": "JobSet", "metadata": {"name": "g"}, "spec": {"replicatedJobs": [workers, leader, {"name": "x"}]}}
    made = [each["metadata"]["name"] for each in pods_of_workload(gang, replicas=100)]
    assert made == [*(f"g-workers-{index}" for index in range(6)), "g-leader-0"]
    group = {"groupName": "gpu", "replicas": 2, "numOfHosts": 2, "template": template}
    ray_spec = {"headGroupSpec": {"template": template}, "workerGroupSpecs": [group, {"template": template}, None]}
    ray = {"kind": "RayCluster", "metadata": {"name": "r"}, "spec": ray_spec}
    made = [each["metadata"]["name"] for each in pods_of_workload(ray, replicas=100)]
    assert made == ["r-head-0", *(f"r-gpu-{index}" for index in range(4)), "r-worker-0"]
    assert list(pods_of_workload({"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {}})) == []


def test_a_virtual_machine_is_the_pod_that_has_its_devices() -> None:
    """Of a VirtualMachine as of an instance; a GPU of the device plugin is not in a claim."""
    devices = {"gpus": [{"claimName": "gpu", "requestName": "r"}, {"deviceName": "nvidia.com/T4"}], "hostDevices": None}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    spec = {"domain": {"devices": devices}, "resourceClaims": claims, "nodeSelector": {"a": "b"}, "volumes": [{}]}
    machine = {"kind": "VirtualMachine", "metadata": {"name": "m"}, "spec": {"template": {"spec": spec}}}
    instance = {"kind": "VirtualMachineInstance", "metadata": {"name": "m"}, "spec": spec}
    for obj in (machine, instance):
        (pod,) = pods_of_workload(obj, replicas=100)
        (container,) = pod["spec"].pop("containers")
        assert pod["spec"] == {"resourceClaims": claims, "nodeSelector": {"a": "b"}}
        assert container["resources"] == {"claims": [{"name": "gpu", "request": "r"}]}


_VALUES = st.sampled_from([None, 0, -1, True, "", "x", "1Gi", [], {}, [None], {"a": None}, "node-1", "gpu", 3.5])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(below for key, inner in items for below in _paths(inner, (*path, key)))]


@given(data=st.data())
@settings(max_examples=examples(300), deadline=None)
def test_whatever_is_written_in_a_file_is_explained_or_refused(data: st.DataObject) -> None:
    """Nothing but InvalidInput, which names the object; everything that got into the world can be asked about."""
    objects = deepcopy(_objects())
    for _ in range(data.draw(st.integers(1, 2))):
        index = data.draw(st.integers(0, len(objects) - 1))
        path = data.draw(st.sampled_from([each for each in _paths(objects[index]) if each and each != ("kind",)]))
        place: Any = objects[index]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = deepcopy(data.draw(_VALUES))
    world = world_of(objects).world
    allocate_all(world)
    for key in world.pods:
        assert sentences(explain_pod(world, key, Scope(devices_of=None)))
    for key in world.claims:
        assert sentences(explain_claim(world, key))


def test_each_gpu_of_an_inventory_has_its_mig_profiles() -> None:
    """On the wire they are listed for the first GPU alone."""
    spec = inventory_of_model("dgx-h100")
    inventory = {"kind": "NodeInventory", "metadata": {"name": spec.node_name}, "spec": spec.to_wire()}
    assert inventory["spec"]["gpus"][7]["mig"]["profiles"] == []
    (gpus,) = world_of([inventory]).world.gpus.values()
    assert list(gpus) == spec.gpus
