"""Checks of the NVIDIA driver and the GPUs, by what nodes report of them. Pure."""

from collections.abc import Iterator

from dra_driver.api.inventory import NO_HOOK_PROGRAM, GpuFacts, HealthCondition
from dra_driver.devices.limitations import Cause
from dra_driver.doctor.cluster import Cluster
from dra_driver.doctor.findings import Check, Finding, Trouble, Verdict, ok
from dra_driver.names import RELEASE_GPUS


def _about(node: str) -> str:
    return f"Node {node}"


_NO_DRIVER = Trouble(
    "no-driver",
    Verdict.PROBLEM,
    "its NVIDIA driver cannot be used: {why}",
    "`dractl doctor --node` on {node} says what is missing; or, there: nvidia-smi",
)


def _drivers(cluster: Cluster) -> Iterator[Finding]:
    fine, versions = True, set()
    for inventory in cluster.inventories.items:
        name, driver = inventory.spec.node_name, inventory.spec.driver
        if driver is None:
            fine = False
            told = [f"{one.reason}: {one.message}" for one in inventory.spec.problems if one.subject == "driver"]
            yield _NO_DRIVER.at(_about(name), why="; ".join(told) or "its plugin does not say why", node=name)
            continue
        versions.add(driver.version)
    if fine:
        yield ok(f"NVIDIA driver {', '.join(sorted(versions)) or 'of no node'}")


_SICK = Trouble(
    "unhealthy",
    Verdict.PROBLEM,
    "GPU {gpu} ({pci}) is given to nobody: {condition}: {message}",
    "{advice}",
)
_RESET = (
    f"release the GPUs (kubectl annotate node {{node}} {RELEASE_GPUS}=true), reset it on {{node}} (nvidia-smi"
    f" --gpu-reset -i {{pci}}), and take them back (kubectl annotate node {{node}} {RELEASE_GPUS}-)"
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
    "`dractl doctor --node` on {node}, and its kernel log: dmesg | grep -i -e nvrm -e xid",
)
_ADVICE = {
    "Xid": f"let its pods end, {_RESET}; reboot when it comes again",
    "GpuLost": "drain and reboot {node}; a GPU that falls off the bus again is broken or sits loose",
    "Ecc": f"let its pods end, {_RESET}",
    "RowRemap": f"let its pods end, {_RESET}, so that rows are remapped; replace it when remapping failed",
    "Repair": "let its pods end, then reboot {node}, so that the repair is done",
    "NvLink": "see `nvidia-smi nvlink -e -i {pci}` on {node}; reset the GPU, and look at its bridge or switch",
    "RecoveryAction": "do on {node} what the driver recommends: nvidia-smi -q -i {pci}, `GPU Recovery Action`",
    "Unmonitored": "its driver tells no events; upgrade it, or expect to hear of faults late",
    "Released": "nothing, if that is meant to be; the message says what ends it",
    "NotValidated": "see the result of the check in the events of {node}, and health.validate in the policy",
}
_IN_LEFTOVERS = frozenset(("MpsDaemon", "InstanceLost"))


def _health(cluster: Cluster) -> Iterator[Finding]:
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
        yield ok(f"all {sum(len(one.spec.gpus) for one in cluster.inventories.items)} GPUs are well")


def _condition(node: str, gpu: GpuFacts, condition: HealthCondition) -> Finding:
    trouble = _SICK if condition.severity == "Critical" else _UNWELL
    named = f"{condition.type} {condition.value}" if condition.value else condition.type
    advice = _ADVICE.get(condition.type, "see `dractl get nodes` and the events of {node}")
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
    "its containers are finished by no program: {message}",
    "do what it says; or use an image of the plugin that has nvidia-cdi-hook",
)
_LACKING = Trouble(
    "lacking",
    Verdict.WARNING,
    "its containers go without something: {subject}: {reason}: {message}",
    "do what it says; `dractl doctor --node` on {node} says more",
)


