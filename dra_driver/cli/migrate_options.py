"""The flags of `dractl migrate`, and what people write behind them made into values.

What is no such value is refused here, in a sentence that names the flag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import named_minor
from dra_driver.migration.amounts import is_whole_or_mig
from dra_driver.migration.labels import restored_profile
from dra_driver.migration.model import Options, StrategyOption
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


_MOST_NODES = 1000
_UNITS = ("percent", "MiB", "GiB")
_OTHER = "other"
_STRATEGIES = ("time-slicing", "mps")
_LEAST_MEMORY = Quantity.parse("1Gi")
DEFAULTS = Options()


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
        "GPU models on which the result is tried, by the names of simulated nodes: dgx-h100,t4. With numbers "
        "(dgx-h100:2,t4:1) all workloads are tried on so many nodes at once, too. Default: all models that are known; "
        "with --cluster its nodes.",
        "--nodes",
        metavar="MODEL[:N],…",
    ),
]
TRY_SECONDS = 60.0
TryOption = Annotated[
    float,
    typer.Option(
        "--try-seconds", min=0.0, help="For trying the result; what is not tried by then is reported as not tried."
    ),
]
StrategyFlag = Annotated[
    list[str] | None,
    _option(
        "claims: all get claims. extended: manifests stay, and DeviceClasses answer to their resources. auto, the "
        "default: the latter where it keeps the meaning and the cluster's version knows it. For some workloads only: "
        "Deployment/search/embedder=extended, or 'search/*=claims', or a name; may be repeated, the last one counts.",
        "--strategy",
        metavar="[WORKLOAD=]STRATEGY",
    ),
]
SharedClaimOption = Annotated[
    list[str] | None,
    _option(
        "These workloads have the same devices: one ResourceClaim for all their pods, in one namespace. Workloads as "
        "with --strategy, with commas between them; may be repeated.",
        "--shared-claim",
        metavar="WORKLOAD,…",
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
    str | None,
    _option(
        "Memory of one GPU, to turn percent into amounts; as nvidia-smi has it: 81559Mi.",
        "--gpu-memory",
        metavar="AMOUNT",
    ),
]
UnitOption = Annotated[
    list[str] | None,
    _option(
        f"What a number of a resource is ({', '.join(_UNITS)}), or {_OTHER}: it is no GPU of NVIDIA, and stays as it "
        "is; may be repeated.",
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
KserveManagedOption = Annotated[
    bool,
    _option("KServe (0.20) makes claims of LLMInferenceServices itself, where it can.", "--kserve-managed-claims"),
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


def options_of(given: Mapping[str, Any], minor: int | None) -> Options:
    """Of what typer read, by the names of the parameters: those of a field have its name, unless they are made into
    something else here. `minor` is that of a cluster, and counts where nobody said a version."""
    names = {"--gpu-class": "gpu_class", "--mig-class": "mig_class", "--shared-class": "shared_class",
             "--vfio-class": "vfio_class"}  # fmt: skip
    refuse_odd_names(given["driver"], {flag: given[name] for flag, name in names.items()})
    strategy, strategy_of = strategies_of(given["strategy"] or ())
    replicas, sharing_strategy = sharing_of(given["sharing"])
    units, others = units_of(given["resource_unit"] or ())
    as_they_are = {one.name: given[one.name] for one in fields(Options) if one.name in given}
    made = {
        "strategy": strategy,
        "strategy_of": strategy_of,
        "shared_claims": shared_claims_of(given["shared_claim"] or ()),
        "kubernetes_minor": named_minor(given["kubernetes"]) if given["kubernetes"] is not None else minor,
        "extended_resource_gate": given["extended_resources"],
        "replicas": replicas,
        "sharing_strategy": sharing_strategy,
        "mig_profile": profile_of(given["mig_profile"]),
        "gpu_memory": memory_of(given["gpu_memory"]),
        "resource_units": units,
        "other_resources": others,
        "keep_undo": not given["no_undo_annotations"],
    }
    return Options(**{**as_they_are, **made})


def refuse_odd_names(driver: str, classes: Mapping[str, str]) -> None:
    """They would be in every manifest, and the API server would refuse all of them."""
    for flag, name, longest in (("--driver", driver, 63), *((flag, name, 253) for flag, name in classes.items())):
        if not is_dns_subdomain(name, longest=longest):
            raise InvalidInput(f"{name!r} is not a name like gpu.example.com", about=flag)


def sharing_of(text: str | None) -> tuple[int | None, str | None]:
    """Replicas and strategy."""
    if text is None:
        return None, None
    if text == "none":
        return 1, None
    name, colon, number = text.partition(":")
    if name not in _STRATEGIES or not colon or not number.isdecimal() or int(number) < 2:
        raise InvalidInput(f"{text!r} is not like time-slicing:4, mps:10 or none", about="--sharing")
    return int(number), name


def memory_of(text: str | None) -> Quantity | None:
    if text is None:
        return None
    try:
        found = Quantity.parse(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not an amount like 80Gi", about="--gpu-memory") from error
    if found < _LEAST_MEMORY:
        raise InvalidInput(f"{text!r} is less than any GPU has; say the unit, as in 80Gi", about="--gpu-memory")
    return found


def profile_of(text: str | None) -> str | None:
    """As NVML spells it, also where somebody took it from the name of a resource."""
    found = restored_profile(text) if text is not None else None
    if text is not None and found is None:
        raise InvalidInput(f"{text!r} is not a MIG profile like 1g.10gb or 1g.10gb+me", about="--mig-profile")
    return found


def units_of(texts: Sequence[str]) -> tuple[Mapping[str, str], frozenset[str]]:
    """Units by resource, and resources that are no GPUs of NVIDIA."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, unit = text.partition("=")
        if not name or unit not in (*_UNITS, _OTHER):
            known = ", ".join((*_UNITS, _OTHER))
            raise InvalidInput(f"{text!r} is not NAME=UNIT, with one of {known}", about="--resource-unit")
        if is_whole_or_mig(name):
            message = (
                f"{name} is a number of devices; what they are is said by --sharing, --mig-strategy, --mig-profile"
            )
            raise InvalidInput(message, about="--resource-unit")
        if found.setdefault(name, unit) != unit:
            raise InvalidInput(f"{name} cannot be {found[name]} and {unit} at once", about="--resource-unit")
    units = {name: unit for name, unit in found.items() if unit != _OTHER}
    return units, frozenset(found.keys() - units.keys())


