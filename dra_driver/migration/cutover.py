"""From the device plugin to the driver node by node, and back, so that no GPU is ever offered by both. Pure.

Two labels of a node decide. `OFFERED_BY` says who may offer its GPUs: the device plugin's pods run only where it is
`device-plugin`, and the driver publishes only where it is `driver`. A label has one value, so the two exclude each
other; and since pods and slices follow a label a while later, between the two stands `nobody`, until the old one is
seen to be gone. `DRIVER_RUNS` keeps the driver's own pod on a node that offers nothing any more, for somebody has to
take the devices back from claims that end. A plan is data: steps with the commands that a person types. Whoever stops
halfway goes back from there with the same commands as from the end.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject
from dra_driver.features import Feature
from dra_driver.migration.applying import Applied, Applying, Results
from dra_driver.migration.model import Migration, ObjectRef, Target
from dra_driver.migration.offering import DRIVER_RUNS, OFFERED_BY, DevicePlugin, GpuNode, Holder, Installed, Offering

_OPERATOR_LABEL = "nvidia.com/gpu.deploy.device-plugin"
_MIG_MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"
_GKE_LABEL = "gke-no-default-nvidia-gpu-device-plugin"
_NAMESPACE = "gpu-dra"
_RELEASE = "gpu-dra-driver"
_CHART = "charts/gpu-dra-driver"
VALUES_FILE = "values-cutover.yaml"
FINAL_VALUES_FILE = "values.yaml"
_WAIT = "--timeout=10m"
_LEAVES = "dra.gpu/leaves"
"""Of pods that have to leave a node: `kubectl drain` chooses by labels, and no others need to move."""
MIG_RESOURCE = "nvidia.com/mig-"


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
class Plan:
    forward: tuple[Stage, ...]
    back: tuple[Stage, ...]
    """The way back, from wherever one has stopped before `REMOVE_PLUGIN`."""
    conflicts: tuple[str, ...]
    """Nodes whose GPUs both offer now."""
    values: JsonObject
    """Of the chart, for the time of the change."""
    refusal: str = ""
    """Why there is none, where somebody else offers the GPUs; then all else is empty."""

    @property
    def empty(self) -> bool:
        return not self.forward


_AS_THEY_LIE = Results()


def cutover(offering: Offering, migration: Migration, driver: str, results: Results = _AS_THEY_LIE) -> Plan:
    """The way to the driver for all nodes that a device plugin serves; empty when there are none such.

    Nodes where both offer come first, then those with the fewest pods that would have to move. Nodes that the driver
    serves alone are kept as they are.
    """
    values = values_for_cutover(migration)
    if offering.other_drivers:
        return Plan((), (), (), values, _refusal(offering.other_drivers))
    todo = sorted((one for one in offering.nodes if one.resources or _is_halfway(one, offering)), key=_order)
    if not todo:
        return Plan((), (), (), values)
    done = [one for one in offering.nodes if not one.resources and one.driver]
    way = _Way(offering, migration, driver, results, Applying(migration, results, todo))
    forward = (
        way.prepare(todo, done),
        *(way.over(node, first=index == 0) for index, node in enumerate(todo)),
        way.finish(),
    )
    back = (*(way.back(node) for node in reversed(todo)), way.end_of_return(done))
    return Plan(forward, back, tuple(one.name for one in todo if one.driver), values)


def _refusal(others: Sequence[str]) -> str:
    return (
        f"{_names(others)} brings NVIDIA's own DRA driver, which offers GPUs under the same name; nobody could say "
        "whose slices they are. Choose one: switch that one off (delete the GPUCluster, or set its "
        "`spec.draDriver.gpus.enabled: false` where its version has that field), see that its slices and claims are "
        "gone, and read the cluster again."
    )


def _is_halfway(node: GpuNode, offering: Offering) -> bool:
    """An earlier plan took it from the device plugin, and nobody gave it to the driver."""
    return node.begun and not node.driver and bool(offering.plugins)


def _order(node: GpuNode) -> tuple[bool, int, str]:
    return not node.driver, len(node.holders), node.name


def final_values(migration: Migration) -> JsonObject:
    """Chart values for the time after: what configurations said, the policy that was made of them, and classes that
    answer to MIG devices' resources where pods go on to ask for those."""
    rules = {key: value for key, value in (migration.policy or {}).items() if key not in ("apiVersion", "kind")}
    given = dict(migration.chart_values or {})
    if any(one.startswith(MIG_RESOURCE) for one in kept_resources(migration)):
        given["featureGates"] = {**(given.get("featureGates") or {}), str(Feature.MIG_EXTENDED_RESOURCES): True}
    return {**given, "policy": {**(given.get("policy") or {}), **rules}}


