"""Which GPUs of a node change their MIG mode by a reset, and what they wait for.

Some models (A100, A30) switch MIG mode only by a reset of the GPU. A policy may let the driver do that (`modeChange:
WhenIdle`). Here is decided which mode each GPU should have. The answer is written in the node's inventory: the GPU's
devices get a taint, so that no new claim comes, and the node's plugin switches the mode when no claim uses the GPU
(`kubelet_plugin.claims.mode_changes`). What the GPU offers then follows from its facts, as always. Pure.
"""

from collections.abc import Mapping, Sequence

from dra_driver.api.gpu_settings import GpuDecision, GpuDecisions, NodePolicy, WaitingGpu
from dra_driver.api.inventory import GpuFacts, MigFacts, NodeInventorySpec

_MOST_CLAIMS = 8


def with_mode_changes(
    policy: NodePolicy, inventory: NodeInventorySpec, users: Mapping[str, Sequence[str]]
) -> NodePolicy:
    """`policy` with these GPUs in `waiting`, beside those that wait for something else. `users` are claims by the
    published name of their device.

    A claim can have been allocated a device that only the other mode has: from a slice of a moment ago, while the mode
    was switched. Such a claim cannot be prepared, so no program uses the GPU, and the mode is switched back for it.

    While something is in the way on the node (`MigFacts.obstacle`) nothing is switched, and claims get the GPU as it
    is; unless a change is stuck halfway. In a virtual machine nothing is even tried: the mode would be set, and the GPU
    unusable until the machine boots. Source: issue 883 of kubernetes-sigs/dra-driver-nvidia-gpu.
    """
    decisions = {uuid: group for group in policy.gpus for uuid in group.uuids}
    waiting = {gpu.uuid for gpu in policy.waiting}
    changes = [
        change
        for gpu in inventory.gpus
        if policy.publish and gpu.uuid in decisions and gpu.uuid not in waiting
        if (change := _change(gpu, decisions[gpu.uuid], users)) is not None
    ]
    return policy.model_copy(update={"waiting": [*policy.waiting, *changes]}) if changes else policy


def after_mode_changes(inventory: NodeInventorySpec, policy: NodePolicy) -> NodeInventorySpec:
    """The node as it will be when all of its GPUs have the mode that they wait for."""
    modes = {gpu.uuid: gpu.mig_mode == "On" for gpu in policy.waiting if gpu.mig_mode is not None}
    if not modes:
        return inventory
    return inventory.model_copy(update={"gpus": [_in_mode(gpu, modes.get(gpu.uuid)) for gpu in inventory.gpus]})


def _in_mode(gpu: GpuFacts, on: bool | None) -> GpuFacts:
    if on is None or gpu.mig is None:
        return gpu
    mig = gpu.mig.model_copy(update={"enabled": on, "pending": on, "switched": on, "instances": []})
    return gpu.model_copy(update={"mig": mig})


def _change(gpu: GpuFacts, decision: GpuDecisions, users: Mapping[str, Sequence[str]]) -> WaitingGpu | None:
    mig = gpu.mig
    if mig is None or mig.switchable or gpu.virtualization is not None:
        return None
    stuck = mig.obstacle is not None and mig.obstacle.reason == "Stuck"
    if mig.obstacle is not None and not stuck:
        return None
    wanted = _wanted_mode(decision, mig)
    used = {name: claims for name, claims in users.items() if f"{name}-".startswith(f"{gpu.name}-")}
    unusable = bool(used) and all(name.startswith(f"{gpu.name}-mig-") != mig.enabled for name in used)
    if unusable and (mig.switched or wanted is not None):
        wanted, used = not mig.enabled, {}
    if wanted is None:
        wanted = mig.enabled
    if wanted == mig.enabled and not stuck:
        return None
    claims = sorted({claim for claims in used.values() for claim in claims})
    return WaitingGpu(
        gpu=gpu.name,
        uuid=gpu.uuid,
        claims=claims[:_MOST_CLAIMS],
        policies=decision.policies,
        mig_mode="On" if wanted else "Off",
    )


def _wanted_mode(decision: GpuDecision, mig: MigFacts) -> bool | None:
    """Whether MIG mode should be on; None: that is not for the driver to decide. It never switches off what an
    administrator switched on."""
    rule = decision.mig
    if rule is not None and rule.mode == "Dynamic" and decision.publish:
        return True if rule.changes_mode and mig.profiles else None
    return False if mig.switched else None
