"""Steps of a cut-over plan and the commands that a person runs; each has status 0 when it is done. Pure.

`Applying` has the commands that apply the results node by node, and the originals on the way back. `kubectl apply`
alone is not enough. Templates of Jobs and pods cannot be changed, so those are created again. And of objects that it
did not create, `kubectl apply` does not know what to remove: they would keep the old limit beside the claim.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import MigratedWorkload, Migration, MigrationTarget, ObjectRef
from dra_driver.migration.read.kustomize import is_kustomization_file
from dra_driver.migration.understand.offering import OFFERED_BY, DevicePlugin, GpuHolder, GpuNode


class Act(StrEnum):
    """What a step is, for programs."""

    WRITE = "write"
    CLEAN = "clean"
    LABEL = "label"
    FENCE_PLUGIN = "fence-plugin"
    INSTALL = "install"
    CORDON = "cordon"
    STOP_PLUGIN = "stop-plugin"
    AWAIT_PLUGIN_GONE = "await-plugin-gone"
    EVICT = "evict"
    AWAIT_FREE = "await-free"
    START_DRIVER = "start-driver"
    AWAIT_DRIVER = "await-driver"
    UNCORDON = "uncordon"
    APPLY = "apply"
    REMOVE_PLUGIN = "remove-plugin"
    LIFT_FENCE = "lift-fence"
    STOP_OFFERING = "stop-offering"
    AWAIT_NOT_OFFERED = "await-not-offered"
    AWAIT_NO_CLAIMS = "await-no-claims"
    STOP_DRIVER = "stop-driver"
    AWAIT_DRIVER_GONE = "await-driver-gone"
    START_PLUGIN = "start-plugin"
    AWAIT_PLUGIN = "await-plugin"
    UNFENCE_PLUGIN = "unfence-plugin"
    UNINSTALL = "uninstall"


@dataclass(frozen=True, slots=True)
class Step:
    act: Act
    what: str
    """A sentence."""
    commands: tuple[str, ...]
    """For a shell, in this order; each ends with status 0 when it is done. Empty: something to do by hand."""
    note: str = ""
    """What to know before."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that belong together. `node` None: of the whole cluster."""

    title: str
    node: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class CutoverPlan:
    forward: tuple[Stage, ...]
    back: tuple[Stage, ...]
    """The way back, from wherever one has stopped before `REMOVE_PLUGIN`."""
    conflicts: tuple[str, ...]
    """Nodes whose GPUs both offer now."""
    values: JsonObject
    """Of the chart, for the time of the change."""
    refusal: str = ""
    """Why there is none, if another driver offers the GPUs; then everything else is empty."""

    @property
    def empty(self) -> bool:
        return not self.forward

    @property
    def has_only_its_end(self) -> bool:
        """Whether an earlier one brought all nodes over, and went no further."""
        return bool(self.forward) and not any(stage.node for stage in self.forward)


NAMESPACE = "gpu-dra"
WAIT = "--timeout=10m"
LEAVES = "dra.gpu/leaves"
"""Of pods that must leave a node: `kubectl drain` chooses by labels, and no others need to move."""


def label_nodes(names: Sequence[str], labels: Mapping[str, str]) -> str:
    return f"kubectl label node {' '.join(names)} {' '.join(f'{k}={v}' for k, v in labels.items())} --overwrite"


def run_only_where(plugin: DevicePlugin, value: str) -> tuple[str, ...]:
    """Where the label for who offers GPUs has this value, as JSON; null: everywhere."""
    daemon_set = f"daemonset {plugin.name}"
    return (
        f"kubectl -n {plugin.namespace} patch {daemon_set} --type merge -p "
        f'\'{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{OFFERED_BY}":{value}}}}}}}}}}}\'',
        f"kubectl -n {plugin.namespace} rollout status {daemon_set} {WAIT}",
    )


# Waiting and looking must not take a kubectl that failed for "there is none": each has its status, then what it said.

UNKNOWN = {"nvidia.com/gpu": 0}
"""What to wait for on a node whose resources of the device plugin are not known."""


