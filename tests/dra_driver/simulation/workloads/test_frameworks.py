"""JobSets, LeaderWorkerSets, RayClusters and others: the pods that they mean, and when they run or have ended."""

from copy import deepcopy
from typing import Any

import pytest
from support.workloads import TEMPLATE, WorkloadWorld

from dra_driver.simulation.workloads.frameworks import is_up


def template(policy: str = "Always") -> dict[str, Any]:
    made = deepcopy(TEMPLATE)
    made["spec"]["restartPolicy"] = policy
    return made


def group(replicas: int, **more: Any) -> dict[str, Any]:
    return {"replicas": replicas, "template": template(), **more}


def job(name: str, replicas: int, parallelism: int, **more: Any) -> dict[str, Any]:
    spec = {"parallelism": parallelism, "completions": parallelism, "template": template("Never")}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **more}


JOB_SET = {"replicatedJobs": [job("driver", 1, 1), job("workers", 2, 2)]}
SPECS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "LeaderWorkerSet": (
        {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
        ["a-0", "a-0-1", "a-1", "a-1-1"],
    ),
    "RayCluster": (
        {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [group(2, groupName="gpu", numOfHosts=2)]},
        ["a-gpu-worker-0", "a-gpu-worker-1", "a-gpu-worker-2", "a-gpu-worker-3", "a-head"],
    ),
    "RayService": (
        {"rayClusterConfig": {"headGroupSpec": {"template": template()}}},
        ["a-raycluster-head"],
    ),
    "PyTorchJob": (
        {"pytorchReplicaSpecs": {"Worker": group(2), "Master": group(1)}},
        ["a-master-0", "a-worker-0", "a-worker-1"],
    ),
    "MPIJob": (
        {"mpiReplicaSpecs": {"Launcher": group(1), "Worker": group(2)}},
        ["a-launcher-*", "a-worker-0", "a-worker-1"],
    ),
    "InferenceService": (
        {"predictor": {"minReplicas": 2, "model": {}}, "transformer": {"containers": [{"name": "a"}]}},
        ["a-predictor-*", "a-predictor-*", "a-transformer-*"],
    ),
    "LLMInferenceService": (
        {"worker": {"containers": [{"name": "main"}]}, "parallelism": {"pipeline": 2}, "prefill": {"replicas": 2}},
        ["a-kserve-mn-0", "a-kserve-mn-0-1", "a-kserve-prefill-*", "a-kserve-prefill-*"],
    ),
    "VirtualMachine": ({"template": {"spec": {"domain": {}}}}, ["virt-launcher-a"]),
    "JobSet": (JOB_SET, ["a-driver-0-*", *["a-workers-0-*"] * 2, *["a-workers-1-*"] * 2]),
}


def names(world: WorkloadWorld) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in world.pods)


@pytest.mark.parametrize("kind", SPECS)
def test_it_has_the_pods_of_its_controller_and_is_up_when_all_run(kind: str) -> None:
    spec, wanted = SPECS[kind]
    world = WorkloadWorld(kind, sick=lambda pod: "0" in pod["metadata"]["name"], **deepcopy(spec))
    world.settle()
    assert is_up(world.owner) is not any("0" in name for name in names(world))
    world.sick = lambda pod: False
    world.settle()
    for name, pattern in zip(names(world), wanted, strict=True):
        assert name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
    assert is_up(world.owner)


@pytest.mark.parametrize("stopped", [{"runStrategy": "Halted"}, {"running": False}])
def test_a_machine_that_is_stopped_has_no_pod(stopped: dict[str, Any]) -> None:
    world = WorkloadWorld("VirtualMachine", **deepcopy(SPECS["VirtualMachine"][0]), **stopped)
    world.settle()
    assert not world.pods


def test_workers_know_their_leader_and_ranks_their_master() -> None:
    def environments(kind: str) -> dict[str, dict[str, str]]:
        world = WorkloadWorld(kind, **deepcopy(SPECS[kind][0]))
        world.settle()
        variables = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["env"] for pod in world.pods}
        return {name: {item["name"]: item["value"] for item in items} for name, items in variables.items()}

    assert environments("LeaderWorkerSet")["a-1-1"] == {
        "LWS_LEADER_ADDRESS": "a-1.a.n",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "1",
    }
    ranks = environments("PyTorchJob")
    assert {name: (item["RANK"], item["MASTER_ADDR"]) for name, item in ranks.items()} == {
        "a-master-0": ("0", "a-master-0"),
        "a-worker-0": ("1", "a-master-0"),
        "a-worker-1": ("2", "a-master-0"),
    }


