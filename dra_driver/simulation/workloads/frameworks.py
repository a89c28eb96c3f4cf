"""JobSets, LeaderWorkerSets, RayClusters, the jobs of Kubeflow and Volcano, KServe's services and KubeVirt's machines:
the pods and workloads that they mean. Pure.

Their controllers do much more; what is here is what schedules: names, numbers, labels, the variables by which pods find
each other, and a status that says whether all run. What a pod's end means for the whole is decided simply: a pod that
may restart comes back; a workload of pods that may not has ended when all have. Pods have fixed names where KubeRay's
are random; a RayJob has no submitter, because its program would not run. Sources: the projects' API references.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from dra_driver.allocation.loading import launcher_of
from dra_driver.allocation.serving import SERVING_GROUP, managed_template, serving_pods
from dra_driver.api.meta import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    RESOURCE_CLAIM_TEMPLATES,
    JsonObject,
    Resource,
)
from dra_driver.simulation.pods import is_done
from dra_driver.simulation.workloads.workload_plan import (
    WorkloadPlan,
    add_volumes,
    child_of,
    conditions_of,
    holds,
    is_ready,
    labeled,
    pod_of,
    staying,
    template_hash,
)

type Children = Callable[[JsonObject, Sequence[JsonObject]], Iterator[JsonObject]]
"""From the workload and what it has: what it wants."""

_TEMPLATE_HASH = "simulation.dra.gpu/template-hash"


@dataclass(frozen=True, slots=True)
class Framework:
    """A kind of workload. `ready` and `ended` are types of its conditions; `Failed` is one of each."""

    resource: Resource
    children: Children
    ready: str = "Running"
    ended: str = "Succeeded"

    def plan(self, owner: JsonObject, children: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
        """What is missing is made; what is not wanted, has ended and may restart, or has an old template goes."""
        if holds(owner, self.ended, "Failed"):
            return WorkloadPlan()
        wanted = {}
        for obj in self.children(owner, children) if not _is_suspended(owner) else ():
            obj["metadata"].setdefault("annotations", {})[_TEMPLATE_HASH] = template_hash(obj["spec"])
            wanted[obj["kind"], obj["metadata"]["name"]] = obj
        known = {(item["kind"], item["metadata"]["name"]): item for item in children}
        create = [obj for key, obj in wanted.items() if key not in known]
        gone = [item for key, item in known.items() if key not in wanted or _is_outdated(item, wanted[key])]
        patch = [
            (known[key], _update(known[key], obj))
            for key, obj in wanted.items()
            if key in known and _follows(known[key], obj)
        ]
        counted = [key for key in wanted if key[0] != RESOURCE_CLAIM_TEMPLATES.kind]
        status = self._status(owner, [known[key] for key in counted if key in known], len(counted), now)
        return WorkloadPlan(tuple(create), tuple(staying(gone)), tuple(patch), status=status)

    def _status(self, owner: JsonObject, children: list[JsonObject], wanted: int, now: datetime) -> JsonObject:
        states = [_state(child) for child in children]
        ready, failed = states.count("ready"), "failed" in states
        ended = bool(wanted) and states.count("ended") == wanted
        all_run = bool(wanted) and ready + states.count("ended") == wanted and not ended
        conditions = [(self.ready, all_run, "AllPodsReady" if all_run else "PodsNotReady", f"{ready} of {wanted} run")]
        if ended or failed:
            name = "Failed" if failed else self.ended
            conditions.append((name, True, name, f"{states.count('failed')} of {wanted} failed"))
        return {"conditions": conditions_of(owner, now, *conditions)}


def _is_suspended(owner: JsonObject) -> bool:
    """The Jobs of a JobSet stay, and are suspended themselves."""
    spec = owner["spec"]
    return owner["kind"] != "JobSet" and bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _is_outdated(item: JsonObject, wanted: JsonObject) -> bool:
    """A pod or a claim template, whose spec is final. A Job's is, too: a changed one waits for the next JobSet."""
    restarts = item["kind"] == "Pod" and item["spec"].get("restartPolicy", "Always") != "Never"
    final = item["kind"] in ("Pod", RESOURCE_CLAIM_TEMPLATES.kind)
    return (restarts and is_done(item)) or (final and _differs(item, wanted))


def _follows(item: JsonObject, wanted: JsonObject) -> bool:
    """Whether a workload that can change has another spec now."""
    return item["kind"] in (DEPLOYMENTS.kind, "LeaderWorkerSet") and _differs(item, wanted)


