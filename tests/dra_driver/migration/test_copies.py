"""How many pods an object makes, of each kind that says it in its own way."""

from typing import Any

import pytest
import yaml

from dra_driver.api.documents import Document, read_documents
from dra_driver.migration.copies import copies_of
from dra_driver.migration.kinds import pods_of
from dra_driver.migration.model import Options

POD: dict[str, Any] = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
TEMPLATE = {"spec": POD}


def document(api: str, kind: str, spec: Any) -> Document:
    text = yaml.safe_dump({"apiVersion": api, "kind": kind, "metadata": {"name": "w"}, "spec": spec})
    return read_documents(text, "w.yaml").documents[0]


def job(**fields: int) -> dict[str, Any]:
    return {"spec": {**fields, "template": TEMPLATE}}


@pytest.mark.parametrize(
    ("api", "kind", "spec", "expected"),
    [
        ("v1", "Pod", POD, [1]),
        ("apps/v1", "Deployment", {"template": TEMPLATE}, [1]),
        ("apps/v1", "Deployment", {"replicas": 3, "template": TEMPLATE}, [3]),
        ("apps/v1", "Deployment", {"replicas": 0, "template": TEMPLATE}, [0]),
        ("apps/v1", "Deployment", {"replicas": "{{ n }}", "template": TEMPLATE}, [1]),
        ("apps/v1", "DaemonSet", {"template": TEMPLATE}, [1]),
        ("batch/v1", "Job", job(parallelism=4, completions=10)["spec"], [4]),
        ("batch/v1", "Job", job(parallelism=4, completions=2)["spec"], [2]),
        ("batch/v1", "Job", job(completions=2)["spec"], [1]),
        ("batch/v1", "CronJob", {"jobTemplate": job(parallelism=2)}, [2]),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"name": "a", "replicas": 2, "template": job(parallelism=3)}]},
            [6],
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE},
            },
            [2, 6],
        ),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": TEMPLATE}},
            [8],
        ),
        (
            "workloads.x-k8s.io/v1alpha1",
            "RoleBasedGroup",
            {
                "roleTemplates": [{"name": "t", "template": TEMPLATE}, {"name": "unused", "template": TEMPLATE}],
                "roles": [
                    {"name": "a", "replicas": 3, "template": TEMPLATE},
                    {"name": "b", "replicas": 2, "leaderWorkerSet": {"size": 4}, "template": TEMPLATE},
                    {"name": "c", "replicas": 2, "components": [{"name": "x", "size": 5, "template": TEMPLATE}]},
                    {"name": "d", "replicas": 2, "leaderWorkerSet": {"size": 3}, "templateRef": {"name": "t"}},
                ],
            },
            [6, 0, 3, 8, 10],
        ),
        (
            "workloads.x-k8s.io/v1alpha2",
            "RoleBasedGroupSet",
            {
                "replicas": 2,
                "groupTemplate": {
                    "spec": {
                        "roleTemplates": [{"name": "t", "template": TEMPLATE}],
                        "roles": [
                            {"name": "a", "replicas": 3, "standalonePattern": {"template": TEMPLATE}},
                            {"name": "b", "leaderWorkerPattern": {"size": 4, "template": TEMPLATE}},
                            {"name": "c", "leaderWorkerPattern": {"size": 5, "templateRef": {"name": "t"}}},
                            {"name": "d", "replicas": 7, "standalonePattern": {"templateRef": {"name": "t"}}},
                        ],
                    }
                },
            },
            [24, 6, 8],
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": TEMPLATE},
                    "Worker": {"replicas": 7, "template": TEMPLATE},
                }
            },
            [1, 7],
        ),
        ("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"replicas": 5, "template": TEMPLATE}]}, [5]),
        ("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"replicas": 2, "template": TEMPLATE}]}, [2]),
        (
            "argoproj.io/v1alpha1",
            "Workflow",
            {"parallelism": 9, "templates": [{"container": POD["containers"][0]}]},
            [1],
        ),
        (
            "argoproj.io/v1alpha1",
            "WorkflowTemplate",
            {"parallelism": 9, "templates": [{"container": POD["containers"][0]}]},
            [0],
        ),
    ],
)
def test_numbers_of_pods(api: str, kind: str, spec: Any, expected: list[int]) -> None:
    found = pods_of(document(api, kind, spec), Options(), patch=False)
    assert [copies_of(one) for one in found] == expected


def test_a_patch_makes_no_pods() -> None:
    (pod,) = pods_of(document("apps/v1", "Deployment", {"replicas": 3, "template": TEMPLATE}), Options(), patch=True)
    assert copies_of(pod) == 0