def kept_resources(migration: Migration) -> frozenset[str]:
    """The extended resources by which pods go on to ask for devices."""
    stay = (one for one in migration.workloads if one.choice.target is Target.EXTENDED)
    return frozenset(demand.resource for one in stay for demand in one.reading.demands if demand.resource)


def values_for_cutover(migration: Migration) -> JsonObject:
    """The same, but the driver runs and publishes only where the labels say so."""
    values = final_values(migration)
    plugin = dict(values.get("kubeletPlugin") or {})
    plugin["nodeSelector"] = {**(plugin.get("nodeSelector") or {}), DRIVER_RUNS: "yes"}
    rules = dict(values["policy"])
    ours = {"matchLabels": {OFFERED_BY: "driver"}}
    wanted = rules.get("publish") or [{}]
    rules["publish"] = [{**rule, "nodes": _both(rule.get("nodes"), ours)} for rule in wanted]
    return {**values, "kubeletPlugin": plugin, "policy": rules}


def _both(nodes: JsonObject | None, ours: JsonObject) -> JsonObject:
    selector = (nodes or {}).get("labelSelector") or {}
    labels = {**(selector.get("matchLabels") or {}), **ours["matchLabels"]}
    return {**(nodes or {}), "labelSelector": {**selector, "matchLabels": labels}}


