"""`dractl bundle`: a support archive without secrets, of a cluster or of this node; changes nothing."""

import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.cli.doctor import (
    CdiHookOption,
    CdiRootOption,
    DriverOption,
    DriverRootOption,
    KubeletRootOption,
    NodeOption,
    SimulateOption,
    patience,
    release,
    report_of,
)
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask
from dra_driver.doctor.archive import FACTS, NODE_FACTS, Bundle, Logs
from dra_driver.doctor.findings import DoctorReport, rendered
from dra_driver.doctor.node_part import NodePlaces, node_part
from dra_driver.doctor.reading import Reader
from dra_driver.doctor.redaction import Anonymity
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.terminal import HostRootOption, messages

_WIDTH = 140


def bundle(
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="FILE", help="Archive to write; default: gpu-dra-bundle-TIME.tar.gz in this folder."
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=1, help="How many of the last lines of each log to include.")
    ] = 5000,
    anonymize: Annotated[
        bool,
        typer.Option(
            "--anonymize",
            help="Replace names of nodes, namespaces, pods and claims, UUIDs, serial numbers and addresses.",
        ),
    ] = False,
    node: NodeOption = False,
    driver: DriverOption = None,
    host_root: HostRootOption = Path("/"),
    kubelet_root: KubeletRootOption = Path("/var/lib/kubelet"),
    cdi_root: CdiRootOption = Path("/var/run/cdi"),
    driver_root: DriverRootOption = None,
    cdi_hook: CdiHookOption = None,
    simulate: SimulateOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Make an archive for a support case: objects, logs, metrics, and what `dractl doctor` says. Without secrets.

    What cannot be read is in its errors.txt. `dractl doctor --from FILE` judges it again.

    \b
    Examples:
      dractl bundle --anonymize
      dractl bundle --node --archive node.tar.gz
    """
    now = datetime.now(UTC)
    archive = archive or Path(f"gpu-dra-bundle-{now:%Y%m%d-%H%M%S}.tar.gz")
    if os.path.lexists(archive):
        raise InvalidInput("already exists; choose another name with --archive", about=f"file {archive}")
    anonymity = Anonymity() if anonymize else None
    with tempfile.TemporaryDirectory(prefix="gpu-dra-bundle-") as folder:
        made = Bundle(Path(folder), anonymity)
        if node:
            places = NodePlaces(
                host_root, kubelet_root, cdi_root, driver or GPU_DRIVER, driver_root, cdi_hook, simulate
            )
            put_node(made, places, anonymity)
        else:
            ask(kubeconfig, context, lambda kube: put_cluster(made, kube, driver, lines))
        made.pack(archive, release=release(), time=now)
    messages.print(f"{archive}: {-(-archive.stat().st_size // 1024)} KiB", markup=False, soft_wrap=True)
    for error in made.errors[:_SHOWN_ERRORS]:
        messages.print(f"not in it: {error}", markup=False, soft_wrap=True)
    if len(made.errors) > _SHOWN_ERRORS:
        messages.print(f"not in it: {len(made.errors) - _SHOWN_ERRORS} more, see its errors.txt", markup=False)


_SHOWN_ERRORS = 10


async def put_cluster(
    made: Bundle,
    kube: Kube,
    driver: str | None,
    lines: int,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Everything of the cluster. Raises ClusterError when it cannot be asked at all."""
    reader = Reader(kube, release=release(), driver=driver, take=made.add, now=now)
    async with patience(reader):
        cluster, facts = await reader.read()
        ours = tuple(pod for pod in cluster.pods.items if pod.program is not None)
        await reader.waited("logs and metrics", Logs(kube, made, lines=lines).read(ours))
    made.data(FACTS, facts.to_wire())
    for unread in facts.all_unread():
        made.error(unread.what, unread.sentence if unread.permission else unread.why)
    for note in reader.objects.notes:
        made.error("objects", note)
    put_report(made, report_of(cluster, reader.objects.notes))


def put_node(made: Bundle, places: NodePlaces, anonymity: Anonymity | None) -> None:
    """Everything of this machine."""
    part = node_part()
    seen = part.look(places)
    if anonymity is not None:
        anonymity.learn("node", str(seen.get("node") or ""))
    made.data(NODE_FACTS, seen)
    for file in part.files(places):
        if file.problem is not None:
            made.error(file.name, file.problem)
        elif file.content is not None:
            made.content(file.name, file.content)
        else:
            made.text(file.name, file.lines)
    put_report(made, DoctorReport(part.findings(seen)))


def put_report(made: Bundle, report: DoctorReport) -> None:
    made.data("doctor.json", report.to_data())
    made.text("doctor.txt", rendered(report, _WIDTH, verbose=True))
