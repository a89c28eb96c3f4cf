"""`dractl get KIND [NAME]`: who uses which GPU, what is free, and how much of it one claim could have; GpuPolicies and
ComputeDomains by their status, which the controller writes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from dra_driver.api.meta import COMPUTE_DOMAINS, GPU_POLICIES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_driver.cli.completion import names_of
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask
from dra_driver.cli.tables import sheets
from dra_driver.cli.tables.following import Following, read_objects
from dra_driver.cli.tables.seen import READ_AS, SHOWN, Objects, Selection
from dra_driver.cli.tables.sheets import Asked, GetAnswer
from dra_driver.errors import ClusterError, InvalidInput, NotFound, Rejected
from dra_driver.jsonpath import filled, read_template
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER
from dra_driver.phrases import meant
from dra_driver.runtime.tasks import until
from dra_driver.terminal import (
    Format,
    Sheet,
    Status,
    print_data,
    print_exactly,
    print_lines,
    print_message,
    print_rows,
    terminal_width,
)

_DRIVERS = [GPU_DRIVER, COMPUTE_DOMAIN_DRIVER]
_TOGETHER_S = 0.3
"""Changes that come within this time are shown together."""
_LOOK_S = 2.0
"""How often a watch looks whether the API server still answers."""
_BAD_REQUEST = 400


@dataclass(frozen=True, slots=True)
class Kind:
    """Something to show. Namespace and labels select objects of `subject`. Without the `required` there is no answer;
    the `others` make it better, and those that are `drawn` matter to the map only."""

    words: tuple[str, ...]
    subject: Resource
    others: tuple[Resource, ...]
    answer: Callable[[Objects, Asked], GetAnswer]
    required: tuple[Resource, ...] = ()
    title: str | None = None
    """How its rows are named; None: as kubectl names objects of `subject`."""
    drawn: tuple[Resource, ...] = ()

    def named(self, row: Sequence[str]) -> str:
        """As kubectl writes names, so that it also reads them: without the namespace."""
        if self.title is not None:
            return f"{self.title}/{'/'.join(row)}"
        group = f".{self.subject.group}" if self.subject.group else ""
        return f"{self.subject.kind.lower()}{group}/{row[-1]}"


_PUBLISHED = (RESOURCE_SLICES, RESOURCE_CLAIMS)
_WITHOUT_PODS = tuple(kind for kind in SHOWN if kind != PODS)
"""A table of nodes names no pods, and pods are most of what a large cluster has."""
KINDS = (
    Kind(("nodes", "node", "no"), NODES, _WITHOUT_PODS, sheets.nodes, _PUBLISHED, drawn=(PODS,)),
    Kind(("devices", "device", "gpus", "gpu"), NODES, SHOWN, sheets.devices, _PUBLISHED, "device"),
    Kind(
        ("claims", "claim", "resourceclaims", "resourceclaim"), RESOURCE_CLAIMS, (RESOURCE_SLICES, PODS), sheets.claims
    ),
    Kind(("policies", "policy", "gpupolicies", "gpupolicy"), GPU_POLICIES, (), sheets.policies),
    Kind(("domains", "domain", "computedomains", "computedomain"), COMPUTE_DOMAINS, (), sheets.domains),
)
_BY_WORD: Mapping[str, Kind] = {word: kind for kind in KINDS for word in kind.words}


class Form(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"
    HTML = "html"
    JSONPATH = "jsonpath"


_FORMS = [*(form.value for form in Form if form is not Form.JSONPATH), "jsonpath=TEMPLATE"]


def _words(incomplete: str) -> list[str]:
    return [kind.words[0] for kind in KINDS if kind.words[0].startswith(incomplete)]


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    kind = _BY_WORD.get(ctx.params.get("kind") or "")
    if kind is None:
        return []
    resource = RESOURCE_SLICES if kind.title is not None else kind.subject
    return names_of(resource, incomplete, ctx.params.get("kubeconfig"), ctx.params.get("context"))


def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="nodes|devices|claims|policies|domains",
            help="What to show; the singular works too, and node/NAME.",
            autocompletion=_words,
        ),
    ],
    names: Annotated[
        list[str] | None, typer.Argument(help="Show only these; default: all.", autocompletion=_names)
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="|".join(_FORMS),
            help="Output format: wide has more columns, html is a page with a map, jsonpath selects from json.",
            autocompletion=lambda: _FORMS,
        ),
    ] = Form.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="After listing, print each row that changes, until Ctrl-C.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Show claims and domains of this namespace; default: all.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces; this is the default.")
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            "--selector", "-l", help="Select by labels, as kubectl does; nodes and devices by the labels of the node."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every published device, including partitions and shares.")
    ] = False,
    free: Annotated[bool, typer.Option("--free", help="Show only GPUs with free capacity.")] = False,
    node: Annotated[str | None, typer.Option("--node", help="Show only devices of this node.")] = None,
    drivers: Annotated[
        list[str],
        typer.Option("--driver", help="Drivers whose devices to show, the GPUs' driver first; can be repeated."),
    ] = _DRIVERS,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show nodes, devices, claims, GpuPolicies or ComputeDomains, and who uses what.

    nodes: hardware, health, what is free, and the largest request that still fits, as a claim without tolerations would
    get it now. devices: GPUs, each drawn as its memory slices, and the claims that have them; a letter is a claim. One
    GPU can be published as many devices, partitions and shares: --all lists them. claims: what each asked for, what it
    got, and for whom. policies: what they select and offer, what waits, and what fails. domains: how many of their
    nodes are ready, and why a domain is not.

    \b
    Examples:
      dractl get nodes
      dractl get devices --node gpu-node-1 --free
      dractl get claims -n team-a -w
      dractl get node gpu-node-1 -o yaml
      dractl get nodes -l nvidia.com/gpu.product=NVIDIA-H100 -o name
      dractl get devices -o html > gpus.html
      dractl get devices -o jsonpath='{range [*]}{.gpu} {.state}{"\\n"}{end}'
    """
    chosen, more = _kind(kind)
    form = _form(output)
    _refuse(chosen, namespace, all_namespaces=all_namespaces, of_devices=bool(every or free or node))
    if form is Form.HTML and (chosen.subject != NODES or every or watch):
        raise InvalidInput(
            "html draws the GPUs of get nodes and get devices, without --all and --watch", about="--output"
        )
    asked = Asked(datetime.now(UTC), 0, drivers, {*more, *(names or ())}, labels, node, free, every)
    question = _Get(chosen, form, asked, namespace, output.partition("=")[2])
    if watch:
        try:
            ask(kubeconfig, context, question.followed)
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # as kubectl and other programs that a signal ends
    else:
        question.show(ask(kubeconfig, context, question.answered))
    question.end()


