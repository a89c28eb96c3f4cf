"""Which kinds of objects have pods, and where; which of them can have claims. A table. Pure.

Source: the reference on migration sources, section 2. Kinds are known by group and name; versions do not matter.
"""

from collections.abc import Mapping
from typing import Any

type Kind = tuple[str, str]
"""Group and kind; the core group is empty."""

_TEMPLATE = "spec.template.spec"
_ANALYSIS = "spec.metrics[].provider.job.spec.template.spec"
_LLM = ("spec.template", "spec.worker", "spec.prefill.template", "spec.prefill.worker")

ROLE_GROUP, ROLE_GROUPS = ("workloads.x-k8s.io", "RoleBasedGroup"), ("workloads.x-k8s.io", "RoleBasedGroupSet")
_ROLES = (
    "roleTemplates[].template.spec",
    "roles[].template.spec",
    "roles[].components[].template.spec",
    "roles[].standalonePattern.template.spec",
    "roles[].leaderWorkerPattern.template.spec",
    "roles[].customComponentsPattern.components[].template.spec",
)
"""Of v1alpha1 and v1alpha2. Source: sgl-project/rbg 0.8, whose definition keeps all fields of roles."""
PODS: Mapping[Kind, tuple[str, ...]] = {
    ("", "Pod"): ("spec",),
    ("", "PodTemplate"): ("template.spec",),
    ("", "ReplicationController"): (_TEMPLATE,),
    ("apps", "ReplicaSet"): (_TEMPLATE,),
    ("apps", "Deployment"): (_TEMPLATE,),
    ("apps", "DaemonSet"): (_TEMPLATE,),
    ("apps", "StatefulSet"): (_TEMPLATE,),
    ("extensions", "Deployment"): (_TEMPLATE,),
    ("apps.openshift.io", "DeploymentConfig"): (_TEMPLATE,),
    ("argoproj.io", "Rollout"): (_TEMPLATE,),
    ("argoproj.io", "Experiment"): ("spec.templates[].template.spec",),
    ("argoproj.io", "AnalysisTemplate"): (_ANALYSIS,),
    ("argoproj.io", "ClusterAnalysisTemplate"): (_ANALYSIS,),
    ("keda.sh", "ScaledJob"): ("spec.jobTargetRef.template.spec",),
    ("batch", "Job"): (_TEMPLATE,),
    ("batch", "CronJob"): ("spec.jobTemplate.spec.template.spec",),
    ("jobset.x-k8s.io", "JobSet"): ("spec.replicatedJobs[].template.spec.template.spec",),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        "spec.leaderWorkerTemplate.leaderTemplate.spec",
        "spec.leaderWorkerTemplate.workerTemplate.spec",
    ),
    ("disaggregatedset.x-k8s.io", "DisaggregatedSet"): (
        "spec.roles[].spec.leaderWorkerTemplate.leaderTemplate.spec",
        "spec.roles[].spec.leaderWorkerTemplate.workerTemplate.spec",
    ),
    ("kubeflow.org", "PyTorchJob"): ("spec.pytorchReplicaSpecs.*.template.spec",),
    ("kubeflow.org", "TFJob"): ("spec.tfReplicaSpecs.*.template.spec",),
    ("kubeflow.org", "XGBoostJob"): ("spec.xgbReplicaSpecs.*.template.spec",),
    ("kubeflow.org", "PaddleJob"): ("spec.paddleReplicaSpecs.*.template.spec",),
    ("kubeflow.org", "JAXJob"): ("spec.jaxReplicaSpecs.*.template.spec",),
    ("kubeflow.org", "MPIJob"): ("spec.mpiReplicaSpecs.*.template.spec",),
    ("trainer.kubeflow.org", "TrainingRuntime"): ("spec.template.spec.replicatedJobs[].template.spec.template.spec",),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): (
        "spec.template.spec.replicatedJobs[].template.spec.template.spec",
    ),
    ("ray.io", "RayCluster"): ("spec.headGroupSpec.template.spec", "spec.workerGroupSpecs[].template.spec"),
    ("ray.io", "RayJob"): (
        "spec.rayClusterSpec.headGroupSpec.template.spec",
        "spec.rayClusterSpec.workerGroupSpecs[].template.spec",
        "spec.submitterPodTemplate.spec",
    ),
    ("ray.io", "RayService"): (
        "spec.rayClusterConfig.headGroupSpec.template.spec",
        "spec.rayClusterConfig.workerGroupSpecs[].template.spec",
    ),
    ("serving.kserve.io", "LLMInferenceService"): _LLM,
    ("ray.io", "RayCronJob"): (
        "spec.jobTemplate.rayClusterSpec.headGroupSpec.template.spec",
        "spec.jobTemplate.rayClusterSpec.workerGroupSpecs[].template.spec",
        "spec.jobTemplate.submitterPodTemplate.spec",
    ),
    ROLE_GROUP: tuple(f"spec.{text}" for text in _ROLES),
    ROLE_GROUPS: tuple(f"spec.{group}.{text}" for group in ("template", "groupTemplate.spec") for text in _ROLES),
    ("batch.volcano.sh", "Job"): ("spec.tasks[].template.spec",),
    ("batch.volcano.sh", "CronJob"): ("spec.jobTemplate.spec.tasks[].template.spec",),
    ("flow.volcano.sh", "JobTemplate"): ("spec.tasks[].template.spec",),
    ("sparkoperator.k8s.io", "SparkApplication"): ("spec.driver.template.spec", "spec.executor.template.spec"),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): (
        "spec.template.driver.template.spec",
        "spec.template.executor.template.spec",
    ),
    ("grove.io", "PodCliqueSet"): ("spec.template.cliques[].spec.podSpec",),
    ("grove.io", "PodClique"): ("spec.podSpec",),
    ("nvidia.com", "DynamoGraphDeployment"): ("spec.components[].podTemplate.spec",),
    ("nvidia.com", "DynamoComponentDeployment"): ("spec.podTemplate.spec",),
}
"""Paths of pod specs: `[]` is every item of a list, `*` every value of a map."""

