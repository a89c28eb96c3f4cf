"""Steps of a cut-over plan and the commands that a person runs; each has status 0 when it is done. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject
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
"""Of pods that have to leave a node: `kubectl drain` chooses by labels, and no others need to move."""


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