def _filters(asked: Asked) -> str:
    """The options that leave out rows, as a user writes them."""
    options = {"--selector": asked.labels, "--node": asked.node}
    written = [f"{name} {value}" for name, value in options.items() if value is not None]
    drivers = [f"--driver {driver}" for driver in asked.drivers if list(asked.drivers) != _DRIVERS]
    return " ".join([*written, *(["--free"] if asked.free else []), *drivers])


def _refuse(kind: Kind, namespace: str | None, *, all_namespaces: bool, of_devices: bool) -> None:
    """Options that this kind does not have."""
    if namespace is not None and all_namespaces:
        raise InvalidInput("exclude each other", about="--namespace and --all-namespaces")
    if kind.title is None and of_devices:
        raise InvalidInput("are for devices", about="--all, --free and --node")
    if namespace is not None and not kind.subject.namespaced:
        raise InvalidInput(f"{kind.words[0]} have no namespace", about="--namespace")


def _kind(word: str) -> tuple[Kind, list[str]]:
    """Of `nodes`, or of `node/NAME` with the name."""
    name, slash, rest = word.partition("/")
    kind = _BY_WORD.get(name.lower())
    if kind is None:
        raise InvalidInput(
            f"there is nothing of this kind to show{meant(name, _BY_WORD)}; try {', '.join(_words(''))}", about=name
        )
    return kind, [rest] if slash else []


def _form(output: str) -> Form:
    name, equals, _ = output.partition("=")
    if name not in list(Form) or bool(equals) is not (name == Form.JSONPATH):
        choices = ", ".join(map(repr, _FORMS))
        raise typer.BadParameter(f"{output!r} is not one of {choices}.", param_hint="'--output' / '-o'")
    return Form(name)


