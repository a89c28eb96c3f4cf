"""Commands whose answers stand on a page are run against the cluster that the page tells of, and answer that.

With WRITE_DOCS=1 in the environment the answers of today are put into the pages first.
"""

import asyncio
import os
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from support.held import SHARE, HeldWorld
from support.objects import allocate, claim, node, pod, result
from support.page_commands import run_dractl
from support.pages import DOCS, Command, blocks, commands
from support.shipped import create_definitions
from typer.testing import CliRunner

from dra_driver import bundled
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.cli.main import app
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer

UNSAID = "…"
"""Stands for whatever the command answers."""


@pytest.fixture(autouse=True)
def as_wide_as_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest_asyncio.fixture
async def cluster(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HeldWorld]:
    """The one that the page tells of."""
    kubeconfig = api_server.kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    world = HeldWorld(kube, kubeconfig)
    await create_definitions(kube)
    await world.publish("gpu-node-1", tmp_path / "h100", "dgx-h100")
    h100 = [world.named("gpu", number) for number in range(8)]
    await world.publish("gpu-node-2", tmp_path / "l40s", "l40s")
    l40s = next(name for name in sorted(world.devices) if "-" not in name[4:] and name not in h100)
    for name, product in (("gpu-node-1", "NVIDIA H100 80GB HBM3"), ("gpu-node-2", "NVIDIA L40S")):
        await kube.create(NODE_INVENTORIES, inventory(name, product))
    on_h100, on_l40s = {"pool": "gpu-node-1"}, {"pool": "gpu-node-2"}
    await world.holds("train", *(result(gpu, **on_h100) for gpu in h100[:4]))
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
    text = await asyncio.to_thread(run_dractl, words[1:])
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


async def check(page: str) -> int:
    """How many commands of the page answer what it says."""
    examples = [command for block in blocks(DOCS / page) if block.language == "console" for command in commands(block)]
    if os.environ.get("WRITE_DOCS"):
        await write(DOCS / page, examples)
        examples = [
            command for block in blocks(DOCS / page) if block.language == "console" for command in commands(block)
        ]
    for example in examples:
        got = await answer(example.line)
        assert got, example.line
        if (example.answer or "").strip() != UNSAID:
            assert got == example.answer, example.line
    return len(examples)


async def test_every_command_line_answers_what_the_page_says(cluster: HeldWorld) -> None:
    assert await check("commands.md") > 10


async def write(page: Path, examples: list[Command]) -> None:
    """Put the answers into the page."""
    text = page.read_text()
    for example in examples:
        if (example.answer or "").strip() != UNSAID:
            before = f"$ {example.line}\n{example.answer}"
            text = text.replace(before, f"$ {example.line}\n{await answer(example.line)}")
    page.write_text(text)


async def test_a_waiting_pod_is_explained_as_the_page_says(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """14 small nodes, three whose GPU is in use, two with a faulty one."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path / "kubeconfig")))
    for path in bundled.DEVICE_CLASSES_FOLDER.glob("gpu.nvidia.com.yaml"):
        await kube.create(DEVICE_CLASSES, yaml.safe_load(path.read_text()))
    await kube.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    for name in [f"small-{number:02}" for number in range(14)]:
        await one_gpu(kube, name, "80Gi")
    for number in range(3):
        name = f"large-{number}"
        await one_gpu(kube, name, "120Gi")
        user = await kube.create(PODS, pod(f"train-{number}", [f"train-{number}"], namespace="team-a", node_name=name))
        held = await kube.create(RESOURCE_CLAIMS, claim(f"train-{number}", "team-a"))
        await allocate(kube, held, result("gpu-0", pool=name), pods=[user])
    for number in range(2):
        sick = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
        await one_gpu(kube, f"faulty-{number}", "120Gi", taints=[sick])
    wanted = claim("gpu", "team-a")
    expression = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity(\"100Gi\")) >= 0"
    wanted["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    await kube.create(RESOURCE_CLAIMS, wanted)
    await kube.create(PODS, pod("train", ["gpu"], namespace="team-a", node_name=None))
    assert await check("explain.md") == 1


async def one_gpu(kube: Kube, name: str, memory: str, **device: object) -> None:
    await kube.create(NODES, node(name))
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    described = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": memory}}}
    spec = {"driver": GPU_DRIVER, "nodeName": name, "pool": pool, "devices": [{"name": "gpu-0", **described, **device}]}
    metadata = {"name": f"{name}-gpus"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    await kube.create(RESOURCE_SLICES, body)


async def test_mistakes_are_found_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in blocks(DOCS / "check.md"):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    assert await check("check.md") == 1


def test_every_option_of_new_is_on_the_page() -> None:
    for form in ("claim", "template"):
        text = CliRunner().invoke(app, ["new", form, "--help"]).output
        options = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help", "--output", "--image"}
        assert {option for option in options if option not in (DOCS / "commands.md").read_text()} == set()
