"""What frameworks read from limits, and what replaces it when there are no limits. Pure.

Source: the reference on migration sources, sections 2 and 9.
"""

from collections.abc import Iterator, Mapping, Sequence

from dra_driver.api.untyped import Path, path_text, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.model import (
    Edit,
    MigratedWorkload,
    MigrationFinding,
    MigrationTarget,
    Options,
    PodSpecAt,
    Put,
    What,
    finding,
)
from dra_driver.migration.read.kind_table import kind_of

_COUNT_WORDS = ("auto", "gpu")


def after_claims(
    workloads: Sequence[MigratedWorkload], options: Options
) -> tuple[tuple[Edit, ...], tuple[MigrationFinding, ...]]:
    """Edits and findings for the workloads of one document, most of them for those that get claims."""
    edits: list[Edit] = []
    findings: list[MigrationFinding] = [finding for item in workloads for finding in _kept_by_kai(item)]
    converted = [item for item in workloads if item.choice.target is MigrationTarget.CLAIMS]
    if not converted:
        return (), tuple(findings)
    findings += [finding for item in converted for finding in _first_release(item.pod)]
    for workload in converted:
        for path, count in _ray_counts(workload):
            edits.append(Put(path, str(count)))
            message = f"KubeRay reads num-gpus from limits; it is now written as {count}"
            findings.append(_inferred_count(workload, path, message))
    for path in _process_counts(workloads[0].pod):
        counts = {gpus(workload) for workload in converted}
        if len(counts) == 1:
            count = counts.pop()
            number = count if path[-1] == "numProcPerNode" else str(count)
            edits.append(Put(path, number))
            message = (
                f"the framework reads the number of processes from limits; it is now written explicitly as {count}"
            )
            findings.append(_inferred_count(converted[0], path, message))
        else:
            numbers = ", ".join(map(str, sorted(counts)))
            message = f"the framework reads the number of processes from limits, which differ ({numbers})"
            advice = f"write a number into {path_text(path)}"
            findings.append(finding(codes.INFERRED_COUNT, converted[0].document, path, message, advice=advice))
    findings += _uncounted_processes(converted[0])
    findings += _autoscaled(converted[0])
    return tuple(edits), tuple(findings)


def gpus(workload: MigratedWorkload) -> int:
    """How many devices the container that runs the framework, which is the first, asked for."""
    containers = workload.pod.containers
    first = [
        demand.want.count
        for demand in workload.reading.demands
        if containers and any(container.path == containers[0].path for container in demand.containers)
    ]
    return sum(first) or sum(demand.want.count for demand in workload.reading.demands)


def _inferred_count(workload: MigratedWorkload, path: Path, message: str) -> MigrationFinding:
    return finding(codes.INFERRED_COUNT, workload.document, path, message, advice="", fixed=True)


def _ray_counts(workload: MigratedWorkload) -> Iterator[tuple[Path, int]]:
    """Ray counts whole GPUs; an explicit number stays."""
    pod = workload.pod
    if "headGroupSpec" not in pod.path and "workerGroupSpecs" not in pod.path:
        return
    if any(demand.want.what is What.VFIO for demand in workload.reading.demands):
        return
    path = (*pod.path[:-2], "rayStartParams", "num-gpus")
    if value_at(pod.document.obj, path) is None:
        yield path, gpus(workload)


_PROCESS_COUNTS: tuple[Path, ...] = (
    ("spec", "nprocPerNode"),
    ("spec", "mlPolicy", "torch", "numProcPerNode"),
)


def _process_counts(pod: PodSpecAt) -> Iterator[Path]:
    """Fields that leave the number of processes to the framework."""
    group, _ = kind_of(pod.document.obj)
    if group in ("kubeflow.org", "trainer.kubeflow.org"):
        yield from (path for path in _PROCESS_COUNTS if value_at(pod.document.obj, path) in _COUNT_WORDS)


def _uncounted_processes(workload: MigratedWorkload) -> Iterator[MigrationFinding]:
    """Of a runtime of Trainer 2.2 and newer, whose number of processes only a TrainJob says."""
    document = workload.document
    path: Path = ("spec", "mlPolicy", "torch")
    if kind_of(document.obj)[0] != "trainer.kubeflow.org" or value_at(document.obj, path) is None:
        return
    if value_at(document.obj, (*path, "numProcPerNode")) is None:
        message = "Trainer starts a process for each GPU in limits, or for each CPU if there are no GPUs"
        advice = f"Write `spec.trainer.numProcPerNode: {gpus(workload)}` into the TrainJobs of this runtime."
        yield finding(codes.INFERRED_COUNT, document, path, message, advice=advice, severity=Severity.WARNING)