def _containers(cluster: Cluster) -> Iterator[Finding]:
    fine = True
    for inventory in cluster.inventories.items:
        node = inventory.spec.node_name
        for one in inventory.spec.warnings:
            fine = False
            trouble = _NO_HOOK if one.reason == NO_HOOK_PROGRAM else _LACKING
            yield trouble.at(_about(node), subject=one.subject, reason=one.reason, message=one.message, node=node)
    if fine:
        yield ok("hook programs and container runtimes have all that containers need")


_MPS = Trouble(
    "mps-daemon",
    Verdict.WARNING,
    "the MPS daemon of GPU {gpu} is not well: {message}",
    "pods that use it must be started again; `dractl doctor --node` on {node} shows what is left of it",
)
_INSTANCE_LOST = Trouble(
    "mig-lost",
    Verdict.WARNING,
    "a MIG device that a claim has on GPU {gpu} is gone: {message}",
    "delete the pods that use it; do not change MIG by hand (or by a MIG manager) where the driver makes partitions",
)
_INSTANCE_EMPTY = Trouble(
    "mig-unused",
    Verdict.WARNING,
    "GPU {gpu} has a GPU instance {profile} at memory slice {start} without compute instance: nobody can use that part",
    "on {node}: nvidia-smi mig -i {pci} -dgi -gi {id}; or, to use it: nvidia-smi mig -i {pci} -cci -gi {id}",
)
_MODE_PENDING = Trouble(
    "mig-pending",
    Verdict.WARNING,
    "MIG mode of GPU {gpu} is to be {pending}, and is {enabled} until the GPU is reset",
    f"let its pods end, {_RESET}",
)


def _leftovers(cluster: Cluster) -> Iterator[Finding]:
    fine = True
    for inventory in cluster.inventories.items:
        for gpu in inventory.spec.gpus:
            for finding in _leftovers_of(inventory.spec.node_name, gpu):
                fine = False
                yield finding
    if fine:
        yield ok("no MIG device and no MPS daemon is left over")


def _leftovers_of(node: str, gpu: GpuFacts) -> Iterator[Finding]:
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
    for one in gpu.mig.instances:
        if not one.compute_instances:
            yield _INSTANCE_EMPTY.at(_about(node), profile=one.profile, start=one.start, id=one.id, **where)


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
    cause.reason for cause in (Cause.UNHEALTHY, Cause.FABRIC_INCOMPLETE, Cause.NO_ROOM_FOR_ATTRIBUTE)
)
"""If no rule asks for it: of health, of domains, and attributes of ours that rules have displaced."""


def _limitations(cluster: Cluster) -> Iterator[Finding]:
    fine = True
    for inventory in cluster.inventories.items:
        for limitation in inventory.status.limitations:
            if limitation.rule is None and limitation.reason in _IN_OTHER_CHECKS:
                continue
            fine = False
            trouble = _NOT_OFFERED if limitation.rule is None else _NOT_FOLLOWED
            yield trouble.at(_about(inventory.spec.node_name), limitation=limitation, fix=limitation.fix)
    if fine:
        yield ok("the nodes offer what the policy asks for")


DRIVERS = Check(
    "nvidia-driver",
    "whether NVML answers on each node, and with which driver.",
    _drivers,
    (_NO_DRIVER,),
    ("inventories",),
)
HEALTH = Check(
    "gpu-health",
    "what is wrong with GPUs by the inventories, besides what has checks of its own.",
    _health,
    (_SICK, _UNWELL, _UNREADABLE),
    ("inventories",),
)
CONTAINERS = Check(
    "containers",
    "what containers go without on a node, by its inventory: hooks, or what its runtime cannot read.",
    _containers,
    (_NO_HOOK, _LACKING),
    ("inventories",),
)
LEFTOVERS = Check(
    "leftovers",
    "MIG devices and MPS daemons that nobody can use any more, and MIG modes that wait for a reset.",
    _leftovers,
    (_MPS, _INSTANCE_LOST, _INSTANCE_EMPTY, _MODE_PENDING),
    ("inventories",),
)
LIMITATIONS = Check(
    "policy-followed",
    "rules of the PublishingPolicy that a node cannot follow, by the status of its inventory.",
    _limitations,
    (_NOT_FOLLOWED, _NOT_OFFERED),
    ("inventories",),
)
