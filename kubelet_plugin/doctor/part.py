"""What the entry point group `gpu_dra.doctor` names: looks, judges, and has files for a bundle."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.doctor.findings import Check, Diagnosis, examined
from dra_driver.doctor.node import NodeFile, NodePlaces
from dra_driver.doctor.proofs import Proof, ProofChange
from dra_driver.errors import NodeNotReady
from kubelet_plugin.doctor.checks import CHECKS
from kubelet_plugin.doctor.looking import LocalMachine
from kubelet_plugin.doctor.proof.node import ProofNode
from kubelet_plugin.doctor.proof.run import proven
from kubelet_plugin.doctor.seen import node_seen
from kubelet_plugin.effects.cdi_files import CdiFiles
from kubelet_plugin.prepare.store import DAMAGED, JOURNAL
from kubelet_plugin.recording.take import NodeRecorder
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.recorded.format import packed

_MOST_KERNEL_LINES = 5000


class NodeChecks:
    """See `dra_driver.doctor.node.NodePart`."""

    checks: tuple[Check[Any], ...] = CHECKS

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
        made = NodeRecorder(places).record(release=version("gpu-dra-driver"), keep_names=False)
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


NODE = NodeChecks()
