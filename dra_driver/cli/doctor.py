"""`dractl doctor`: what is wrong with an installation and what to do about it; of a cluster, this node, or a bundle.
`dractl bundle`: a support archive without secrets, of a cluster or of this node; changes nothing.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dra_driver import __version__, bundled
from dra_driver.api.meta import JsonObject
from dra_driver.checking.check import class_errors
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask
from dra_driver.doctor.archive import FACTS, NODE_FACTS, Bundle, Logs, stored
from dra_driver.doctor.checks import cluster_checks
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check, Diagnosis, DoctorReport, Verdict, examined, rendered, summary
from dra_driver.doctor.node_part import NodePlaces, node_part
from dra_driver.doctor.proofs import ProofChange
from dra_driver.doctor.reading import Reader
from dra_driver.doctor.redaction import Anonymity
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import and_more
from dra_driver.terminal import Format, HostRootOption, OutputOption, SafeConsole, Status, print_data, print_message

_QUIET_S = 2.0
_NEWS_S = 5.0
_WIDEST = 140

NodeOption = Annotated[
    bool, typer.Option("--node", help="Check this machine instead of a cluster; run as root for complete results.")
]
DriverOption = Annotated[
    str | None,
    typer.Option("--driver", help="Driver name; default: the one in the plugin's DaemonSet, otherwise gpu.nvidia.com."),
]
KubeletRootOption = Annotated[
    Path, typer.Option("--kubelet-root", readable=False, help="With --node: the kubelet's folder.")
]
CdiRootOption = Annotated[
    Path, typer.Option("--cdi-root", readable=False, help="With --node: the folder of the driver's CDI files.")
]
DriverRootOption = Annotated[
    str | None,
    typer.Option("--driver-root", help="With --node: folder of the NVIDIA driver; default: search for it."),
]
CdiHookOption = Annotated[
    str | None, typer.Option("--cdi-hook", help="With --node: the plugin's setting `--cdi-hook`, a path or `none`.")
]
SimulateOption = Annotated[
    str | None,
    typer.Option(
        "--simulate", metavar="PROFILE|FILE[:N]", help="With --node: use simulated hardware below --host-root."
    ),
]


def doctor(
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="BUNDLE", help="Check a bundle made by `dractl bundle` instead of a cluster."),
    ] = None,
    node: NodeOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings and unknown results as problems.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show checks that passed or were skipped.")
    ] = False,
    output: OutputOption = Format.TABLE,
    driver: DriverOption = None,
    host_root: HostRootOption = Path("/"),
    kubelet_root: KubeletRootOption = Path("/var/lib/kubelet"),
    cdi_root: CdiRootOption = Path("/var/run/cdi"),
    driver_root: DriverRootOption = None,
    cdi_hook: CdiHookOption = None,
    simulate: SimulateOption = None,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Test what containers need: on this machine with --node, and in pods on a node."),
    ] = False,
    also: Annotated[
        list[ProofChange] | None,
        typer.Option("--also", help="With --prove: also test this; it changes the node for a moment. Can be repeated."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NODE",
            help="With --prove: node to create the pods on; default with --node: this machine.",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="With --prove: image of the pods; default: the image of the node's plugin."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="With --prove: seconds to wait for each pod.")
    ] = 90.0,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="FILE", help="With --prove: archive to write; default: gpu-dra-proof.tar.gz."
        ),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """What is wrong with the driver's installation, and what to do about it; the worst first.

    Changes nothing, but for --prove, which takes back what it does. docs/doctor.md lists the checks. Exit status 0 when
    there is no problem, 1 when there is one, 3 when the cluster cannot be reached.

    \b
    Examples:
      dractl doctor
      dractl doctor -v
      dractl doctor --node --prove
      dractl doctor --from gpu-dra-bundle.tar.gz
    """
    if from_ is not None and node:
        raise InvalidInput("a bundle has its own node; leave one of the two out", about="--from and --node")
    if not node and (driver_root is not None or cdi_hook is not None or simulate is not None):
        raise InvalidInput("need --node", about="--driver-root, --cdi-hook and --simulate")
    places = NodePlaces(host_root, kubelet_root, cdi_root, driver or GPU_DRIVER, driver_root, cdi_hook, simulate)
    if prove:
        if from_ is not None or not (node or on):
            raise InvalidInput("needs --node, --on NODE, or both, and no --from", about="--prove")
        # Imported here, because only proofs need it.
        from dra_driver.cli.prove import PodOptions, node_name
        from dra_driver.cli.prove import prove as prove_node

        options = PodOptions(on or node_name(), driver or GPU_DRIVER, also or (), image, timeout)
        prove_node(places if node else None, options, kubeconfig, context, archive, output)
        return
    if also or on or image or archive:
        raise InvalidInput("need --prove", about="--also, --on, --image and --archive")
    if from_ is not None:
        report = report_of_bundle(from_)
    elif node:
        part = node_part()
        report = DoctorReport(part.findings(part.look(places)))
    else:
        report = ask(kubeconfig, context, lambda kube: _report_of_cluster(kube, driver))
    _print(report, output, verbose=verbose)
    bad = (Verdict.PROBLEM, Verdict.WARNING, Verdict.UNKNOWN) if strict else (Verdict.PROBLEM,)
    if any(finding.verdict in bad for finding in report.findings):
        raise SystemExit(Status.NO)


async def _report_of_cluster(kube: Kube, driver: str | None) -> DoctorReport:
    reader = Reader(kube, release=__version__, driver=driver)
    async with patience(reader):
        cluster, _ = await reader.read()
    return report_of(cluster, reader.objects.notes)


def report_of(cluster: ClusterView, notes: list[str]) -> DoctorReport:
    return DoctorReport(examined(shipped_checks(), cluster), tuple(notes))


def report_of_bundle(path: Path) -> DoctorReport:
    """Of the cluster, then of the node that is in it. Raises InvalidInput for a file that is no bundle."""
    read = stored(path)
    findings: tuple[Diagnosis, ...] = ()
    notes = []
    if read.facts is not None:
        findings += examined(shipped_checks(), read.objects.cluster(read.facts))
        notes.append(f"of {read.facts.time.isoformat(timespec='seconds')}, as release {read.facts.release} read it")
    if read.node is not None:
        findings += node_part().findings(read.node)
    if read.anonymous:
        notes.append("names are anonymized")
    return DoctorReport(findings, (*notes, *read.objects.notes))


def shipped_checks() -> tuple[Check[ClusterView], ...]:
    """With the definitions and classes of this release to compare with."""
    return cluster_checks(_shipped(bundled.CRDS_FOLDER), _shipped(bundled.DEVICE_CLASSES_FOLDER), class_errors)


def _shipped(folder: Path) -> tuple[JsonObject, ...]:
    return tuple(obj for path in sorted(folder.glob("*.yaml")) for obj in bundled.read_documents(path.read_text()))


@asynccontextmanager
async def patience(reader: Reader) -> AsyncIterator[None]:
    """Report what the command waits for, when it takes longer than two seconds."""
    telling = asyncio.create_task(_tell(reader))
    try:
        yield
    finally:
        telling.cancel()


async def _tell(reader: Reader) -> None:
    await asyncio.sleep(_QUIET_S)
    while True:
        print_message(progress(reader))
        await asyncio.sleep(_NEWS_S)


def progress(reader: Reader) -> str:
    """`reading pods, resourceslices; 14 answers so far`"""
    waiting = sorted(set(reader.waiting))
    return f"reading {and_more(waiting, 5) or 'on'}; {reader.answered} answers so far"


# -- printing


_COLORS = {Verdict.PROBLEM: "bold red", Verdict.WARNING: "yellow", Verdict.UNKNOWN: "magenta", Verdict.OK: "green"}


def _print(report: DoctorReport, output: Format, *, verbose: bool) -> None:
    if output is not Format.TABLE:
        print_data(report.to_data(), output)
        return
    console = SafeConsole(highlight=False, emoji=False, soft_wrap=True)
    for line in rendered(report, min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST), verbose=verbose):
        text = Text(line)
        for verdict, color in _COLORS.items():
            text.highlight_regex(rf"^{verdict} ", color)
        console.print(text)
    for note in report.notes:
        print_message(note)
    hidden = report.count(Verdict.OK) + report.count(Verdict.SKIPPED)
    more = f" (-v shows {hidden} more)" if hidden and not verbose else ""
    print_message(f"{summary(report)}{more}")


# -- the support archive

_WIDTH = 140
_SHOWN_ERRORS = 10


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
    refuse_archive(archive)
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
        made.pack(archive, release=__version__, time=now)
    print_message(f"{archive}: {-(-archive.stat().st_size // 1024)} KiB")
    for error in made.errors[:_SHOWN_ERRORS]:
        print_message(f"not in it: {error}")
    if len(made.errors) > _SHOWN_ERRORS:
        print_message(f"not in it: {len(made.errors) - _SHOWN_ERRORS} more, see its errors.txt")


def refuse_archive(archive: Path) -> None:
    """Before its content is read, which takes minutes. Raises InvalidInput."""
    if os.path.lexists(archive):
        raise InvalidInput("already exists; choose another name with --archive", about=f"file {archive}")
    if not os.access(archive.parent, os.W_OK):
        raise InvalidInput("cannot be written; name another file with --archive", about=f"folder {archive.parent}")


async def put_cluster(
    made: Bundle,
    kube: Kube,
    driver: str | None,
    lines: int,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Everything of the cluster. Raises ClusterError when it cannot be asked at all."""
    reader = Reader(kube, release=__version__, driver=driver, take=made.add, now=now)
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
