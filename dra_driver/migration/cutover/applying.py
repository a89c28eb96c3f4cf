"""Commands that apply the results node by node, and the originals on the way back. Pure.

`kubectl apply` alone is not enough. Templates of Jobs and pods cannot be changed, so those are created again. And of
objects that it did not create, `kubectl apply` does not know what to remove: they would keep the old limit beside the
claim.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dra_driver.migration.model import MigratedWorkload, Migration, MigrationTarget, ObjectRef
from dra_driver.migration.read.kustomize import is_kustomization_file
from dra_driver.migration.understand.offering import GpuNode

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
            yield f"{_state_of(only)} && case $state in {unless}) ;; *) {_deleted(only)} && {apply};; esac"
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
_CHANGEABLE_JOBS = ("CronJob", "ScaledJob")


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


def _deleted(workload: MigratedWorkload) -> str:
    return f"{_kubectl(workload)} delete {_resource(workload)} {workload.document.name} --ignore-not-found"


def _state_of(workload: MigratedWorkload) -> str:
    command = f"{_kubectl(workload)} get {_resource(workload)} {workload.document.name} --ignore-not-found"
    return f"state=$({command} -o jsonpath='{_STATE}')"


def _all_but_done(once: Sequence[MigratedWorkload], apply: str) -> str:
    """`kubectl apply` continues after an object that it cannot change, and fails at the end: here that is no error
    where the only such objects may be those that are done."""
    asked = [
        f"{_state_of(workload)} && case $state in "
        f'{_DONE}) done="$done {workload.document.name}";; *) {_deleted(workload)};; esac'
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