def strategies_of(texts: Sequence[str]) -> tuple[StrategyOption, tuple[tuple[str, StrategyOption], ...]]:
    """That of all workloads, and those of some by what names them."""
    found = StrategyOption.AUTO
    own: list[tuple[str, StrategyOption]] = []
    for text in texts:
        workloads, equals, name = text.rpartition("=")
        if name not in set(StrategyOption) or bool(equals) != bool(workloads):
            known = ", ".join(StrategyOption)
            raise InvalidInput(f"{text!r} is not [WORKLOAD=]STRATEGY, with one of {known}", about="--strategy")
        if workloads:
            own.append((workloads, StrategyOption(name)))
        else:
            found = StrategyOption(name)
    return found, tuple(own)


def shared_claims_of(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    found = tuple(tuple(name.strip() for name in text.split(",") if name.strip()) for text in texts)
    if not all(found):
        raise InvalidInput("name the workloads that share devices", about="--shared-claim")
    return found


def models_of(text: str | None) -> Mapping[str, int] | Sequence[str]:
    """By name, with numbers where one was written; the names alone where none was."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    counts: dict[str, int] = {}
    for part in parts:
        name, colon, number = part.partition(":")
        if colon and not (number.isdecimal() and 0 < int(number) <= _MOST_NODES):
            raise InvalidInput(f"{part!r} is not MODEL or MODEL:NUMBER", about="--nodes")
        counts[name] = counts.get(name, 0) + int(number or 1)
    return counts if any(":" in part for part in parts) else tuple(counts)