def _until(condition: str, look: str) -> str:
    """Asks every five seconds, and gives up with a sentence after some ten minutes: the same as `WAIT`."""
    give_up = shlex.quote(f"Not yet. {look} Run this command again to wait longer, or take the way back.")
    return (
        f"for left in $(seq 119 -1 0); do {condition} && break; "
        f"if [ $left = 0 ]; then echo {give_up} >&2; false; else sleep 5; fi; done"
    )


def until_allocatable(node: str, resource: str, condition: str) -> str:
    """Also ends where kubelet has forgotten the resource: `kubectl wait` would not."""
    asked = f"kubectl get node {node} -o jsonpath='{{.status.allocatable.{_escaped(resource)}}}'"
    look = f"Look at the device plugin: kubectl get pods -A --field-selector spec.nodeName={node}."
    return _until(f'now=$({asked}) && [ "${{now:-0}}" {condition} ]', look)


def _slices(node: str, driver: str) -> str:
    return f"kubectl get resourceslices --field-selector spec.nodeName={node},spec.driver={driver} -o name"


def has_no_slices(driver: str) -> str:
    return f'now=$(kubectl get resourceslices --field-selector spec.driver={driver} -o name) && [ -z "$now" ]'


def until_published(node: str, driver: str) -> str:
    return _until(f"{_slices(node, driver)} | grep -q .", _look_at_driver(node))


def until_unpublished(node: str, driver: str) -> str:
    return _until(f'now=$({_slices(node, driver)}) && [ -z "$now" ]', _look_at_driver(node))


def _look_at_driver(node: str) -> str:
    return f"Look at the driver: kubectl -n {NAMESPACE} get pods --field-selector spec.nodeName={node}, and its log."


def has_no_holders(node: GpuNode) -> str:
    amounts = r"s/^  *\(nvidia.com[^ ]*\|volcano.sh[^ ]*\|aliyun.com[^ ]*\|tencent.com[^ ]*\)  *[1-9].*/\1/p"
    # Without lines about what stays, such as network cards, whose names are like those of GPUs.
    others = "".join(rf"\#^  *{_escaped(name)} #d; " for name in node.beside)
    read = f"echo \"$now\" | sed -n '/^Allocated/,$p' | sed -n '{others}{amounts}'"
    return f'now=$(kubectl describe node {node.name}) && test -z "$({read})"'


def _escaped(resource: str) -> str:
    return resource.replace(".", r"\.")


def until_no_claims(node: str, driver: str) -> str:
    """Pools of other drivers are called after nodes, too."""
    each = "{range .items[*].status.allocation.devices.results[*]}{.driver} {.pool};{end}"
    seen = f"case $now in *'{driver} {node};'*) false;; esac"
    look = f"dractl get claims shows which pods still have devices of {node}."
    return _until(f"now=$(kubectl get resourceclaims -A -o jsonpath='{each}') && {seen}", look)


def until_driver_is_gone(node: str) -> str:
    return (
        f"kubectl -n {NAMESPACE} wait pod --for=delete --field-selector spec.nodeName={node} "
        f"-l app.kubernetes.io/component=kubelet-plugin {WAIT}"
    )


def marked(node: GpuNode) -> str:
    """A label for the pods that have GPUs of this node at the time, by either way."""
    here = f"spec.nodeName={node.name},status.phase!=Succeeded,status.phase!=Failed"
    stays = "".join(rf'gsub("\"{name}\"", ""); ' for name in node.beside)
    fields = "{.spec.resourceClaims} {.spec.containers[*].resources} {.spec.initContainers[*].resources}"
    each = "{range .items[*]}{.metadata.namespace} {.metadata.name} " + fields + '{"\\n"}{end}'
    asks = r"/(nvidia\.com|volcano\.sh|aliyun\.com|tencent\.com)\/|resourceClaim/"
    label = f"""sh -c 'kubectl -n "$0" label pod "$1" {LEAVES}=yes --overwrite'"""
    return (
        f"kubectl get pods -A --field-selector '{here}' -o jsonpath='{each}' "
        f"| awk '{f'{{{stays}}} ' if stays else ''}{asks} {{print $1, $2}}' | xargs -r -n 2 {label}"
    )