_KNATIVE = "Knative passes on limits and requests of containers only"
EXTENDED_ONLY: Mapping[Kind, tuple[tuple[str, ...], str]] = {
    ("serving.knative.dev", "Service"): ((_TEMPLATE,), _KNATIVE),
    ("serving.knative.dev", "Configuration"): ((_TEMPLATE,), _KNATIVE),
    ("serving.knative.dev", "Revision"): (("spec",), _KNATIVE),
    ("serving.kserve.io", "LLMInferenceServiceConfig"): (
        _LLM,
        "a config is for services of all namespaces, and its template would be in one only",
    ),
    **{
        ("serving.kserve.io", kind): (
            ("spec", "spec.workerSpec"),
            f"a {kind} has no field resourceClaims; an InferenceService in standard mode has",
        )
        for kind in ("ServingRuntime", "ClusterServingRuntime")
    },
    ("kubeflow.org", "Notebook"): ((_TEMPLATE,), "the definition of Notebook has no field for claims"),
    ("machinelearning.seldon.io", "SeldonDeployment"): (
        ("spec.predictors[].componentSpecs[].spec",),
        "the definition of SeldonDeployment has the fields of Kubernetes 1.26, in which claims are lost",
    ),
    ("flink.apache.org", "FlinkDeployment"): (
        ("spec.podTemplate.spec", "spec.jobManager.podTemplate.spec", "spec.taskManager.podTemplate.spec"),
        "the Flink operator is not known to keep claims",
    ),
}
"""Kinds whose pods are like others, but get no claims."""

RESOURCES_ONLY: Mapping[Kind, tuple[str, str]] = {
    ("trainer.kubeflow.org", "TrainJob"): (
        "spec.trainer.resourcesPerNode",
        "a TrainJob has no field for claims; its runtime has",
    ),
    ("apps.nvidia.com", "NIMBuild"): ("spec.resources", "a NIMBuild has no field for claims"),
    ("serving.yatai.ai", "BentoDeployment"): ("spec.resources", "a BentoDeployment has no field for claims"),
    ("tekton.dev", "Task"): ("spec.steps[].computeResources", "Tekton's steps have no field for claims"),
}
"""Kinds that have limits and requests, and get no claims."""

NIM: Mapping[Kind, str] = {
    ("apps.nvidia.com", "NIMService"): "spec",
    ("apps.nvidia.com", "NIMPipeline"): "spec.services[].spec",
}

ARGO: Mapping[Kind, str] = {
    ("argoproj.io", "Workflow"): "spec",
    ("argoproj.io", "WorkflowTemplate"): "spec",
    ("argoproj.io", "ClusterWorkflowTemplate"): "spec",
    ("argoproj.io", "CronWorkflow"): "spec.workflowSpec",
}

NESTED: Mapping[Kind, str] = {
    ("kubeflow.org", "Experiment"): "spec.trialTemplate.trialSpec",
    ("workload.codeflare.dev", "AppWrapper"): "spec.components[].template",
    ("template.openshift.io", "Template"): "objects[]",
}
"""Kinds that hold objects of any kind."""


def kind_of(obj: Mapping[str, Any]) -> Kind:
    version, kind = obj.get("apiVersion"), obj.get("kind")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    return group, kind if isinstance(kind, str) else ""


def is_known(obj: Mapping[str, Any]) -> bool:
    key = kind_of(obj)
    return key == KSERVE or any(key in table for table in _TABLES)


_TABLES: tuple[Mapping[Kind, Any], ...] = (PODS, EXTENDED_ONLY, RESOURCES_ONLY, NIM, ARGO, NESTED)
KSERVE = ("serving.kserve.io", "InferenceService")
DYNAMO = ("nvidia.com", "DynamoGraphDeployment")
SPARK: Mapping[Kind, str] = {
    ("sparkoperator.k8s.io", "SparkApplication"): "spec",
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): "spec.template",
}


def known_kinds() -> tuple[tuple[str, str, str], ...]:
    """Group, kind, and what becomes of it in a word or two, in the order of the reference. For the docs."""
    becomes = (
        (PODS, "claims of the pod"),
        ((KSERVE,), "claims of the pod in standard mode, else extended resources"),
        (NIM, "claims, by `draResources`"),
        (ARGO, "claims of each template, by `resourceClaims` or `podSpecPatch`"),
        (NESTED, "the inner object, of any kind"),
    )
    kinds: dict[Kind, str] = {key: what for keys, what in becomes for key in keys}
    kinds |= {key: f"extended resources: {why}" for key, (_, why) in EXTENDED_ONLY.items()}
    kinds |= {key: f"extended resources: {why}" for key, (_, why) in RESOURCES_ONLY.items()}
    kinds |= dict.fromkeys(SPARK, "extended resources; claims where pod templates are given")
    kinds[DYNAMO] = "claims of the pod in v1beta1, else extended resources"
    return tuple((group, kind, what) for (group, kind), what in kinds.items())
