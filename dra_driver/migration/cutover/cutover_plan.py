"""From the device plugin to the driver node by node, and back, so that no GPU is ever offered by both. Pure.

Two labels of a node decide. `OFFERED_BY` says what may offer its GPUs: the device plugin's pods run only where it is
`device-plugin`, and the driver publishes only where it is `driver`. A label has one value, so the two exclude each
other. Pods and slices follow a label a while later, so a third value stands between the two until the old side is
gone. `DRIVER_RUNS` keeps the driver's pod on a node that no longer offers anything, because it must take back
the devices of claims that end. A plan is data: steps with commands. The way back from any step has the same commands as
the way back from the end.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.migration.claims.publishing import final_values, values_for_cutover
from dra_driver.migration.cutover.commands import (
    LEAVES,
    NAMESPACE,
    UNKNOWN,
    WAIT,
    Act,
    Applied,
    Applying,
    CutoverPlan,
    Results,
    Stage,
    Step,
    deleted,
    has_no_holders,
    has_no_slices,
    label_nodes,
    marked,
    run_only_where,
    until_allocatable,
    until_driver_is_gone,
    until_no_claims,
    until_published,
    until_unpublished,
)
from dra_driver.migration.model import Migration, MigrationTarget, ObjectRef
from dra_driver.migration.understand.offering import (
    DRIVER_RUNS,
    OFFERED_BY,
    DevicePlugin,
    GpuNode,
    Installed,
    Offering,
)

_OPERATOR_LABEL = "nvidia.com/gpu.deploy.device-plugin"
_MIG_MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"
_GKE_LABEL = "gke-no-default-nvidia-gpu-device-plugin"
_RELEASE = "gpu-dra-driver"
_CHART = "charts/gpu-dra-driver"
VALUES_FILE = "values-cutover.yaml"
FINAL_VALUES_FILE = "values.yaml"


def cutover(offering: Offering, migration: Migration, driver: str, results: Results) -> CutoverPlan:
    """The way to the driver for all nodes that a device plugin serves; empty when there are none such.

    Nodes where both offer come first, then those with the fewest pods that would need to move. Nodes that the driver
    serves alone are kept as they are; if a plan brought the last of them there, its end is what is left of it.
    """
    values = values_for_cutover(migration)
    if offering.other_drivers:
        return CutoverPlan((), (), (), values, _refusal(offering.other_drivers))
    # An earlier plan may have taken a node from the device plugin, and stopped before the driver got it.
    halfway = [node for node in offering.nodes if node.begun and not node.driver and offering.plugins]
    todo = [node for node in offering.nodes if node.resources or node in halfway]
    todo.sort(key=lambda node: (not node.driver, len(node.holders), node.name))
    done = [node for node in offering.nodes if not node.resources and node.driver]
    way = _Way(offering, migration, driver, results, Applying(migration, results, todo))
    if not todo:
        ends = offering.plugins and any(gpu_node.begun for gpu_node in done)
        # Perhaps not all nodes that the earlier plan was made for: some may have left.
        end = Stage("Every node is moved", None, (*way.write(), *way.finish()))
        return CutoverPlan((end,) if ends else (), (), (), values)
    forward = (
        Stage("Before the first node", None, tuple(way.prepare(todo, done))),
        *(Stage(f"Node {node.name}", node.name, tuple(way.over(node, first=node is todo[0]))) for node in todo),
        Stage("When every node is moved", None, tuple(way.finish())),
    )
    back = (
        *(Stage(f"Node {node.name}, back", node.name, tuple(way.back(node))) for node in reversed(todo)),
        Stage("When every node is back", None, tuple(way.end_of_return(done))),
    )
    return CutoverPlan(forward, back, tuple(gpu_node.name for gpu_node in todo if gpu_node.driver), values)


def _refusal(others: Sequence[str]) -> str:
    return (
        f"{_names(others)} installs NVIDIA's own DRA driver, which offers GPUs with the same driver name, so "
        "the slices of both cannot be distinguished. Choose one: to remove that one (delete the GPUCluster, or set its "
        "`spec.draDriver.gpus.enabled: false` if its version has that field), check that its slices and claims are "
        "gone, and read the cluster again."
    )


@dataclass(frozen=True)
class _Way:
    offering: Offering
    migration: Migration
    driver: str
    results: Results
    applying: Applying

    def _plugins(self, installed: Installed) -> tuple[DevicePlugin, ...]:
        return tuple(plugin for plugin in self.offering.plugins if plugin.installed is installed)

    @property
    def _replaces_mig_manager(self) -> bool:
        """Two that change the layout of the same GPU would fight; partitions that lie there already are published."""
        rules = (self.migration.policy or {}).get("mig") or ()
        return self.offering.mig_manager and any(rule.get("mode") == "Dynamic" for rule in rules)

    # -- the whole cluster

    def prepare(self, todo: Sequence[GpuNode], done: Sequence[GpuNode]) -> Iterator[Step]:
        yield from self.write()
        if not self.offering.slices:
            yield Step(
                Act.AWAIT_NOT_OFFERED,
                "No ResourceSlices were read. Check that the cluster has none of this driver.",
                (has_no_slices(self.driver),),
                "If it has some, pass them with the nodes, and make the plan again.",
            )
        for node in todo:
            if node.resources and node.driver_label and not node.driver:
                yield self._clean(node.name)
        both = [node for node in todo if node.driver]
        yield from self._who_offers_now(todo, done, [node.name for node in both])
        for plugin in self._plugins(Installed.DAEMON_SET):
            yield Step(
                Act.FENCE_PLUGIN,
                f"Let DaemonSet {plugin.namespace}/{plugin.name} run only on nodes with that label.",
                run_only_where(plugin, '"device-plugin"'),
                "Its pods restart; pods that have GPUs are not affected. Nodes that join later need the label, too. If"
                " Helm, Argo CD, Flux or an operator manages the DaemonSet, set the node selector there instead: if it"
                " undoes this change, both may offer the GPUs.",
            )
        if not self.offering.plugins:
            yield Step(
                Act.FENCE_PLUGIN,
                "No device plugin was found, although nodes have its resources. Find it, and "
                f"give its pods the node selector `{OFFERED_BY}: device-plugin`.",
                (),
            )
        if both:
            yield Step(
                Act.AWAIT_PLUGIN_GONE,
                "On nodes where both offered GPUs, wait until the kubelet reports no resources of the device plugin.",
                tuple(until_allocatable(node.name, resource, "= 0") for node in both for resource in node.resources),
                "The chart refuses to install earlier.",
            )
        yield Step(
            Act.INSTALL,
            "Install the driver. It runs only on nodes that have its label.",
            (
                f"helm upgrade --install {_RELEASE} {_CHART} --namespace {NAMESPACE} --create-namespace "
                f"-f {self._file(VALUES_FILE)}",
            ),
            f"{VALUES_FILE} has the values of this report and the two labels; add the image's repository.",
        )
        yield from _apply_steps(
            self.applying.settings(),
            "Apply what counts or describes claims: quotas, queues, classes, and new files.",
            "Until the end, some workloads are counted by keys that these files no longer have.",
        )

    def _who_offers_now(self, todo: Sequence[GpuNode], done: Sequence[GpuNode], both: Sequence[str]) -> Iterator[Step]:
        """Labels say it, so that the other side does not start."""
        if both:
            yield Step(
                Act.LABEL,
                f"On {_names(both)} the device plugin and the driver offer the same GPUs. Both must stop.",
                (label_nodes(both, {OFFERED_BY: "nobody", DRIVER_RUNS: "yes"}), *self._off(both)),
                "Pods that run there may share a GPU by accident.",
            )
        if done:
            names = [gpu_node.name for gpu_node in done]
            keeps = "has the driver already and keeps it" if len(names) == 1 else "have the driver already and keep it"
            yield Step(
                Act.LABEL,
                f"{_names(names)} {keeps}.",
                (label_nodes(names, {OFFERED_BY: "driver", DRIVER_RUNS: "yes"}),),
            )
        alone = [gpu_node.name for gpu_node in todo if gpu_node.resources and not gpu_node.driver]
        if alone:
            yield Step(
                Act.LABEL,
                "Label each node: the device plugin offers its GPUs. This changes nothing yet.",
                (label_nodes(alone, {OFFERED_BY: "device-plugin"}),),
            )

    def _file(self, name: str) -> str:
        return shlex.quote(f"{self.results.folder}{name}")

    def write(self) -> Iterator[Step]:
        if self.results.write is not None:
            note = "Use the same input. The report in that folder has this plan, too."
            yield Step(Act.WRITE, "Write the results, which the commands below name.", (self.results.write,), note)
        elif not self.results.values_written:
            files = {VALUES_FILE: values_for_cutover(self.migration), FINAL_VALUES_FILE: final_values(self.migration)}
            yield Step(
                Act.WRITE,
                "Write the values for the chart: during the cut-over, and after it.",
                tuple(f"printf '%s\\n' {shlex.quote(json.dumps(file))} > {name}" for name, file in files.items()),
            )

    def _clean(self, name: str) -> Step:
        return Step(
            Act.CLEAN,
            f"{name} has the driver's label from an earlier attempt, beside a device plugin: remove it.",
            (
                label_nodes([name], {OFFERED_BY: "device-plugin"}),
                until_unpublished(name, self.driver),
                until_no_claims(name, self.driver),
                f"kubectl label node {name} {DRIVER_RUNS}-",
                until_driver_is_gone(name),
            ),
            "Otherwise the chart refuses to install. If this does not end, pods have claims beside the device plugin: "
            "`dractl get claims` shows which; delete them.",
        )

    def finish(self) -> Iterator[Step]:
        yield from _apply_steps(
            self.applying.rest(),
            "Apply the other new manifests: their workloads had no pods with GPUs when this plan was written.",
            "Only objects that are in the cluster and not finished.",
        )
        for plugin in self.offering.plugins:
            yield self._removal(plugin)
        yield Step(
            Act.LIFT_FENCE,
            "Run the driver on all GPU nodes, without labels.",
            (f"helm upgrade {_RELEASE} {_CHART} --namespace {NAMESPACE} -f {self._file(FINAL_VALUES_FILE)}",),
            "Only when no device plugin is left; otherwise the chart refuses.",
        )

    def _removal(self, plugin: DevicePlugin) -> Step:
        note = "From here on, the way back starts with installing the device plugin again."
        if plugin.installed is Installed.OPERATOR:
            manager = ',"migManager":{"enabled":false}' * self._replaces_mig_manager
            patch = f'{{"spec":{{"devicePlugin":{{"enabled":false}}{manager}}}}}'
            return Step(
                Act.REMOVE_PLUGIN,
                f"Switch the device plugin{' and the MIG manager' if manager else ''} off in the GPU Operator.",
                (f"kubectl patch clusterpolicies.nvidia.com {plugin.name} --type merge -p '{patch}'",),
                note,
            )
        if plugin.installed is Installed.GKE:
            what = f"Give all node pools with GPUs the label `{_GKE_LABEL}=true`, so that new nodes get it, too."
            return Step(Act.REMOVE_PLUGIN, what, (), note)
        return Step(
            Act.REMOVE_PLUGIN,
            f"Remove DaemonSet {plugin.namespace}/{plugin.name}.",
            (f"kubectl -n {plugin.namespace} delete daemonset {plugin.name}",),
            f"{note} If a Helm release installed it, uninstall that instead.",
        )

    def end_of_return(self, done: Sequence[GpuNode]) -> Iterator[Step]:
        for applied in (self.applying.settings(back=True), self.applying.rest(back=True)):
            yield from _apply_steps(applied, "Apply the other old manifests.", "If you applied the new ones.")
        if done:
            names = _names([gpu_node.name for gpu_node in done])
            yield Step(Act.APPLY, f"{names} had the driver before, so driver and node selector stay.", ())
            return
        yield Step(
            Act.UNINSTALL,
            "Remove the driver.",
            (f"helm uninstall {_RELEASE} --namespace {NAMESPACE}",),
            "Only when no pod has a claim.",
        )
        for plugin in self._plugins(Installed.DAEMON_SET):
            yield Step(
                Act.UNFENCE_PLUGIN,
                f"Let DaemonSet {plugin.namespace}/{plugin.name} run without the label again.",
                run_only_where(plugin, "null"),
                "Its pods restart: each node offers no GPUs for a moment, and pods that have GPUs keep them.",
            )

    # -- one node

    def over(self, node: GpuNode, *, first: bool) -> Iterator[Step]:
        name = node.name
        yield Step(Act.CORDON, "No new pods for this node.", (f"kubectl cordon {name}",))
        operator = bool(self._plugins(Installed.OPERATOR))
        note = "The operator's validator keeps waiting for the device plugin; ignore it." * operator
        mig = ""
        if node.mig_config and self._replaces_mig_manager:
            mig = f" So does the MIG manager (layout {node.mig_config}): the driver creates partitions on demand."
        yield Step(
            Act.STOP_PLUGIN,
            f"The device plugin leaves.{mig}",
            (label_nodes([name], {OFFERED_BY: "nobody"}), *self._off([name])),
            note,
        )
        yield Step(
            Act.AWAIT_PLUGIN_GONE,
            "Wait until the kubelet reports none of its resources.",
            tuple(until_allocatable(name, resource, "= 0") for resource in node.resources or UNKNOWN),
            "If this does not end, the device plugin still runs: find out what starts it.",
        )
        yield self._evict(node, "Remove the pods that have GPUs, because the driver does not know what they hold.")
        if node.driver:
            yield self._await_not_offered(name)
        yield Step(
            Act.AWAIT_FREE,
            "No pod on the node asks for GPUs.",
            (has_no_holders(node), *([until_no_claims(name, self.driver)] if node.driver or node.begun else [])),
            "If a pod is left, delete it and check again; `dractl get claims` shows which pods have claims.",
        )
        yield Step(
            Act.START_DRIVER,
            "Give the node to the driver.",
            (label_nodes([name], {DRIVER_RUNS: "yes", OFFERED_BY: "driver"}),),
        )
        yield Step(Act.AWAIT_DRIVER, "Wait until its GPUs are published.", (until_published(name, self.driver),))
        if first:
            yield Step(
                Act.APPLY,
                "Check that a pod gets a GPU before you allow others: waiting pods may take all of them.",
                (f"helm test {_RELEASE} --namespace {NAMESPACE}",),
            )
        yield Step(Act.UNCORDON, "Allow new pods.", (f"kubectl uncordon {name}",))
        yield from self._apply(node)

    def _apply(self, node: GpuNode) -> Iterator[Step]:
        """What ran here comes back in its old form, on nodes of the device plugin, until its new one is applied."""
        yield from _apply_steps(
            self.applying.at(node.name), "Apply the new manifests of the workloads that had pods here."
        )
        owners = [holder.made_by for holder in node.holders if not holder.by_claim]
        unknown = sorted({str(owner) for owner in owners if not self.applying.knows(owner) and not self._stays(owner)})
        if unknown:
            yield Step(
                Act.APPLY,
                f"Not among the migrated manifests: {', '.join(unknown)}. While they ask for the old resource, "
                "they run on nodes of the device plugin, or here if a DeviceClass answers it.",
                (),
            )

    def _stays(self, owner: ObjectRef) -> bool:
        return any(
            workload.document.name == owner.name and workload.choice.target is MigrationTarget.EXTENDED
            for workload in self.migration.workloads
        )

    def back(self, node: GpuNode) -> Iterator[Step]:
        name = node.name
        yield Step(Act.CORDON, "No new pods for this node.", (f"kubectl cordon {name}",))
        yield Step(
            Act.STOP_OFFERING,
            "The driver stops offering GPUs here, and continues to serve existing claims.",
            (label_nodes([name], {OFFERED_BY: "nobody"}), *self._off([name])),
        )
        yield Step(
            Act.AWAIT_PLUGIN_GONE,
            "If the device plugin was still there, wait until it is gone.",
            tuple(until_allocatable(name, resource, "= 0") for resource in node.resources or UNKNOWN),
        )
        yield self._evict(node, "Remove the pods that have GPUs.", by_name=False)
        yield self._await_not_offered(name)
        yield Step(
            Act.AWAIT_NO_CLAIMS,
            "No claim has a device of this node, and no pod asks for GPUs.",
            (until_no_claims(name, self.driver), has_no_holders(node)),
            "MIG devices that were made on demand are gone with their claims.",
        )
        yield Step(Act.STOP_DRIVER, "The driver leaves.", (f"kubectl label node {name} {DRIVER_RUNS}-",))
        yield Step(Act.AWAIT_DRIVER_GONE, "Wait until its pod is gone.", (until_driver_is_gone(name),))
        yield Step(
            Act.START_PLUGIN,
            "Give the node to the device plugin.",
            (label_nodes([name], {OFFERED_BY: "device-plugin"}), *self._on(name, node)),
        )
        yield Step(
            Act.AWAIT_PLUGIN,
            "Wait until it offers what it did before.",
            tuple(
                until_allocatable(name, text, f"= {n}" if n else "!= 0")
                for text, n in (node.resources or UNKNOWN).items()
            ),
        )
        yield Step(Act.UNCORDON, "Allow new pods.", (f"kubectl uncordon {name}",))
        yield from _apply_steps(
            self.applying.at(name, back=True),
            "Apply the old manifests of the workloads that had pods here.",
            "If you applied the new ones.",
        )

    # -- steps of both ways

    def _off(self, names: Sequence[str]) -> tuple[str, ...]:
        """For device plugins that use other labels."""
        labels: dict[str, str] = {}
        if self._plugins(Installed.OPERATOR):
            labels[_OPERATOR_LABEL] = "false"
            if self._replaces_mig_manager:
                labels[_MIG_MANAGER_LABEL] = "false"
        if self._plugins(Installed.GKE):
            labels[_GKE_LABEL] = "true"
        return (label_nodes(names, labels),) if labels else ()

    def _on(self, name: str, node: GpuNode) -> tuple[str, ...]:
        results = []
        if self._plugins(Installed.OPERATOR):
            manager = {_MIG_MANAGER_LABEL: "true"} if self._replaces_mig_manager else {}
            results.append(label_nodes([name], {_OPERATOR_LABEL: "true", **manager}))
        if self._plugins(Installed.GKE):
            results.append(f"kubectl label node {name} {_GKE_LABEL}-")
        return tuple(results)

    def _await_not_offered(self, name: str) -> Step:
        return Step(
            Act.AWAIT_NOT_OFFERED,
            "Wait until the node has no slices left.",
            (until_unpublished(name, self.driver),),
            "A device is in them until the claim that has it is gone.",
        )

    def _evict(self, node: GpuNode, what: str, *, by_name: bool = True) -> Step:
        listed = node.holders if by_name else ()
        lost = [holder for holder in node.holders if holder.owner is None]
        # `kubectl drain` passes over these.
        alone = [holder for holder in node.holders if holder.made_by.kind in ("Pod", "DaemonSet")]
        commands = list(dict.fromkeys(deleted(holder, node.name) for holder in alone))
        drain = f"--pod-selector {LEAVES}=yes --ignore-daemonsets --delete-emptydir-data"
        commands += [marked(node), f"kubectl drain {node.name} {drain} {WAIT}"]
        notes = [
            "Other pods stay. Draining respects disruption budgets; data in emptyDir volumes is lost.",
            "It stops at new pods that no controller creates again: keep their manifests, and delete them.",
        ]
        if lost:
            notes.append(f"No controller creates {_names(list(map(str, lost)))} again: keep the manifest.")
        if listed:
            what = f"{what} Currently: {_names(list(map(str, listed)))}."
        return Step(Act.EVICT, what, tuple(commands), " ".join(notes))


def _apply_steps(applied: Applied, what: str, note: str = "") -> Iterator[Step]:
    notes = [note] if note else []
    if applied.commands:
        notes.append("Let Helm, Argo CD, Flux or an operator apply what they manage.")
    if applied.made_anew:
        notes.append(
            f"{_names(applied.made_anew)} cannot be changed, so it is deleted and created again: its work starts "
            "again, and data that it did not store elsewhere is lost. A finished one is left unchanged"
            f"{', which `kubectl apply` reports as an error if its file has other objects' * applied.whole}."
        )
    if applied.whole:
        notes.append("A file is applied as a whole, also objects that are not in the cluster.")
    if applied.commands:
        yield Step(Act.APPLY, what, applied.commands, " ".join(notes))
    if applied.by_hand:
        files = _names(applied.by_hand)
        more = "with kustomize, by deleting and creating what cannot be changed, or from your own copies"
        yield Step(Act.APPLY, f"{what} There is no command for {files}: do it by hand, {more}.", (), note)


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
