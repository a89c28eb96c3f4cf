"""Writes docs/pictures/top.svg: `dractl top` on a simulated cluster while a GPU fails and comes back. `make pictures`.

The real program in a real terminal device; the keys are pressed, and the GPU fails, as in the captions.
"""

import asyncio
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from docs.pictures.frames import Frame, last_frame, moving_picture
from dra_driver import bundled
from dra_driver.cli import scenario as scenarios
from dra_driver.simulation.cluster import SimulatedCluster, parse_nodes

PICTURE = Path(__file__).with_suffix(".svg")
NODES = "dgx-h100:2,l40s:2,t4"
RUNNING = ("by-memory-and-architecture", "nvlink-pair", "one-gpu", "time-slicing-one-claim", "two-containers-one-claim")
COLUMNS, LINES = 120, 14
_LIMIT_S = 150.0
"""A GPU that is back counts as healthy after a minute."""


class Terminal:
    """A program in a terminal of `COLUMNS` and `LINES`."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._output = ""
        self._device, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, **variables, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True
        )
        os.close(inner)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        data = bytearray()
        while True:
            try:
                data += os.read(self._device, 65536)
            except OSError:
                return
            self._output = data.decode(errors="ignore")

    def press(self, keys: str) -> None:
        os.write(self._device, keys.encode())

    async def shows(self, *words: str, without: str = "") -> str:
        """The frame that has all these words; raises TimeoutError."""
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            frame = last_frame(self._output)
            if all(word in frame for word in words) and not (without and without in frame):
                # What belongs to it may come a moment later.
                await asyncio.sleep(1.5)
                return last_frame(self._output)
            await asyncio.sleep(0.2)
        raise TimeoutError(f"dractl top does not show {words}:\n{last_frame(self._output)}")

    def end(self) -> None:
        self.press("q")
        self._process.wait(30)
        os.close(self._device)


@contextmanager
def _top(kubeconfig: Path) -> Iterator[Terminal]:
    program = shutil.which("dractl", path=str(Path(sys.executable).parent)) or "dractl"
    terminal = Terminal([program, "top"], {"KUBECONFIG": str(kubeconfig)})
    try:
        yield terminal
    finally:
        terminal.end()


async def recorded() -> list[Frame]:
    """The frames of the story."""
    with tempfile.TemporaryDirectory(prefix="dractl-") as folder:
        async with SimulatedCluster.running(Path(folder), parse_nodes(NODES)) as cluster:
            for path in sorted(bundled.FEATURES_FOLDER.iterdir()):
                if path.name in RUNNING:
                    scenario = scenarios.read_scenario(path)
                    await scenarios.apply(cluster.kube, scenario)
                    await scenarios.wait_running(cluster, scenario, _LIMIT_S)
            with _top(cluster.kubeconfig) as terminal:
                return [frame async for frame in _story(terminal, _simulate(cluster.kubeconfig))]


def _simulate(kubeconfig: Path) -> Callable[..., Awaitable[None]]:
    async def simulate(*words: str) -> None:
        command = [sys.executable, "-m", "dra_driver.cli", "simulate", *words]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        await asyncio.to_thread(subprocess.run, command, env=environment, check=True, capture_output=True)

    return simulate


async def _story(terminal: Terminal, simulate: Callable[..., Awaitable[None]]) -> AsyncIterator[Frame]:
    yield Frame(await terminal.shows("6 in use"), "All GPUs are healthy. A line is a node, a block a GPU", 3)
    await simulate("dgx-h100-1", "lose-gpu", "3")
    yield Frame(
        await terminal.shows("1 unhealthy"), "A GPU falls off the bus: its node comes first, with the problem", 4
    )
    terminal.press("\r")
    yield Frame(await terminal.shows("CLAIMS", "unhealthy"), "Enter opens the node: the failed GPU, and who used it", 4)
    await simulate("dgx-h100-1", "return-gpu", "3")
    terminal.press("\x1b")
    yield Frame(await terminal.shows("NODE", without="unhealthy"), "The GPU was repaired: its node offers it again", 4)


def main() -> None:
    PICTURE.write_text(moving_picture(asyncio.run(recorded()), COLUMNS, LINES), encoding="utf-8")
    print(f"{PICTURE} ({PICTURE.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
