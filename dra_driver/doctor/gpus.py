"""Checks of the NVIDIA driver and the GPUs, based on the inventories that nodes report. Pure."""

from collections.abc import Iterator

from dra_driver.api.inventory import NO_HOOK_PROGRAM, GpuFacts, HealthCondition, NodeInventory
from dra_driver.devices.limitations import LimitationCause
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Judgment, Wrong, wrong
from dra_driver.names import RELEASE_GPUS


def nvidia_driver(cluster: ClusterView) -> Judgment:
    versions = set()
    for inventory in cluster.inventories.items:
        node, driver = inventory.spec.node_name, inventory.spec.driver
        if driver is not None:
            versions.add(driver.version)
            continue
        reasons = [f"{item.reason}: {item.message}" for item in inventory.spec.problems if item.subject == "driver"]
        yield wrong("no-driver", f"Node {node}", why="; ".join(reasons) or "the plugin reported no reason", node=node)
    return f"NVIDIA driver {', '.join(sorted(versions)) or '(no node has reported)'}"


_RESET = (
    f"release the GPUs (kubectl annotate node {{node}} {RELEASE_GPUS}=true), reset it on {{node}} (nvidia-smi"
    f" --gpu-reset -i {{pci}}), and resume (kubectl annotate node {{node}} {RELEASE_GPUS}-)"
)
_ADVICE = {
    "Xid": f"wait until its pods have ended, {_RESET}; if the error returns, reboot the node",
    "GpuLost": "drain and reboot {node}; if the GPU is lost again, reseat or replace it",
    "Ecc": f"wait until its pods have ended, {_RESET}",
    "RowRemap": f"to remap rows, wait until its pods have ended, {_RESET}; if remapping failed, replace the GPU",
    "Repair": "wait until its pods have ended, then reboot {node} to complete the repair",
    "NvLink": "run `nvidia-smi nvlink -e -i {pci}` on {node}; reset the GPU, and check its NVLink bridge or switch",
    "RecoveryAction": "follow `GPU Recovery Action` in the output of nvidia-smi -q -i {pci} on {node}",
    "Unmonitored": "upgrade the NVIDIA driver: this version reports no events, so faults are detected late",
    "Released": "if this is intended, ignore it; otherwise run the command in the message",
    "NotValidated": "kubectl describe node {node} shows the result; the policy sets the validation in health.validate",
}
_LEFTOVERS = {"MpsDaemon": "mps-daemon", "InstanceLost": "mig-lost"}
"""Conditions that the check `leftovers` reports."""


def gpu_health(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for gpu in inventory.spec.gpus:
            for condition in gpu.health.conditions:
                if condition.type not in _LEFTOVERS and condition.severity != "Info":
                    yield _condition(node, gpu, condition)
        for problem in inventory.spec.problems:
            if problem.subject != "driver":
                facts = {"subject": problem.subject, "reason": problem.reason, "message": problem.message}
                yield wrong("not-offered", f"Node {node}", node=node, **facts)
    return f"all {sum(len(inventory.spec.gpus) for inventory in cluster.inventories.items)} GPUs are healthy"


def _condition(node: str, gpu: GpuFacts, condition: HealthCondition) -> Wrong:
    advice = _ADVICE.get(condition.type, "run `dractl get nodes` and kubectl describe node {node}")
    return wrong(
        "unhealthy" if condition.severity == "Critical" else "noticed",
        f"Node {node}",
        gpu=gpu.name,
        pci=gpu.pci_bus_id,
        condition=f"{condition.type} {condition.value}" if condition.value else condition.type,
        message=condition.message,
        advice=advice.format(node=node, pci=gpu.pci_bus_id),
    )


def containers(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for warning in inventory.spec.warnings:
            code = "no-hook" if warning.reason == NO_HOOK_PROGRAM else "lacking"
            facts = {"subject": warning.subject, "reason": warning.reason, "message": warning.message}
            yield wrong(code, f"Node {node}", node=node, **facts)
    return "hook programs and container runtimes provide everything that containers need"


def leftovers(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        for gpu in inventory.spec.gpus:
            yield from _leftovers_of(inventory, gpu)
    return "no leftover MIG device or MPS daemon"


def _leftovers_of(inventory: NodeInventory, gpu: GpuFacts) -> Iterator[Wrong]:
    node = inventory.spec.node_name
    about, where = f"Node {node}", {"gpu": gpu.name, "pci": gpu.pci_bus_id, "node": node}
    for condition in gpu.health.conditions:
        if condition.type in _LEFTOVERS:
            yield wrong(_LEFTOVERS[condition.type], about, message=condition.message, **where)
    if gpu.mig is None:
        return
    if gpu.mig.pending != gpu.mig.enabled:
        now, later = ("on" if on else "off" for on in (gpu.mig.enabled, gpu.mig.pending))
        yield wrong("mig-pending", about, enabled=now, pending=later, **where)
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            which = {"profile": instance.profile, "start": instance.start, "id": instance.id}
            yield wrong("mig-unused", about, **which, **where)


_IN_OTHER_CHECKS = frozenset(
    cause.reason
    for cause in (LimitationCause.UNHEALTHY, LimitationCause.FABRIC_INCOMPLETE, LimitationCause.NO_ROOM_FOR_ATTRIBUTE)
)
"""Other checks report these, unless a rule of the policy is not followed."""


def policy_followed(cluster: ClusterView) -> Judgment:
    for inventory in cluster.inventories.items:
        for limitation in inventory.status.limitations:
            if limitation.rule is not None or limitation.reason not in _IN_OTHER_CHECKS:
                code = "not-published" if limitation.rule is None else "policy-not-followed"
                about = f"Node {inventory.spec.node_name}"
                yield wrong(code, about, limitation=limitation, fix=limitation.fix)
    return "the nodes follow all rules of the policy"
