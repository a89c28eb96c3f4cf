"""Rules of the policy that a node cannot follow, where a pod or claim waits for what they would offer. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from dra_driver.allocation.extended import extended_resources
from dra_driver.allocation.findings import Finding, some
from dra_driver.allocation.verdicts import Code, DeviceVerdict, NodeVerdict
from dra_driver.allocation.world import Pod, PodClaim, World
from dra_driver.api.inventory import Limitation

_MIG_ONLY = re.compile(r"\b(profile|parentUUID|memorySlices|placementStart|packingRank)\b")
_SHARED_ONLY = re.compile(r"\b(sharing|isolation|allowMultipleAllocations|shares|cores)\b")


def policy_findings(
    world: World, pod: Pod | None, claims: Sequence[PodClaim], verdicts: Iterable[NodeVerdict]
) -> tuple[Finding, ...]:
    """One for each limitation that equal nodes have in common; none for nodes where it would not help."""
    by_name = _asks_for_mig_by_name(pod, claims)
    groups: dict[tuple[str, str, str], dict[str, Limitation]] = defaultdict(dict)
    for verdict in verdicts:
        for limitation in world.limitations.get(verdict.node, ()):
            kind = (limitation.rule or "mig").partition("[")[0]
            if not verdict.fits and ((by_name and kind == "mig") or _would_help(kind, verdict)):
                key = limitation.rule or "", limitation.reason, limitation.message
                groups[key][verdict.node] = limitation
    return tuple(_finding(nodes) for _, nodes in sorted(groups.items()))


def _finding(nodes: dict[str, Limitation]) -> Finding:
    (first, limitation), *others = nodes.items()
    number = sum(len(one.gpus) for one in nodes.values())
    gpus = limitation.subject if number <= 1 else f"{number} GPUs"
    rule = f"rule {limitation.rule} of the policy cannot be followed on {gpus}" if limitation.rule else gpus
    fix = f"{limitation.fix[:1].upper()}{limitation.fix[1:]}."
    if others:
        fix += f" This is for {first}; do the same on {some([name for name, _ in others])}."
    return Finding("policy-not-followed", f"node {some(list(nodes))}", f"{rule}: {limitation.message}", fix)


def _asks_for_mig_by_name(pod: Pod | None, claims: Iterable[PodClaim]) -> bool:
    """By a class or extended resource of a MIG profile: nobody makes such a class before a GPU offers the profile."""
    if pod is not None and any(name.startswith("nvidia.com/mig-") for name in extended_resources(pod.obj)):
        return True
    requests = [one for entry in claims if entry.claim is not None for one in entry.claim.spec.devices.requests]
    wanted = [one for request in requests for one in (request.exactly, *(request.first_available or ()))]
    return any(one is not None and one.device_class_name.endswith(".mig.nvidia.com") for one in wanted)


def _would_help(kind: str, verdict: NodeVerdict) -> bool:
    """Whether devices of `kind`, a field of the policy, could be what the request lacks on the node."""
    if kind == "mig" and verdict.code is Code.ERROR:
        return _MIG_ONLY.search(verdict.text) is not None
    return any(_lacks(kind, device) for device in verdict.devices)


def _lacks(kind: str, device: DeviceVerdict) -> bool:
    texts = [f"{part.text} {part.said}" for part in device.parts]
    if kind == "mig":
        return any("mig" in text.lower() or _MIG_ONLY.search(text) for text in texts)
    if kind == "passthrough":
        return any("vfio" in text for text in texts)
    if kind == "sharing":
        return device.code is Code.IN_USE or any(_SHARED_ONLY.search(text) for text in (*texts, device.text))
    return False