def test_a_job_set_gives_its_jobs_what_its_webhook_does() -> None:
    """Indexes and a restart policy, which Jobs need, and the volumes of its claim templates."""
    bare = job("workers", 1, 2)
    del bare["template"]["spec"]["template"]["spec"]["restartPolicy"]
    policies = [{"templates": [{"metadata": {"name": "data"}}]}]
    world = WorkloadWorld("JobSet", replicatedJobs=[bare], volumeClaimPolicies=policies)
    world.settle()
    for pod in world.pods:
        assert pod["spec"]["restartPolicy"] == "OnFailure"
        assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data-a"}}]
    label = "batch.kubernetes.io/job-completion-index"
    assert sorted(pod["metadata"]["labels"][label] for pod in world.pods) == ["0", "1"]


def test_a_job_set_ends_with_its_jobs_and_fails_with_one() -> None:
    for phase, condition in (("Succeeded", "Completed"), ("Failed", "Failed")):
        world = WorkloadWorld("JobSet", **deepcopy(JOB_SET))
        for item in world.owner["spec"]["replicatedJobs"]:
            item["template"]["spec"]["backoffLimit"] = 0
        world.settle()
        for pod in world.pods:
            world.end(pod, phase)
        world.settle()
        assert [item["type"] for item in world.owner["status"]["conditions"] if item["status"] == "True"] == [condition]


def test_a_job_that_depends_on_another_waits_for_it() -> None:
    depends = [{"name": "driver", "status": "Complete"}]
    spec = {"replicatedJobs": [job("driver", 1, 1), job("workers", 1, 1, dependsOn=depends)]}
    world = WorkloadWorld("JobSet", **spec)
    world.settle()
    assert len(world.pods) == 1
    world.end(world.pods[0], "Succeeded")
    world.settle()
    assert len(world.pods) == 2


def test_a_launcher_may_wait_for_its_workers() -> None:
    world = WorkloadWorld(
        "MPIJob", sick=lambda pod: True, launcherCreationPolicy="WaitForWorkersReady", **deepcopy(SPECS["MPIJob"][0])
    )
    world.settle()
    assert names(world) == ["a-worker-0", "a-worker-1"]
    world.sick = lambda pod: False
    world.settle()
    assert len(world.pods) == 3


def test_a_pod_that_may_restart_comes_back_and_one_of_an_old_template_is_replaced() -> None:
    world = WorkloadWorld("RayCluster", **deepcopy(SPECS["RayCluster"][0]))
    world.settle()
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods}
    world.end(world.pods[0], "Failed")
    world.owner["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["image"] = "two"
    world.settle()
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.pods}
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())
    world.owner["spec"]["suspend"] = True
    world.settle()
    assert not world.pods


def test_what_is_suspended_has_nothing() -> None:
    of_job, spec = {"rayClusterSpec": SPECS["RayCluster"][0]}, deepcopy(SPECS["PyTorchJob"][0])
    suspended = {
        "RayJob": {**deepcopy(of_job), "suspend": True},
        "PyTorchJob": {**spec, "runPolicy": {"suspend": True}},
    }
    for kind, wanted in suspended.items():
        world = WorkloadWorld(kind, **wanted)
        world.settle()
        assert not world.pods and not world.of("RayCluster")


def test_a_service_of_kserve_has_its_claim_template_and_both_follow_a_change() -> None:
    world = WorkloadWorld("LLMInferenceService", template={"containers": [{"name": "main", "image": "one"}]})
    prefix = "serving.kserve.io/exp-dra-device"
    world.owner["metadata"]["annotations"] = {f"{prefix}-class": "gpu.nvidia.com"}
    world.settle()
    (pod,), (template,) = world.pods, world.of("ResourceClaimTemplate")
    entry = {"name": "managed-device", "resourceClaimTemplateName": template["metadata"]["name"]}
    assert pod["spec"]["resourceClaims"] == [entry] and is_up(world.owner)
    world.owner["metadata"]["annotations"][f"{prefix}-count"] = "2"
    world.owner["spec"]["template"]["containers"][0]["image"] = "two"
    world.settle()
    (later,), (changed,) = world.pods, world.of("ResourceClaimTemplate")
    assert later["spec"]["containers"][0]["image"] == "two"
    assert changed["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 2
    world.owner["metadata"]["annotations"] = {}
    world.settle()
    assert not world.of("ResourceClaimTemplate") and "resourceClaims" not in world.pods[0]["spec"]