def _differs(item: JsonObject, wanted: JsonObject) -> bool:
    hashes = [(obj["metadata"].get("annotations") or {}).get(_TEMPLATE_HASH) for obj in (item, wanted)]
    return hashes[0] != hashes[1]


def _update(item: JsonObject, wanted: JsonObject) -> JsonObject:
    """The merge patch to the wanted spec; what the server sets by default, it sets again."""
    annotations = {_TEMPLATE_HASH: wanted["metadata"]["annotations"][_TEMPLATE_HASH]}
    return {"metadata": {"annotations": annotations}, "spec": _replacing(item["spec"], wanted["spec"])}


def _replacing(before: JsonObject, after: JsonObject) -> JsonObject:
    """The merge patch that leaves nothing of `before`: of a field that goes, it needs to say so."""
    changed = {
        name: _replacing(before[name], value)
        if isinstance(value, dict) and isinstance(before.get(name), dict)
        else value
        for name, value in after.items()
    }
    return {**dict.fromkeys(before.keys() - after.keys()), **changed}


def _state(child: JsonObject) -> str:
    """ready, ended, failed, or empty."""
    status = child.get("status") or {}
    if child["kind"] == "Pod":
        phase = status.get("phase")
        never = child["spec"].get("restartPolicy", "Always") == "Never"
        ended = {"Succeeded": "ended", "Failed": "failed" if never else ""}
        return "ready" if is_ready(child) else ended.get(str(phase), "")
    if holds(child, "Complete", "Completed", "Succeeded"):
        return "ended"
    if holds(child, "Failed"):
        return "failed"
    if child["kind"] == JOBS.kind:
        return "ready" if status.get("ready") and status.get("ready") == status.get("active") else ""
    return "ready" if holds(child, "Running", "Available", "HeadPodReady") else ""


def _named(prefix: str, **values: object) -> JsonObject:
    """Labels with one prefix."""
    return {f"{prefix}/{name.replace('_', '-')}": str(value) for name, value in values.items()}


# -- JobSet


