"""`dractl doctor --prove`: tries on a node, and through the cluster, what containers will need; then makes an archive.

What is tried on the node needs root there; pods are made with the rights of who asks, never with those of the driver.
"""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import typer

from dra_driver.cli.bundle import put_node
from dra_driver.cli.doctor import release
from dra_driver.cli.prove_pods import proven_in_pods
from dra_driver.cli.session import ask
from dra_driver.doctor.archive import Bundle
from dra_driver.doctor.node import NodePlaces, node_part
from dra_driver.doctor.proofs import IN_PODS, Proof, ProofChange, ProofResult, lines, not_tried, summary
from dra_driver.errors import ClusterError, DriverError, InvalidInput
from dra_driver.terminal import Format, Status, messages, print_data, stop

ARCHIVE = "gpu-dra-proof.tar.gz"
_WIDEST = 120
_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Pods:
    """How pods are made. `node` is the name that the cluster has for the node."""

    node: str
    driver: str
    kubeconfig: Path | None
    context: str | None
    image: str | None
    patience_s: float


def node_name() -> str:
    """Of this machine, as the plugin's pod is told it, or as kubelet takes it by default."""
    return os.environ.get("GPU_DRA_NODE_NAME") or socket.gethostname().lower()


def prove(
    places: NodePlaces | None, pods: Pods, also: Collection[ProofChange], archive: Path | None, output: Format
) -> None:
    """Try everything and end the command: status 1 when something failed. `places` None: pods alone."""
    archive = _archive(archive)
    proofs: list[Proof] = []
    for proof in () if places is None else node_part().prove(places, also):
        _tell(proof, output, proofs)
    for proof in _in_pods(pods, also, required=places is None):
        _tell(proof, output, proofs)
    _pack(archive, places, proofs)
    if output is not Format.TABLE:
        print_data({"proofs": [item.to_data() for item in proofs], "archive": str(archive)}, output)
    messages.print(f"{summary(proofs)}; full results: {archive}", markup=False, soft_wrap=True)
    if any(item.outcome is ProofResult.FAIL for item in proofs):
        raise SystemExit(Status.NO)


def _tell(proof: Proof, output: Format, proofs: list[Proof]) -> None:
    """As they come: some take a minute."""
    proofs.append(proof)
    if output is Format.TABLE:
        width = min(shutil.get_terminal_size((80, 0)).columns, _WIDEST)
        for line in lines([proof], width):
            typer.echo(line)


def _in_pods(pods: Pods, also: Collection[ProofChange], *, required: bool) -> tuple[Proof, ...]:
    """Raises DriverError only where pods are all that was asked for."""
    try:
        return ask(
            pods.kubeconfig,
            pods.context,
            lambda kube: proven_in_pods(
                kube,
                pods.node,
                driver=pods.driver,
                also=also,
                image=pods.image,
                patience_s=pods.patience_s,
                tell=lambda text: messages.print(text, markup=False, soft_wrap=True),
            ),
        )
    except asyncio.CancelledError:
        stop("ended by a signal; deleted the pods and claims of the proofs", Status.NO)
    except (ClusterError, InvalidInput) as error:
        if required:
            raise
        fix = f"run with an administrator's kubeconfig: dractl doctor --prove --on {pods.node}"
        return tuple(replace(not_tried(f"no cluster: {error}", fix), name=name) for name, _ in IN_PODS)


def _archive(named: Path | None) -> Path:
    """A file that is not there yet and can be made. Raises InvalidInput for one that is named and cannot."""
    if named is None:
        folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
        stem, suffix = ARCHIVE.split(".", 1)
        names = (f"{stem}{f'-{number}' if number > 1 else ''}.{suffix}" for number in count(1))
        return next(path for name in names if not (path := folder / name).exists())
    if os.path.lexists(named):
        raise InvalidInput("already exists; choose another name with --archive", about=f"file {named}")
    if not os.access(named.parent, os.W_OK):
        raise InvalidInput("cannot be written; name another file with --archive", about=f"folder {named.parent}")
    return named


def _pack(archive: Path, places: NodePlaces | None, proofs: list[Proof]) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dra-proof-") as folder:
        made = Bundle(Path(folder))
        if places is not None:
            try:
                put_node(made, places, None)
            except DriverError as error:
                made.error("node", error)
        made.data("prove.json", {"proofs": [proof.to_data() for proof in proofs]})
        made.text("prove.txt", lines(proofs, _WIDTH))
        made.pack(archive, release=release(), time=datetime.now(UTC))
