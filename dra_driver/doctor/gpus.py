"""Checks of the NVIDIA driver and the GPUs, by what nodes report of them. Pure."""

from collections.abc import Iterator

from dra_driver.api.inventory import NO_HOOK_PROGRAM, GpuFacts, HealthCondition
from dra_driver.devices.limitations import LimitationCause
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, Trouble, Verdict, ok
from dra_driver.names import RELEASE_GPUS


def _about(node: str) -> str:
    return f"Node {node}"


_NO_DRIVER = Trouble(
    "no-driver",
    Verdict.PROBLEM,
    "the NVIDIA driver on this node does not work: {why}",
    "run `dractl doctor --node` on {node} to see what is missing; or run nvidia-smi there",
)


def _drivers(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine, versions = True, set()
    for inventory in cluster.inventories.items:
        name, driver = inventory.spec.node_name, inventory.spec.driver
        if driver is None:
            fine = False
            told = [
                f"{problem.reason}: {problem.message}"
                for problem in inventory.spec.problems
                if problem.subject == "driver"
            ]
            yield _NO_DRIVER.at(_about(name), why="; ".join(told) or "the plugin reported no reason", node=name)
            continue
        versions.add(driver.version)
    if fine:
        yield ok(f"NVIDIA driver {', '.join(sorted(versions)) or '(no node has reported)'}")


_SICK = Trouble(
    "unhealthy",
    Verdict.PROBLEM,
    "GPU {gpu} ({pci}) is not allocated to new claims: {condition}: {message}",
    "{advice}",
)
_RESET = (
    f"release the GPUs (kubectl annotate node {{node}} {RELEASE_GPUS}=true), reset it on {{node}} (nvidia-smi"
    f" --gpu-reset -i {{pci}}), and resume (kubectl annotate node {{node}} {RELEASE_GPUS}-)"
)
_UNWELL = Trouble(
    "noticed",
    Verdict.WARNING,
    "GPU {gpu} ({pci}): {condition}: {message}",
    "{advice}",
)
_UNREADABLE = Trouble(
    "not-offered",
    Verdict.PROBLEM,
    "{subject}: {reason}: {message}",
    "run `dractl doctor --node` on {node}, and search its kernel log: dmesg | grep -i -e nvrm -e xid",
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
_IN_LEFTOVERS = frozenset(("MpsDaemon", "InstanceLost"))


def _health(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for gpu in inventory.spec.gpus:
            for condition in gpu.health.conditions:
                if condition.type in _IN_LEFTOVERS or condition.severity == "Info":
                    continue
                fine = False
                yield _condition(node, gpu, condition)
        for problem in inventory.spec.problems:
            if problem.subject != "driver":
                fine = False
                yield _UNREADABLE.at(
                    _about(node), subject=problem.subject, reason=problem.reason, message=problem.message, node=node
                )
    if fine:
        yield ok(
            f"all {sum(len(node_inventory.spec.gpus) for node_inventory in cluster.inventories.items)} GPUs are healthy"
        )


def _condition(node: str, gpu: GpuFacts, condition: HealthCondition) -> Diagnosis:
    trouble = _SICK if condition.severity == "Critical" else _UNWELL
    named = f"{condition.type} {condition.value}" if condition.value else condition.type
    advice = _ADVICE.get(condition.type, "run `dractl get nodes` and kubectl describe node {node}")
    return trouble.at(
        _about(node),
        gpu=gpu.name,
        pci=gpu.pci_bus_id,
        condition=named,
        message=condition.message,
        advice=advice.format(node=node, pci=gpu.pci_bus_id),
    )


_NO_HOOK = Trouble(
    "no-hook",
    Verdict.PROBLEM,
    "no hook program runs for containers on this node: {message}",
    "follow the advice in the message; or use a plugin image that includes nvidia-cdi-hook",
)
_LACKING = Trouble(
    "lacking",
    Verdict.WARNING,
    "containers on this node lack a feature: {subject}: {reason}: {message}",
    "follow the advice in the message; for details run `dractl doctor --node` on {node}",
)


def _containers(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for warning in inventory.spec.warnings:
            fine = False
            trouble = _NO_HOOK if warning.reason == NO_HOOK_PROGRAM else _LACKING
            yield trouble.at(
                _about(node), subject=warning.subject, reason=warning.reason, message=warning.message, node=node
            )
    if fine:
        yield ok("hook programs and container runtimes provide everything that containers need")


_MPS = Trouble(
    "mps-daemon",
    Verdict.WARNING,
    "the MPS daemon of GPU {gpu} is unhealthy: {message}",
    "restart the pods that use it; to see what remains of the daemon, run `dractl doctor --node` on {node}",
)
_INSTANCE_LOST = Trouble(
    "mig-lost",
    Verdict.WARNING,
    "a MIG device that a claim uses on GPU {gpu} no longer exists: {message}",
    "delete the pods that use it; do not change MIG by hand or with a MIG manager on nodes where this driver"
    " creates partitions",
)
_INSTANCE_EMPTY = Trouble(
    "mig-unused",
    Verdict.WARNING,
    "GPU {gpu} has GPU instance {profile} at memory slice {start} without a compute instance: that part cannot be used",
    "on {node}: nvidia-smi mig -i {pci} -dgi -gi {id}; or, to use it: nvidia-smi mig -i {pci} -cci -gi {id}",
)
_MODE_PENDING = Trouble(
    "mig-pending",
    Verdict.WARNING,
    "MIG mode of GPU {gpu} is {enabled}; a change to {pending} waits for a GPU reset",
    f"wait until its pods have ended, {_RESET}",
)


def _leftovers(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for inventory in cluster.inventories.items:
        for gpu in inventory.spec.gpus:
            for finding in _leftovers_of(inventory.spec.node_name, gpu):
                fine = False
                yield finding
    if fine:
        yield ok("no leftover MIG device or MPS daemon")


def _leftovers_of(node: str, gpu: GpuFacts) -> Iterator[Diagnosis]:
    where = {"gpu": gpu.name, "pci": gpu.pci_bus_id, "node": node}
    for condition in gpu.health.conditions:
        if condition.type in _IN_LEFTOVERS:
            trouble = _MPS if condition.type == "MpsDaemon" else _INSTANCE_LOST
            yield trouble.at(_about(node), message=condition.message, **where)
    if gpu.mig is None:
        return
    if gpu.mig.pending != gpu.mig.enabled:
        now, later = ("on" if on else "off" for on in (gpu.mig.enabled, gpu.mig.pending))
        yield _MODE_PENDING.at(_about(node), enabled=now, pending=later, **where)
    for instance in gpu.mig.instances:
        if not instance.compute_instances:
            yield _INSTANCE_EMPTY.at(
                _about(node), profile=instance.profile, start=instance.start, id=instance.id, **where
            )


_NOT_FOLLOWED = Trouble(
    "policy-not-followed",
    Verdict.WARNING,
    "cannot follow rule {limitation}",
    "{fix}",
)
_NOT_OFFERED = Trouble(
    "not-published",
    Verdict.WARNING,
    "{limitation}",
    "{fix}",
)
_IN_OTHER_CHECKS = frozenset(
    cause.reason
    for cause in (LimitationCause.UNHEALTHY, LimitationCause.FABRIC_INCOMPLETE, LimitationCause.NO_ROOM_FOR_ATTRIBUTE)
)
"""If no rule asks for it: of health, of domains, and attributes of ours that rules have displaced."""


def _limitations(cluster: ClusterView) -> Iterator[Diagnosis]:
    fine = True
    for inventory in cluster.inventories.items:
        for limitation in inventory.status.limitations:
            if limitation.rule is None and limitation.reason in _IN_OTHER_CHECKS:
                continue
            fine = False
            trouble = _NOT_OFFERED if limitation.rule is None else _NOT_FOLLOWED
            yield trouble.at(_about(inventory.spec.node_name), limitation=limitation, fix=limitation.fix)
    if fine:
        yield ok("the nodes follow all rules of the policy")


DRIVERS = Check(
    "nvidia-driver",
    "whether NVML works on each node, and the driver version.",
    _drivers,
    (_NO_DRIVER,),
    ("inventories",),
)
HEALTH = Check(
    "gpu-health",
    "GPU problems in the inventories, except those that have their own check.",
    _health,
    (_SICK, _UNWELL, _UNREADABLE),
    ("inventories",),
)
CONTAINERS = Check(
    "containers",
    "what containers on a node lack according to its inventory: hooks, or CDI features that its runtime cannot read.",
    _containers,
    (_NO_HOOK, _LACKING),
    ("inventories",),
)
LEFTOVERS = Check(
    "leftovers",
    "MIG devices and MPS daemons that can no longer be used, and MIG modes that wait for a reset.",
    _leftovers,
    (_MPS, _INSTANCE_LOST, _INSTANCE_EMPTY, _MODE_PENDING),
    ("inventories",),
)
LIMITATIONS = Check(
    "policy-followed",
    "rules of the PublishingPolicy that a node cannot follow, from the status of its inventory.",
    _limitations,
    (_NOT_FOLLOWED, _NOT_OFFERED),
    ("inventories",),
)
