"""`dractl`: the commands, and where they live.

Each command is a module of this folder, or of another package that is named here as text only: this package imports
the node plugin nowhere. A command is imported when it is run: `dractl --help` and a mistyped command need only names
and a line of help, and the simulated cluster behind one command must not slow down the others.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer._completion_classes import completion_init
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """`target` is `module:name` of a function, or of a `typer.Typer` with commands of its own; `help` is one line."""

    name: str
    target: str
    help: str

    def load(self) -> Any:
        """The command, ready to be run."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        around = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        around.callback()(_nothing)
        if isinstance(command, typer.Typer):
            around.add_typer(command, name=self.name)
        else:
            around.command(self.name)(command)
        group = typer.main.get_command(around)
        assert isinstance(group, TyperGroup), "a Typer with a callback is a group"
        loaded = group.commands[self.name]
        if isinstance(loaded, TyperGroup):
            for nested in loaded.commands.values():
                # The first sentence, which would be cut to 45 characters without this.
                nested.short_help = (nested.help or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0]
        return loaded


def _nothing() -> None:
    """What a group needs to be one when it has a single command."""


def lazy_group(commands: Iterable[LazyCommand], *, before: Callable[[], None]) -> type[TyperGroup]:
    """A class of groups with these commands, in this order. `before` is called once a command was chosen."""
    known = {command.name: command for command in commands}

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            placeholders = {
                name: TyperCommand(name, short_help=lazy_command.help) for name, lazy_command in known.items()
            }
            super().__init__(**settings | {"commands": placeholders})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(known)

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            name, placeholder, rest = super().resolve_command(ctx, args)
            if name not in known:
                return name, placeholder, rest
            before()
            return name, known[name].load(), rest

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except typer.BadParameter as error:
                from dra_driver.api.meta import said  # the help needs no models

                error.message = said(error.message)
                raise

    return LazyGroup


COMMANDS = (
    LazyCommand("tour", "dra_driver.cli.tour:tour", "Five minutes with GPUs on a simulated cluster, step by step."),
    LazyCommand("demo", "dra_driver.cli.demo:demo", "Run the examples and show what containers got."),
    LazyCommand("cluster", "dra_driver.cli.demo:cluster", "Keep a simulated cluster with GPUs running."),
    LazyCommand("get", "dra_driver.cli.get:get", "Show nodes, devices, claims, policies or domains."),
    LazyCommand("top", "dra_driver.cli.top.loop:top", "Watch the GPUs of all nodes in the terminal."),
    LazyCommand("ui", "dra_driver.cli.ui.command:ui", "Watch the GPUs of all nodes in a browser."),
    LazyCommand(
        "explain", "dra_driver.cli.explain:explain", "Why something waits and what would fit, or what is wrong."
    ),
    LazyCommand("allocate", "dra_driver.cli.allocate:allocate", "Offline: the devices that claims would get."),
    LazyCommand(
        "check", "dra_driver.cli.check:check", "Offline: what is wrong with manifests, before they are applied."
    ),
    LazyCommand("migrate", "dra_driver.cli.migrate:migrate", "Offline: move manifests from the device plugin to DRA."),
    LazyCommand("new", "dra_driver.cli.new:app", "Write a claim, class, domain or workload from what you want."),
    LazyCommand("policy", "dra_driver.cli.policy:app", "What GpuPolicies would change, before they are applied."),
    LazyCommand("doctor", "dra_driver.cli.doctor:doctor", "What is wrong with an installation, and the fixes."),
    LazyCommand("bundle", "dra_driver.cli.bundle:bundle", "Make a support archive, without secrets."),
    LazyCommand("completion", "dra_driver.cli.completion:completion", "Completion of commands and names, for a shell."),
)
"""In the order of the help."""

_HELP_OF_OTHERS = {
    "gpus": "Release the GPUs of this node to a reset, and take them back.",
    "inventory": "What this node has, and what it would lead to in a cluster.",
    "record": "Record this node in a file that anyone can replay.",
    "simulate": "Let something happen to a simulated node.",
}
"""Of commands that come from the entry point group `gpu_dra.commands`, because they need the node's own code."""


def commands() -> tuple[LazyCommand, ...]:
    """Our own, and those that are installed beside us."""
    others = sorted(entry_points(group="gpu_dra.commands"), key=lambda entry: entry.name)
    return (*COMMANDS, *(LazyCommand(item.name, item.value, _HELP_OF_OTHERS.get(item.name, "")) for item in others))


def _configure_logging() -> None:
    from dra_driver.runtime.telemetry import configure_logging

    configure_logging("error", "console")


app = typer.Typer(
    name="dractl",
    cls=lazy_group(commands(), before=_configure_logging),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dractl {version('gpu-dra-driver')}")
        raise typer.Exit


@app.callback()
def dractl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """GPUs on Kubernetes by Dynamic Resource Allocation: try it, see it, ask it.

    \b
    Examples:
      dractl cluster                  a simulated cluster to try things on
      dractl get devices              who uses which GPU
      dractl explain pod NAME         why a pod waits
      dractl COMMAND --help           options and examples of a command
    """


def main() -> None:
    """What the console script runs."""
    completion_init()
    try:
        try:
            app()
        except SystemExit as end:
            if not end.code:
                sys.stdout.flush()
                # Python would free all that was read of a large cluster, object by object, which takes up to a second.
                os._exit(0)
            raise
    except Exception:
        # Rich, which prints errors, takes as long to import as all that the help needs.
        from dra_driver.terminal import plain_errors

        with plain_errors():
            raise
