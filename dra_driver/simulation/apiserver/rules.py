"""What differs between types: defaults, preparation and validation. Here are the rules of built-in types outside
resource.k8s.io, as far as drivers, manifests and kubectl meet them.

Defaults that need no thought are data, in `resource_types.yaml`; `fill` fills them in. Of pods, only what concerns
claims is validated in depth; of workloads, what their validation refuses of selectors and templates. A Node is not
tainted as not ready: here is no controller that would take the taint away again.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules import dra_fields
from dra_driver.apirules.dra_gates import drop_disabled
from dra_driver.apirules.metadata import dns_label, dns_subdomain
from dra_driver.apirules.status import (
    FieldProblem,
    duplicate,
    forbidden,
    invalid,
    not_found_value,
    not_supported,
    required,
)
from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelError
from dra_driver.cel.functions import Server
from dra_driver.kubernetes import FeatureGates
from dra_driver.simulation.apiserver.decode import copy_json
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.store import Store, TypeKey
from dra_driver.simulation.workloads.batch import cron_fields


def fill(obj: JsonObject, defaults: JsonObject) -> None:
    """Sets what is missing, in place. The form of `defaults` is described in `resource_types.yaml`."""
    for name, default in defaults.items():
        if isinstance(default, list):
            for item in obj.get(name) or ():
                fill(item, default[0])
        elif name.endswith("?"):
            fill(obj.get(name[:-1]) or {}, default)
        elif isinstance(default, dict) and default:
            fill(obj.setdefault(name, {}), default)
        else:
            obj.setdefault(name, copy_json(default))


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule may look at besides the object. `subresource` is empty for a write of the object itself."""

    kind: ResourceType
    subresource: str
    store: Store
    gates: FeatureGates
    now: str
    """RFC 3339 with seconds."""
    warnings: list[str]

    def selector_problem(self, expression: str) -> str | None:
        """What is wrong with the expression of a device selector that a client wants to store, or None."""
        known = (self.gates.enabled("DRAConsumableCapacity"), self.gates.enabled("DRAListTypeAttributes"))
        try:
            compile_selector(expression, Server(self.gates.minor, *known, stored=False))
        except CelError as error:
            return str(error)
        return None

    def namespace_labels(self, obj: JsonObject) -> JsonObject:
        """Labels of the namespace that the object is in."""
        entry = self.store.get(("", "namespaces"), "", obj["metadata"].get("namespace", ""))
        labels: JsonObject = (entry.obj["metadata"].get("labels") or {}) if entry is not None else {}
        return labels


class TypeRules:
    """The rules of one type; every method may be left as it is. Objects handed in may be changed in place."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        """Fills in what the API defaults beyond the table; called for every object that comes in."""

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        """Before validation of a creation (`old` None) or of a change of the object itself."""

    def prepare_status(self, obj: JsonObject, old: JsonObject, situation: Situation) -> None:
        """Before validation of a change of the status."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        """What is wrong with a creation (`old` None) or a change of the object itself."""
        return []

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        """What is wrong with a change of the status."""
        return []


class NamespaceRules(TypeRules):
    """Namespace: held by the finalizer `kubernetes` until it is empty; its name is also a label."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        metadata = obj["metadata"]
        if metadata.get("name"):
            metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        if old is None:
            obj["spec"] = {"finalizers": ["kubernetes"]}
            obj["status"] = {"phase": "Active"}
        else:
            obj["spec"] = old.get("spec", {})


