"""The guides on a simulated cluster: each command works, and shows what the guide says that you should see."""

import asyncio
import re
import tempfile
import time
from pathlib import Path

import pytest
from support.page_commands import Shell
from support.pages import DOCS, Block, blocks, commands
from support.places import SHORT
from support.rows import slow_but

from dra_driver.kubernetes import CURRENT, SEEN
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

_LONGEST_S = 90.0
_AGAIN = "# again, until GPUS is not 0"
"""A command that a reader repeats: pods that came before the partitions would take them in another order."""
GUIDES = {
    "03-first-pod": ("dgx-h100", "dractl get claims"),
    "04-share-a-gpu": ("dgx-h100", "dractl get devices"),
    "05-train-on-many": ("gb200:2,dgx-h100", "dractl get domains"),
}
"""By guide: nodes, and the command whose output the guide shows."""
_CHANCE = (
    (r"-gpu-[a-z0-9]{5}\b", "-gpu-xxxxx"),
    (r"\b127(\.\d+){3}\b", "ADDRESS"),
    (r"\b\d+(?:s|m)$", "AGE"),
    (r"\b\d+s(?= )", "AGE"),
    (r"[A-Z](?=[A-Z·-]*\])", "X"),
    (r" {2,}", "  "),
)
"""What differs from run to run, and what stands for it."""


def lines_of(text: str) -> set[str]:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for pattern, instead in _CHANCE:
        lines = [re.sub(pattern, instead, line) for line in lines]
    return set(lines)


@pytest.mark.parametrize("guide", slow_but(GUIDES, "03-first-pod"))
async def test_a_reader_of_the_guide_sees_what_it_says(guide: str, tmp_path: Path) -> None:
    nodes, shown_by = GUIDES[guide]
    steps = blocks(DOCS / "guides" / f"{guide}.md")
    wanted = next(block.text for block in steps if block.language == "text")
    with tempfile.TemporaryDirectory(dir=SHORT) as place:
        async with SimulatedCluster.running(Path(place), parse_nodes(nodes), version=SEEN[CURRENT]) as cluster:
            shell = Shell(tmp_path, cluster.kubeconfig)
            for block in steps:
                await asyncio.to_thread(_follow, shell, block)
            deadline = time.monotonic() + _LONGEST_S
            while missing := lines_of(wanted) - lines_of(await asyncio.to_thread(shell.run, shown_by)):
                assert time.monotonic() < deadline, missing
                await asyncio.sleep(1)


def _follow(shell: Shell, block: Block) -> None:
    if block.file is not None:
        (shell.folder / block.file).write_text(block.text)
    elif block.language == "sh" and block.not_run is None:
        for command in commands(block):
            line = command.line.replace("NODE", "dgx-h100-1")
            output = shell.run(line)
            while _AGAIN in line and not re.search(r"^  gpus: [1-9]", output, re.MULTILINE):
                time.sleep(0.2)
                output = shell.run(line)