def deleted(pod: GpuHolder, node: str) -> str:
    """Also done if the pod no longer exists. Pods of a DaemonSet have other names then."""
    if pod.owner is None:
        here = f"--field-selector metadata.name={pod.name},spec.nodeName={node}"
        return f"kubectl -n {pod.namespace} delete pod {here}"
    theirs = f'{{.items[?(@.metadata.ownerReferences[0].name=="{pod.owner.name}")].metadata.name}}'
    listed = f"kubectl -n {pod.namespace} get pods --field-selector spec.nodeName={node} -o jsonpath='{theirs}'"
    return f"{listed} | xargs -r kubectl -n {pod.namespace} delete pod"


_MANIFEST = re.compile(r'^\s*"?apiVersion"?\s*:', re.MULTILINE)
_LAST_APPLIED = r"{.metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration}"
_STATE = (
    "{.metadata.name} {.status.phase} {.status.terminalState} {.status.state.phase} {.status.jobStatus} "
    '{.status.conditions[?(@.status=="True")].type}'
)
"""Of objects that end: Pod, JobSet, Volcano's Job, RayJob, and those with conditions."""
_DONE = "*Complete*|*Succeeded*|*SUCCEEDED*"
_OVER = f"''|{_DONE}|*Failed*|*FAILED*"
"""Also where it is not there."""


@dataclass(frozen=True, slots=True)
class Results:
    """Where the results of a run lie, as one types it where the run was typed."""

    new: Mapping[str, str] = field(default_factory=dict)
    """By the file's name in the migration; what is missing is where it was."""
    old: Mapping[str, str] = field(default_factory=dict)
    """Where the originals lie, if not at the file's name: those of a cluster and of standard input."""
    folder: str = ""
    """That of the chart values, with a slash."""
    write: str | None = None
    """What writes them; None: they are written."""
    values_written: bool = True
    originals_exist: bool = True
    """Whether originals still exist; False: results were written over them."""


@dataclass(frozen=True, slots=True)
class Applied:
    commands: tuple[str, ...]
    made_anew: tuple[str, ...] = ()
    """What is deleted and made again: kinds and names."""
    by_hand: tuple[str, ...] = ()
    """Files for which there is no command."""
    whole: bool = False
    """Whether a file of several workloads is among them: it is applied whole, or not at all."""


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    file: str
    workloads: tuple[MigratedWorkload, ...]
    """Those that get claims."""

    def makes(self, owner: ObjectRef) -> bool:
        """Whether pods of `owner` are those of a workload."""
        return any(_makes(workload, owner) for workload in self.workloads)


