"""`dractl` itself: its help is quick and complete, and commands are what the help says."""

import subprocess
import sys

import pytest
from support.rows import rows
from typer.testing import CliRunner

from dra_driver.cli.main import LazyCommand, app, commands

_NOT_FOR_HELP = ("aiohttp", "pydantic", "structlog", "kubernetes", "grpc", "dra_driver.cel", "dra_driver.simulation")


def test_the_help_imports_nothing_that_is_slow() -> None:
    """What `dractl --help` takes is what these would take; seconds depend on the machine, this does not."""
    ask = "import sys; sys.argv = ['dractl', '--help']; from dra_driver.cli.main import main\n"
    tell = "try: main()\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", ask + tell], capture_output=True, text=True, timeout=60, check=True)
    assert "Show nodes, policies, devices, claims or domains" in done.stdout
    assert not set(_NOT_FOR_HELP) & set(done.stderr.split())


@rows("command", commands())
def test_every_command_loads_and_has_a_line_of_help(command: LazyCommand) -> None:
    assert command.help.endswith(".")
    assert len(command.help) <= 80
    answer = CliRunner().invoke(app, [command.name, "--help"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.startswith(f"Usage: dractl {command.name}")


def test_a_mistyped_command_is_met_with_what_was_meant() -> None:
    answer = CliRunner().invoke(app, ["gte"])
    assert answer.exit_code == 2
    assert "'get'" in answer.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "-o", "xml"),
        ("get", "nodes", "-o", "xml"),
        ("doctor", "-o", "xml"),
        ("demo", "--publisher", "nobody"),
    ],
)
def test_a_value_that_is_not_among_the_choices_is_told_in_plain_words(arguments: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert f"'{arguments[-1]}' is not one of" in found.stderr
    assert "Value error" not in found.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["new", "claim", "--gpu", "h100"], ["migrate", "-", "--report", "json"]]
)
def test_where_what_is_printed_finds_no_room_that_is_said_in_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "dra_driver.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.stderr == "error: standard output: cannot be written: No space left on device\n"
    assert done.returncode == 3
