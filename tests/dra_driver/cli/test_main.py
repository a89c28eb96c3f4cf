"""`dractl` itself: its help is quick and complete, and commands are what the help says."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from support.dractl import run
from support.objects import node
from support.rows import rows, slow_but
from typer import Context
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import dra_driver
from dra_driver.api.meta import NODES
from dra_driver.cli.main import app, load
from dra_driver.cli.overview import LazyCommand, commands, overview, quick_answer
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer

_NOT_FOR_HELP = (
    *("typer", "aiohttp", "pydantic", "structlog", "kubernetes", "grpc", "rich", "yaml", "asyncio"),
    *("dra_driver.cel", "dra_driver.simulation", "dra_driver.terminal"),
)


def imported(*arguments: str) -> set[str]:
    """Modules that `dractl` has imported when it has answered."""
    ask = f"import sys; sys.argv = ['dractl', *{arguments!r}]; from dra_driver.cli.__main__ import main\n"
    tell = "try: main()\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", ask + tell], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_the_help_and_the_version_import_nothing_that_is_slow(option: str) -> None:
    """What `dractl --help` takes is what these would take; seconds depend on the machine, this does not."""
    assert not set(_NOT_FOR_HELP) & imported(option)


def test_the_quick_help_is_the_help_and_names_every_option() -> None:
    assert quick_answer(["/usr/bin/kubectl-dra", "-h"]) == overview("kubectl-dra")
    assert quick_answer(["dractl", "--help"]) == CliRunner().invoke(app, ["--help"]).output == overview("dractl")
    assert quick_answer(["dractl", "get", "--help"]) is None
    options = {name for option in get_command(app).params for name in option.opts}
    assert options == {"--version"} and all(f"  {name}  " in overview("dractl") for name in options)


@rows("command", commands())
def test_every_command_loads_and_has_a_line_of_help(command: LazyCommand) -> None:
    assert command.help.endswith(".")
    assert len(command.help) <= 80
    answer = CliRunner().invoke(app, [command.name, "--help"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.startswith(f"Usage: dractl {command.name}")


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"dractl {version('gpu-dra-driver')}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_for_that_shell_and_asks_dractl(shell: str) -> None:
    assert f"_DRACTL_COMPLETE=complete_{shell}" in run("completion", shell).stdout


def completed(line: str, *environment: str) -> list[str]:
    """What bash proposes for the last word."""
    asked = [
        "env",
        *environment,
        "_DRACTL_COMPLETE=complete_bash",
        f"COMP_WORDS={line}",
        f"COMP_CWORD={line.count(' ')}",
    ]
    code = "import sys; sys.argv = ['dractl']; from dra_driver.cli.main import main; main()"
    done = subprocess.run([*asked, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.stdout.split()


async def test_commands_values_and_names_from_the_cluster_are_completed(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path
) -> None:
    await kube.create(NODES, node("gpu-node-1"))
    config = f"KUBECONFIG={api_server.kubeconfig(tmp_path / 'kubeconfig')}"
    assert await asyncio.to_thread(completed, "dractl ge") == ["get"]
    assert await asyncio.to_thread(completed, "dractl get de") == ["devices"]
    assert await asyncio.to_thread(completed, "dractl get node gpu", config) == ["gpu-node-1"]
    assert await asyncio.to_thread(completed, "dractl get node gpu", "KUBECONFIG=/dev/null") == []
    assert await asyncio.to_thread(completed, "dractl explain dep") == ["deployment"]
    assert await asyncio.to_thread(completed, "dractl explain node gpu", config) == ["gpu-node-1"]
    assert await asyncio.to_thread(completed, "dractl explain deploy llm", config) == []


def all_commands() -> dict[str, TyperCommand]:
    """Each command that does something, by the words before its options."""
    by_words: dict[str, TyperCommand] = {}
    for lazy in commands():
        loaded = load(lazy)
        nested = loaded.commands.items() if isinstance(loaded, TyperGroup) else [("", loaded)]
        by_words |= {f"dractl {lazy.name} {name}".strip(): command for name, command in nested}
    return by_words


def test_the_help_of_every_command_has_examples_and_their_options_exist() -> None:
    for words, command in all_commands().items():
        text = command.get_help(Context(command, info_name=words))
        examples = [
            line.strip() for line in text.partition("Examples:")[2].split("\n\n")[0].splitlines() if line.strip()
        ]
        assert examples, words
        for example in examples:
            mine = re.sub(r"\)$| [|>] .*", "", re.sub(r".*(?=dractl )", "", example))
            assert mine.startswith(words), example
            with redirect_stderr(StringIO()):
                command.make_context(words, shlex.split(mine.removeprefix(words)), resilient_parsing=False)


@pytest.mark.parametrize("group", [[], ["new"], ["policy"], ["gpus"]])
def test_a_list_of_commands_has_whole_sentences_and_examples(group: list[str]) -> None:
    examples, _, listed = run(*group, "--help").stdout.partition("Commands:")
    assert listed and "..." not in listed
    assert f"Examples:\n    {' '.join(['dractl', *group])}" in examples


def test_a_format_is_what_o_means_everywhere() -> None:
    for words, command in all_commands().items():
        for option in command.params:
            assert "-o" not in option.opts or option.name == "output", words


def test_short_options_take_an_equals_sign_as_in_kubectl() -> None:
    outcome = CliRunner().invoke(app, ["new", "claim", "--gpu", "h100", "-o=json"])
    assert json.loads(outcome.stdout)["kind"] == "ResourceClaim"
    outcome = CliRunner().invoke(app, ["new", "claim", "-o=", "--", "-o=json"])
    assert "Invalid value for '--output' / '-o': '=' is not one of" in outcome.stderr


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
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert f"'{arguments[-1]}' is not one of" in outcome.stderr
    assert "Value error" not in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    slow_but([["--help"], ["new", "claim", "--gpu", "h100"], ["migrate", "-", "--report", "json"]], ["--help"]),
)
def test_where_what_is_printed_finds_no_room_that_is_said_in_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "dra_driver.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.stderr == "error: standard output: cannot be written: No space left on device\n"
    assert done.returncode == 3


def test_a_closed_standard_output_is_no_stack_trace() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m dra_driver.cli check "$1" >&-', sys.executable, os.devnull],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_files_are_utf_8_in_every_locale(tmp_path: Path) -> None:
    manifest = tmp_path / "claim-\u00e9.yaml"
    manifest.write_text("- a\n")
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver.cli", "check", manifest],
        capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert "claim-\u00e9.yaml:1" in done.stdout.decode("utf-8")


def test_a_name_of_a_file_that_is_not_utf_8_is_printed_and_written_as_it_is(tmp_path: Path) -> None:
    manifest = os.fsencode(tmp_path) + b"/pod-\xff.yaml"
    Path(os.fsdecode(manifest)).write_text("nvidia.com/gpu: [\n")
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver.cli", "migrate", manifest, "--to", tmp_path / "new"],
        capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    assert manifest in done.stdout, done.stderr
    assert manifest in (tmp_path / "new" / "report.md").read_bytes()


def test_a_current_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", 'rmdir "$PWD"; "$0" -m dra_driver.cli migrate pod.yaml', sys.executable],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(Path(dra_driver.__file__).parents[1])},
    )  # fmt: skip
    assert done.stderr.endswith("error: the current folder no longer exists: change to another one\n"), done.stderr
    assert done.returncode == 3
