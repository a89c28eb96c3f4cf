"""Every command line of docs/commands.md is run, and answers what the page says.

With WRITE_DOCS=1 in the environment the answers of today are put into the page first.
"""

import asyncio
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from support.held import SHARE, HeldWorld
from support.objects import result
from typer.testing import CliRunner

from dra_driver import bundled
from dra_driver.api.meta import CRDS, NODE_INVENTORIES, JsonObject
from dra_driver.cli.main import app
from dra_driver.cli.output import plain_errors
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver import SimulatedApiServer

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
UNSAID = "…"
"""Stands for whatever the command answers."""


@dataclass(frozen=True)
class Example:
    line: str
    answer: str


def examples() -> Iterator[Example]:
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, answer = part.partition("\n")
            yield Example(line, answer)


@pytest_asyncio.fixture
async def cluster(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HeldWorld]:
    """The one that the page tells of."""
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    world = HeldWorld(kube, kubeconfig)
    for path in bundled.CRDS_FOLDER.glob("*.yaml"):
        await kube.create(CRDS, yaml.safe_load(path.read_text()))
    await world.publish("gpu-node-1", tmp_path / "h100", "dgx-h100")
    h100 = [world.named("gpu", number) for number in range(8)]
    await world.publish("gpu-node-2", tmp_path / "l40s", "l40s")
    l40s = next(name for name in sorted(world.devices) if "-" not in name[4:] and name not in h100)
    for name, product in (("gpu-node-1", "NVIDIA H100 80GB HBM3"), ("gpu-node-2", "NVIDIA L40S")):
        await kube.create(NODE_INVENTORIES, inventory(name, product))
    on_h100, on_l40s = {"pool": "gpu-node-1"}, {"pool": "gpu-node-2"}
    await world.holds("train", *(result(one, **on_h100) for one in h100[:4]))
    await world.holds("serve", result(f"{h100[4]}-mig-3g40gb-0", **on_h100))
    await world.holds("notebook", result(f"{h100[4]}-mig-1g10gb-6", **on_h100))
    for number, memory in enumerate(("12Gi", "20Gi")):
        share = {"shareID": SHARE.format(number), "consumedCapacity": {"memory": memory, "cores": "40"}}
        await world.holds(f"share-{number}", result(l40s, **on_l40s, **share))
    yield world


def inventory(node: str, product: str) -> JsonObject:
    summary = {"gpus": 8, "healthy": "8/8", "product": product, "driver": "580.126.09", "clique": "-"}
    spec = {"nodeName": node, "bootID": "b", "gpus": [], "problems": [], "summary": summary}
    return {"apiVersion": "dra.gpu/v1alpha1", "kind": "NodeInventory", "metadata": {"name": node}, "spec": spec}


async def answer(line: str) -> str:
    """What a person sees: standard output, then standard error."""
    words = shlex.split(line)
    assert words[0] == "dractl"

    def run() -> str:
        runner = CliRunner()
        outcome = runner.invoke(app, words[1:])
        if outcome.exception is None or isinstance(outcome.exception, SystemExit):
            return outcome.stdout
        with pytest.raises(SystemExit), plain_errors():
            raise outcome.exception
        return f"error: {outcome.exception}\n"

    text = await asyncio.to_thread(run)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


async def test_every_command_line_answers_what_the_page_says(cluster: HeldWorld) -> None:
    found = list(examples())
    assert len(found) > 10
    if os.environ.get("WRITE_DOCS"):
        await write(found)
    for example in examples():
        got = await answer(example.line)
        assert got, example.line
        if example.answer.strip() != UNSAID:
            assert got == example.answer, example.line


async def write(found: list[Example]) -> None:
    """Put the answers into the page."""
    text = PAGE.read_text()
    for example in found:
        if example.answer.strip() != UNSAID:
            before = f"$ {example.line}\n{example.answer}"
            text = text.replace(before, f"$ {example.line}\n{await answer(example.line)}")
    PAGE.write_text(text)


def test_every_option_of_new_is_on_the_page() -> None:
    for form in ("claim", "template"):
        text = CliRunner().invoke(app, ["new", form, "--help"]).output
        options = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help", "--output", "--image"}
        assert {one for one in options if one not in PAGE.read_text()} == set()
