"""`dractl inventory`: what a node has, as the node plugin sees it, and what that leads to. Writes nothing anywhere.

The command line finds it through the entry point group `gpu_dra.commands`, because `dra_driver` never imports the node
plugin. It looks at this machine, or at a simulated one that it builds in a temporary folder.
"""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.api.inventory import GpuFacts, MigFacts, NvlinkFacts
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.cli.output import Format, OutputOption, Status, gibibytes, messages, print_data, print_table
from dra_driver.errors import InvalidInput
from kubelet_plugin.discovery import Hardware, NodeFacts, NvmlSource
from kubelet_plugin.hardware.nvml import load_library
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.reporter import wanted_spec
from kubelet_plugin.simulation.host import create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.state import load_profile, profile_names

_REAL = "real"

HostOption = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="real|PROFILE[:N]",
        help=f"This machine, or a simulated one (the N-th of its kind): {', '.join(profile_names())}.",
    ),
]


def inventory(host: HostOption = _REAL, output: OutputOption = Format.TABLE) -> None:
    """What this node has, and the slices and CDI edits it would lead to."""
    with _hardware(host) as hardware:
        facts = hardware.look()
        hardware.close()
    if output is Format.TABLE:
        _print(facts)
    else:
        print_data(_data(_node_name(host), facts), output)
    if facts.driver is None:
        raise SystemExit(Status.UNREACHABLE)


@contextmanager
def _hardware(host: str) -> Iterator[Hardware]:
    if host == _REAL:
        yield Hardware(HostFiles(Path("/")), lambda: NvmlSource(load_library(), "/"))
        return
    profile, index = _profile(host)
    with tempfile.TemporaryDirectory(prefix="gpu-dra-") as folder:
        simulated = create_host(Path(folder), profile, index)
        source = NvmlSource(SimulatedNvml(simulated.root), str(simulated.driver_root))
        yield Hardware(HostFiles(simulated.root), lambda: source)


def _profile(host: str) -> tuple[str, int]:
    name, _, index = host.partition(":")
    load_profile(name)
    if index and not index.isdigit():
        raise InvalidInput(f"{index!r} is not the number of a node", about=f"--host {host}")
    return name, int(index or 0)


def _node_name(host: str) -> str:
    return socket.gethostname() if host == _REAL else host.replace(":", "-")


def _data(node_name: str, facts: NodeFacts) -> JsonObject:
    return {
        "inventory": {
            "apiVersion": NODE_INVENTORIES.api_version,
            "kind": NODE_INVENTORIES.kind,
            "metadata": {"name": node_name},
            "spec": wanted_spec(node_name, facts, {}),
        }
    }


def _print(facts: NodeFacts) -> None:
    if facts.driver is not None:
        driver = facts.driver
        typer.echo(f"Driver {driver.version}, CUDA {driver.cuda_version}, root {driver.root}")
    for clique in sorted({gpu.fabric.clique for gpu in facts.gpus if gpu.fabric and gpu.fabric.clique}):
        typer.echo(f"NVLink clique {clique}")
    if facts.gpus:
        typer.echo()
        print_table(_HEADINGS, [_row(gpu) for gpu in facts.gpus])
    for problem in facts.problems:
        messages.print(f"{problem.subject}: {problem.reason}: {problem.message}", markup=False, soft_wrap=True)


_HEADINGS = ("DEVICE", "PRODUCT", "MEMORY", "PCI ADDRESS", "NUMA", "MIG", "NVLINK")


def _row(gpu: GpuFacts) -> tuple[str, ...]:
    return (
        gpu.name,
        gpu.product_name.removeprefix("NVIDIA "),
        gibibytes(gpu.memory_bytes),
        gpu.pci_bus_id,
        "-" if gpu.numa_node is None else str(gpu.numa_node),
        _mig(gpu.mig),
        _nvlink(gpu.nvlink),
    )


def _mig(mig: MigFacts | None) -> str:
    if mig is None:
        return "-"
    now, later = ("on" if state else "off" for state in (mig.enabled, mig.pending))
    return now if now == later else f"{now}>{later}"


def _nvlink(nvlink: NvlinkFacts | None) -> str:
    return "-" if nvlink is None else f"{nvlink.links}x{nvlink.version or '?'}"