class Applying:
    """Each changed file has its place: the first node, in the order of `nodes`, where a workload of it has pods; the
    same on the way back, so that going back over the nodes that were begun with undoes what was done there."""

    def __init__(self, migration: Migration, results: Results, nodes: Sequence[GpuNode]) -> None:
        self._results = results
        self._folders = [
            PurePosixPath(file.file).parent for file in migration.files if is_kustomization_file(file.file)
        ]
        claims = [workload for workload in migration.workloads if workload.choice.target is MigrationTarget.CLAIMS]
        changed = {file.file: file.after for file in migration.files if file.changed and file.after}
        changed |= {file.file: file.text for file in migration.new_files}
        self._new_files = {file.file for file in migration.new_files}
        self._texts = changed
        units = [_Unit(file, tuple(claim for claim in claims if claim.document.file == file)) for file in changed]
        waiting = [unit for unit in units if unit.workloads]
        # What kustomize builds together is applied with the workloads, not before them.
        built = any(self._is_kustomized(unit) for unit in waiting)
        self._settings = [unit for unit in units if not unit.workloads and not (built and self._is_kustomized(unit))]
        self._at: dict[str, list[_Unit]] = {}
        for node in nodes:
            here = [unit for unit in waiting if any(unit.makes(holder.made_by) for holder in node.holders)]
            self._at[node.name] = here
            waiting = [unit for unit in waiting if unit not in here]
        self._rest = waiting

    def knows(self, owner: ObjectRef) -> bool:
        """Whether it gets claims, on any node."""
        return any(unit.makes(owner) for units in (*self._at.values(), self._rest) for unit in units)

    def settings(self, *, back: bool = False) -> Applied:
        """Quotas, queues and classes, and what stands beside files. What is new is not taken away."""
        units = [setting for setting in self._settings if not back or setting.file not in self._new_files]
        return self._applied(units, back=back, certain=True)

    def at(self, node: str, *, back: bool = False) -> Applied:
        return self._applied(self._at[node], back=back, certain=True)

    def rest(self, *, back: bool = False) -> Applied:
        """What had no pods with GPUs: only what is in the cluster, and not done."""
        return self._applied(self._rest, back=back, certain=False)

    def _applied(self, units: Sequence[_Unit], *, back: bool, certain: bool) -> Applied:
        commands: list[str] = []
        anew: list[str] = []
        by_hand: list[str] = []
        folders: dict[str, None] = {}
        for unit in units:
            once = [workload for workload in unit.workloads if _is_made_once(workload)]
            kustomized = self._is_kustomized(unit)
            if kustomized and not once and len(self._folders) == 1 and (self._results.originals_exist or not back):
                folders[self._folder(unit, back)] = None
            elif kustomized or self._has_no_command(unit, once, back=back, certain=certain):
                by_hand.append(self._new(unit.file))
            else:
                commands += self._commands(unit, once, back=back, certain=certain)
                anew += [f"{workload.document.kind} {workload.document.name}" for workload in once]
        commands += [f"kubectl apply -k {folder}" for folder in folders]
        whole = any(len(item.workloads) > 1 for item in units)
        return Applied(tuple(commands), tuple(anew), tuple(by_hand), whole and bool(commands))

    def _is_kustomized(self, unit: _Unit) -> bool:
        return any(folder in PurePosixPath(unit.file).parents for folder in self._folders)

    def _has_no_command(self, unit: _Unit, once: Sequence[MigratedWorkload], *, back: bool, certain: bool) -> bool:
        nameless = any(not workload.document.name for workload in unit.workloads)
        several = bool(once) and len(unit.workloads) > 1 and not certain
        lost = back and not self._results.originals_exist
        return nameless or several or lost or not _MANIFEST.search(self._texts[unit.file])

    def _commands(self, unit: _Unit, once: Sequence[MigratedWorkload], *, back: bool, certain: bool) -> Iterator[str]:
        apply = f"kubectl apply -f {self._old(unit.file) if back else self._new(unit.file)}"
        if once and len(unit.workloads) == 1:
            (only,) = once
            unless = _DONE if certain else _OVER
            yield f"{_state_of(only)} && case $state in {unless}) ;; *) {_deletion_of(only)} && {apply};; esac"
            return
        # First: that is refused as soon as one object of the file is gone.
        lines = [] if back else [self._recorded(unit, workload) for workload in unit.workloads if workload not in once]
        lines.append(_all_but_done(once, apply) if once else apply)
        lines += [_unstuck(workload) for workload in unit.workloads if workload.document.kind == "StatefulSet"]
        if certain:
            yield from lines
            return
        existing = f"kubectl get -f {self._new(unit.file)} --ignore-not-found -o name"
        yield f'found=$({existing}) && {{ [ -z "$found" ] || {{ {" && ".join(lines)}; }}; }}'

    def _recorded(self, unit: _Unit, workload: MigratedWorkload) -> str:
        """Records the old form for `kubectl apply`, if it did not create the object."""
        several = len(unit.workloads) > 1
        job = f"{_resource(workload)} {workload.document.name}"
        known = f"{_kubectl(workload)} get {job} -o jsonpath='{_LAST_APPLIED}' | grep -q ."
        if not self._results.originals_exist:
            missing = f"{job} was not created with kubectl apply: apply its old manifest first, from version control."
            return f'{{ {known} || {{ echo "{missing}" >&2; false; }}; }}'
        old = self._old(unit.file)
        # The second fails if an object of the file does not exist; then the third records it, too.
        record = f"kubectl apply set-last-applied --create-annotation -f {old}{f' || kubectl apply -f {old}' * several}"
        return f"{{ {known} || {record}; }}"

    def _old(self, file: str) -> str:
        return shlex.quote(self._results.old.get(file, file))

    def _new(self, file: str) -> str:
        return shlex.quote(self._results.new.get(file, file))

    def _folder(self, unit: _Unit, back: bool) -> str:
        (folder,) = self._folders
        below = PurePosixPath(unit.file).relative_to(folder)
        new = str(PurePosixPath(self._results.new.get(unit.file, unit.file))).removesuffix(str(below))
        return shlex.quote(str(folder) if back else str(PurePosixPath(new)))


