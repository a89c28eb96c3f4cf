"""The flags of `dractl migrate`, and what people write behind them made into values."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dra_driver.cli.files import read_bytes
from dra_driver.kubernetes import named_minor
from dra_driver.migration.decisions import Decisions
from dra_driver.migration.model import Options, StrategyOption


class ReportFormat(StrEnum):
    MARKDOWN = "md"
    JSON = "json"


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
        "Nodes on which the result is tried: GPU models by the names of simulated nodes (dgx-h100,t4), or files of "
        "`dractl record`. Default: all models that are known; with --cluster its nodes.",
        "--nodes",
        metavar="MODEL,…",
    ),
]
TRY_SECONDS = 60.0
TryOption = Annotated[
    float,
    typer.Option(
        "--try-seconds", min=0.0, help="For trying the result; what is not tried by then is reported as not tried."
    ),
]
DecisionsOption = Annotated[
    Path | None,
    _option("What you decide, as YAML: see docs/migration.md. The report proposes it.", "--decisions", metavar="FILE"),
]
StrategyFlag = Annotated[
    StrategyOption | None, _option("The decision `strategy`, which counts instead of the file's.", "--strategy")
]
KubernetesOption = Annotated[
    str | None, _option("Version of the cluster; default 1.36.", "--kubernetes", metavar="1.36")
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


def decisions_of(file: Path | None, strategy: StrategyOption | None) -> Decisions:
    """Raises InvalidInput, and UnreadableFile."""
    decisions = Decisions.read(read_bytes(str(file)), str(file)) if file is not None else Decisions()
    return decisions if strategy is None else decisions.model_copy(update={"strategy": strategy})


def options_of(decisions: Decisions, kubernetes: str | None, minor: int | None) -> Options:
    """`minor` is that of a cluster, and counts if nobody named a version."""
    return decisions.options(named_minor(kubernetes) if kubernetes is not None else minor)


def models_of(text: str | None) -> tuple[str, ...]:
    """Names of models and files of records."""
    return tuple(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))
