"""`dractl inventory`: what a node has, as the node plugin sees it, and what that leads to. Writes nothing anywhere.

The command line finds it through the entry point group `gpu_dra.commands`, because `dra_driver` never imports the node
plugin. It looks at this machine, or at a simulated one that it builds in a temporary folder, and takes the same ways
as the plugin and the controller: what it shows is what they would do.
"""

import os
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dra_driver import terminal
from dra_driver.api.inventory import GpuFacts, MigFacts, NodeInventorySpec, NvlinkFacts
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.cdi.edits import ClaimDevice, DriverFiles, claim_spec
from dra_driver.cdi.model import CdiSpec, json_of
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import GPU_DRIVER, model_label
from dra_driver.publish.policy_file import read_policy
from dra_driver.quantity import Quantity
from dra_driver.slices.offline import PublishedPool, published_offline
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, installed_nvml, simulated_nvml
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.host import open_simulated, parse_simulated
from kubelet_plugin.simulation.profiles import profile_names

_REAL = "real"
_NODE_UID = "<the node's UID>"
_CLAIM_UID = "00000000-0000-0000-0000-000000000000"
"""Stands for the UID of a claim that has all GPUs."""


def inventory(
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="real|PROFILE|FILE[:N]",
            help=f"This machine, a file of `dractl record`, or a simulated one (the N-th of its kind):"
            f" {', '.join(profile_names())}.",
        ),
    ] = _REAL,
    host_root: terminal.HostRootOption = Path("/"),
    driver_root: Annotated[
        str | None,
        typer.Option(
            "--driver-root", metavar="PATH", help="Folder of the NVIDIA driver on this machine; default: search for it."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="File with GpuPolicies or a PublishingPolicy; default: publish every GPU as it is.",
        ),
    ] = None,
    label: terminal.LabelOption = [],
    output: terminal.OutputOption = terminal.Format.TABLE,
) -> None:
    """Show this node's hardware, and what it would publish in a cluster with every feature.

    With -o json or yaml: the NodeInventory, the ResourceSlices, and the CDI edits of a claim that has all its GPUs.

    \b
    Examples:
      dractl inventory
      dractl inventory --host gb200
      dractl inventory --host dgx-h100 --policy policy.yaml -o yaml
    """
    rules = read_policy(policy)
    if driver_root is not None and host != _REAL:
        raise InvalidInput("a simulated node's profile says where its driver is", about="--driver-root")
    labels = terminal.labels_of(label)
    with _node(host, host_root, driver_root) as node:
        report = _report(node, rules, labels)
    if output is terminal.Format.TABLE:
        _print(report)
    else:
        terminal.print_data(_data(report), output)
    if report.facts.driver is None:
        raise SystemExit(terminal.Status.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    hardware: Hardware
    installation: DriverInstallation


@dataclass(frozen=True, slots=True)
class _Report:
    """`cdi` is the spec of a claim that has all GPUs; None when there can be none, and `why_no_cdi` says why."""

    inventory: NodeInventorySpec
    facts: NodeFacts
    published: tuple[PublishedPool, ...]
    notes: tuple[str, ...]
    files: DriverFiles | None
    cdi: CdiSpec | None
    why_no_cdi: str | None


@contextmanager
def _node(host: str, host_root: Path, driver_root: str | None) -> Iterator[_Node]:
    if host == _REAL:
        files = HostFiles(host_root)
        installation = DriverInstallation(files, configured_root=driver_root)
        name = os.environ.get("GPU_DRA_NODE_NAME") or socket.gethostname()
        yield _Node(name, Hardware(files, installed_nvml(installation)), installation)
        return
    with tempfile.TemporaryDirectory(prefix="gpu-dra-") as folder:
        simulated = open_simulated(Path(folder), host)
        files = HostFiles(simulated.root)
        installation = DriverInstallation(files, configured_root=simulated.configured_root)
        yield _Node(_node_name(host), Hardware(files, simulated_nvml(simulated)), installation)


def _node_name(host: str) -> str:
    name, index = parse_simulated(host)
    return model_label(name) if index is None else f"{model_label(name)}-{index}"


def inventory_of(host: str) -> JsonObject:
    """What a simulated node reports, for the simulated cluster and offline commands. Raises InvalidInput."""
    with _node(host, Path("/"), None) as node:
        return wanted_spec(node.name, node.hardware.look(), {})


def _report(node: _Node, policy: PublishingPolicy, labels: Mapping[str, str]) -> _Report:
    facts = node.hardware.look()
    node.hardware.close()
    spec = NodeInventorySpec.of(wanted_spec(node.name, facts, {}))
    published = published_offline(spec, policy, labels, _NODE_UID)
    files, cdi, why_no_cdi = None, None, None
    try:
        available = container_files_of(node.installation, facts)
    except NodeNotReady as error:
        why_no_cdi = error.message
    else:
        files = available.driver
        devices = tuple(
            ClaimDevice(gpu.name, gpu, nodes) for gpu in facts.gpus if (nodes := available.nodes_there(gpu.uuid))
        )
        cdi = claim_spec(GPU_DRIVER, _CLAIM_UID, devices, files) if devices else None
    notes = tuple(str(limitation) for item in published for limitation in item.limitations)
    if policy.asks_for_labels and not labels:
        notes = ("rules of the policy select nodes by labels, and this node has none; add some with --label", *notes)
    return _Report(spec, facts, published, notes, files, cdi, why_no_cdi)


def _data(report: _Report) -> JsonObject:
    limitations = [limitation.to_wire() for published in report.published for limitation in published.limitations]
    return {
        "inventory": {
            "apiVersion": NODE_INVENTORIES.api_version,
            "kind": NODE_INVENTORIES.kind,
            "metadata": {"name": report.inventory.node_name},
            "spec": report.inventory.to_wire(),
            **({"status": {"limitations": limitations}} if limitations else {}),
        },
        "slices": [slice_ for published in report.published for slice_ in published.slices],
        "cdi": json_of(report.cdi) if report.cdi is not None else None,
        "notes": [*report.notes, *([report.why_no_cdi] if report.why_no_cdi else [])],
    }


def _print(report: _Report) -> None:
    facts = report.facts
    if facts.driver is not None:
        driver = facts.driver
        terminal.echo(f"Driver {driver.version}, CUDA {driver.cuda_version}, root {driver.root}")
    for clique in sorted({gpu.fabric.clique for gpu in facts.gpus if gpu.fabric and gpu.fabric.clique}):
        terminal.echo(f"NVLink clique {clique}")
    if facts.gpus:
        typer.echo()
        terminal.print_table(_HEADINGS, [_row(gpu) for gpu in facts.gpus])
        typer.echo()
        for published in report.published:
            terminal.echo(_published(published))
        if kinds := _kinds(report.published[0].devices):
            terminal.print_table(_DEVICE_HEADINGS, kinds)
            typer.echo()
    if report.files is not None and report.cdi is not None:
        terminal.echo(_injected(report.files, report.cdi))
    problems = [f"{problem.subject}: {problem.reason}: {problem.message}" for problem in facts.problems]
    if report.why_no_cdi is not None and facts.driver is not None:
        problems.append(f"containers cannot use these GPUs: {report.why_no_cdi}")
    for line in (*problems, *report.notes):
        terminal.print_message(line)


def _published(published: PublishedPool) -> str:
    most = max((len(device.attributes) for device in published.devices), default=0)
    return (
        f"Published by driver {published.driver}: {len(published.devices)} devices in {len(published.slices)} slice(s),"
        f" up to {most} attributes each."
    )


_DEVICE_HEADINGS = ("TYPE", "PROFILE", "SHARING", "ISOLATION", "MEMORY", "DEVICES")


def _kinds(devices: Sequence[Device]) -> list[tuple[str, ...]]:
    """Devices of one kind in a line; nothing when there are only GPUs for one claim each, as the first table has."""
    counts = Counter((*(_attribute(device, name) for name in _KIND), _memory(device)) for device in devices)
    if all(kind[:3] == ("gpu", "-", "exclusive") for kind in counts):
        return []
    return [(*kind, str(count)) for kind, count in counts.items()]


_KIND = ("type", "profile", "sharing", "isolation")


def _attribute(device: Device, name: str) -> str:
    value = device.attributes.get(name)
    return value.string or "-" if value is not None else "-"


def _memory(device: Device) -> str:
    amount = device.capacity.get("memory")
    return terminal.gibibytes(int(Quantity.parse(amount.value).value) if amount is not None else None)


def _injected(files: DriverFiles, cdi: CdiSpec) -> str:
    common = cdi.container_edits
    hook = f"links and linker cache by {files.hook.path}" if files.hook is not None else "no hook program is needed"
    return (
        f"Injected into containers: {len(common.device_nodes)} common device nodes and each GPU's own,"
        f" {len(common.mounts)} mounts;\n{hook}. In full: -o yaml."
    )


_HEADINGS = ("DEVICE", "PRODUCT", "MEMORY", "PCI ADDRESS", "NUMA", "MIG", "NVLINK")


def _row(gpu: GpuFacts) -> tuple[str, ...]:
    return (
        gpu.name,
        gpu.product_name.removeprefix("NVIDIA "),
        terminal.gibibytes(gpu.memory_bytes),
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