class NodeObjectRules(TypeRules):
    """Node: all that it has can be allocated, unless it says less."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        status = obj.get("status") or {}
        if status.get("capacity"):
            status.setdefault("allocatable", dict(status["capacity"]))


class PodRules(TypeRules):
    """Pod. After creation only images, deadlines and tolerations may change; nodes are set by binding."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        spec = obj.get("spec", {})
        _default_pod(spec)
        for container in _containers(spec):
            resources = container.get("resources") or {}
            for name, quantity in (resources.get("limits") or {}).items():
                resources.setdefault("requests", {}).setdefault(name, quantity)

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        if old is not None:
            return
        spec = obj["spec"]
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        tolerations = spec.setdefault("tolerations", [])
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(toleration.get("key", key) == key for toleration in tolerations):
                tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
        obj["status"] = {"phase": "Pending"}

    def prepare_status(self, obj: JsonObject, old: JsonObject, situation: Situation) -> None:
        status = obj["status"]
        if status.get("podIP"):
            status.setdefault("podIPs", [{"ip": status["podIP"]}])
        drop_disabled(obj, old, situation.gates, status=True)

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        status, spec = obj["status"], obj["spec"]
        claims = {entry["name"] for entry in spec.get("resourceClaims") or ()}
        problems = [
            invalid(f"status.resourceClaimStatuses[{index}].name", entry.get("name"), "must match an entry in the spec")
            for index, entry in enumerate(status.get("resourceClaimStatuses") or ())
            if entry.get("name") not in claims
        ]
        path = "status.extendedResourceClaimStatus.requestMappings"
        asked = {
            name for container in _containers(spec) for name in (container.get("resources") or {}).get("requests") or ()
        }
        for index, item in enumerate((status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()):
            if item.get("resourceName") not in asked:
                why = "must match the extended resource name of a container's requests"
                problems.append(invalid(f"{path}[{index}].resourceName", item.get("resourceName"), why))
        for kind, names in (("container", "containers"), ("initContainer", "initContainers")):
            problems += _health_problems(status.get(f"{kind}Statuses") or (), f"status.{kind}Statuses", spec.get(names))
        return problems

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        if old is None:
            return _problems_of_pod(obj["spec"])
        if _fixed_part(obj["spec"]) == _fixed_part(old["spec"]):
            return []
        why = (
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds`"
        )
        return [forbidden("spec", why)]


def _health_problems(
    statuses: Sequence[JsonObject], path: str, containers: Sequence[JsonObject] | None
) -> list[FieldProblem]:
    """Of `allocatedResourcesStatus`: each is about something that its container asks for."""
    asked = {container["name"]: _asked_by(container.get("resources") or {}) for container in containers or ()}
    return [
        invalid(
            f"{path}[{index}].allocatedResourcesStatus[{number}].name",
            health.get("name"),
            "must match one of the container's resource claims or resource requests",
        )
        for index, status in enumerate(statuses)
        for number, health in enumerate(status.get("allocatedResourcesStatus") or ())
        if status.get("name") in asked and health.get("name") not in asked[status["name"]]
    ]


def _asked_by(resources: JsonObject) -> set[str]:
    claims = resources.get("claims") or ()
    named = {
        f"claim:{claim['name']}/{claim['request']}" if claim.get("request") else f"claim:{claim['name']}"
        for claim in claims
    }
    return named | set(resources.get("requests") or ())


def _fixed_part(spec: JsonObject) -> JsonObject:
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
    fixed = {name: value for name, value in spec.items() if name not in free}
    for name in ("containers", "initContainers"):
        if name in fixed:
            fixed[name] = [{**item, "image": ""} for item in fixed[name]]
    return fixed


def _containers(spec: JsonObject) -> list[JsonObject]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _default_pod(spec: JsonObject) -> None:
    """What the table of defaults has not, for a pod's spec or that of a template."""
    if spec.get("serviceAccountName"):
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in _containers(spec):
        image = container.get("image", "")
        tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
        latest = tag in ("", "latest") and "@" not in image
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")


def _problems_of_pod(spec: JsonObject) -> list[FieldProblem]:
    """What is wrong with a pod's spec, or that of a template; paths begin with `spec`."""
    problems = [] if spec.get("containers") else [required("spec.containers")]
    claims: dict[str, str] = {}
    for index, claim in enumerate(spec.get("resourceClaims") or ()):
        path, name = f"spec.resourceClaims[{index}]", claim.get("name", "")
        problems += _problems_of_pod_claim(claim, path)
        if name in claims:
            problems.append(duplicate(f"{path}.name", name))
        claims[name] = path
    seen: set[str] = set()
    volumes = {item.get("name") for item in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            path, name = f"spec.{field}[{index}]", container.get("name", "")
            problems += _problems_of_container(container, path, set(claims))
            for at, mount in enumerate(container.get("volumeMounts") or ()):
                if mount.get("name") not in volumes:
                    problems.append(not_found_value(f"{path}.volumeMounts[{at}].name", mount.get("name", "")))
            if name in seen:
                problems.append(duplicate(f"{path}.name", name))
            seen.add(name)
    return problems


def _problems_of_pod_claim(claim: JsonObject, path: str) -> list[FieldProblem]:
    name = claim.get("name", "")
    problems = dra_fields.label(name, f"{path}.name") if name else [required(f"{path}.name")]
    own, template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
    if own is not None and template is not None:
        problems.append(
            invalid(path, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
        )
    if own is None and template is None:
        problems.append(invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
    for field, value in (("resourceClaimName", own), ("resourceClaimTemplateName", template)):
        if value is not None and (why := dns_subdomain(value)):
            problems.append(invalid(f"{path}.{field}", value, why))
    return problems


def _problems_of_container(container: JsonObject, path: str, claims: set[str]) -> list[FieldProblem]:
    name = container.get("name", "")
    problems = [] if name else [required(f"{path}.name")]
    if name and (why := dns_label(name)):
        problems.append(invalid(f"{path}.name", name, why))
    if not container.get("image"):
        problems.append(required(f"{path}.image"))
    uses: list[tuple[str, str]] = []
    for index, use in enumerate((container.get("resources") or {}).get("claims") or ()):
        where, key = f"{path}.resources.claims[{index}]", (use.get("name", ""), use.get("request", ""))
        if not key[0]:
            problems.append(required(f"{where}.name"))
        elif key in uses or (key[0], "") in uses or (not key[1] and any(key[0] == other for other, _ in uses)):
            problems.append(duplicate(where, key[0] if not key[1] else f"{key[0]}/{key[1]}"))
        elif key[0] not in claims:
            problems.append(not_found_value(where, key[0]))
        uses.append(key)
    return problems


class SecretRules(TypeRules):
    """Secret: `stringData` becomes `data`."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        for name, text in obj.pop("stringData", {}).items():
            obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()


class EventRules(TypeRules):
    """Event of the core group."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        about = obj.get("involvedObject") or {}
        namespace = obj["metadata"].get("namespace")
        if situation.kind.resource.group and old is None:
            problems = [] if obj.get("eventTime") else [required("eventTime")]
            if obj.get("type") not in ("Normal", "Warning"):
                problems.append(
                    invalid("type", obj.get("type", ""), "has invalid value: Normal or Warning is required")
                )
            if problems:
                return problems
        if about.get("namespace", namespace) != namespace and (about.get("namespace") or namespace != "default"):
            return [invalid("involvedObject.namespace", about.get("namespace", ""), "does not match event.namespace")]
        return []


class AppsRules(TypeRules):
    """DaemonSet, Deployment, ReplicaSet and StatefulSet. Limits of rolling updates are nothing to other strategies."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        _default_template(obj["spec"])
        for strategy in (obj["spec"].get(name) or {} for name in ("strategy", "updateStrategy")):
            if strategy.get("type") != "RollingUpdate":
                strategy.pop("rollingUpdate", None)

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
        spec = obj["spec"]
        _default_template(spec)
        if spec.get("parallelism") is None:
            spec["parallelism"] = 1
            spec.setdefault("completions", 1)

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
        _default_template(obj["spec"]["jobTemplate"]["spec"])

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        schedule = obj["spec"].get("schedule")
        if not schedule:
            return [required("spec.schedule")]
        try:
            cron_fields(schedule)
        except ValueError as error:
            return [invalid("spec.schedule", schedule, str(error))]
        return _problems_of_job(obj["spec"]["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _default_template(spec: JsonObject) -> None:
    _default_pod((spec.get("template") or {}).get("spec") or {})


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
        for problem in _problems_of_pod(pod)
    ]
    policy = pod.get("restartPolicy", "Always")
    if policy not in policies:
        problems.append(not_supported(f"{path}.template.spec.restartPolicy", policy, policies))
    return problems


BUILTIN_RULES: dict[TypeKey, TypeRules] = {
    ("", "namespaces"): NamespaceRules(),
    ("", "nodes"): NodeObjectRules(),
    ("", "pods"): PodRules(),
    ("", "secrets"): SecretRules(),
    ("", "events"): EventRules(),
    **{("apps", f"{kind}s"): AppsRules() for kind in ("daemonset", "deployment", "replicaset", "statefulset")},
    ("batch", "jobs"): JobRules(),
    ("batch", "cronjobs"): CronJobRules(),
}
"""By type, without those of resource.k8s.io."""
