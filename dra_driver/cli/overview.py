"""The commands of `dractl`, and where they live; `dractl --help` and `--version`, which need nothing else.

Each command is a module of this folder, or of another package that is named here as text only: this package imports
the node plugin nowhere. Typer alone takes as long to import as eight empty Pythons to start, and shells ask for this
help more often than for anything else, so this module imports only what it needs.
"""

import os
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from dra_driver import __version__


class LazyCommand(NamedTuple):
    """`target` is `module:name` of a function, or of a `typer.Typer` with commands of its own; `help` is one line."""

    name: str
    target: str
    help: str


COMMANDS = (
    LazyCommand(
        "tour", "dra_driver.cli.simulated.tour:tour", "Five minutes with GPUs on a simulated cluster, step by step."
    ),
    LazyCommand("demo", "dra_driver.cli.simulated.demo:demo", "Run the examples and show what containers got."),
    LazyCommand("cluster", "dra_driver.cli.simulated.demo:cluster", "Keep a simulated cluster with GPUs running."),
    LazyCommand("get", "dra_driver.cli.get:get", "Show nodes, devices, claims, policies or domains."),
    LazyCommand("top", "dra_driver.cli.top.loop:top", "Watch the GPUs of all nodes in the terminal."),
    LazyCommand("ui", "dra_driver.cli.ui.command:ui", "Watch the GPUs of all nodes in a browser."),
    LazyCommand(
        "explain", "dra_driver.cli.explain:explain", "Explain why something waits and what would fit, or what is wrong."
    ),
    LazyCommand("allocate", "dra_driver.cli.allocate:allocate", "Offline: show the devices that claims would get."),
    LazyCommand("check", "dra_driver.cli.check:check", "Offline: find mistakes in manifests before you apply them."),
    LazyCommand(
        "migrate", "dra_driver.cli.migration.migrate:migrate", "Offline: move manifests from the device plugin to DRA."
    ),
    LazyCommand("new", "dra_driver.cli.new:app", "Write a claim, class, domain or workload from what you want."),
    LazyCommand("policy", "dra_driver.cli.policy:app", "Show what GpuPolicies would change before you apply them."),
    LazyCommand(
        "doctor", "dra_driver.cli.doctor:doctor", "Find what is wrong with an installation, and how to fix it."
    ),
    LazyCommand("bundle", "dra_driver.cli.doctor:bundle", "Write a support archive without secrets."),
    LazyCommand(
        "completion", "dra_driver.cli.completion:completion", "Print a script that completes commands and names."
    ),
)
"""In the order of the help."""

_HELP_OF_OTHERS = {
    "gpus": "Close the GPUs of this node for a reset, and open them again.",
    "inventory": "Show this node's hardware, and what it would publish.",
    "record": "Record this node in a file that anyone can replay.",
    "simulate": "Inject a fault into a simulated node.",
}
"""Of commands that come from the entry point group `gpu_dra.commands`, because they need the node's own code."""


def commands() -> tuple[LazyCommand, ...]:
    """Our own, and those that are installed beside us."""
    others = sorted(entry_points(group="gpu_dra.commands"), key=lambda entry: entry.name)
    return (*COMMANDS, *(LazyCommand(item.name, item.value, _HELP_OF_OTHERS.get(item.name, "")) for item in others))


def overview(program: str) -> str:
    """The help of `dractl` itself. `program` is the name that it was started by."""
    items = commands()
    width = max(len(item.name) for item in items) + 2
    return _OVERVIEW.format(program=program) + "".join(f"  {item.name:{width}}{item.help}\n" for item in items)


_OVERVIEW = """\
Usage: {program} [OPTIONS] COMMAND [ARGS]...

  GPUs on Kubernetes with Dynamic Resource Allocation (DRA).

  Examples:
    dractl cluster                  a simulated cluster to try things out
    dractl get devices              who uses which GPU
    dractl explain pod NAME         why a pod waits
    dractl COMMAND --help           options and examples of a command

Options:
  --version   Print the version and exit.
  -h, --help  Show this message and exit.

Commands:
"""


def version_line() -> str:
    """What `dractl --version` prints."""
    return f"dractl {__version__}\n"


def quick_answer(arguments: Sequence[str]) -> str | None:
    """What `dractl` prints for these words of the command line, program first; None if it takes Typer to know."""
    program, *rest = arguments
    if rest in (["--help"], ["-h"]):
        name = program.rpartition(os.sep)[2]  # pathlib takes as long to import as Python to start
        return overview("dractl" if name == "__main__.py" else name)
    return version_line() if rest == ["--version"] else None