def _makes(workload: MigratedWorkload, owner: ObjectRef) -> bool:
    """Whether pods of `owner` are those of the workload. Operators' kinds have pods that something else of their name
    owns; a CronJob's Jobs have its name, and the minute."""
    document = workload.document
    if document.namespace is not None and document.namespace != owner.namespace:
        return False
    if document.kind == "CronJob" and owner.kind == "Job":
        return re.fullmatch(re.escape(document.name) + r"-\d+", owner.name) is not None
    return document.name == owner.name and (owner.kind != "Pod" or document.kind == "Pod")


_ONCE = ("Pod", "ReplicaSet", "ReplicationController", "JobSet", "Workflow")
_CHANGEABLE_JOBS = ("CronJob", "ScaledJob", "RayCronJob")


def _is_made_once(workload: MigratedWorkload) -> bool:
    """Whether its pods stay what they were when its template changes, or the template cannot be changed."""
    kind = workload.document.kind
    return kind in _ONCE or (kind.endswith("Job") and kind not in _CHANGEABLE_JOBS)


def _kubectl(workload: MigratedWorkload) -> str:
    namespace = workload.document.namespace
    return f"kubectl -n {namespace}" if namespace else "kubectl"


def _resource(workload: MigratedWorkload) -> str:
    """Kinds of others have names that Kubernetes has, too: there is a Job of Volcano's."""
    document = workload.document
    group = document.api_version.rpartition("/")[0]
    return f"{document.kind.lower()}{f'.{group}' * bool(group)}"


def _deletion_of(workload: MigratedWorkload) -> str:
    return f"{_kubectl(workload)} delete {_resource(workload)} {workload.document.name} --ignore-not-found"


def _state_of(workload: MigratedWorkload) -> str:
    command = f"{_kubectl(workload)} get {_resource(workload)} {workload.document.name} --ignore-not-found"
    return f"state=$({command} -o jsonpath='{_STATE}')"


def _all_but_done(once: Sequence[MigratedWorkload], apply: str) -> str:
    """`kubectl apply` continues after an object that it cannot change, and fails at the end: here that is no error
    where the only such objects may be those that are done."""
    asked = [
        f"{_state_of(workload)} && case $state in "
        f'{_DONE}) done="$done {workload.document.name}";; *) {_deletion_of(workload)};; esac'
        for workload in once
    ]
    echo = 'echo "These are finished and stay unchanged:$done."'
    return f'done= && {" && ".join(asked)} && {{ {apply} || {{ [ -n "$done" ] && {echo}; }}; }}'


def _unstuck(workload: MigratedWorkload) -> str:
    """A StatefulSet waits for a pod to be ready before it changes the next, even if the pod fits no node."""
    name = workload.document.name
    theirs = f'{{.items[?(@.metadata.ownerReferences[0].name=="{name}")].metadata.name}}'
    kubectl = _kubectl(workload)
    listed = f"{kubectl} get pods --field-selector status.phase=Pending -o jsonpath='{theirs}'"
    return f"{listed} | xargs -r {kubectl} delete pod --ignore-not-found"