@dataclass(frozen=True)
class _Way:
    offering: Offering
    migration: Migration
    driver: str
    results: Results
    applying: Applying

    @property
    def _operator(self) -> bool:
        return any(one.installed is Installed.OPERATOR for one in self.offering.plugins)

    @property
    def _replaces_mig_manager(self) -> bool:
        """Two that change the layout of the same GPU would fight; partitions that lie there already are published."""
        rules = (self.migration.policy or {}).get("mig") or ()
        return self.offering.mig_manager and any(rule.get("mode") == "Dynamic" for rule in rules)

    @property
    def _gke(self) -> bool:
        return any(one.installed is Installed.GKE for one in self.offering.plugins)

    @property
    def _daemon_sets(self) -> tuple[DevicePlugin, ...]:
        return tuple(one for one in self.offering.plugins if one.installed is Installed.DAEMON_SET)

    # -- the whole cluster

    def prepare(self, todo: Sequence[GpuNode], done: Sequence[GpuNode]) -> Stage:
        return Stage("Before the first node", None, tuple(self._prepare(todo, done)))

    def _prepare(self, todo: Sequence[GpuNode], done: Sequence[GpuNode]) -> Iterator[Step]:
        yield from self._write()
        for node in todo:
            if node.resources and node.driver_label and not node.driver:
                yield self._clean(node.name)
        both = [one.name for one in todo if one.driver]
        if both:
            yield Step(
                Act.LABEL,
                f"On {_names(both)} the device plugin and the driver offer the same GPUs now. Neither may go on.",
                (_label(both, {OFFERED_BY: "nobody", DRIVER_RUNS: "yes"}), *self._off(both)),
                "Pods that run there may share a GPU without knowing it.",
            )
        if done:
            yield Step(
                Act.LABEL,
                f"{_names([one.name for one in done])} has the driver already and keeps it."
                if len(done) == 1
                else f"{_names([one.name for one in done])} have the driver already and keep it.",
                (_label([one.name for one in done], {OFFERED_BY: "driver", DRIVER_RUNS: "yes"}),),
            )
        alone = [one.name for one in todo if one.resources and not one.driver]
        if alone:
            yield Step(
                Act.LABEL,
                "Say of each node that the device plugin offers its GPUs. Nothing changes by that.",
                (_label(alone, {OFFERED_BY: "device-plugin"}),),
            )
        for plugin in self._daemon_sets:
            yield Step(
                Act.FENCE_PLUGIN,
                f"Let DaemonSet {plugin.namespace}/{plugin.name} run only on nodes with that label.",
                _run_only_where(plugin, '"device-plugin"'),
                "Its pods start anew; pods that have GPUs do not notice. Nodes that join later need the label, too.",
            )
        if not self.offering.plugins:
            yield Step(
                Act.FENCE_PLUGIN,
                "No device plugin was recognised among what was read, though nodes have its resources. Find it, and "
                f"give its pods the node selector `{OFFERED_BY}: device-plugin`.",
                (),
            )
        if both:
            yield Step(
                Act.AWAIT_PLUGIN_GONE,
                "Where both offered, wait until kubelet has nothing of the device plugin left to give.",
                tuple(_wait(one.name, resource, "= 0") for one in todo if one.driver for resource in one.resources),
                "The chart refuses before.",
            )
        yield Step(
            Act.INSTALL,
            "Install the driver. It runs nowhere yet, but where a node has its label.",
            (
                f"helm upgrade --install {_RELEASE} {_CHART} --namespace {_NAMESPACE} --create-namespace "
                f"-f {self._file(VALUES_FILE)}",
            ),
            f"{VALUES_FILE} has the values of this report and the two labels; add the image's repository.",
        )
        yield from _apply_steps(
            self.applying.settings(),
            "Apply what counts or describes claims: quotas, queues, classes, and what was written beside files.",
            "Until the end some workloads are counted by what is gone from there.",
        )

    def _file(self, name: str) -> str:
        return shlex.quote(f"{self.results.folder}{name}")

    def _write(self) -> Iterator[Step]:
        if self.results.write is not None:
            note = "With the same input. The report that is written there has this plan, too."
            yield Step(Act.WRITE, "Write the results, which the commands below name.", (self.results.write,), note)
        elif not self.results.values_written:
            files = {VALUES_FILE: values_for_cutover(self.migration), FINAL_VALUES_FILE: final_values(self.migration)}
            yield Step(
                Act.WRITE,
                "Write the values for the chart: for the time of the change, and for the time after.",
                tuple(f"printf '%s\\n' {shlex.quote(json.dumps(one))} > {name}" for name, one in files.items()),
            )

    def _clean(self, name: str) -> Step:
        return Step(
            Act.CLEAN,
            f"{name} has the driver's label from an earlier attempt, beside a device plugin: take it away.",
            (
                _label([name], {OFFERED_BY: "device-plugin"}),
                _until_unpublished(name, self.driver),
                _until_no_claims(name, self.driver),
                f"kubectl label node {name} {DRIVER_RUNS}-",
                _until_driver_is_gone(name),
            ),
            "The chart would refuse. If this does not end, pods have claims beside the device plugin: `dractl get "
            "claims` says which; delete them.",
        )

    def finish(self) -> Stage:
        return Stage("When every node is over", None, tuple(self._finish()))

    def _finish(self) -> Iterator[Step]:
        yield from _apply_steps(
            self.applying.rest(),
            "Apply the rest in its new form: what had no pods with GPUs when this was written.",
            "Only what is in the cluster, and not what is done; that asks in the old way when somebody runs it again.",
        )
        for plugin in self.offering.plugins:
            yield self._removal(plugin)
        yield Step(
            Act.LIFT_FENCE,
            "Let the driver run on all GPU nodes, without labels.",
            (f"helm upgrade {_RELEASE} {_CHART} --namespace {_NAMESPACE} -f {self._file(FINAL_VALUES_FILE)}",),
            "Only when no device plugin is left: the chart looks for one, and refuses.",
        )

    def _removal(self, plugin: DevicePlugin) -> Step:
        note = "From here on the way back begins with installing the device plugin again."
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
            what = f"Give all node pools with GPUs the label `{_GKE_LABEL}=true`, so that new nodes have it, too."
            return Step(Act.REMOVE_PLUGIN, what, (), note)
        return Step(
            Act.REMOVE_PLUGIN,
            f"Remove DaemonSet {plugin.namespace}/{plugin.name}.",
            (f"kubectl -n {plugin.namespace} delete daemonset {plugin.name}",),
            f"{note} If a Helm release made it, uninstall that instead.",
        )

    def end_of_return(self, done: Sequence[GpuNode]) -> Stage:
        return Stage("When every node is back", None, tuple(self._end_of_return(done)))

    def _end_of_return(self, done: Sequence[GpuNode]) -> Iterator[Step]:
        for applied in (self.applying.settings(back=True), self.applying.rest(back=True)):
            yield from _apply_steps(applied, "Apply the rest as it was.", "If its new form had been applied.")
        if done:
            names = _names([one.name for one in done])
            yield Step(Act.APPLY, f"{names} had the driver before, so driver and fence stay as they are.", ())
            return
        yield Step(
            Act.UNINSTALL,
            "Remove the driver.",
            (f"helm uninstall {_RELEASE} --namespace {_NAMESPACE}",),
            "Only when no pod has a claim any more.",
        )
        for plugin in self._daemon_sets:
            yield Step(
                Act.UNFENCE_PLUGIN,
                f"Let DaemonSet {plugin.namespace}/{plugin.name} run without the label again.",
                _run_only_where(plugin, "null"),
                "Its pods start anew: each node offers no GPUs for a moment, and pods that have some keep them.",
            )

    # -- one node

    def over(self, node: GpuNode, *, first: bool) -> Stage:
        return Stage(f"Node {node.name}", node.name, tuple(self._over(node, first)))

    def _over(self, node: GpuNode, first: bool) -> Iterator[Step]:
        name = node.name
        yield Step(Act.CORDON, "No new pods for this node.", (f"kubectl cordon {name}",))
        note = (
            "The operator's validator waits for the device plugin in vain; that is of no consequence." * self._operator
        )
        mig = ""
        if node.mig_config and self._replaces_mig_manager:
            mig = f" So does the MIG manager, which kept the layout {node.mig_config}: partitions come on demand now."
        yield Step(
            Act.STOP_PLUGIN,
            f"The device plugin leaves.{mig}",
            (_label([name], {OFFERED_BY: "nobody"}), *self._off([name])),
            note,
        )
        if node.driver:
            yield self._await_not_offered(name)
        yield Step(
            Act.AWAIT_PLUGIN_GONE,
            "Wait until kubelet has nothing of it left to give.",
            tuple(_wait(name, resource, "= 0") for resource in node.resources or _UNKNOWN),
            "If it does not come to that, the device plugin is still there: find out who starts it.",
        )
        yield self._evict(node, "Pods that have GPUs go: the driver does not know of what they hold.")
        yield Step(
            Act.AWAIT_FREE,
            "Nobody on the node asks for GPUs any more.",
            (_no_holders(name), *([_until_no_claims(name, self.driver)] if node.driver or node.begun else [])),
            "If somebody is left, delete the pod and look again; `dractl get claims` says who has claims.",
        )
        yield Step(
            Act.START_DRIVER,
            "Give the node to the driver.",
            (_label([name], {DRIVER_RUNS: "yes", OFFERED_BY: "driver"}),),
        )
        yield Step(Act.AWAIT_DRIVER, "Wait until its GPUs are published.", (_until_published(name, self.driver),))
        yield Step(Act.UNCORDON, "Let pods come.", (f"kubectl uncordon {name}",))
        if first:
            yield Step(
                Act.APPLY,
                "See that a pod gets a GPU before you go on.",
                (f"helm test {_RELEASE} --namespace {_NAMESPACE}",),
            )
        yield from self._apply(node)

    def _apply(self, node: GpuNode) -> Iterator[Step]:
        """What ran here comes back in its old form, on nodes of the device plugin, until its new one is applied."""
        yield from _apply_steps(self.applying.at(node.name), "Apply what had pods here in its new form.")
        owners = [one.owner or _pod(one) for one in node.holders if not one.by_claim]
        unknown = sorted({str(one) for one in owners if not self.applying.knows(one) and not self._stays(one)})
        if unknown:
            yield Step(
                Act.APPLY,
                f"Not among the migrated manifests: {', '.join(unknown)}. As long as they ask for the old resource "
                "they run on nodes of the device plugin, or here where a DeviceClass answers to it.",
                (),
            )

    def _stays(self, owner: ObjectRef) -> bool:
        return any(
            one.pod.document.name == owner.name and one.choice.target is Target.EXTENDED
            for one in self.migration.workloads
        )

    def back(self, node: GpuNode) -> Stage:
        return Stage(f"Node {node.name}, back", node.name, tuple(self._back(node)))

    def _back(self, node: GpuNode) -> Iterator[Step]:
        name = node.name
        yield Step(Act.CORDON, "No new pods for this node.", (f"kubectl cordon {name}",))
        yield Step(
            Act.STOP_OFFERING,
            "The driver offers nothing here any more, and goes on to serve the claims that there are.",
            (_label([name], {OFFERED_BY: "nobody"}), *self._off([name])),
        )
        yield self._await_not_offered(name)
        yield Step(
            Act.AWAIT_PLUGIN_GONE,
            "If the device plugin was still there, wait until it is not.",
            tuple(_wait(name, resource, "= 0") for resource in node.resources or _UNKNOWN),
        )
        yield self._evict(node, "Pods that have GPUs go.", by_name=False)
        yield Step(
            Act.AWAIT_NO_CLAIMS,
            "No claim has a device of this node any more, and nobody asks for GPUs.",
            (_until_no_claims(name, self.driver), _no_holders(name)),
            "MIG devices that were made on demand are gone with their claims.",
        )
        yield Step(
            Act.STOP_DRIVER,
            "The driver leaves.",
            (f"kubectl label node {name} {DRIVER_RUNS}-",),
        )
        yield Step(
            Act.AWAIT_DRIVER_GONE,
            "Wait until its pod is gone.",
            (_until_driver_is_gone(name),),
        )
        yield Step(
            Act.START_PLUGIN,
            "Give the node to the device plugin.",
            (_label([name], {OFFERED_BY: "device-plugin"}), *self._on(name, node)),
        )
        yield Step(
            Act.AWAIT_PLUGIN,
            "Wait until it offers what it did before.",
            tuple(_wait(name, one, f"= {n}" if n else "!= 0") for one, n in (node.resources or _UNKNOWN).items()),
        )
        yield Step(Act.UNCORDON, "Let pods come.", (f"kubectl uncordon {name}",))
        yield from _apply_steps(
            self.applying.at(name, back=True),
            "Apply what had pods here as it was.",
            "If its new form had been applied.",
        )

    # -- steps of both ways

    def _off(self, names: Sequence[str]) -> tuple[str, ...]:
        """For device plugins that heed another label than ours."""
        labels: dict[str, str] = {}
        if self._operator:
            labels[_OPERATOR_LABEL] = "false"
            if self._replaces_mig_manager:
                labels[_MIG_MANAGER_LABEL] = "false"
        if self._gke:
            labels[_GKE_LABEL] = "true"
        return (_label(names, labels),) if labels else ()

    def _on(self, name: str, node: GpuNode) -> tuple[str, ...]:
        found = []
        if self._operator:
            manager = {_MIG_MANAGER_LABEL: "true"} if self._replaces_mig_manager else {}
            found.append(_label([name], {_OPERATOR_LABEL: "true", **manager}))
        if self._gke:
            found.append(f"kubectl label node {name} {_GKE_LABEL}-")
        return tuple(found)

    def _await_not_offered(self, name: str) -> Step:
        return Step(
            Act.AWAIT_NOT_OFFERED, "Wait until the node has no slices left.", (_until_unpublished(name, self.driver),)
        )

    def _evict(self, node: GpuNode, what: str, *, by_name: bool = True) -> Step:
        listed = node.holders if by_name else ()
        lost = [one for one in node.holders if one.owner is None]
        commands = list(dict.fromkeys(_delete(one, node.name) for one in node.holders if _drain_passes_over(one)))
        drain = f"--pod-selector {_LEAVES}=yes --ignore-daemonsets --delete-emptydir-data"
        commands += [_marked(node.name), f"kubectl drain {node.name} {drain} {_WAIT}"]
        notes = [
            "Other pods stay. Draining respects disruption budgets; what lies in emptyDir volumes is lost.",
            "It refuses when pods have come that nobody makes anew: keep their manifests, and delete them.",
        ]
        if lost:
            notes.append(
                f"Nobody makes {_names([f'{one.namespace}/{one.name}' for one in lost])} anew: keep the manifest."
            )
        if listed:
            what = f"{what} Now these are {_names([f'{one.namespace}/{one.name}' for one in listed])}."
        return Step(Act.EVICT, what, tuple(commands), " ".join(notes))


