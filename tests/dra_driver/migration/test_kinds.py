"""Where pods are in objects of each kind."""

from typing import Any

import pytest
from support.rows import rows

from dra_driver.api.documents import read_documents
from dra_driver.api.untyped import path_text, value_at
from dra_driver.migration.model import ClaimForm, Options, Role
from dra_driver.migration.read.kinds import pods_by_shape, pods_of

POD = "{containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}"
TEMPLATE = f"{{metadata: {{labels: {{a: b}}}}, spec: {POD}}}"

ORDINARY = {
    "v1 Pod": (f"spec: {POD}", ["spec"]),
    "v1 PodTemplate": (f"template: {TEMPLATE}", ["template.spec"]),
    "v1 ReplicationController": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "apps/v1 Deployment": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "apps/v1 DaemonSet": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "apps/v1 StatefulSet": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "apps/v1 ReplicaSet": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "apps.openshift.io/v1 DeploymentConfig": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "argoproj.io/v1alpha1 Rollout": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "batch/v1 Job": (f"spec: {{template: {TEMPLATE}}}", ["spec.template.spec"]),
    "batch/v1 CronJob": (
        f"spec: {{jobTemplate: {{spec: {{template: {TEMPLATE}}}}}}}",
        ["spec.jobTemplate.spec.template.spec"],
    ),
    "jobset.x-k8s.io/v1alpha2 JobSet": (
        f"spec: {{replicatedJobs: [{{name: w, template: {{spec: {{template: {TEMPLATE}}}}}}}]}}",
        ["spec.replicatedJobs[0].template.spec.template.spec"],
    ),
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": (
        f"spec: {{leaderWorkerTemplate: {{workerTemplate: {TEMPLATE}, leaderTemplate: {TEMPLATE}}}}}",
        ["spec.leaderWorkerTemplate.leaderTemplate.spec", "spec.leaderWorkerTemplate.workerTemplate.spec"],
    ),
    "kubeflow.org/v1 PyTorchJob": (
        f"spec: {{pytorchReplicaSpecs: {{Master: {{template: {TEMPLATE}}}, Worker: {{template: {TEMPLATE}}}}}}}",
        ["spec.pytorchReplicaSpecs.Master.template.spec", "spec.pytorchReplicaSpecs.Worker.template.spec"],
    ),
    "kubeflow.org/v2beta1 MPIJob": (
        f"spec: {{mpiReplicaSpecs: {{Worker: {{template: {TEMPLATE}}}}}}}",
        ["spec.mpiReplicaSpecs.Worker.template.spec"],
    ),
    "trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime": (
        f"spec: {{template: {{spec: {{replicatedJobs: [{{template: {{spec: {{template: {TEMPLATE}}}}}}}]}}}}}}",
        ["spec.template.spec.replicatedJobs[0].template.spec.template.spec"],
    ),
    "ray.io/v1 RayCluster": (
        f"spec: {{headGroupSpec: {{template: {TEMPLATE}}}, "
        f"workerGroupSpecs: [{{groupName: g, template: {TEMPLATE}}}]}}",
        ["spec.headGroupSpec.template.spec", "spec.workerGroupSpecs[0].template.spec"],
    ),
    "ray.io/v1 RayJob": (
        f"spec: {{rayClusterSpec: {{headGroupSpec: {{template: {TEMPLATE}}}}}, submitterPodTemplate: {TEMPLATE}}}",
        ["spec.rayClusterSpec.headGroupSpec.template.spec", "spec.submitterPodTemplate.spec"],
    ),
    "serving.kserve.io/v1alpha1 LLMInferenceService": (
        f"spec: {{template: {POD}, prefill: {{worker: {POD}}}}}",
        ["spec.template", "spec.prefill.worker"],
    ),
    "ray.io/v1 RayCronJob": (
        f"spec: {{jobTemplate: {{rayClusterSpec: {{headGroupSpec: {{template: {TEMPLATE}}}, "
        f"workerGroupSpecs: [{{template: {TEMPLATE}}}]}}, submitterPodTemplate: {TEMPLATE}}}}}",
        [
            "spec.jobTemplate.rayClusterSpec.headGroupSpec.template.spec",
            "spec.jobTemplate.rayClusterSpec.workerGroupSpecs[0].template.spec",
            "spec.jobTemplate.submitterPodTemplate.spec",
        ],
    ),
    "batch.volcano.sh/v1alpha1 CronJob": (
        f"spec: {{jobTemplate: {{spec: {{tasks: [{{name: t, template: {TEMPLATE}}}]}}}}}}",
        ["spec.jobTemplate.spec.tasks[0].template.spec"],
    ),
    "flow.volcano.sh/v1alpha1 JobTemplate": (
        f"spec: {{tasks: [{{name: t, template: {TEMPLATE}}}]}}",
        ["spec.tasks[0].template.spec"],
    ),
    "keda.sh/v1alpha1 ScaledJob": (
        f"spec: {{jobTargetRef: {{template: {TEMPLATE}}}}}",
        ["spec.jobTargetRef.template.spec"],
    ),
    "argoproj.io/v1alpha1 Experiment": (
        f"spec: {{templates: [{{name: a, template: {TEMPLATE}}}]}}",
        ["spec.templates[0].template.spec"],
    ),
    "argoproj.io/v1alpha1 AnalysisTemplate": (
        f"spec: {{metrics: [{{name: a, provider: {{job: {{spec: {{template: {TEMPLATE}}}}}}}}}]}}",
        ["spec.metrics[0].provider.job.spec.template.spec"],
    ),
    "disaggregatedset.x-k8s.io/v1 DisaggregatedSet": (
        f"spec: {{roles: [{{name: a, spec: {{leaderWorkerTemplate: {{workerTemplate: {TEMPLATE}}}}}}}]}}",
        ["spec.roles[0].spec.leaderWorkerTemplate.workerTemplate.spec"],
    ),
    "batch.volcano.sh/v1alpha1 Job": (
        f"spec: {{tasks: [{{name: t, template: {TEMPLATE}}}]}}",
        ["spec.tasks[0].template.spec"],
    ),
    "workloads.x-k8s.io/v1alpha1 RoleBasedGroup": (
        f"spec: {{roles: [{{name: a, template: {TEMPLATE}}}, {{name: b, components: [{{template: {TEMPLATE}}}]}}]}}",
        ["spec.roles[0].template.spec", "spec.roles[1].components[0].template.spec"],
    ),
    "workloads.x-k8s.io/v1alpha2 RoleBasedGroupSet": (
        f"spec: {{groupTemplate: {{spec: {{roleTemplates: [{{name: t, template: {TEMPLATE}}}], "
        f"roles: [{{name: a, leaderWorkerPattern: {{workerTemplatePatch: {{}}, template: {TEMPLATE}}}}}]}}}}}}",
        [
            "spec.groupTemplate.spec.roleTemplates[0].template.spec",
            "spec.groupTemplate.spec.roles[0].leaderWorkerPattern.template.spec",
        ],
    ),
    "grove.io/v1alpha1 PodCliqueSet": (
        f"spec: {{template: {{cliques: [{{name: p, spec: {{podSpec: {POD}}}}}]}}}}",
        ["spec.template.cliques[0].spec.podSpec"],
    ),
    "grove.io/v1alpha1 PodClique": (f"spec: {{podSpec: {POD}}}", ["spec.podSpec"]),
    "nvidia.com/v1beta1 DynamoGraphDeployment": (
        f"spec: {{components: [{{name: decode, podTemplate: {TEMPLATE}}}]}}",
        ["spec.components[0].podTemplate.spec"],
    ),
    "nvidia.com/v1beta1 DynamoComponentDeployment": (
        f"spec: {{name: decode, podTemplate: {TEMPLATE}}}",
        ["spec.podTemplate.spec"],
    ),
    "kubeflow.org/v1beta1 Experiment": (
        f"spec: {{trialTemplate: {{trialSpec: {{apiVersion: batch/v1, kind: Job, spec: {{template: {TEMPLATE}}}}}}}}}",
        ["spec.trialTemplate.trialSpec.spec.template.spec"],
    ),
    "workload.codeflare.dev/v1beta2 AppWrapper": (
        f"spec: {{components: [{{template: {{apiVersion: v1, kind: Pod, spec: {POD}}}}}]}}",
        ["spec.components[0].template.spec"],
    ),
}