def _autoscaled(workload: MigratedWorkload) -> Iterator[MigrationFinding]:
    document = workload.document
    for at in ((), ("rayClusterSpec",), ("rayClusterConfig",), ("jobTemplate", "rayClusterSpec")):
        path: Path = ("spec", *at, "enableInTreeAutoscaling")
        if value_at(document.obj, path) is True:
            message = "Ray's autoscaler counts GPUs in limits, and does not see those of claims"
            yield finding(codes.AUTOSCALER, document, path, message)


_KAI_QUEUES = ("kai.scheduler/queue", "runai/queue")


def _is_of_kai(workload: MigratedWorkload) -> bool:
    pod = workload.pod
    labels = (pod.metadata.get("labels"), value_at(pod.document.obj, ("metadata", "labels")))
    queued = any(isinstance(label, dict) and label.keys() & set(_KAI_QUEUES) for label in labels)
    return queued or pod.spec.get("schedulerName") in ("kai-scheduler", "runai-scheduler")


def _kept_by_kai(workload: MigratedWorkload) -> Iterator[MigrationFinding]:
    """Source: KAI 0.17, its changes since 0.13."""
    if workload.choice.target is MigrationTarget.EXTENDED and _is_of_kai(workload):
        message = "KAI before 0.17 keeps pods with extended resources away from nodes of a DRA driver"
        advice = "Check that the cluster has KAI 0.17 or newer, or give the pod claims."
        yield finding(codes.OTHER_SCHEDULER, workload.document, workload.pod.path, message, advice=advice)


# -- definitions that drop claims

_RAY = ("KubeRay", "1.4")
_ROLLOUTS = ("Argo Rollouts", "1.9")
_TRAINING = ("the Training Operator", "1.9")
FIRST_RELEASES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("argoproj.io", "Rollout"): _ROLLOUTS,
    ("argoproj.io", "Experiment"): _ROLLOUTS,
    ("argoproj.io", "AnalysisTemplate"): _ROLLOUTS,
    ("argoproj.io", "ClusterAnalysisTemplate"): _ROLLOUTS,
    ("jobset.x-k8s.io", "JobSet"): ("JobSet", "0.7"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): ("LeaderWorkerSet", "0.4"),
    ("kubeflow.org", "PyTorchJob"): _TRAINING,
    ("kubeflow.org", "TFJob"): _TRAINING,
    ("kubeflow.org", "XGBoostJob"): _TRAINING,
    ("kubeflow.org", "PaddleJob"): _TRAINING,
    ("kubeflow.org", "JAXJob"): _TRAINING,
    ("kubeflow.org", "MPIJob"): _TRAINING,
    ("kubeflow.org/v2beta1", "MPIJob"): ("the MPI Operator", "0.6"),
    ("ray.io", "RayCluster"): _RAY,
    ("ray.io", "RayJob"): _RAY,
    ("ray.io", "RayService"): _RAY,
    ("batch.volcano.sh", "Job"): ("Volcano", "1.11"),
    ("apps.nvidia.com", "NIMService"): ("the NIM Operator", "3.0"),
    ("apps.nvidia.com", "NIMPipeline"): ("the NIM Operator", "3.0"),
    ("serving.kserve.io", "InferenceService"): ("KServe", "0.15"),
    ("sparkoperator.k8s.io", "SparkApplication"): ("the Spark Operator", "2.1"),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): ("the Spark Operator", "2.1"),
}
"""By group or apiVersion, and kind: the project and its first release whose definition keeps claims. Kinds that have
kept them from their first release on, and kinds of Kubernetes itself, are not here."""


def _first_release(pod: PodSpecAt) -> Iterator[MigrationFinding]:
    """A pod names its template in `resourceClaimTemplateName` since Kubernetes 1.31. Definitions with older types drop
    the name, and the pod starts without GPUs. Source: each project's definitions, release by release."""
    version, kind = str(pod.obj.get("apiVersion")), str(pod.obj.get("kind"))
    known = FIRST_RELEASES.get((version, kind)) or FIRST_RELEASES.get((version.rpartition("/")[0], kind))
    if known is not None:
        project, release = known
        message = f"releases of {project} before {release} have no fields for claims, and the API server drops them"
        advice = (
            f"Check that the cluster has {project} {release} or newer. `kubectl apply --dry-run=server` reports fields "
            f"that the definition of {kind} does not have."
        )
        yield finding(codes.NO_CLAIMS_HERE, pod.document, (), message, advice=advice)