def _pod(holder: Holder) -> ObjectRef:
    return ObjectRef("Pod", holder.namespace, holder.name)


def _apply_steps(applied: Applied, what: str, note: str = "") -> Iterator[Step]:
    notes = [note] if note else []
    if applied.commands:
        notes.append("What Helm, Argo CD, Flux or an operator applies, let it apply.")
    if applied.made_anew:
        notes.append(
            f"{_names(applied.made_anew)} cannot be changed, so it is deleted and made anew: what runs begins again, "
            "and what it had not written elsewhere is lost. One that is done is left as it is"
            f"{', which `kubectl apply` calls an error where it stands in a file with others' * applied.whole}."
        )
    if applied.whole:
        notes.append("A file is applied whole, also what of it is not in the cluster.")
    if applied.commands:
        yield Step(Act.APPLY, what, applied.commands, " ".join(notes))
    if applied.by_hand:
        files = _names(applied.by_hand)
        more = "with kustomize, by deleting and creating what cannot be changed, or out of what you had"
        yield Step(Act.APPLY, f"{what} No command can be said for {files}: do it by hand, {more}.", (), note)


# -- commands


def _label(names: Sequence[str], labels: Mapping[str, str]) -> str:
    return f"kubectl label node {' '.join(names)} {' '.join(f'{k}={v}' for k, v in labels.items())} --overwrite"