def pods(kind: str, rest: str, options: Options = Options()) -> tuple[Any, ...]:  # noqa: B008
    version, name = kind.split()
    text = f"apiVersion: {version}\nkind: {name}\nmetadata: {{name: x}}\n{rest}\n"
    return pods_of(read_documents(text, "f").raise_problems()[0], options)


@rows("kind", ORDINARY)
def test_pods_are_found_with_their_containers_and_metadata(kind: str) -> None:
    rest, paths = ORDINARY[kind]
    pod_specs = pods(kind, rest)
    assert [path_text(pod.path) for pod in pod_specs] == paths
    for pod in pod_specs:
        assert pod.form is ClaimForm.POD
        assert [container.name for container in pod.containers] == ["c"]
        assert pod.containers[0].resources == {"limits": {"nvidia.com/gpu": 1}}
        assert value_at(pod.document.obj, pod.containers[0].resources_path) == pod.containers[0].resources
        assert value_at(pod.document.obj, pod.path) == pod.spec
        assert pod.metadata == (value_at(pod.document.obj, pod.metadata_path) or {})


EXTENDED_ONLY = {
    "serving.knative.dev/v1 Service": f"spec: {{template: {TEMPLATE}}}",
    "serving.kserve.io/v1alpha1 ServingRuntime": f"spec: {POD}",
    "serving.kserve.io/v1beta1 InferenceService": (
        "spec: {predictor: {model: {resources: {limits: {nvidia.com/gpu: 1}}}}}"
    ),
    "trainer.kubeflow.org/v1alpha1 TrainJob": "spec: {trainer: {resourcesPerNode: {limits: {nvidia.com/gpu: 1}}}}",
    "apps.nvidia.com/v1alpha1 NIMBuild": "spec: {resources: {limits: {nvidia.com/gpu: 1}}}",
    "sparkoperator.k8s.io/v1beta2 SparkApplication": "spec: {executor: {gpu: {name: nvidia.com/gpu, quantity: 1}}}",
    "nvidia.com/v1alpha1 DynamoGraphDeployment": "spec: {services: {a: {resources: {limits: {gpu: 1}}}}}",
    "kubeflow.org/v1 Notebook": f"spec: {{template: {TEMPLATE}}}",
    "machinelearning.seldon.io/v1 SeldonDeployment": (f"spec: {{predictors: [{{componentSpecs: [{{spec: {POD}}}]}}]}}"),
    "flink.apache.org/v1beta1 FlinkDeployment": f"spec: {{taskManager: {{podTemplate: {TEMPLATE}}}}}",
    "tekton.dev/v1 Task": "spec: {steps: [{name: s, computeResources: {limits: {nvidia.com/gpu: 1}}}]}",
}


