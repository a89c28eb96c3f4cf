"""All proofs of a node, one after the other, each with its name and how long it took."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from dra_driver.doctor.findings import Diagnosis
from dra_driver.doctor.proofs import ON_NODE, Proof, ProofChange, failed, not_tried
from dra_driver.errors import DriverError
from kubelet_plugin.doctor.proof import changes, configured, harmless
from kubelet_plugin.doctor.proof.node import ProofNode

_HARDWARE = "gpu-list"
_SEE = "follow the advice in the message; for other problems run dractl doctor --node"

_HARMLESS: dict[str, Callable[[ProofNode], Proof]] = {
    "gpu-list": harmless.compared_lists,
    "mig-tables": harmless.compared_tables,
    "events": harmless.waited,
    "look": harmless.looked,
    "compute-mode": harmless.written_modes,
    "time-slice": harmless.written_slices,
    "mps": harmless.tried_mps,
}
_CONFIGURED: dict[str, Callable[[Sequence[Diagnosis]], Proof]] = {
    "cdi-version": configured.readable_cdi,
    "hook": configured.hook_mode,
}
_CHANGES: dict[str, tuple[ProofChange, Callable[[ProofNode], Proof]]] = {
    "mig-device": (ProofChange.MIG, changes.made_mig_device),
    "vfio": (ProofChange.VFIO, changes.bound_to_vfio),
    "imex-channel": (ProofChange.IMEX, changes.opened_channel),
}


def proven(node: ProofNode, findings: Sequence[Diagnosis], also: Collection[ProofChange]) -> Iterator[Proof]:
    """In the order of `ON_NODE`. What an earlier proof left is taken back before the first."""
    with ExitStack() as stack:
        if node.root:
            stack.enter_context(node.folders())
        stack.callback(node.hardware.close)
        nothing = _outcome(lambda: _first(node))
        for name, _ in ON_NODE:
            begun = time.monotonic()
            if nothing is not None and name not in _CONFIGURED:
                proof = nothing if name == _HARDWARE else not_tried("NVML does not work")
            else:
                proof = _one(name, node, findings, also)
            yield replace(proof, name=name, seconds=time.monotonic() - begun)


def _first(node: ProofNode) -> Proof | None:
    """Why nothing can be proven of the hardware; None: it can."""
    changes.given_back(node)
    if node.facts.driver is not None:
        return None
    why = "; ".join(problem.message for problem in node.facts.problems if problem.subject == "driver")
    return failed(f"NVML does not work: {why}", _SEE)


def _one(name: str, node: ProofNode, findings: Sequence[Diagnosis], also: Collection[ProofChange]) -> Proof:
    if name in _CONFIGURED:
        return _CONFIGURED[name](findings)
    if name in _HARMLESS:
        return _tried(_HARMLESS[name], node)
    change, prove = _CHANGES[name]
    if change not in also:
        return not_tried(f"changes the node briefly; to try it, add --also {change}")
    return changes.obstacle(node) or _tried(prove, node)


def _tried(prove: Callable[[ProofNode], Proof], node: ProofNode) -> Proof:
    tried = _outcome(lambda: prove(node))
    assert tried is not None
    return tried


def _outcome(work: Callable[[], Proof | None]) -> Proof | None:
    """A failure with the error's message, if there is one."""
    try:
        return work()
    except DriverError as error:
        return failed(str(error), _SEE)
    except OSError as error:
        return failed(f"{error.filename or 'the node'}: {error.strerror or error}", _SEE)
