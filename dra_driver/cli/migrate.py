"""`dractl migrate PATHS`: manifests that ask a device plugin for GPUs, made into such that ask by DRA.

Reads files or a cluster, decides by `dra_driver.migration`, and shows or writes. A cluster is only ever read.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dra_driver.cli.migrate_cluster import ClusterRead, read_cluster, relevant
from dra_driver.cli.migrate_files import diff, places_below, read_sources, together, write_beside, write_in_place
from dra_driver.cli.migrate_report import Gathered, json_text, reported, show, write_reports
from dra_driver.cli.output import Status, messages
from dra_driver.errors import InvalidInput
from dra_driver.migration.codes import Severity
from dra_driver.migration.migrate import migrate as migrated
from dra_driver.migration.model import Options, StrategyOption
from dra_driver.migration.outcome import Report
from dra_driver.migration.report import markdown
from dra_driver.migration.undo import undo as undone
from dra_driver.migration.verify import Verdict
from dra_driver.names import is_dns_subdomain
from dra_driver.quantity import Quantity


class ReportFormat(StrEnum):
    MARKDOWN = "md"
    JSON = "json"


class MigStrategy(StrEnum):
    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class SeveralShares(StrEnum):
    SHARES = "shares"
    DEVICES = "devices"


_UNITS = ("percent", "MiB", "GiB")
_STRATEGIES = ("time-slicing", "mps")
_STDOUT = "-"
_DEFAULTS = Options()


def _option(help_text: str, *names: str, metavar: str | None = None, panel: str | None = None) -> Any:
    return typer.Option(*names, help=help_text, metavar=metavar, show_default=False, rich_help_panel=panel)


PathsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATHS]",
        help="YAML or JSON files, folders with such files (kustomize folders, too), or - for standard input.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    bool,
    _option("Without PATHS: the workloads of a cluster. With PATHS: what is around them is asked of it.", "--cluster"),
]
KubeconfigOption = Annotated[Path | None, _option("Which cluster; default as with kubectl.", "--kubeconfig")]
ContextOption = Annotated[str | None, _option("Context of the kubeconfig.", "--context")]
NamespaceOption = Annotated[
    str | None, _option("With --cluster and no PATHS: workloads of this namespace only.", "--namespace", "-n")
]
WithOption = Annotated[
    list[str] | None,
    _option(
        "More files, read for what they say and never changed: the device plugin's configuration, ClusterPolicy, "
        "mig-parted configuration, nodes, slices; may be repeated.",
        "--with",
        metavar="PATH",
    ),
]
NodesOption = Annotated[
    str | None,
    _option(
        "GPU models on which the result is tried, by the names of simulated nodes: dgx-h100,t4. Default: all that are "
        "known; with --cluster its nodes, if they have slices.",
        "--nodes",
        metavar="PROFILE,…",
    ),
]
StrategyFlag = Annotated[
    StrategyOption,
    typer.Option(
        "--strategy",
        help="claims: all get claims. extended: manifests stay, and DeviceClasses answer to their resources. auto: the "
        "latter where it keeps the meaning and the cluster's version knows it.",
    ),
]
KubernetesOption = Annotated[
    str | None, _option("Version of the cluster; default 1.36.", "--kubernetes", metavar="1.36")
]
GateOption = Annotated[
    bool | None,
    _option(
        "Whether feature gate DRAExtendedResource is on; default: as in the version.",
        "--extended-resources/--no-extended-resources",
    ),
]
DriverOption = Annotated[str, typer.Option("--driver", help="Name of the driver.")]
GpuClassOption = Annotated[str, typer.Option("--gpu-class", help="DeviceClass of whole GPUs.")]
MigClassOption = Annotated[str, typer.Option("--mig-class", help="DeviceClass of MIG devices.")]
SharedClassOption = Annotated[str, typer.Option("--shared-class", help="DeviceClass of shares.")]
VfioClassOption = Annotated[str, typer.Option("--vfio-class", help="DeviceClass of GPUs for virtual machines.")]
MigStrategyOption = Annotated[
    MigStrategy | None, _option("MIG strategy of the device plugin, where no configuration says it.", "--mig-strategy")
]
MigProfileOption = Annotated[
    str | None, _option("With MIG strategy single: what nvidia.com/gpu is.", "--mig-profile", metavar="1g.10gb")
]
SharingOption = Annotated[
    str | None,
    _option(
        "How GPUs are shared, where no configuration says it: time-slicing:4, mps:10, or none.",
        "--sharing",
        metavar="STRATEGY:REPLICAS",
    ),
]
GpuMemoryOption = Annotated[
    str | None, _option("Memory of one GPU, to turn percent into amounts: 80Gi.", "--gpu-memory", metavar="AMOUNT")
]
UnitOption = Annotated[
    list[str] | None,
    _option(
        f"What a number of a resource is ({', '.join(_UNITS)}); may be repeated.",
        "--resource-unit",
        metavar="NAME=UNIT",
    ),
]
SharesOption = Annotated[
    SeveralShares,
    typer.Option(
        "--several-shares", help="A request for n shares becomes n shares of one device, or one of each of n."
    ),
]
VisibleOption = Annotated[
    bool,
    _option(
        "Containers with NVIDIA_VISIBLE_DEVICES=all get the GPUs of their pod's other containers.",
        "--share-visible-all",
    ),
]
PinOption = Annotated[bool, _option("UUIDs of GPUs become selectors.", "--pin-uuids")]
MpsOption = Annotated[bool, _option("Take out mounts and settings of a hand-made MPS daemon.", "--remove-mps-mounts")]
RuntimeOption = Annotated[bool, _option("Take out runtimeClassName: nvidia.", "--remove-runtime-class")]
UnknownOption = Annotated[
    bool, _option("Convert what looks like a pod in kinds that are not known, too.", "--unknown-kinds")
]
ArgoOption = Annotated[
    bool,
    _option("Argo Workflows is new enough for resourceClaims in templates.", "--argo-resource-claims"),
]
KserveOption = Annotated[
    bool,
    _option("KServe's default here is standard mode, whose pods keep claims.", "--kserve-standard"),
]
DynamicMigOption = Annotated[
    bool, _option("The driver makes MIG devices on demand, instead of the MIG manager.", "--dynamic-mig")
]
UndoNotesOption = Annotated[
    bool, _option("Do not keep the old requests in annotations; then --undo cannot work.", "--no-undo-annotations")
]
UndoOption = Annotated[
    bool, _option("The way back: the old requests, out of the annotations that were kept.", "--undo")
]
DiffOption = Annotated[bool, _option("Print what would change.", "--diff")]
InPlaceOption = Annotated[bool, _option("Write results over the files.", "--in-place")]
OutputOption = Annotated[
    str | None,
    _option(
        "Write results and reports into this folder; - prints the manifests instead.",
        "--output",
        "-o",
        metavar="DIR",
    ),
]
ReportOption = Annotated[ReportFormat | None, _option("Print the whole report.", "--report")]


def migrate(
    paths: PathsArgument = None,
    cluster: ClusterOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    around: WithOption = None,
    nodes: NodesOption = None,
    diff_only: DiffOption = False,
    in_place: InPlaceOption = False,
    output: OutputOption = None,
    report: ReportOption = None,
    undo: UndoOption = False,
    strategy: StrategyFlag = StrategyOption.AUTO,
    kubernetes: KubernetesOption = None,
    extended_resources: GateOption = None,
    mig_strategy: MigStrategyOption = None,
    mig_profile: MigProfileOption = None,
    sharing: SharingOption = None,
    gpu_memory: GpuMemoryOption = None,
    resource_unit: UnitOption = None,
    several_shares: SharesOption = SeveralShares.SHARES,
    share_visible_all: VisibleOption = False,
    pin_uuids: PinOption = False,
    remove_mps_mounts: MpsOption = False,
    remove_runtime_class: RuntimeOption = False,
    dynamic_mig: DynamicMigOption = False,
    unknown_kinds: UnknownOption = False,
    argo_resource_claims: ArgoOption = False,
    kserve_standard: KserveOption = False,
    no_undo_annotations: UndoNotesOption = False,
    driver: DriverOption = _DEFAULTS.driver,
    gpu_class: GpuClassOption = _DEFAULTS.gpu_class,
    mig_class: MigClassOption = _DEFAULTS.mig_class,
    shared_class: SharedClassOption = _DEFAULTS.shared_class,
    vfio_class: VfioClassOption = _DEFAULTS.vfio_class,
) -> None:
    """Move manifests from the device plugin and its relatives to DRA; without --in-place and -o nothing is written.

    Exit status 0 when all is done or only notes and warnings are left; 1 when there are errors, or the devices would
    not be the same; 3 when a file or the cluster cannot be read.
    """
    _refuse_several(diff_only, in_place, output, report)
    if namespace is not None and (paths or not cluster):
        raise InvalidInput("is for --cluster without PATHS", about="--namespace")
    read = read_cluster(kubeconfig, context, namespace) if cluster else None
    _refuse_odd_names(driver, {"--gpu-class": gpu_class, "--mig-class": mig_class, "--shared-class": shared_class,
                               "--vfio-class": vfio_class})  # fmt: skip
    replicas, sharing_strategy = _sharing(sharing)
    options = Options(
        strategy=strategy,
        driver=driver,
        gpu_class=gpu_class,
        mig_class=mig_class,
        shared_class=shared_class,
        vfio_class=vfio_class,
        kubernetes_minor=_minor(kubernetes) if kubernetes is not None else read.minor if read is not None else None,
        extended_resource_gate=extended_resources,
        mig_strategy=mig_strategy.value if mig_strategy is not None else None,
        mig_profile=mig_profile,
        replicas=replicas,
        sharing_strategy=sharing_strategy,
        gpu_memory=_amount(gpu_memory),
        resource_units=_units(resource_unit or ()),
        several_shares=several_shares.value,
        share_visible_all=share_visible_all,
        pin_uuids=pin_uuids,
        remove_mps_mounts=remove_mps_mounts,
        remove_runtime_class=remove_runtime_class,
        dynamic_mig=dynamic_mig,
        unknown_kinds=unknown_kinds,
        argo_resource_claims=argo_resource_claims,
        kserve_standard=kserve_standard,
        keep_undo=not no_undo_annotations,
    )
    work = _gathered(paths or [], around or [], read)
    result = undone(work.sources) if undo else migrated(work.sources, options, work.side)
    found = Report(result) if undo else reported(result, options, work, nodes)
    places = places_below([*(one.file for one in result.files), *(one.file for one in result.new_files)])
    if diff_only:
        for line in diff(result):
            typer.echo(line, nl=False)
    elif in_place:
        for done in write_in_place(result):
            messages.print(done, markup=False, soft_wrap=True)
    elif output == _STDOUT:
        typer.echo(together(result), nl=False)
    elif output is not None:
        write_beside(result, Path(output), places, only_changed=not paths)
        write_reports(found, Path(output))
    if report is not None:
        typer.echo(markdown(found) if report is ReportFormat.MARKDOWN else json_text(found), nl=False)
    elif not diff_only and output != _STDOUT:
        show(found, undone=undo)
    _end(found, work)


def _refuse_several(diff_only: bool, in_place: bool, output: str | None, report: ReportFormat | None) -> None:
    ways = [
        name for name, given in (("--diff", diff_only), ("--in-place", in_place), ("-o", output is not None)) if given
    ]
    if len(ways) > 1:
        raise InvalidInput("choose one of them", about=" and ".join(ways))
    if report is not None and (diff_only or output == _STDOUT):
        raise InvalidInput("both print to standard output; choose one", about=f"--report and {ways[0]}")


def _refuse_odd_names(driver: str, classes: Mapping[str, str]) -> None:
    """They would be in every manifest, and the API server would refuse all of them."""
    for flag, name, longest in (("--driver", driver, 63), *((flag, name, 253) for flag, name in classes.items())):
        if not is_dns_subdomain(name, longest=longest):
            raise InvalidInput(f"{name!r} is not a name like gpu.example.com", about=flag)


def _gathered(paths: Sequence[str], around: Sequence[str], read: ClusterRead | None) -> Gathered:
    if not paths and read is None:
        raise InvalidInput("name files or folders, - for standard input, or --cluster", about="PATHS")
    given, beside = read_sources(paths), read_sources(around)
    sources = given.sources if paths or read is None else relevant(read.workloads)
    side = (*beside.sources, *((read.around,) if read is not None else ()))
    return Gathered(sources, side, (*given.unreadable, *beside.unreadable), read)


def _minor(text: str) -> int:
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or parts[0] != "1" or not parts[1].isdecimal():
        raise InvalidInput(f"{text!r} is not a Kubernetes version like 1.36", about="--kubernetes")
    return int(parts[1])


def _sharing(text: str | None) -> tuple[int | None, str | None]:
    """Replicas and strategy."""
    if text is None:
        return None, None
    if text == "none":
        return 1, None
    name, colon, number = text.partition(":")
    if name not in _STRATEGIES or not colon or not number.isdecimal() or int(number) < 2:
        raise InvalidInput(f"{text!r} is not like time-slicing:4, mps:10 or none", about="--sharing")
    return int(number), name


def _amount(text: str | None) -> Quantity | None:
    if text is None:
        return None
    try:
        return Quantity.parse(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not an amount like 80Gi", about="--gpu-memory") from error


def _units(texts: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        name, equals, unit = text.partition("=")
        if not equals or unit not in _UNITS:
            raise InvalidInput(f"{text!r} is not NAME=UNIT, with one of {', '.join(_UNITS)}", about="--resource-unit")
        found[name] = unit
    return found


def _end(report: Report, work: Gathered) -> None:
    """What was not read, and the exit status."""
    for kind in work.read.unread if work.read is not None else ():
        messages.print(f"note: {kind}; the result leaves them out", markup=False, soft_wrap=True)
    for file, why in work.unreadable:
        messages.print(f"error: {file}: {why}", markup=False, soft_wrap=True)
    if work.unreadable:
        raise SystemExit(Status.UNREACHABLE)
    tried = report.verification.checked if report.verification is not None else ()
    certain = report.verification is not None and report.verification.certain
    bad = (Verdict.DIFFERS, Verdict.NOWHERE) if certain else (Verdict.DIFFERS,)
    if any(one.severity is Severity.ERROR for one in report.migration.findings) or any(
        one.verdict in bad for one in tried
    ):
        raise SystemExit(Status.NO)