def _job_set(owner: JsonObject, children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    name, spec = owner["metadata"]["name"], owner["spec"]
    for group in spec.get("replicatedJobs") or ():
        if not all(_is_reached(item, children) for item in group.get("dependsOn") or ()):
            continue
        for index in range(group.get("replicas", 1)):
            about = {"jobset_name": name, "replicatedjob_name": group["name"], "job_index": index, "restart_attempt": 0}
            labels = _named("jobset.sigs.k8s.io", **about)
            made = labeled(group["template"], labels, labels)
            metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
            pod = labeled(made["spec"].get("template") or {}, labels, labels)
            pod["spec"] = {"subdomain": name, "restartPolicy": "OnFailure", **(pod.get("spec") or {})}
            for policy in spec.get("volumeClaimPolicies") or ():
                add_volumes(pod["spec"], policy.get("templates") or (), name)
            job = {"completionMode": "Indexed", **made["spec"], "suspend": bool(spec.get("suspend")), "template": pod}
            yield child_of(owner, JOBS, f"{name}-{group['name']}-{index}", metadata, job)


def _is_reached(dependency: JsonObject, children: Sequence[JsonObject]) -> bool:
    label = "jobset.sigs.k8s.io/replicatedjob-name"
    jobs = [item for item in children if (item["metadata"].get("labels") or {}).get(label) == dependency["name"]]
    enough = ("ended",) if dependency.get("status") == "Complete" else ("ended", "ready")
    return bool(jobs) and all(_state(job) in enough for job in jobs)


# -- LeaderWorkerSet


def _leader_worker_set(owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    metadata, spec = owner["metadata"], owner["spec"]
    name, templates = metadata["name"], spec["leaderWorkerTemplate"]
    size = templates.get("size", 1)
    for group in range(spec.get("replicas", 1)):
        leader = f"{name}-{group}"
        for worker in range(size):
            template = (not worker and templates.get("leaderTemplate")) or templates["workerTemplate"]
            labels = _named("leaderworkerset.sigs.k8s.io", name=name, group_index=group, worker_index=worker)
            env = (
                ("LWS_LEADER_ADDRESS", f"{leader}.{name}.{metadata['namespace']}"),
                ("LWS_GROUP_SIZE", str(size)),
                ("LWS_WORKER_INDEX", str(worker)),
            )
            pod = pod_of(owner, template, f"{leader}-{worker}" if worker else leader, labels, env=env)
            add_volumes(pod["spec"], templates.get("volumeClaimTemplates") or (), pod["metadata"]["name"])
            yield pod


# -- Ray


def _ray_cluster(owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    name, spec = owner["metadata"]["name"], owner["spec"]
    common: JsonObject = _named("ray.io", cluster=name, is_ray_node="yes")
    head = common | _named("ray.io", node_type="head", group="headgroup")
    yield pod_of(owner, spec["headGroupSpec"]["template"], f"{name}-head", head)
    for group in spec.get("workerGroupSpecs") or ():
        labels = common | _named("ray.io", node_type="worker", group=group["groupName"])
        env = (("RAY_IP", f"{name}-head-svc"), ("FQ_RAY_IP", f"{name}-head-svc.{owner['metadata']['namespace']}"))
        replicas = group.get("replicas", group.get("minReplicas", 0)) * group.get("numOfHosts", 1)
        for index in range(0 if group.get("suspend") else replicas):
            yield pod_of(owner, group["template"], f"{name}-{group['groupName']}-worker-{index}", labels, env=env)


def _ray_cluster_at(field: str, owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """A RayCluster of the spec at a field of another kind."""
    if spec := owner["spec"].get(field):
        yield child_of(owner, _RAY_CLUSTERS, f"{owner['metadata']['name']}-raycluster", {}, spec)


# -- Kubeflow, MPI, Volcano


def _replicas_at(field: str, owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Pods of the Training Operator: by type of replica, which is a key of the map at `field`."""
    name, groups = owner["metadata"]["name"], owner["spec"].get(field) or {}
    world = sum(group.get("replicas", 1) for group in groups.values())
    rank = 0
    for kind, group in sorted(groups.items()):  # Master before Worker: rank 0 is the master
        for index in range(group.get("replicas", 1)):
            labels = _named("training.kubeflow.org", job_name=name, replica_type=kind.lower(), replica_index=index)
            env = (
                ("MASTER_ADDR", f"{name}-{min(groups).lower()}-0"),
                ("MASTER_PORT", "23456"),
                ("WORLD_SIZE", str(world)),
                ("RANK", str(rank)),
            )
            policy = group.get("restartPolicy", "Never").replace("ExitCode", "Never")
            template = {**group["template"], "spec": {**group["template"]["spec"], "restartPolicy": policy}}
            yield pod_of(owner, template, f"{name}-{kind.lower()}-{index}", labels, env=env)
            rank += 1


def _mpi_job(owner: JsonObject, children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """Workers are pods; the launcher is a Job, which may need to wait until the workers run."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    worker, launcher = spec["mpiReplicaSpecs"].get("Worker"), spec["mpiReplicaSpecs"]["Launcher"]
    workers = worker.get("replicas", 1) if worker else 0
    for index in range(workers):
        labels = _named("training.kubeflow.org", job_name=name, job_role="worker", replica_index=index)
        yield pod_of(owner, worker["template"], f"{name}-worker-{index}", labels)
    waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    there = any(child["kind"] == JOBS.kind for child in children)
    if there or not waits or sum(is_ready(child) for child in children) == workers:
        labels = _named("training.kubeflow.org", job_name=name, job_role="launcher")
        template = labeled(launcher["template"], labels)
        template["spec"] = {"restartPolicy": "OnFailure", **template["spec"]}
        yield child_of(owner, JOBS, f"{name}-launcher", {"labels": labels}, {"template": template})


def _volcano_job(owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    name = owner["metadata"]["name"]
    for task in owner["spec"].get("tasks") or ():
        for index in range(task.get("replicas", 1)):
            labels = _named("volcano.sh", job_name=name, task_spec=task["name"], task_index=index)
            env = (("VC_TASK_INDEX", str(index)),)
            spec = {"schedulerName": "volcano", "restartPolicy": "OnFailure", **task["template"]["spec"]}
            yield pod_of(owner, {**task["template"], "spec": spec}, f"{name}-{task['name']}-{index}", labels, env=env)


# -- KServe


def _served(owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """A Deployment for each template, or a LeaderWorkerSet where each replica is several pods."""
    name = owner["metadata"]["name"]
    claims = managed_template(owner)
    if claims is not None:
        yield child_of(owner, RESOURCE_CLAIM_TEMPLATES, claims["metadata"]["name"], {}, claims["spec"])
    for pods in serving_pods(owner):
        labels = {"app": f"{name}{pods.suffix}"}
        if pods.workers is not None:
            templates = {"leaderTemplate": pods.template, "workerTemplate": pods.workers, "size": pods.size}
            spec = {"replicas": pods.replicas, "leaderWorkerTemplate": templates}
            yield child_of(owner, _LEADER_WORKER_SETS, f"{name}{pods.suffix}", {"labels": labels}, spec)
            continue
        template = labeled(pods.template, labels)
        spec = {"replicas": pods.replicas, "selector": {"matchLabels": labels}, "template": template}
        yield child_of(owner, DEPLOYMENTS, f"{name}{pods.suffix}", {"labels": labels}, spec)


# -- KubeVirt


def _machine(owner: JsonObject, _children: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The pod that the machine runs in; the machine itself is not simulated."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    if spec.get("runStrategy") != "Halted" and spec.get("running") is not False:
        template = {"spec": launcher_of(spec)}
        yield pod_of(owner, template, f"virt-launcher-{name}", {"kubevirt.io": "virt-launcher"})


def _kind(group: str, version: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource(group, version, f"{kind.lower()}s", kind, namespaced)


_LEADER_WORKER_SETS = _kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet")
_RAY_CLUSTERS = _kind("ray.io", "v1", "RayCluster")

FRAMEWORKS = (
    Framework(_kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), _job_set, ended="Completed"),
    Framework(_LEADER_WORKER_SETS, _leader_worker_set, ready="Available"),
    Framework(_RAY_CLUSTERS, _ray_cluster, ready="HeadPodReady"),
    Framework(_kind("ray.io", "v1", "RayJob"), partial(_ray_cluster_at, "rayClusterSpec")),
    Framework(_kind("ray.io", "v1", "RayService"), partial(_ray_cluster_at, "rayClusterConfig"), ready="Ready"),
    Framework(_kind("kubeflow.org", "v1", "PyTorchJob"), partial(_replicas_at, "pytorchReplicaSpecs")),
    Framework(_kind("kubeflow.org", "v1", "TFJob"), partial(_replicas_at, "tfReplicaSpecs")),
    Framework(_kind("kubeflow.org", "v1", "XGBoostJob"), partial(_replicas_at, "xgbReplicaSpecs")),
    Framework(_kind("kubeflow.org", "v1", "JAXJob"), partial(_replicas_at, "jaxReplicaSpecs")),
    Framework(_kind("kubeflow.org", "v2beta1", "MPIJob"), _mpi_job),
    Framework(_kind("batch.volcano.sh", "v1alpha1", "Job"), _volcano_job),
    Framework(_kind(SERVING_GROUP, "v1beta1", "InferenceService"), _served, ready="Ready"),
    Framework(_kind(SERVING_GROUP, "v1alpha2", "LLMInferenceService"), _served, ready="Ready"),
    Framework(_kind("kubevirt.io", "v1", "VirtualMachine"), _machine, ready="Ready"),
)

_BY_KIND = {(item.resource.api_version, item.resource.kind): item for item in FRAMEWORKS}

STORED = (
    _kind("scheduling.volcano.sh", "v1beta1", "Queue", namespaced=False),
    _kind("scheduling.volcano.sh", "v1beta1", "PodGroup"),
    _kind(SERVING_GROUP, "v1alpha1", "ServingRuntime"),
    _kind(SERVING_GROUP, "v1alpha1", "ClusterServingRuntime", namespaced=False),
    _kind(SERVING_GROUP, "v1alpha2", "LLMInferenceServiceConfig"),
)
"""Kinds that are stored so that manifests apply, and on which nothing acts: pods are made without them."""

OLDER = tuple(_kind(SERVING_GROUP, "v1alpha1", f"LLMInferenceService{part}") for part in ("", "Config"))
OLDER_STORAGE = "v1alpha2"
"""Versions of these types that are served, too, with the version in which their objects are stored."""


def is_up(obj: JsonObject) -> bool:
    """Whether a workload, of any kind that is simulated, shows that all its pods run or have ended well."""
    spec, status = obj["spec"], obj.get("status") or {}
    framework = _BY_KIND.get((obj["apiVersion"], obj["kind"]))
    if framework is not None:
        return holds(obj, framework.ready, framework.ended)
    if obj["kind"] == CRON_JOBS.kind:
        return True
    if obj["kind"] == JOBS.kind:
        pods = status.get("ready") or 0
        return holds(obj, "Complete") or (pods > 0 and pods == status.get("active")) or bool(spec.get("suspend"))
    if obj["kind"] == DAEMON_SETS.kind:
        return status.get("numberReady") == status.get("desiredNumberScheduled")
    counts = {status.get(name) or 0 for name in ("replicas", "readyReplicas")}
    return counts == {spec.get("replicas", 1)} and status.get("observedGeneration") == obj["metadata"]["generation"]
