"""`dractl` as a program of Typer. A command is imported when it is run, so that none slows down the others.

`dra_driver.cli.overview` has the commands, and answers `dractl --help` without Typer.
"""

import gc
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer._completion_classes import completion_init
from typer.core import TyperCommand, TyperGroup

from dra_driver.cli.overview import LazyCommand, commands, overview, version_line


def load(command: LazyCommand) -> Any:
    """The command, ready to be run."""
    module, _, attribute = command.target.partition(":")
    gc.disable()  # while modules are imported there is no garbage
    function = getattr(import_module(module), attribute)
    gc.enable()
    around = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    around.callback()(_nothing)
    if isinstance(function, typer.Typer):
        around.add_typer(function, name=command.name)
    else:
        around.command(command.name)(function)
    group = typer.main.get_command(around)
    assert isinstance(group, TyperGroup), "a Typer with a callback is a group"
    loaded = group.commands[command.name]
    if isinstance(loaded, TyperGroup):
        for nested in loaded.commands.values():
            # The first sentence, which would be cut to 45 characters without this.
            nested.short_help = (nested.help or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0]
    return loaded


def _nothing() -> None:
    """What a group needs to be one when it has a single command."""


_COMMANDS = {command.name: command for command in commands()}


class LazyGroup(TyperGroup):
    """All commands, in their order; one is loaded when it was chosen."""

    def __init__(self, **settings: Any) -> None:
        placeholders = {name: TyperCommand(name, short_help=command.help) for name, command in _COMMANDS.items()}
        super().__init__(**settings | {"commands": placeholders})

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(overview(ctx.command_path))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _without_equals(args))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        if name not in _COMMANDS:
            return name, placeholder, rest
        _configure_logging()
        return name, load(_COMMANDS[name]), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from dra_driver.api.meta import message_without_prefix  # the help needs no models

            error.message = message_without_prefix(error.message)
            raise


def _without_equals(args: Sequence[str]) -> list[str]:
    """`-o=json`, which kubectl takes, as Typer takes it: `-ojson`. Words after `--` stay as they are."""
    end = args.index("--") if "--" in args else len(args)
    return [*(re.sub(r"^(-[A-Za-z])=(?=.)", r"\1", word) for word in args[:end]), *args[end:]]


def _configure_logging() -> None:
    import dra_driver.runtime.lean  # noqa: F401 - before anything imports structlog
    from dra_driver.runtime.logs import configure_logging

    configure_logging("error", "console")


app = typer.Typer(
    name="dractl",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line(), nl=False)
        raise typer.Exit


@app.callback()
def dractl(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """`overview` is its help."""


def main() -> None:
    """What the console script runs."""
    completion_init()
    try:
        app()
    except Exception:
        # Rich, which prints errors, takes as long to import as all that the help needs.
        from dra_driver.terminal import plain_errors

        with plain_errors():
            raise
