"""The rules of workloads: their defaults, and what their validation refuses of selectors and templates."""

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import FieldProblem, invalid, not_supported, required
from dra_driver.simulation.apiserver.decode import copy_json
from dra_driver.simulation.apiserver.rules.core_rules import default_pod_spec, problems_of_pod
from dra_driver.simulation.apiserver.rules.type_rules import Situation, TypeRules
from dra_driver.simulation.apiserver.store import TypeKey
from dra_driver.simulation.workloads.batch import cron_fields

_ROLLING = {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
_DEFAULTS: dict[str, JsonObject] = {
    "daemonsets": {
        "revisionHistoryLimit": 10,
        "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    },
    "deployments": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "strategy": _ROLLING},
    "replicasets": {"replicas": 1},
    "statefulsets": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"rollingUpdate": {"partition": 0}},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    },
}
"""Of the spec, by plural of the type; strategies are rolling updates unless they say something else."""
_JOB: JsonObject = {
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
    "manualSelector": False,
}
_CRON_JOB: JsonObject = {
    "concurrencyPolicy": "Allow",
    "suspend": False,
    "successfulJobsHistoryLimit": 3,
    "failedJobsHistoryLimit": 1,
}


def workload_rules() -> dict[TypeKey, TypeRules]:
    """By type."""
    apps: dict[TypeKey, TypeRules] = {("apps", plural): AppsRules(plural) for plural in _DEFAULTS}
    return {**apps, ("batch", "jobs"): JobRules(), ("batch", "cronjobs"): CronJobRules()}


class AppsRules(TypeRules):
    """DaemonSet, Deployment, ReplicaSet and StatefulSet."""

    def __init__(self, plural: str) -> None:
        self._defaults = _DEFAULTS[plural]

    def default(self, obj: JsonObject, situation: Situation) -> None:
        spec = obj.setdefault("spec", {})
        _default_template(spec)
        for name, value in self._defaults.items():
            if isinstance(value, dict) and "rollingUpdate" in value:
                strategy = spec.setdefault(name, {})
                if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
                    strategy["rollingUpdate"] = value["rollingUpdate"] | (strategy.get("rollingUpdate") or {})
            else:
                spec.setdefault(name, copy_json(value))

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        spec = obj["spec"]
        selector = spec.get("selector")
        if not selector:
            return [required("spec.selector")]
        if old is not None and selector != old["spec"].get("selector"):
            return [invalid("spec.selector", selector, "field is immutable")]
        labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if any(labels.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
            why = "`selector` does not match template `labels`"
            return [invalid("spec.template.metadata.labels", labels, why)]
        return _problems_of_template(spec, "spec", "Always")


class JobRules(TypeRules):
    """Job: it selects the pods that have its own UID. Its template is final."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        _default_job(obj.setdefault("spec", {}))

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        spec, metadata = obj["spec"], obj["metadata"]
        if old is not None or spec.get("manualSelector"):
            return
        own = {"controller-uid": metadata["uid"], "job-name": metadata.get("name", "")}
        labels = own | {f"batch.kubernetes.io/{name}": value for name, value in own.items()}
        about = spec.setdefault("template", {}).setdefault("metadata", {})
        about["labels"] = (about.get("labels") or {}) | labels
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}}
        metadata["labels"] = metadata.get("labels") or dict(about["labels"])

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        spec = obj["spec"]
        fixed = ("selector", "completionMode", *(() if spec.get("suspend") else ("template",)))
        for name in fixed if old is not None else ():
            if spec.get(name) != (old or {})["spec"].get(name):
                return [invalid(f"spec.{name}", spec.get(name), "field is immutable")]
        return _problems_of_job(spec, "spec")


class CronJobRules(TypeRules):
    """CronJob: a schedule, and the template of a Job."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        spec = obj.setdefault("spec", {})
        for name, value in _CRON_JOB.items():
            spec.setdefault(name, value)
        job = spec.setdefault("jobTemplate", {}).setdefault("spec", {})
        _default_template(job)

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        schedule = obj["spec"].get("schedule")
        if not schedule:
            return [required("spec.schedule")]
        try:
            cron_fields(schedule)
        except ValueError as error:
            return [invalid("spec.schedule", schedule, str(error))]
        return _problems_of_job(obj["spec"]["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _default_job(spec: JsonObject) -> None:
    _default_template(spec)
    for name, value in _JOB.items():
        spec.setdefault(name, value)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1


def _default_template(spec: JsonObject) -> None:
    template = spec.get("template") or {}
    if isinstance(template.get("spec"), dict):
        default_pod_spec(template["spec"])


def _problems_of_job(spec: JsonObject, path: str) -> list[FieldProblem]:
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        return [required(f"{path}.completions", "when completion mode is Indexed")]
    return _problems_of_template(spec, path, "OnFailure", "Never")


def _problems_of_template(spec: JsonObject, path: str, *policies: str) -> list[FieldProblem]:
    pod = (spec.get("template") or {}).get("spec") or {}
    # A StatefulSet gives each of its pods volumes of its own, which containers may mount.
    own = [{"name": (claim.get("metadata") or {}).get("name")} for claim in spec.get("volumeClaimTemplates") or ()]
    pod = {**pod, "volumes": [*(pod.get("volumes") or ()), *own]}
    problems = [
        FieldProblem(problem.field.replace("spec", f"{path}.template.spec", 1), problem.reason, problem.message)
        for problem in problems_of_pod(pod)
    ]
    policy = pod.get("restartPolicy", "Always")
    if policy not in policies:
        problems.append(not_supported(f"{path}.template.spec.restartPolicy", policy, policies))
    return problems
