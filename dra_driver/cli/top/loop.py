"""The loop of `dractl top`: keys, watches and exporters in, frames out."""

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live

from dra_driver.api.core import Pod
from dra_driver.api.meta import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask
from dra_driver.cli.tables.following import Following
from dra_driver.cli.tables.seen import FOLLOWED, Board, KnownGpus
from dra_driver.cli.top.screen import Screen, Size, TopView, frame, pressed
from dra_driver.errors import ClusterError, DriverError, InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.runtime.tasks import end_tasks, until
from dra_driver.terminal import SafeConsole

_FRAME_S = 0.1
"""At most so often what changed is drawn."""
_EXPORTERS_S = 10.0
_EXPORTER_PORT = 9400
_MOST_METRICS = 4 * 2**20
_HUNG_UP = 128 + signal.SIGHUP
"""Status, as if the signal had ended it."""
_EXPLAINING_S = 20.0
"""After this time, or when the user ends `top`, nodes are not decided: the thread would keep the program running."""
_TICK_S = 1.0
"""Ages grow without a change."""


def top(
    driver: Annotated[str, typer.Option("--driver", help="The driver of the GPUs.")] = GPU_DRIVER,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Watch the GPUs of all nodes in the terminal: what is free, in use and unhealthy, and who uses it.

    A line is a node, with a small bar for each GPU; nodes with problems come first. Enter opens a node, then a GPU,
    then a claim; w shows the pods that wait, and Enter explains one. / filters by names of nodes, GPUs, claims and
    pods, s sorts, q ends. If pods of NVIDIA's DCGM exporter run and you may reach them, USE is the utilization.

    \b
    Examples:
      dractl top
      dractl top --context production
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("needs a terminal; dractl get nodes -w prints what changes", about="dractl top")
    with suppress(KeyboardInterrupt):
        ask(kubeconfig, context, lambda kube: _Top(kube, driver).run())


class _Top:
    def __init__(self, kube: Kube, driver: str) -> None:
        self._kube = kube
        self._driver = driver
        self._console = SafeConsole(highlight=False, emoji=False)
        self._screen = Screen()
        self._explained: dict[str, Sequence[str]] = {}
        self._use: dict[str, float] = {}
        self._known = KnownGpus({}, {}, {})
        self._nodes: Sequence[str] = ()
        """On the screen."""
        self._wake = asyncio.Event()
        self._done = False

    async def run(self) -> None:
        """Until the user ends it. Raises ClusterError when slices or claims cannot be read."""
        _, minor = await self._kube.server_version()
        board = Board(self._driver, minor)
        following = Following(self._kube, FOLLOWED, on_change=board.learn)
        tasks = [asyncio.create_task(task) for task in (self._explain(), self._ask_exporters(board), self._tick())]
        try:
            with Live(console=self._console, screen=True, auto_refresh=False) as live, _keys(self._press):
                async with following.running():
                    await self._draw(live, board, following, tasks)
        finally:
            self._done = True
            await end_tasks(*tasks)

    async def _draw(self, live: Live, board: Board, following: Following, beside: Sequence[asyncio.Task[None]]) -> None:
        read = False
        while not self._done:
            for task in beside:
                if task.done():
                    task.result()
            if not read and not following.reading():
                read = True
                await following.until_read((RESOURCE_SLICES, RESOURCE_CLAIMS))
            board.refresh()
            self._known = board.known(self._use, [*following.notes(()), *([] if following.reading() else board.notes)])
            drawn = frame(self._screen, self._view())
            self._nodes = drawn.nodes
            live.update(Group(*drawn.lines), refresh=True)
            await self._rest(board, following)

    async def _rest(self, board: Board, following: Following) -> None:
        """Until there is something to draw. Keys are drawn at once, changes together."""
        end = asyncio.get_running_loop().time() + _FRAME_S
        while board.stale and asyncio.get_running_loop().time() < end and not self._wake.is_set():
            board.refresh()
            await asyncio.sleep(0)
        if not board.stale:
            waits = [asyncio.create_task(event.wait()) for event in (self._wake, following.changed)]
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            if waits[0] not in done:
                await until(self._wake, _FRAME_S)
        self._wake.clear()
        following.changed.clear()

    def _view(self) -> TopView:
        return TopView(self._known, Size(*self._console.size), self._explained, datetime.now(UTC))

    def _press(self, text: str) -> None:
        for key in keys(text):
            screen = pressed(key, self._screen, self._view())
            self._done = self._done or screen is None
            self._screen = screen or self._screen
        self._wake.set()

    async def _tick(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._wake.set)
        while True:
            await asyncio.sleep(_TICK_S)
            self._wake.set()

    async def _explain(self) -> None:
        """The pod that the screen asks for, in a thread: to try each node of a large cluster takes seconds."""
        while True:
            pod = self._screen.explaining
            if pod is not None and pod not in self._explained:
                self._explained[pod] = await self._explanation(pod)
                self._wake.set()
            if pod is None:
                self._explained.clear()
            await asyncio.sleep(_FRAME_S)

    async def _explanation(self, pod: str) -> Sequence[str]:
        # They take longer to import than the first frame to draw.
        from dra_driver.allocation.search import Limit
        from dra_driver.cli.reading.files import deadline
        from dra_driver.cli.reading.live import live_world
        from dra_driver.explain.explain import Scope, explain_pod
        from dra_driver.explain.wording import sentences

        namespace, _, name = pod.partition("/")
        try:
            world = await live_world(self._kube, namespace)
            ends = deadline(_EXPLAINING_S)
            limit = Limit(enough=lambda: self._done or ends())
            scope = Scope(enough=limit.enough, limit=limit)
            explanation = await asyncio.to_thread(explain_pod, world, (namespace, name), scope)
        except DriverError as error:
            return (f"It cannot be explained: {error}",)
        return sentences(explanation, self._console.width)

    async def _ask_exporters(self, board: Board) -> None:
        """Of the nodes on the screen."""
        while True:
            await asyncio.sleep(_TICK_S)
            if pods := board.exporters(self._nodes):
                for answer in await asyncio.gather(*map(self._asked, pods)):
                    self._use |= answer
                self._wake.set()
                await asyncio.sleep(_EXPORTERS_S)

    async def _asked(self, pod: Pod) -> dict[str, float]:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{_EXPORTER_PORT}/proxy/metrics"
        try:
            return utilization([line async for line in self._kube.lines(path, most_bytes=_MOST_METRICS)])
        except ClusterError:
            return {}


# -- exporters

_METRIC = re.compile(rb"(DCGM_FI_DEV_GPU_UTIL|DCGM_FI_PROF_GR_ENGINE_ACTIVE)\{([^}]*)\} ([0-9.eE+-]+)")
_UUID = re.compile(rb'UUID="(GPU-[^"]+)"')


def utilization(lines: Iterable[bytes]) -> dict[str, float]:
    """Percent by UUID of the GPU, from the text of NVIDIA's DCGM exporter.

    The share of time in which the compute engine worked counts, where it is measured: it is also there for GPUs in MIG
    mode, for each instance, of which the mean counts. Otherwise it is GPU_UTIL.
    """
    engines: dict[str, list[float]] = {}
    gpus: dict[str, float] = {}
    for line in lines:
        if (metric := _METRIC.match(line)) is None or (uuid := _UUID.search(metric[2])) is None:
            continue
        name, value = uuid[1].decode(), float(metric[3])
        if metric[1].endswith(b"ACTIVE"):
            engines.setdefault(name, []).append(100 * value)
        elif value <= 100:  # a field that the GPU does not have is a number near 2**63
            gpus[name] = value
    return gpus | {name: sum(values) / len(values) for name, values in engines.items() if max(values) <= 100}


# -- keys

_ESCAPES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[H": "home", "\x1b[F": "end",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left", "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\x08": "backspace",
}  # fmt: skip
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])?|.", re.DOTALL)


def keys(text: str) -> Iterator[str]:
    """What was pressed, of what a terminal sent; sequences that mean nothing here are left out."""
    for sequence in _KEY.findall(text):
        key = _ESCAPES.get(sequence, sequence)
        if len(key) > 1 and key.startswith("\x1b"):
            continue
        yield key


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Reads keys as they are pressed, and gives the terminal back as it was. When the terminal is gone, the program
    ends without its cleanup, which has no place to write to.
    """
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read() -> None:
        try:
            sent = os.read(descriptor, 1024)
        except OSError:
            sent = b""
        if not sent:
            os._exit(_HUNG_UP)
        press(sent.decode(errors="ignore"))

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
