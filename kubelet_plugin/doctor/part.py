"""What the entry point group `gpu_dra.doctor` names: looks, judges, proves, and has files for a bundle."""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from dra_driver import __version__
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.doctor.findings import Diagnosis, Verdict, examined
from dra_driver.doctor.node_part import NodeFile, NodePlaces
from dra_driver.doctor.proofs import ON_NODE, Proof, ProofChange, failed, not_tried, passed
from dra_driver.errors import DriverError, NodeNotReady
from kubelet_plugin.doctor import node_proofs
from kubelet_plugin.doctor.checks import CHECKS
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor.node_proofs import ProofNode
from kubelet_plugin.doctor.seen import node_seen
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.store import DAMAGED, JOURNAL
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.recorded.format import packed

_MOST_KERNEL_LINES = 5000


class NodeChecks:
    """See `dra_driver.doctor.node_part.NodePart`."""

    def look(self, places: NodePlaces) -> JsonObject:
        return LocalMachine(places).look().to_wire()

    def findings(self, seen: JsonObject) -> tuple[Diagnosis, ...]:
        return examined(CHECKS, node_seen(seen))

    def prove(self, places: NodePlaces, also: Collection[ProofChange]) -> Iterator[Proof]:
        machine = LocalMachine(places)
        seen = machine.look()
        serving = sum(socket.answers is not False for socket in seen.sockets) > 1
        node = ProofNode(machine, serving)
        return proven(node, examined(CHECKS, seen), also)

    def files(self, places: NodePlaces) -> Iterator[NodeFile]:
        machine = LocalMachine(places)
        yield _file("node/inventory.json", lambda: _inventory(machine))
        for name in (JOURNAL, DAMAGED):
            path = places.state_dir / name
            if os.access(path, os.F_OK) or name == JOURNAL:
                yield _file(f"node/{name}", partial(_lines, path.read_bytes))
        cdi = CdiFiles(places.cdi_root, places.driver)
        try:
            claims = sorted(cdi.claims())
        except NodeNotReady as error:
            yield NodeFile("node/cdi", problem=error.message)
            claims = []
        for uid in claims:
            yield _file(f"node/cdi/{cdi.path(uid).name}", partial(_lines, partial(cdi.read, uid)))
        yield _file("node/kernel.txt", lambda: _kernel(machine))
        yield _record(places)


def _file(name: str, read: Callable[[], Iterable[str]]) -> NodeFile:
    try:
        return NodeFile(name, tuple(read()))
    except NodeNotReady as error:
        return NodeFile(name, problem=error.message)
    except OSError as error:
        return NodeFile(name, problem=error.strerror or str(error))


def _record(places: NodePlaces) -> NodeFile:
    try:
        made = NodeRecorder(places).record(release=__version__, keep_names=False)
    except NodeNotReady as error:
        return NodeFile("node/record.tar.gz", problem=error.message)
    return NodeFile("node/record.tar.gz", content=packed(made))


def _inventory(machine: LocalMachine) -> list[str]:
    facts = machine.facts()
    inventory = {
        "apiVersion": NODE_INVENTORIES.api_version,
        "kind": NODE_INVENTORIES.kind,
        "spec": wanted_spec("this-node", facts, {}),
    }
    return json.dumps(inventory, indent=1).splitlines()


def _kernel(machine: LocalMachine) -> list[str]:
    """What the NVIDIA driver said, Xids among it."""
    return [line for line in machine.kernel_lines() if "NVRM" in line or "nvidia" in line][-_MOST_KERNEL_LINES:]


def _lines(read: Callable[[], bytes | None]) -> list[str]:
    return (read() or b"").decode(errors="replace").splitlines()


# -- proofs

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
    "gpu-list": node_proofs.compared_lists,
    "mig-tables": node_proofs.compared_tables,
    "events": node_proofs.waited,
    "look": node_proofs.looked,
    "compute-mode": node_proofs.written_modes,
    "time-slice": node_proofs.written_slices,
    "mps": node_proofs.tried_mps,
}
_CHANGES: dict[str, tuple[ProofChange, Callable[[ProofNode], Proof]]] = {
    "mig-device": (ProofChange.MIG, node_proofs.made_mig_device),
    "vfio": (ProofChange.VFIO, node_proofs.bound_to_vfio),
    "imex-channel": (ProofChange.IMEX, node_proofs.opened_channel),
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
    node_proofs.given_back(node)
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
    return node_proofs.obstacle(node) or prove(node)


def attempt[P: Proof | None](work: Callable[[], P]) -> P | Proof:
    """Its result, or a failure with the message of its error."""
    try:
        return work()
    except DriverError as error:
        return failed(str(error), _SEE)
    except OSError as error:
        return failed(f"{error.filename or 'the node'}: {error.strerror or error}", _SEE)


NODE = NodeChecks()