class _Get:
    """One run of the command: what it reads, once or as long as it changes, and how it prints the answers."""

    def __init__(self, kind: Kind, form: Form, asked: Asked, namespace: str | None, template: str) -> None:
        """Raises InvalidInput for a template of JSONPath that cannot be parsed."""
        self._kind = kind
        self._form = form
        self._asked = asked
        self._template = read_template(template) if form is Form.JSONPATH else ()
        self._reads = tuple(dict.fromkeys((kind.subject, *kind.others, *(kind.drawn if form is Form.HTML else ()))))
        # Pods that use claims are in their namespace, which may be the only one that the user may read.
        self._selected: dict[Resource, Selection] = {item: (namespace, None) for item in self._reads if item.namespaced}
        self._selected[kind.subject] = (namespace, asked.labels)
        subject_decides = not kind.required or asked.labels is not None
        self._required = (kind.subject, *kind.required) if subject_decides else kind.required
        self._seen: set[str] = set()
        """All names that rows had so far, with and without what is before the last slash."""
        self._before: Mapping[tuple[str, ...], object] | None = None

    # -- the cluster

    async def answered(self, kube: Kube) -> GetAnswer:
        """Raises InvalidInput if the cluster does not know the kind, or cannot parse the selector."""
        _, minor = await kube.server_version()
        try:
            objects = await read_objects(kube, self._reads, self._required, selected=self._selected)
        except (NotFound, Rejected) as error:
            raise self._for_the_user(error) from error
        return self._kind.answer(objects, replace(self._asked, minor=minor))

    async def followed(self, kube: Kube) -> None:
        """Prints what changes, until cancelled."""
        _, minor = await kube.server_version()
        following = Following(kube, {kind: READ_AS[kind] for kind in self._reads}, selected=self._selected)
        async with following.running():
            try:
                await following.until_read(self._required)
            except (NotFound, Rejected) as error:
                raise self._for_the_user(error) from error
            missing: list[str] = []
            while True:
                following.changed.clear()
                asked = replace(self._asked, minor=minor, now=datetime.now(UTC))
                self._show_changes(self._kind.answer(following.objects(), asked))
                missing = await _until_changed(following, missing)
                await asyncio.sleep(_TOGETHER_S)

    def _for_the_user(self, error: ClusterError) -> InvalidInput | ClusterError:
        if error.status == _BAD_REQUEST and self._asked.labels is not None:
            return InvalidInput(f"{self._asked.labels!r} is not a valid selector: {error.message}", about="--selector")
        if not isinstance(error, NotFound) or self._kind.subject not in (GPU_POLICIES, COMPUTE_DOMAINS):
            return error
        message = "this cluster does not have them; their definition comes with the driver's chart"
        return InvalidInput(message, about=self._kind.subject.kind)

    # -- what is printed

    def show(self, answer: GetAnswer, *, paged: bool = True) -> None:
        sheet, wide = answer.sheet, self._form is Form.WIDE
        if filters := _filters(self._asked):
            sheet = replace(sheet, empty=f"No {self._kind.words[0]} match {filters}.")
        self._learn(sheet)
        if self._form is Form.HTML and answer.map is not None:
            # The pages take longer to import than a table to print.
            from dra_driver.cli.ui.pages import static_page
            from dra_driver.cli.ui.ui_server import style

            print_exactly(f"{static_page(answer.map, style(), datetime.now(UTC))}\n")
            return
        if self._form not in (Form.TABLE, Form.WIDE):
            self._print_data(sheet, sheet.data())
            return
        if answer.summary is not None:
            print_message(answer.summary)
        # Without rows of what was asked for by name, `end` says what does not exist.
        if sheet.rows or not (self._seen or self._asked.names):
            print_rows(sheet, wide=wide, paged=paged)
        for more in answer.more:
            if more.rows:
                typer.echo()
                print_rows(more, wide=wide, paged=paged)
        for note in answer.notes:
            print_message(note)

    def _show_changes(self, answer: GetAnswer) -> None:
        """All of the first answer, then the rows that differ from those of the answer before."""
        sheet = answer.sheet
        rows = {_key(sheet, row): item for row, item in zip(sheet.rows, sheet.data(), strict=True)}
        before, self._before = self._before, rows
        if before is None:
            # A pager would stop the watch until the user quits it.
            self.show(answer, paged=False)
            return
        self._learn(sheet)
        news = [number for number, (key, item) in enumerate(rows.items()) if before.get(key) != item]
        if self._form in (Form.TABLE, Form.WIDE):
            lines = sheet.lines(terminal_width(), wide=self._form is Form.WIDE)[1:]
            print_lines([lines[number] for number in news], paged=False)
        elif news:
            self._print_data(replace(sheet, rows=[sheet.rows[number] for number in news]), [*rows.values()])
        for key in sorted(before.keys() - rows.keys()):
            print_message(f"{self._kind.words[1]} {'/'.join(key)} is gone")

    def _learn(self, sheet: Sheet) -> None:
        for row in sheet.rows:
            key = _key(sheet, row)
            self._seen |= {key[-1], "/".join(key)}

    def _print_data(self, sheet: Sheet, data: list[dict[str, object]]) -> None:
        if self._form is Form.NAME:
            for row in sheet.rows:
                typer.echo(self._kind.named(_key(sheet, row)))
        elif self._form is Form.JSONPATH:
            print_exactly(filled(self._template, data))
        else:
            print_data(data, Format(self._form.value))

    def end(self) -> None:
        """Status 1 if something that was asked for by name does not exist."""
        missing = sorted(set(self._asked.names) - self._seen)
        for name in missing:
            hint = f"; for the devices of a node: --node {name}" if self._kind.title is not None else ""
            text = f"error: {self._kind.words[1]} {name}: does not exist{hint}"
            print_message(text)
        if missing:
            raise SystemExit(Status.NO)


async def _until_changed(following: Following, missing: list[str]) -> list[str]:
    """Reports that there is no news, because the API server does not answer, and when there is again. `missing` is what
    was reported last, as the result is."""
    while not following.changed.is_set():
        now = following.notes(())
        if now != missing:
            print_message("; ".join(now) or "the API server answers again")
            missing = now
        await until(following.changed, _LOOK_S)
    return missing


def _key(sheet: Sheet, row: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(row[heading]) for heading in sheet.named)
