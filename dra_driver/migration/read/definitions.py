"""Whether the definition of a kind has fields for claims: what it has no field for, the API server drops. Pure.

CustomResourceDefinitions among what was given say so for certain. Without them only the first releases of projects are
known whose definitions have the fields. A pod names its template in `resourceClaimTemplateName` since Kubernetes 1.31,
and in a map `source` before: definitions that were made of older types drop the name, and the pod starts without GPUs.
Source: each project's definitions, release by release.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import NO_CLAIMS_HERE
from dra_driver.migration.model import (
    ClaimForm,
    MigrationFinding,
    Options,
    Path,
    PodReading,
    PodSpecAt,
    finding,
    path_text,
    value_at,
)

_OPEN: JsonObject = {"x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class Definitions:
    """Schemas of the kinds whose definitions were given, by apiVersion and kind."""

    schemas: Mapping[tuple[str, str], JsonObject] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, documents: Iterable[Document]) -> "Definitions":
        return cls({key: schema for document in documents for key, schema in _schemas(document)})

    def dropped(self, pod: PodSpecAt, options: Options) -> str | None:
        """The first field that claims of this pod need and the API server drops; None: none, as far as is known."""
        length, obj = _own_object(pod)
        schema = self.schemas.get(_key(obj))
        if schema is None:
            return None
        return next((path_text(field) for field in _fields(pod, options) if not _has(schema, field[length:])), None)

    def knows(self, pod: PodSpecAt) -> bool:
        return _key(_own_object(pod)[1]) in self.schemas


def _key(obj: JsonObject) -> tuple[str, str]:
    return str(obj.get("apiVersion")), str(obj.get("kind"))


def _schemas(document: Document) -> Iterator[tuple[tuple[str, str], JsonObject]]:
    spec = document.obj.get("spec")
    if document.kind != "CustomResourceDefinition" or not isinstance(spec, dict):
        return
    kind = value_at(spec, ("names", "kind"))
    versions = spec.get("versions")
    for version in versions if isinstance(versions, list) else ():
        schema = value_at(version, ("schema", "openAPIV3Schema"))
        if isinstance(schema, dict):
            yield (f"{spec.get('group')}/{version.get('name')}", str(kind)), schema


def _own_object(pod: PodSpecAt) -> tuple[int, JsonObject]:
    """The object that the pod is of, the document's or one inside of it, and how long the path to it is."""
    for length in range(len(pod.path), 0, -1):
        inner = value_at(pod.document.obj, pod.path[:length])
        if isinstance(inner, dict) and "kind" in inner and "apiVersion" in inner:
            return length, inner
    return 0, pod.document.obj


def _fields(pod: PodSpecAt, options: Options) -> Iterator[Path]:
    if pod.form is ClaimForm.NIM:
        yield (*pod.path, "draResources", 0, "resourceClaimTemplateName")
        return
    yield (*pod.path, "resourceClaims", 0, "resourceClaimTemplateName")
    for container in pod.containers:
        yield (*container.resources_path, "claims", 0, "request")


def _has(schema: Any, path: Path) -> bool:
    for step in path:
        schema = _below(schema, step)
        if schema is None:
            return False
    return True


def _below(schema: Any, step: str | int) -> JsonObject | None:
    """The schema of a key or an item. None: the API server drops it."""
    if not isinstance(schema, dict):
        return None
    if isinstance(step, int):
        below = schema.get("items")
    else:
        below = value_at(schema, ("properties", step)) or schema.get("additionalProperties")
    if isinstance(below, dict):
        return below
    return _OPEN if schema.get("x-kubernetes-preserve-unknown-fields") is True else None


# -- what is known without them

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


def kept(
    pod: PodSpecAt, reading: PodReading, definitions: Definitions, options: Options
) -> tuple[PodSpecAt, PodReading]:
    """With what the definition says: a pod whose claims would be dropped gets none."""
    if pod.form is ClaimForm.NONE or not reading.demands:
        return pod, reading
    dropped = definitions.dropped(pod, options)
    if dropped is not None:
        return replace(pod, form=ClaimForm.NONE, why_no_claims=_why(pod, dropped)), reading
    release = None if definitions.knows(pod) else _of_release(pod)
    if release is None:
        return pod, reading
    return pod, replace(reading, claim_findings=(*reading.claim_findings, release))


def _why(pod: PodSpecAt, dropped: str) -> str:
    version, kind = _key(_own_object(pod)[1])
    return f"the definition of {kind} in {version} has no field {dropped}, so the API server drops it"


def _of_release(pod: PodSpecAt) -> MigrationFinding | None:
    version, kind = _key(_own_object(pod)[1])
    known = FIRST_RELEASES.get((version, kind)) or FIRST_RELEASES.get((version.rpartition("/")[0], kind))
    if known is None:
        return None
    project, release = known
    message = f"releases of {project} before {release} have no fields for claims, and the API server drops them"
    advice = (
        f"See that the cluster has {project} {release} or newer. To be sure, give the definition of {kind} with "
        "`--with`, as `kubectl get crd -o yaml` prints it."
    )
    return finding(NO_CLAIMS_HERE, pod.document, (), message, advice=advice)
