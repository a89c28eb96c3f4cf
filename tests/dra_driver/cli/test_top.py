"""`dractl top`: what it knows after changes in any order, what a terminal shows, and what keys do."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocation import gpu
from support.dra_objects import resource_slice
from support.objects import allocate, claim, held, node, pod, result
from support.rows import rows

from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.cli.tables.seen import READ_AS, Board, ClusterSeen, KnownGpus
from dra_driver.cli.tables.usage import PublishedGpu
from dra_driver.cli.top.loop import _Top, keys, utilization
from dra_driver.cli.top.screen import Screen, Size, Sort, TopView, frame, pressed
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Scope
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SIZE = Size(100, 24)


def slice_of(name: str, *, lost: bool = False, gpus: int = 2) -> JsonObject:
    taint = {"key": "gpu.nvidia.com/gpu-lost", "value": "GpuIsLost", "effect": "NoExecute"}
    devices = [
        gpu(
            f"gpu-{number}",
            memory="80Gi",
            taints=[taint] if lost and number == 1 else [],
            uuid=f"GPU-{name}-{number}",
            productName="NVIDIA H100",
        )
        for number in range(gpus)
    ]
    return resource_slice(f"slice-{name}", *devices, node=name)


def on(where: str | None, name: str) -> JsonObject:
    return pod(f"{name}-pod", [name], node_name=where)


WORLD: list[tuple[Resource, JsonObject]] = [
    *((NODES, node(name)) for name in ("a", "b", "c")),
    (RESOURCE_SLICES, slice_of("a")),
    (RESOURCE_SLICES, slice_of("b", lost=True)),
    (RESOURCE_SLICES, slice_of("c")),
    (RESOURCE_CLAIMS, held("train", result("gpu-0", pool="a"))),
    (RESOURCE_CLAIMS, held("serve", result("gpu-1", pool="b"))),
    (RESOURCE_CLAIMS, claim("later")),
    (PODS, on("a", "train")),
    (PODS, on("b", "serve")),
    (PODS, on(None, "later")),
]


def key_of(obj: JsonObject) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def board_of(world: list[tuple[Resource, JsonObject]]) -> Board:
    board = Board(GPU_DRIVER, 36)
    for kind, obj in world:
        board.learn(kind, key_of(obj), None, READ_AS[kind](obj))
    board.refresh(100)
    return board


def known(use: dict[str, float] | None = None) -> KnownGpus:
    return board_of(WORLD).known(use or {}, ())


# -- the board


def test_a_change_costs_the_decision_about_its_node() -> None:
    board = board_of(WORLD)
    before = dict(board.nodes)
    freed = READ_AS[RESOURCE_CLAIMS](held("train", result("gpu-0", pool="a")))
    board.learn(RESOURCE_CLAIMS, ("default", "train"), freed, None)
    assert board.stale == 1
    board.refresh(100)
    assert {name for name, overview in board.nodes.items() if overview is not before[name]} == {"a"}
    assert board.nodes["a"].states == {"free": 2}


@given(st.randoms(), st.sets(st.integers(0, len(WORLD) - 1)))
def test_after_changes_in_any_order_all_is_as_if_it_were_read_at_once(order: Random, gone: set[int]) -> None:
    board, world = Board(GPU_DRIVER, 36), [(kind, obj, READ_AS[kind](obj)) for kind, obj in WORLD]
    steps = [*((number, True) for number in range(len(world))), *((number, False) for number in gone)]
    order.shuffle(steps)
    there: set[int] = set()
    for number, comes in sorted(steps, key=lambda step: not step[1]):
        kind, obj, typed = world[number]
        board.learn(kind, key_of(obj), None if comes else typed, typed if comes else None)
        there ^= {number}
        board.refresh(order.randint(0, 2))
    board.refresh(100)
    objects = {
        kind: [typed for number, (other, _, typed) in enumerate(world) if number in there and other == kind]
        for kind in READ_AS
    }
    whole = ClusterSeen(objects, 36).overviews(GPU_DRIVER)
    assert [(name, shown(overview.gpus)) for name, overview in sorted(board.nodes.items())] == [
        (overview.name, shown(overview.gpus)) for overview in whole
    ]


def shown(gpus: Iterable[PublishedGpu]) -> list[object]:
    return [(gpu.name, gpu.state, gpu.cells, [holder for _, holder in gpu.held], gpu.taints) for gpu in gpus]


# -- what is shown


def text(screen: Screen, what: KnownGpus | None = None, size: Size = SIZE) -> list[str]:
    return [line.plain for line in frame(screen, TopView(what or known(), size, {}, NOW)).lines]


def test_the_summary_comes_first_and_nodes_with_problems_before_others() -> None:
    lines = text(Screen(), known({"GPU-a-0": 97.0, "GPU-a-1": 3.0}))
    assert lines[1] == "6 GPUs on 3 nodes · 4 free · 2 in use · 1 unhealthy · 1 pod waiting"
    assert [line.split() for line in lines[2:6]] == [
        ["NODE", "GPUS", "FREE", "USE", "PRODUCT", "PROBLEMS"],
        ["b", "········", "████████", "1/2", "-", "H100", "gpu-1:", "gpu.nvidia.com/gpu-lost=GpuIsLost:NoExecute"],
        ["a", "████████", "········", "1/2", "50%", "H100", "-"],
        ["c", "········", "········", "2/2", "-", "H100", "-"],
    ]


def test_red_is_for_what_is_unhealthy_only() -> None:
    lines = frame(Screen(), TopView(known(), SIZE, {}, NOW)).lines
    red = [line.plain.split()[0] for line in lines if any("red" in str(span.style) for span in line.spans)]
    assert red == ["6", "b"]


def go(*pressed_keys: str, screen: Screen | None = None) -> Screen:
    screen = screen or Screen()
    for key in pressed_keys:
        after = pressed(key, screen, TopView(known(), SIZE, {}, NOW))
        assert after is not None
        screen = after
    return screen


def test_enter_opens_a_node_then_a_gpu_then_a_claim_and_its_pods_and_escape_goes_back() -> None:
    screen = go("down", "enter")
    assert screen.path == ("a",)
    assert text(screen)[3].split()[:5] == ["gpu-0", "[AAAAAAAA]", "in", "use", "80.0"]
    screen = go("enter", "enter", screen=screen)
    assert screen.path == ("a", "gpu-0", "default/train")
    assert text(screen)[3].split()[0] == "default/train-pod"
    assert go("enter", screen=screen) == screen, "a pod cannot be opened"
    assert go("escape", "escape", "escape", screen=screen) == go("down")


def test_waiting_pods_have_the_reason_of_the_scheduler_and_can_be_explained() -> None:
    screen = go("w")
    assert text(screen)[3].split()[:2] == ["default/later-pod", "-"]
    assert "no scheduler has processed it yet" in text(screen)[3]
    screen = go("enter", screen=screen)
    assert screen.explaining == "default/later-pod"
    explained = {"default/later-pod": ["It waits.", "Because."]}
    lines = [line.plain for line in frame(screen, TopView(known(), SIZE, explained, NOW)).lines]
    assert [line.strip() for line in lines[3:5]] == ["It waits.", "Because."]


def test_a_filter_finds_nodes_by_claims_and_a_sort_orders_them() -> None:
    assert [line.split()[0] for line in text(go("/", *"serve"))[3:5] if line] == ["b"]
    assert "Nothing matches 'zz'" in text(go("/", *"zz"))[3]
    assert go("/", "z", "backspace", "enter").filter == ""
    assert go("/", "q").filter == "q", "keys go to the filter"
    by_free = go("s", "s")
    assert by_free.sort is Sort.FREE
    assert [line.split()[0] for line in text(by_free)[3:6]] == ["c", "a", "b"]


def test_the_selected_row_stays_selected_while_others_come_and_go() -> None:
    screen = go("down")
    world = [item for item in WORLD if item[1]["metadata"]["name"] != "slice-b"]
    lines = frame(screen, TopView(board_of(world).known({}, ()), SIZE, {}, NOW)).lines
    (selected,) = [line.plain.split()[0] for line in lines if any(span.style == "reverse" for span in line.spans)]
    assert selected == "a"


def test_what_was_opened_may_go_while_it_is_open() -> None:
    gone = Board(GPU_DRIVER, 36).known({}, ())
    for path in (("a",), ("a", "gpu-0"), ("a", "gpu-0", "default/train"), ("waiting pods", "x/y")):
        lines = text(Screen(path, (None,) * (len(path) + 1)), gone)
        assert len(lines) == SIZE.height


@given(
    st.integers(1, 200),
    st.integers(1, 60),
    st.lists(st.sampled_from(["enter", "down", "escape", "w", "s"]), max_size=6),
)
def test_a_frame_has_the_size_of_the_terminal(width: int, height: int, pressed_keys: list[str]) -> None:
    lines = frame(go(*pressed_keys), TopView(known(), Size(width, height), {}, NOW)).lines
    assert len(lines) <= max(height, 1)
    assert max(len(line) for line in lines) <= width


def test_bars_shrink_before_anything_is_cut() -> None:
    world = [(RESOURCE_SLICES, slice_of("a", gpus=8)), (RESOURCE_CLAIMS, held("train", result("gpu-0", pool="a")))]
    what = board_of(world).known({}, ())
    bars = {width: text(Screen(), what, Size(width, 10))[3].split()[1:3] for width in (120, 80, 60, 40)}
    assert bars == {120: ["████████", "········"], 80: ["████", "····"], 60: ["██", "··"], 40: ["█", "·"]}


# -- keys and exporters


@rows(
    "sent, names",
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B\r", ["up", "down", "enter"]),
        ("\x1b", ["escape"]),
        ("\x1b[5~x\x1bOD", ["pageup", "x", "left"]),
        ("\x1b[200;3R\x1b[Z/", ["/"]),
        ("\x7f", ["backspace"]),
    ],
)
def test_what_a_terminal_sends_is_keys(sent: str, names: list[str]) -> None:
    assert list(keys(sent)) == names


def test_utilization_is_that_of_the_engine_where_it_is_measured() -> None:
    lines = b"""# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0"} 78
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",device="nvidia1"} 9223372036854775794
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-4",device="nvidia3"} 9
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="2",UUID="GPU-3",GPU_I_ID="1"} 0.5
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="2",UUID="GPU-3",GPU_I_ID="2"} 0.1
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="3",UUID="GPU-4"} 0.25
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1"} 139""".splitlines()
    assert utilization(lines) == {"GPU-1": 78.0, "GPU-3": pytest.approx(30.0), "GPU-4": 25.0}