@rows("kind", EXTENDED_ONLY)
def test_kinds_that_hold_no_claims_say_why(kind: str) -> None:
    (pod,) = pods(kind, EXTENDED_ONLY[kind])
    assert pod.form is ClaimForm.NONE
    assert pod.why_no_claims
    assert [container.resources["limits"] for container in pod.containers] == [{"nvidia.com/gpu": 1}]


def test_services_of_dynamo_have_resources_under_their_names() -> None:
    limits = "{gpu: '2', gpuType: gpu.example.com/xe, custom: {nvidia.com/mig-1g.10gb: '1'}, cpu: '4'}"
    (pod,) = pods(
        "nvidia.com/v1alpha1 DynamoGraphDeployment", f"spec: {{services: {{a: {{resources: {{limits: {limits}}}}}}}}}"
    )
    assert pod.containers[0].resources == {"limits": {"gpu.example.com/xe": "2", "nvidia.com/mig-1g.10gb": "1"}}


def test_canaries_of_kserve_are_pods_of_their_own() -> None:
    rest = f"spec: {{predictor: {POD}, canary: [{{predictor: {POD}}}]}}"
    pod_specs = pods("serving.kserve.io/v1beta1 InferenceService", rest, Options(kserve_standard=True))
    assert [path_text(pod.path) for pod in pod_specs] == ["spec.predictor", "spec.canary[0].predictor"]


def test_sparks_own_words_are_read_as_the_resource_that_it_makes() -> None:
    conf = "{spark.driver.resource.gpu.amount: '2', spark.driver.resource.gpu.vendor: nvidia.com}"
    (pod,) = pods("sparkoperator.k8s.io/v1beta2 SparkApplication", f"spec: {{sparkConf: {conf}}}")
    assert pod.containers[0].resources == {"limits": {"nvidia.com/gpu": "2"}}