def _run_only_where(plugin: DevicePlugin, value: str) -> tuple[str, ...]:
    """Where the label for who offers GPUs has this value, as JSON; null: everywhere."""
    daemon_set = f"daemonset {plugin.name}"
    return (
        f"kubectl -n {plugin.namespace} patch {daemon_set} --type merge -p "
        f'\'{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{OFFERED_BY}":{value}}}}}}}}}}}\'',
        f"kubectl -n {plugin.namespace} rollout status {daemon_set} {_WAIT}",
    )


# Waiting and looking must not take a kubectl that failed for "there is none": each has its status, then what it said.

_UNKNOWN = {"nvidia.com/gpu": 0}
"""What to wait for on a node of which nobody knows what the device plugin gave."""


def _until(condition: str, look: str) -> str:
    """Asks every five seconds, and gives up with a sentence after some ten minutes: the same as `_WAIT`."""
    told = shlex.quote(f"Not yet. {look} Type this line again to wait on, or take the way back.")
    return (
        f"for left in $(seq 119 -1 0); do {condition} && break; "
        f"if [ $left = 0 ]; then echo {told} >&2; false; else sleep 5; fi; done"
    )


def _wait(node: str, resource: str, condition: str) -> str:
    """Also ends where kubelet has forgotten the resource: `kubectl wait` would not."""
    escaped = resource.replace(".", r"\.")
    asked = f"kubectl get node {node} -o jsonpath='{{.status.allocatable.{escaped}}}'"
    look = f"Look at the device plugin: kubectl get pods -A --field-selector spec.nodeName={node}."
    return _until(f'now=$({asked}) && [ "${{now:-0}}" {condition} ]', look)