# -- the loop


class Terminal:
    """`dractl top` in a pseudo terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self.output = ""
        os.set_blocking(master, False)

    @classmethod
    async def started(cls, kubeconfig: Path) -> "Terminal":
        master, slave = pty.openpty()
        _resize(slave, 24, 90)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dra_driver.cli", "top", "--kubeconfig", str(kubeconfig)),
            stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(slave)
        return cls(process, master)

    async def shows(self, pattern: str) -> re.Match[str]:
        """Waits for output that matches after what matched before."""
        async with asyncio.timeout(120):
            while (match := re.search(pattern, self.output)) is None:
                try:
                    self.output += os.read(self._master, 65536).decode(errors="replace")
                except BlockingIOError:
                    await asyncio.sleep(0.02)
        self.output = self.output[match.end() :]
        return match

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def hang_up(self) -> None:
        os.close(self._master)

    def resize(self, height: int, width: int) -> None:
        _resize(self._master, height, width)
        self.process.send_signal(signal.SIGWINCH)


def _resize(descriptor: int, height: int, width: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


async def test_it_follows_the_cluster_in_a_terminal_of_changing_size_and_leaves_the_terminal_as_it_was(
    api_server: SimulatedApiServer, kube: Kube, tmp_path: Path
) -> None:
    await kube.create(NODES, node())
    await kube.create(RESOURCE_SLICES, slice_of("node-1"))
    terminal = await Terminal.started(api_server.kubeconfig(tmp_path / "kubeconfig"))
    try:
        await terminal.shows(r"\x1b\[\?1049h")
        await terminal.shows("2 GPUs on 1 node · 2 free")
        user = await kube.create(PODS, pod("train-pod", ["train"]))
        await allocate(kube, await kube.create(RESOURCE_CLAIMS, claim("train")), result("gpu-0"), pods=[user])
        await terminal.shows("1 free · 1 in use")
        terminal.resize(12, 40)
        await terminal.shows("█ ·")
        terminal.resize(24, 90)
        await terminal.shows("████████ ········")
        terminal.send("\r")
        await terminal.shows("Node node-1: 2 GPUs")
        terminal.send("\r")
        await terminal.shows("default/train")
        terminal.send("\x1bq")
        await terminal.shows(r"\x1b\[\?1049l")
        assert await terminal.process.wait() == 0
    finally:
        if terminal.process.returncode is None:
            terminal.process.kill()


async def test_it_ends_with_its_terminal(api_server: SimulatedApiServer, tmp_path: Path) -> None:
    """Its process may be in a session without a controlling terminal, to which no SIGHUP comes."""
    terminal = await Terminal.started(api_server.kubeconfig(tmp_path / "kubeconfig"))
    try:
        await terminal.shows("0 GPUs")
        terminal.hang_up()
        async with asyncio.timeout(60):
            assert await terminal.process.wait() == 128 + signal.SIGHUP
    finally:
        if terminal.process.returncode is None:
            terminal.process.kill()


async def test_who_ends_top_does_not_wait_for_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def no_world(*_: object) -> None: ...

    def endless(_: object, __: object, scope: Scope) -> None:
        begun.set()
        while not scope.limit.enough():
            pass
        raise InvalidInput("ended")

    monkeypatch.setattr("dra_driver.cli.reading.live.live_world", no_world)
    monkeypatch.setattr("dra_driver.explain.explain.explain_pod", endless)
    nothing: Any = None
    top = _Top(nothing, GPU_DRIVER)
    explaining = asyncio.create_task(top._explanation("team-a/train"))
    await asyncio.to_thread(begun.wait)
    top._press("q")
    assert await asyncio.wait_for(explaining, 10.0) == ("It cannot be explained: ended",)
