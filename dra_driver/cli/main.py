"""`dractl`: the commands, and where they live.

Each command is a module of this folder. Commands that need the node's own code come from the entry point group
`gpu_dra.commands`, so that this package never imports the node plugin.
"""

from importlib.metadata import entry_points

import typer

from dra_driver.cli import cluster, demo, get
from dra_driver.cli.output import plain_errors
from dra_driver.runtime.telemetry import configure_logging

app = typer.Typer(
    name="dractl",
    help="GPUs on Kubernetes by Dynamic Resource Allocation: try it, see it, ask it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("demo", short_help="Run the examples and show what containers got.")(demo.demo)
app.command("cluster", short_help="Keep a simulated cluster with GPUs running.")(cluster.cluster)
app.add_typer(get.app, name="get")
for _command in sorted(entry_points(group="gpu_dra.commands"), key=lambda entry: entry.name):
    app.command(_command.name)(_command.load())


def main() -> None:
    """What the console script runs."""
    configure_logging("error", "console")
    with plain_errors():
        app()
