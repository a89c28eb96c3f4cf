"""`dractl get`: what it says of nodes, devices and claims, as a user sees it."""

import asyncio
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.dractl import dractl, forbid, run
from support.objects import allocate, claim, node, pod, result
from support.rows import rows
from support.shipped import create_definitions

from dra_driver.api.meta import (
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.cli.get import _until_changed
from dra_driver.cli.main import app
from dra_driver.cli.tables.following import Following
from dra_driver.cli.tables.seen import READ_AS, TAINT_RULES
from dra_driver.errors import InvalidInput, Rejected, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.phrases import duration
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.terminal import Status, plain_errors

PRODUCT = "NVIDIA H100 80GB HBM3"


def slice_of(*devices: str, generation: int = 1) -> JsonObject:
    gpus = [gpu(device, memory="80Gi", productName=PRODUCT) for device in devices]
    return resource_slice(f"slice-{generation}", *gpus, generation=generation)


def inventory() -> JsonObject:
    summary = {"gpus": 3, "healthy": "2/3", "product": PRODUCT, "driver": "580.65.06", "clique": "-"}
    problem = {"subject": "GPU 0000:1b:00.0", "reason": "GpuIsLost", "message": "it fell off the bus"}
    return {
        "apiVersion": "dra.gpu/v1alpha1",
        "kind": "NodeInventory",
        "metadata": {"name": "node-1"},
        "spec": {"nodeName": "node-1", "bootID": "b", "gpus": [], "problems": [problem], "summary": summary},
    }


async def fill(kube: Kube) -> None:
    """One node, two GPUs, one of them used by a pod and watched by an administrator."""
    await create_definitions(kube)
    await kube.create(NODES, node())
    await kube.create(NODE_INVENTORIES, inventory())
    await kube.create(RESOURCE_SLICES, slice_of("gpu-old"))
    await kube.create(RESOURCE_SLICES, slice_of("gpu-a", "gpu-b", generation=2))
    user = await kube.create(PODS, pod("train"))
    used = await kube.create(RESOURCE_CLAIMS, claim("gpu"))
    await allocate(kube, used, result("gpu-a"), pods=[user])
    await kube.create(RESOURCE_CLAIMS, claim("waiting"))


@pytest.fixture
async def kubeconfig(api_server: SimulatedApiServer, kube: Kube, tmp_path: Path) -> Path:
    await fill(kube)
    return api_server.kubeconfig(tmp_path / "kubeconfig")


async def test_nodes_show_hardware_health_and_what_is_free(kubeconfig: Path) -> None:
    status, text = await dractl("get", "nodes", "--kubeconfig", str(kubeconfig))
    assert status == Status.DONE
    heading, row = text.splitlines()
    assert heading.split("  ")[0] == "NODE"
    assert " ".join(heading.split()) == "NODE GPUS HEALTHY FREE MOST GPUS LARGEST MIG LARGEST MEMORY PRODUCT PROBLEMS"
    assert " ".join(row.split()) == "node-1 3 2/3 1/2 1 - 80.0 GiB H100 80GB HBM3 GPU 0000:1b:00.0: GpuIsLost"


async def test_wide_tables_have_more_columns(kubeconfig: Path) -> None:
    _, text = await dractl("get", "nodes", "--kubeconfig", str(kubeconfig), "-o", "wide")
    assert {"DRIVER", "CLIQUE"} <= set(text.splitlines()[0].split())
    assert "580.65.06" in text


async def test_devices_are_those_of_the_newest_generation_with_their_users(kubeconfig: Path) -> None:
    _, text = await dractl("get", "devices", "--all", "--kubeconfig", str(kubeconfig), "-o", "json")
    devices = [
        (row["device"], row["memoryBytes"], row["state"], [user["claim"] for user in row["usedBy"]], row["pods"])
        for row in json.loads(text)
    ]
    assert devices == [
        ("gpu-a", 80 * 2**30, "in use", ["default/gpu"], ["train/main"]),
        ("gpu-b", 80 * 2**30, "free", [], []),
    ]


async def test_for_people_devices_show_memory_in_gibibytes_and_who_has_them(kubeconfig: Path) -> None:
    _, text = await dractl("get", "devices", "--all", "--kubeconfig", str(kubeconfig))
    assert [line.split()[-6:] for line in text.splitlines()[1:]] == [
        ["80.0", "GiB", "in", "use", "default/gpu", "train/main"],
        ["-", "80.0", "GiB", "free", "-", "-"],
    ]


async def test_a_device_that_only_an_administrator_watches_is_free(kubeconfig: Path, kube: Kube) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await kube.merge_patch(NAMESPACES, "default", label)
    watching = claim("watching")
    watching["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    created = await kube.create(RESOURCE_CLAIMS, watching)
    await allocate(kube, created, result("gpu-b", adminAccess=True))
    _, text = await dractl("get", "devices", "--free", "--kubeconfig", str(kubeconfig), "-o", "yaml")
    (free,) = yaml.safe_load(text)
    assert (free["gpu"], free["state"], free["cells"]) == ("gpu-b", "free", [None] * 8)
    assert [(holder["claim"], holder["adminAccess"]) for holder in free["devices"]] == [("default/watching", True)]


async def test_claims_show_their_state_devices_and_pods(kubeconfig: Path) -> None:
    _, text = await dractl("get", "claims", "--kubeconfig", str(kubeconfig), "-o", "json")
    assert [(row["claim"], row["state"], row["devices"], row["pods"]) for row in json.loads(text)] == [
        ("gpu", "in use", ["node-1/gpu-a"], ["train/main"]),
        ("waiting", "pending", [], []),
    ]


def test_a_server_that_cannot_be_reached_ends_with_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = SimulatedApiServer()
    server.url = "http://127.0.0.1:1"
    path = server.kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(SystemExit) as ended, plain_errors():
        app(["get", "claims", "--kubeconfig", str(path)], standalone_mode=False)
    assert ended.value.code == Status.UNREACHABLE
    assert "cannot reach the API server: 127.0.0.1:1: Connection refused" in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_there_ends_with_status_3_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, plain_errors():
        app(["get", "claims", "--kubeconfig", str(tmp_path / "none")], standalone_mode=False)
    assert ended.value.code == Status.UNREACHABLE
    error = capsys.readouterr().err
    assert error.startswith(f"error: kubeconfig {tmp_path}/none: does not exist")
    assert "dractl cluster" in error


@rows("seconds, text", [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (3 * 86400, "3d"), (86400, "24h")])
def test_ages_are_written_as_kubectl_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_what_may_not_be_read_is_left_out_with_a_message(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may list claims and slices but neither pods nor nodes still sees who has what."""
    forbid(monkeypatch, PODS, NODES, *TAINT_RULES)
    done = await asyncio.to_thread(run, "get", "devices", "--kubeconfig", str(kubeconfig), "-o", "json")
    text, notes = done.stdout, done.stderr.splitlines()
    assert sorted(notes) == [
        f"{kind} are left out: {kind} is forbidden" for kind in ("devicetaintrules", "nodes", "pods")
    ]
    assert [(row["gpu"], row["state"]) for row in json.loads(text)] == [("gpu-a", "in use"), ("gpu-b", "free")]
    assert json.loads(text)[0]["devices"][0]["pods"] == ["train"]
    assert json.loads(text)[0]["devices"][0]["containers"] == []


async def test_of_one_namespace_only_its_claims_and_pods_are_read(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, PODS, RESOURCE_CLAIMS, but_in="default")
    done = await asyncio.to_thread(run, "get", "claims", "-n", "default", "--kubeconfig", str(kubeconfig), "-o", "json")
    assert [(row["claim"], row["pods"]) for row in json.loads(done.stdout)] == [
        ("gpu", ["train/main"]),
        ("waiting", []),
    ]
    assert done.stderr == ""


@rows("form, pods", [("table", False), ("json", False), ("html", True)])
async def test_of_nodes_only_the_map_asks_for_pods(
    form: str, pods: bool, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, asked = Kube.list, set()

    async def noting(self: Kube, resource: Resource, **how: Any) -> Any:
        asked.add(resource)
        return await listed(self, resource, **how)

    monkeypatch.setattr(Kube, "list", noting)
    await dractl("get", "nodes", "--kubeconfig", str(kubeconfig), "-o", form)
    assert (PODS in asked) is pods


@rows("words, title", [(("nodes",), "NODE"), (("no",), "NODE"), (("gpu",), "NODE"), (("ResourceClaims",), "NAMESPACE")])
async def test_kinds_have_the_words_of_kubectl(words: tuple[str, ...], title: str, kubeconfig: Path) -> None:
    _, text = await dractl("get", *words, "--kubeconfig", str(kubeconfig))
    assert text.startswith(title)


@rows(
    "words, names",
    [
        (("node", "node-1"), ["node/node-1"]),
        (("node/node-1",), ["node/node-1"]),
        (("nodes", "-l", "zone=a"), ["node/node-1"]),
        (("nodes", "-l", "zone=b"), []),
        (("devices", "-l", "zone=b"), []),
        (("devices", "gpu-b"), ["device/node-1/gpu-b"]),
        (("devices", "node-1/gpu-b"), ["device/node-1/gpu-b"]),
        (("claims", "-A"), ["resourceclaim.resource.k8s.io/gpu", "resourceclaim.resource.k8s.io/waiting"]),
        (("claims", "default/gpu"), ["resourceclaim.resource.k8s.io/gpu"]),
        (("claims", "-n", "elsewhere"), []),
    ],
)
async def test_names_labels_and_namespaces_select(
    words: tuple[str, ...], names: list[str], kubeconfig: Path, kube: Kube
) -> None:
    await kube.merge_patch(NODES, "node-1", {"metadata": {"labels": {"zone": "a"}}})
    status, text = await dractl("get", *words, "-o", "name", "--kubeconfig", str(kubeconfig))
    assert (status, text.split()) == (Status.DONE, names)


@pytest.mark.parametrize("kind", ["nodes", "devices", "claims", "policies"])
async def test_labels_that_nothing_has_are_said_to_match_nothing(kind: str, kubeconfig: Path) -> None:
    done = await asyncio.to_thread(run, "get", kind, "-l", "zone=b", "--kubeconfig", str(kubeconfig))
    assert (done.exit_code, done.stdout, done.stderr) == (Status.DONE, "", f"No {kind} match --selector zone=b.\n")


async def test_options_that_leave_out_all_rows_are_named(kubeconfig: Path) -> None:
    words = ("--node", "node-9", "--free", "--driver", "other.example.com")
    done = await asyncio.to_thread(run, "get", "devices", *words, "--kubeconfig", str(kubeconfig))
    assert done.stderr == "No devices match --node node-9 --free --driver other.example.com.\n"


@pytest.mark.parametrize("words", [("nodes",), ("nodes", "-w"), ("claims",)])
async def test_a_selector_that_cannot_be_parsed_is_wrong_usage(words: tuple[str, ...], kubeconfig: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"--selector: 'bad selector\(\(' is not a valid selector: unable to parse requirement"
    ):
        await dractl("get", *words, "-l", "bad selector((", "--kubeconfig", str(kubeconfig))


async def test_a_name_that_does_not_exist_is_status_1_beside_what_exists(kubeconfig: Path) -> None:
    done = await asyncio.to_thread(run, "get", "node", "node-1", "node-9", "--kubeconfig", str(kubeconfig))
    assert done.exit_code == Status.NO
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NODE", "node-1"]
    assert done.stderr == "error: node node-9: does not exist\n"
    device = await asyncio.to_thread(run, "get", "device", "node-1", "--kubeconfig", str(kubeconfig))
    assert device.exit_code == Status.NO
    assert device.stderr == "error: device node-1: does not exist; for the devices of a node: --node node-1\n"


async def test_more_than_30_gpus_begin_with_a_summary_and_devices_of_other_drivers_come_last(
    kubeconfig: Path, kube: Kube
) -> None:
    channels = slice_of("channel-0", generation=3)
    channels["spec"] |= {"driver": "compute-domain.nvidia.com", "pool": channels["spec"]["pool"] | {"name": "a"}}
    await kube.create(RESOURCE_SLICES, channels)
    await kube.create(RESOURCE_SLICES, slice_of("gpu-a", *(f"gpu-{number:02}" for number in range(30)), generation=4))
    done = await asyncio.to_thread(run, "get", "devices", "--kubeconfig", str(kubeconfig))
    assert done.stderr == "31 GPUs on 1 node: 30 free, 1 in use\n"
    rows = done.stdout.partition("\n\n")[0].splitlines()
    assert (rows[1].split()[1], rows[-1].split()[1]) == ("gpu-00", "channel-0")


async def test_jsonpath_selects_of_what_json_prints(kubeconfig: Path) -> None:
    template = "jsonpath={range [*]}{.gpu} {.state}{'\\n'}{end}"
    _, text = await dractl("get", "devices", "-o", template, "--kubeconfig", str(kubeconfig))
    assert text == "gpu-a in use\ngpu-b free\n"


@rows(
    "words, about",
    [
        (("nods",), "did you mean `nodes`?"),
        (("claims", "--free"), "are for devices"),
        (("nodes", "-n", "a"), "nodes have no namespace"),
        (("claims", "-n", "a", "-A"), "exclude each other"),
    ],
)
def test_what_does_not_go_together_is_said(words: tuple[str, ...], about: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(about)):
        run("get", *words)


async def test_a_watch_prints_the_table_and_then_rows_that_change(kubeconfig: Path, kube: Kube) -> None:
    command = [sys.executable, "-m", "dra_driver.cli", "get", "claims", "-w", "--kubeconfig", str(kubeconfig)]
    watch = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        # A shell that starts tests in the background lets them ignore this signal, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert watch.stdout is not None
    try:
        async with asyncio.timeout(120):
            first = [(await watch.stdout.readline()).split()[:3] for _ in range(3)]
            assert first[1:] == [[b"default", b"gpu", b"in"], [b"default", b"waiting", b"pending"]]
            await allocate(kube, await kube.get(RESOURCE_CLAIMS, "waiting", "default"), result("gpu-b"))
            assert (await watch.stdout.readline()).split()[:3] == [b"default", b"waiting", b"allocated"]
            watch.send_signal(signal.SIGINT)
            assert await watch.wait() == 130
    finally:
        if watch.returncode is None:
            watch.kill()


def test_a_kind_that_may_be_listed_and_not_watched_is_no_server_that_does_not_answer(
    kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Following(kube, {NODES: READ_AS[NODES]})
    mirror = following.mirrors[NODES]
    mirror.synced.set()
    monkeypatch.setattr(type(mirror), "failure", Rejected("you cannot watch nodes", status=403))
    assert following.notes(()) == ["no news of nodes: you cannot watch nodes"]


async def test_a_watch_reports_that_the_api_server_does_not_answer_and_that_it_does_again(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dra_driver.cli.get._LOOK_S", 0.01)
    following = Following(kube, {NODES: READ_AS[NODES]})
    mirror = following.mirrors[NODES]
    mirror.synced.set()
    monkeypatch.setattr(type(mirror), "failure", Unreachable("no answer"))
    waiting = asyncio.create_task(_until_changed(following, []))
    await asyncio.sleep(0.1)
    assert capsys.readouterr().err == "no news of nodes: the API server does not answer\n"
    monkeypatch.setattr(type(mirror), "failure", None)
    await asyncio.sleep(0.1)
    assert capsys.readouterr().err == "the API server answers again\n"
    following.changed.set()
    assert await asyncio.wait_for(waiting, 60) == []