@pytest.mark.parametrize(
    ("annotations", "options", "form"),
    [
        ("{serving.kserve.io/deploymentMode: Standard}", Options(), ClaimForm.POD),
        ("{serving.kserve.io/deploymentMode: RawDeployment}", Options(), ClaimForm.POD),
        ("{serving.kserve.io/deploymentMode: Serverless}", Options(kserve_standard=True), ClaimForm.NONE),
        ("{}", Options(), ClaimForm.NONE),
        ("{}", Options(kserve_standard=True), ClaimForm.POD),
    ],
)
def test_kserve_keeps_claims_in_standard_mode(annotations: str, options: Options, form: ClaimForm) -> None:
    text = f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: x, annotations: {annotations}}}
spec:
  predictor:
    model: {{modelFormat: {{name: y}}, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}
    workerSpec: {POD}
"""
    pod_specs = pods_of(read_documents(text, "f").raise_problems()[0], options)
    assert [(path_text(pod.path), pod.form) for pod in pod_specs] == [
        ("spec.predictor", form),
        ("spec.predictor.workerSpec", form),
    ]
    assert pod_specs[0].containers[0].resources_path == ("spec", "predictor", "model", "resources")


def test_roles_of_containers() -> None:
    rest = """
spec:
  initContainers: [{name: first}, {name: beside, restartPolicy: Always}]
  containers: [{name: main}]
  ephemeralContainers: [{name: look}]
"""
    (pod,) = pods("v1 Pod", rest)
    assert [(container.name, container.role) for container in pod.containers] == [
        ("main", Role.APP),
        ("first", Role.INIT),
        ("beside", Role.SIDECAR),
        ("look", Role.EPHEMERAL),
    ]


def test_steps_of_workflows_are_pods_of_their_own() -> None:
    rest = """
spec:
  templates:
  - name: one
    container: {image: i, resources: {limits: {nvidia.com/gpu: 1}}}
    sidecars: [{name: s}]
  - name: two
    script: {image: i}
  - name: three
    dag: {}
  - name: four
    resource:
      manifest: |
        kind: Pod
"""
    pod_specs = pods("argoproj.io/v1alpha1 Workflow", rest)
    assert [(pod.group, [container.name for container in pod.containers]) for pod in pod_specs] == [
        ("one", ["main", "s"]),
        ("two", ["main"]),
    ]
    assert {pod.form for pod in pod_specs} == {ClaimForm.NONE}
    newer = pods("argoproj.io/v1alpha1 Workflow", rest, Options(argo_resource_claims=True))
    assert {pod.form for pod in newer} == {ClaimForm.ARGO}


def test_kinds_of_the_same_name_are_told_apart_by_group() -> None:
    assert pods("v1 Service", f"spec: {{template: {TEMPLATE}}}") == ()
    assert pods("example.com/v1 Job", f"spec: {{template: {TEMPLATE}}}") == ()


def test_other_kinds_are_known_by_the_shape_of_pods_only() -> None:
    rest = f"spec: {{deep: [{{podTemplate: {TEMPLATE}}}], containers: [{{name: no-image}}]}}"
    assert pods("example.com/v1 Thing", rest) == ()
    (pod,) = pods("example.com/v1 Thing", rest, Options(unknown_kinds=True))
    assert path_text(pod.path) == "spec.deep[0].podTemplate.spec"
    assert [guess.path for guess in pods_by_shape(pod.document)] == [pod.path]


@pytest.mark.parametrize("broken", ["spec: 3", "spec: {template: []}", "spec: {template: {spec: {containers: 3}}}"])
def test_nonsense_has_no_pods_with_containers(broken: str) -> None:
    assert all(not pod.containers for pod in pods("apps/v1 Deployment", broken))


def test_dynamo_says_in_extra_fields_where_its_pods_run() -> None:
    spec = "{services: {a: {resources: {limits: {gpu: 1}}, extraPodSpec: {nodeSelector: {a: b}}}}}"
    (pod,) = pods("nvidia.com/v1alpha1 DynamoGraphDeployment", f"spec: {spec}")
    assert (pod.spec["nodeSelector"], pod.path[-1]) == ({"a": "b"}, "extraPodSpec")