def _slices(node: str, driver: str) -> str:
    return f"kubectl get resourceslices --field-selector spec.nodeName={node},spec.driver={driver} -o name"


def _until_published(node: str, driver: str) -> str:
    return _until(f"{_slices(node, driver)} | grep -q .", _look_at_driver(node))


def _until_unpublished(node: str, driver: str) -> str:
    return _until(f'now=$({_slices(node, driver)}) && [ -z "$now" ]', _look_at_driver(node))


def _look_at_driver(node: str) -> str:
    return f"Look at the driver: kubectl -n {_NAMESPACE} get pods --field-selector spec.nodeName={node}, and its log."


def _no_holders(node: str) -> str:
    amounts = r"s/^  *\(nvidia.com[^ ]*\|volcano.sh[^ ]*\|aliyun.com[^ ]*\|tencent.com[^ ]*\)  *[1-9].*/\1/p"
    read = f"echo \"$now\" | sed -n '/^Allocated/,$p' | sed -n '{amounts}'"
    return f'now=$(kubectl describe node {node}) && test -z "$({read})"'


def _until_no_claims(node: str, driver: str) -> str:
    """Pools of other drivers are called after nodes, too."""
    each = "{range .items[*].status.allocation.devices.results[*]}{.driver} {.pool};{end}"
    seen = f"case $now in *'{driver} {node};'*) false;; esac"
    look = f"dractl get claims says which pods still have devices of {node}."
    return _until(f"now=$(kubectl get resourceclaims -A -o jsonpath='{each}') && {seen}", look)


