"""`-o html`: a page that stands alone and that everyone can read."""

from pathlib import Path

import pytest
from support.dractl import dractl, run
from support.held import HeldWorld
from support.html import HtmlReader
from support.objects import pod, result

from dra_driver.api.meta import PODS, RESOURCE_SLICES
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status


@pytest.fixture
async def world(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> HeldWorld:
    world = HeldWorld(kube, api_server.kubeconfig(tmp_path / "kubeconfig"))
    await world.publish("node-1", tmp_path / "host", "dgx-h100")
    await world.holds("train", result(world.named("gpu")))
    await world.holds("half", result(f"{world.named('gpu', 1)}-mig-3g40gb-4"))
    await kube.create(PODS, pod("waits", ["none"], node_name=None))
    says = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "<b>full</b>"}]}
    await kube.merge_patch(PODS, "waits", {"status": says}, namespace="default", subresource="status")
    for item in (await kube.list(RESOURCE_SLICES)).items:
        for device in item["spec"].get("devices") or ():
            if device["name"].startswith(world.named("gpu", 2)):
                device["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
        await kube.replace(RESOURCE_SLICES, item)
    return world


async def test_the_page_says_in_words_what_it_draws(world: HeldWorld) -> None:
    page = HtmlReader(await world.show("nodes", "-o", "html"))
    assert page.open == []
    assert " ".join(page.words).startswith(
        "GPUs GPUs 8 GPUs on 1 node · ○ 5 free · ◐ 1 partly · ● 1 in use ✕ 1 unhealthy"
    )
    assert page.labels()[:3] == [
        "memory slices: 8 default/train",
        "memory slices: 4 free, 4 default/half",
        "memory slices: 8 tainted",
    ]
    assert {"default/waits: <b>full</b>", "unhealthy", "node-1"} <= set(page.words)


async def test_it_loads_nothing_runs_nothing_and_takes_no_markup_from_the_cluster(world: HeldWorld) -> None:
    text = await world.show("devices", "-o", "html")
    page = HtmlReader(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "http" not in text and "url(" not in text and "@import" not in text
    assert "<b>full" not in text and "&lt;b&gt;full" in text
    assert "prefers-color-scheme: dark" in text


async def test_it_has_the_named_only(world: HeldWorld) -> None:
    gpu = world.named("gpu")
    page = HtmlReader(await world.show("devices", gpu, "-o", "html"))
    assert gpu in page.words and len(page.labels()) == 1
    kubeconfig = str(world.kubeconfig)
    assert (await dractl("get", "node", "nothing", "-o", "html", "--kubeconfig", kubeconfig))[0] == Status.NO


@pytest.mark.parametrize("words", [("claims",), ("devices", "--all"), ("nodes", "-w")])
def test_only_gpus_are_drawn(words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="html draws the GPUs"):
        run("get", *words, "-o", "html")
