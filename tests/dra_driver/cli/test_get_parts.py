"""`dractl get` where GPUs are cut up and shared: what our publisher makes of real models, held by claims."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.text import Text
from support.held import SHARE, HeldWorld
from support.objects import result

from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cli.tables import sheets
from dra_driver.cli.tables.following import read_objects
from dra_driver.cli.tables.seen import SHOWN
from dra_driver.cli.tables.sheets import Asked
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Shown


@pytest.fixture
async def h100(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> HeldWorld:
    world = HeldWorld(kube, api_server.kubeconfig(tmp_path / "kubeconfig"))
    await world.publish("node-1", tmp_path / "host", "dgx-h100")
    return world


@pytest.fixture
async def l40s(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> HeldWorld:
    world = HeldWorld(kube, api_server.kubeconfig(tmp_path / "kubeconfig"))
    await world.publish("node-1", tmp_path / "host", "l40s")
    return world


def _of(gpu: str) -> Callable[[JsonObject], bool]:
    return lambda row: bool(row["gpu"] == gpu)


async def test_a_terminal_gets_a_line_for_each_gpu_not_one_for_each_of_208_devices(h100: HeldWorld) -> None:
    assert len((await h100.show("devices")).splitlines()) == 1 + 8
    assert len((await h100.show("devices", "--all")).splitlines()) == 1 + len(h100.devices) == 1 + 208


async def test_a_partition_in_use_closes_what_overlaps_it_and_leaves_the_rest(h100: HeldWorld) -> None:
    gpu = h100.named("gpu")
    half = f"{gpu}-mig-3g40gb-4"
    await h100.holds("half", result(half))
    (row,) = filter(_of(gpu), await h100.data("devices"))
    assert row["cells"] == [None] * 4 + ["default/half"] * 4
    assert row["state"] == "partly"
    assert "whole GPU" not in row["left"]
    assert "1 x 3g.40gb" in row["left"]
    assert row["counters"]["memory"]["left"] < row["counters"]["memory"]["total"]
    states = {device["device"]: device["state"] for device in await h100.data("devices", "--all")}
    assert states[half] == "in use"
    assert states[gpu] == states[f"{gpu}-mig-7g80gb-0"] == states[f"{gpu}-mig-1g10gb-5"] == "closed"
    assert states[f"{gpu}-mig-1g10gb-0"] == "free"


async def test_the_bar_and_its_legend_say_who_has_which_slices(h100: HeldWorld) -> None:
    gpu = h100.named("gpu")
    await h100.holds("half", result(f"{gpu}-mig-3g40gb-0"))
    await h100.holds("small", result(f"{gpu}-mig-1g10gb-6"))
    text = await h100.show("devices")
    row = next(line for line in text.splitlines() if f" {gpu} " in line)
    assert "[AAAA··B-]" in row
    assert f"A  default/half   pod-half/main   {gpu}-mig-3g40gb-0" in text
    assert f"B  default/small  pod-small/main  {gpu}-mig-1g10gb-6" in text
    assert "\x1b" not in text


async def test_a_node_shows_the_largest_requests_that_still_fit(h100: HeldWorld) -> None:
    gpus = [h100.named("gpu", number) for number in range(8)]
    await h100.holds("seven", *(result(gpu) for gpu in gpus[1:]))
    await h100.holds("half", result(f"{gpus[0]}-mig-4g40gb-0"))
    (row,) = await h100.data("nodes")
    assert (row["free"], row["largestGpus"], row["largestMigProfile"]) == (0, 0, "3g.40gb")
    assert 38 * 2**30 < row["largestMemoryBytes"] < 40 * 2**30


async def test_shares_show_what_they_take_and_what_they_leave(l40s: HeldWorld) -> None:
    gpu = l40s.named("gpu")
    for number, memory in enumerate(("12Gi", "23Gi")):
        taken = {"consumedCapacity": {"memory": memory, "cores": "40"}, "shareID": SHARE.format(number)}
        await l40s.holds(f"share-{number}", result(gpu, **taken))
    text = await l40s.show("devices")
    row = next(line for line in text.splitlines() if f" {gpu} " in line)
    assert "[AABBBB··]" in row
    assert "share: memory 10228Mi, cores 20" in row
    assert f"{gpu} (cores 40, memory 12Gi)" in text
    (data,) = filter(_of(gpu), await l40s.data("devices"))
    assert [(holder["claim"], holder["share"], holder["containers"]) for holder in data["devices"]] == [
        ("default/share-0", SHARE.format(0), ["pod-share-0/main"]),
        ("default/share-1", SHARE.format(1), ["pod-share-1/main"]),
    ]


async def test_a_share_without_cores_left_has_no_room(l40s: HeldWorld) -> None:
    gpu = l40s.named("gpu")
    taken = {"consumedCapacity": {"memory": "1Gi", "cores": "100"}, "shareID": SHARE.format(0)}
    await l40s.holds("all-cores", result(gpu, **taken))
    (data,) = filter(_of(gpu), await l40s.data("devices"))
    assert (data["state"], data["left"]) == ("in use", [])
    (device,) = (row for row in await l40s.data("devices", "--all") if row["device"] == gpu)
    assert device["state"] == "full"
    assert gpu not in await l40s.show("devices", "--free")


async def test_the_largest_memory_of_shares_is_what_one_claim_could_still_ask_for(l40s: HeldWorld) -> None:
    for number in range(8):
        taken = {"consumedCapacity": {"memory": f"{30 + number}Gi", "cores": "40"}, "shareID": SHARE.format(number)}
        await l40s.holds(f"share-{number}", result(l40s.named("gpu", number), **taken))
    (row,) = await l40s.data("nodes")
    assert (row["largestGpus"], row["largestMemoryBytes"]) == (0, (46068 - 30 * 1024) * 2**20)


async def test_a_tainted_gpu_is_not_free_and_says_why(h100: HeldWorld, kube: Kube) -> None:
    gpu = h100.named("gpu")
    for item in (await kube.list(RESOURCE_SLICES)).items:
        mine = [published for published in item["spec"].get("devices") or () if published["name"].startswith(gpu)]
        for device in mine:
            device["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
        if mine:
            await kube.replace(RESOURCE_SLICES, item)
    text = await h100.show("devices")
    row = next(line for line in text.splitlines() if f" {gpu} " in line)
    assert "[!!!!!!!!]" in row
    assert row.split()[-1] == "gpu.nvidia.com/xid=79:NoSchedule"
    (data,) = await h100.data("nodes")
    assert (data["free"], data["largestGpus"]) == (7, 7)
    objects = await read_objects(kube, SHOWN, ())
    asked = Asked(datetime.now(UTC), 36, [GPU_DRIVER], (), None, None, free=False, every=False)
    tainted, *others = sheets.devices(objects, asked).sheet.rows
    (overview,) = sheets.nodes(objects, asked).sheet.rows
    for cell in (tainted["TAINTS"], overview["PROBLEMS"]):
        assert isinstance(cell, Shown) and isinstance(cell.text, Text) and cell.text.style == "red"
    assert {other["TAINTS"] for other in others} == {()}


async def test_claims_show_shares_profiles_and_containers(h100: HeldWorld) -> None:
    gpu = h100.named("gpu")
    await h100.holds("half", result(f"{gpu}-mig-3g40gb-4"))
    (row,) = await h100.data("claims")
    assert row["requests"] == ["gpu: 1 x gpu.nvidia.com"]
    assert row["pods"] == ["pod-half/main"]
    assert "3g.40gb" in await h100.show("claims")


async def test_parts_of_a_gpu_instance_have_their_part_of_its_slices(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path
) -> None:
    world = HeldWorld(kube, api_server.kubeconfig(tmp_path / "kubeconfig"))
    header = {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy"}
    parts = PublishingPolicy.of({**header, "mig": [{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb"]}]})
    await world.publish("node-1", tmp_path / "host", "dgx-h100", parts)
    gpu = world.named("gpu")
    await world.holds("part", result(f"{gpu}-mig-1c3g40gb-0-0"))
    text = await world.show("devices")
    row = next(line for line in text.splitlines() if f" {gpu} " in line)
    assert "[A·······]" in row
    # Two beside it, and three in the other half.
    assert "5 x 1c.3g.40gb" in (await world.data("devices"))[0]["left"]