def _until_driver_is_gone(node: str) -> str:
    return (
        f"kubectl -n {_NAMESPACE} wait pod --for=delete --field-selector spec.nodeName={node} "
        f"-l app.kubernetes.io/component=kubelet-plugin {_WAIT}"
    )


def _marked(node: str) -> str:
    """A label for the pods that have GPUs of this node at the time, by either way."""
    fields = "{.spec.resourceClaims} {.spec.containers[*].resources} {.spec.initContainers[*].resources}"
    each = "{range .items[*]}{.metadata.namespace} {.metadata.name} " + fields + '{"\\n"}{end}'
    here = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    asks = r"/(nvidia\.com|volcano\.sh|aliyun\.com|tencent\.com)\/|resourceClaim/"
    label = f"""sh -c 'kubectl -n "$0" label pod "$1" {_LEAVES}=yes --overwrite'"""
    return (
        f"kubectl get pods -A --field-selector '{here}' -o jsonpath='{each}' "
        f"| awk '{asks} {{print $1, $2}}' | xargs -r -n 2 {label}"
    )


def _drain_passes_over(pod: Holder) -> bool:
    return pod.owner is None or pod.of_daemon_set


def _delete(pod: Holder, node: str) -> str:
    """Also done when there is no such pod any more. Pods of a DaemonSet have other names by then."""
    if pod.owner is None:
        here = f"--field-selector metadata.name={pod.name},spec.nodeName={node}"
        return f"kubectl -n {pod.namespace} delete pod {here}"
    theirs = f'{{.items[?(@.metadata.ownerReferences[0].name=="{pod.owner.name}")].metadata.name}}'
    listed = f"kubectl -n {pod.namespace} get pods --field-selector spec.nodeName={node} -o jsonpath='{theirs}'"
    return f"{listed} | xargs -r kubectl -n {pod.namespace} delete pod"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
