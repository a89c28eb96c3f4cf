"""All proofs of a node, one after the other, each with its name and duration."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from dra_driver.doctor.findings import Diagnosis, Verdict
from dra_driver.doctor.proofs import ON_NODE, Proof, ProofChange, failed, not_tried, passed
from dra_driver.errors import DriverError
from kubelet_plugin.doctor.proof import changes, harmless
from kubelet_plugin.doctor.proof.node import ProofNode

_HARDWARE = "gpu-list"
_SEE = "follow the advice in the message; for other problems run dractl doctor --node"


def readable_cdi(findings: Sequence[Diagnosis]) -> Proof:
    """From the check `node-runtime`: whether the runtime reads what the plugin writes."""
    results = [item for item in findings if item.check == "node-runtime"]
    for verdict in (Verdict.PROBLEM, Verdict.UNKNOWN, Verdict.WARNING, Verdict.OK):
        for finding in results:
            if finding.verdict is verdict:
                words = f"{finding.about}: {finding.sentence}" if finding.about else finding.sentence
                if verdict is Verdict.PROBLEM:
                    return failed(words, finding.fix)
                return not_tried(words, finding.fix) if verdict is Verdict.UNKNOWN else passed(words)
    return not_tried("the container runtime was not checked")


def hook_mode(findings: Sequence[Diagnosis]) -> Proof:
    """From the check `node-hook`: containers without hooks are a failure, unless the configuration says so."""
    finding = next((item for item in findings if item.check == "node-hook"), None)
    if finding is None:
        return not_tried("the hook program was not checked")
    if finding.verdict is Verdict.OK:
        return passed(finding.sentence)
    return not_tried(finding.sentence) if finding.trouble == "off" else failed(finding.sentence, finding.fix)


_CONFIGURED: dict[str, Callable[[Sequence[Diagnosis]], Proof]] = {"cdi-version": readable_cdi, "hook": hook_mode}
HARMLESS: dict[str, Callable[[ProofNode], Proof]] = {
    "gpu-list": harmless.compared_lists,
    "mig-tables": harmless.compared_tables,
    "events": harmless.waited,
    "look": harmless.looked,
    "compute-mode": harmless.written_modes,
    "time-slice": harmless.written_slices,
    "mps": harmless.tried_mps,
}
_CHANGES: dict[str, tuple[ProofChange, Callable[[ProofNode], Proof]]] = {
    "mig-device": (ProofChange.MIG, changes.made_mig_device),
    "vfio": (ProofChange.VFIO, changes.bound_to_vfio),
    "imex-channel": (ProofChange.IMEX, changes.opened_channel),
}


def proven(node: ProofNode, findings: Sequence[Diagnosis], also: Collection[ProofChange]) -> Iterator[Proof]:
    """In the order of `ON_NODE`. Before the first, it undoes what an earlier proof left."""
    with ExitStack() as stack:
        if node.root:
            stack.enter_context(node.folders())
        stack.callback(node.hardware.close)
        without_hardware = attempt(lambda: _prepared(node))
        for name, _ in ON_NODE:
            begun = time.monotonic()
            if name in _CONFIGURED:
                proof = _CONFIGURED[name](findings)
            elif without_hardware is not None:
                proof = without_hardware if name == _HARDWARE else not_tried("NVML does not work")
            else:
                proof = attempt(partial(_tried, name, node, also))
            yield replace(proof, name=name, seconds=time.monotonic() - begun)


def _prepared(node: ProofNode) -> Proof | None:
    """Why nothing about the hardware can be proven; None if it can."""
    changes.given_back(node)
    if node.facts.driver is not None:
        return None
    why = "; ".join(problem.message for problem in node.facts.problems if problem.subject == "driver")
    return failed(f"NVML does not work: {why}", _SEE)


def _tried(name: str, node: ProofNode, also: Collection[ProofChange]) -> Proof:
    if name in HARMLESS:
        return HARMLESS[name](node)
    change, prove = _CHANGES[name]
    if change not in also:
        return not_tried(f"changes the node briefly; to try it, add --also {change}")
    return changes.obstacle(node) or prove(node)


def attempt[P: Proof | None](work: Callable[[], P]) -> P | Proof:
    """Its result, or a failure with the message of its error."""
    try:
        return work()
    except DriverError as error:
        return failed(str(error), _SEE)
    except OSError as error:
        return failed(f"{error.filename or 'the node'}: {error.strerror or error}", _SEE)
