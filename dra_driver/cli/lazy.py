"""A command group whose commands are imported when they are run, not before.

`dractl --help` and a mistyped command need names and a line of help; the simulated cluster or the allocator behind one
command must not slow down the others. Placeholders stand for the commands until one of them is chosen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
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
        found = getattr(import_module(module), attribute)
        around = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        around.callback()(_nothing)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=self.name)
        else:
            around.command(self.name)(found)
        group = typer.main.get_command(around)
        assert isinstance(group, TyperGroup), "a Typer with a callback is a group"
        return group.commands[self.name]


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
